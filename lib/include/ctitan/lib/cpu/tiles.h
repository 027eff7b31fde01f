/*
 * For kernels of the cpu (ctitan/lib/cpu.h): tiles of AMX, or with CPU_TILES_EMULATED plain C with
 * the same results bit by bit. A source with tiles is built with -mamx-tile -mamx-bf16, and once
 * more with CPU_TILES_EMULATED for tests; ct_cpu_has_tiles() says whether the process may use AMX.
 *
 * A tile is 16 rows of 64 bytes: 16x16 float32, 16x32 bfloat16 (A), or 16 pairs of rows by 16
 * columns of bfloat16 (B). Tile numbers are constants. Source: Intel 64 and IA-32 Architectures
 * Software Developer's Manual, TDPBF16PS and TILELOADD.
 */
#ifndef CT_CPU_TILES_H
#define CT_CPU_TILES_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#ifndef CPU_TILES_EMULATED
#include <immintrin.h>

struct tile_config {
    uint8_t palette, start_row, reserved[14];
    uint16_t bytes[16];
    uint8_t rows[16];
} __attribute__((aligned(64)));

/* The configuration belongs to the thread, and other libraries change it. */
static inline void tile_begin(void)
{
    struct tile_config c = {.palette = 1};

    for (int i = 0; i < 8; i++) {
        c.bytes[i] = 64;
        c.rows[i] = 16;
    }
    __asm__ volatile("ldtilecfg %0" ::"m"(c)); /* GCC 12 drops stores before _tile_loadconfig */
}

static inline void tile_end(void)
{
    _tile_release();
}

#define tile_zero(t) _tile_zero(t)
#define tile_load(t, at, stride) _tile_loadd(t, at, stride)
#define tile_load_once(t, at, stride) _tile_stream_loadd(t, at, stride) /* past the L1 cache */
#define tile_store(t, at, stride) _tile_stored(t, at, stride)
#define tile_product(c, a, b) _tile_dpbf16ps(c, a, b)

#else

static _Thread_local union {
    unsigned char row[16][64];
    float sum[16][16];
    uint16_t half[16][32];
} tiles[8];

static inline void tile_begin(void)
{
}

static inline void tile_end(void)
{
}

static inline void tile_zero(int t)
{
    memset(&tiles[t], 0, sizeof(tiles[t]));
}

static inline void tile_load(int t, const void *at, int64_t stride)
{
    for (int r = 0; r < 16; r++)
        memcpy(tiles[t].row[r], (const char *)at + r * stride, 64);
}
#define tile_load_once tile_load

static inline void tile_store(int t, void *at, int64_t stride)
{
    for (int r = 0; r < 16; r++)
        memcpy((char *)at + r * stride, tiles[t].row[r], 64);
}

static inline float tile_flush(float x)
{
    return fabsf(x) < 0x1p-126f ? copysignf(0, x) : x;
}

static inline float tile_widen(uint16_t bits)
{
    uint32_t wide = (uint32_t)bits << 16;
    float x;

    memcpy(&x, &wide, sizeof(x));
    return tile_flush(x);
}

/* x y + sum, rounded once as fmaf does, which is slow without FMA. Products of bfloat16 numbers
   have 16 bits: what float64 loses of a sum never decides how float32 rounds it. */
static inline float tile_multiply_add(float x, float y, float sum)
{
    return tile_flush((float)((double)x * (double)y + (double)sum));
}

/* Even and odd products are summed apart by fused multiply-adds, then added, then added to c. */
static inline void tile_product(int c, int a, int b)
{
    float y[2][16][16];

    for (int k = 0; k < 16; k++)
        for (int n = 0; n < 16; n++)
            for (int i = 0; i < 2; i++)
                y[i][k][n] = tile_widen(tiles[b].half[k][2 * n + i]);
    for (int m = 0; m < 16; m++) {
        float sum[2][16] = {{0}}, *to = tiles[c].sum[m];

        for (int k = 0; k < 16; k++)
            for (int i = 0; i < 2; i++) {
                float x = tile_widen(tiles[a].half[m][2 * k + i]);

                for (int n = 0; n < 16; n++)
                    sum[i][n] = tile_multiply_add(x, y[i][k][n], sum[i][n]);
            }
        for (int n = 0; n < 16; n++)
            to[n] = tile_flush(tile_flush(to[n]) + tile_flush(sum[0][n] + sum[1][n]));
    }
}

#endif
#endif
