/*
 * Panels of bfloat16 matrices (products/unit.h): packing, rounding of results, and the unit "dots".
 *
 * dots: a block of up to 11 rows and 32 columns in 22 accumulators. Per pair of k there are two
 * loads of B, and for each row one broadcast and two dot products, so that the products are the
 * limit and not the loads.
 */
#include <ctitan/clock.h>

#include "../products/unit.h"
#include "vector.h"

#define HALF (CPU_PANEL / 2)

/* LANES elements from i on as bfloat16; those beyond n are zero. */
CPU_INLINE vh halves(enum ct_dtype dtype, const void *row, int64_t i, int64_t n)
{
    vh v = {0};

    if (dtype == CT_F32)
        return n > i ? v_narrow(v_get(CT_F32, row, i, n)) : v;
    if (n >= i + CPU_LANES)
        memcpy(&v, (const uint16_t *)row + i, sizeof(v));
    else if (n > i)
        memcpy(&v, (const uint16_t *)row + i, (size_t)(n - i) * 2);
    return v;
}

static const void *row_of(const struct cpu_packed_from *f, int64_t row)
{
    return (const char *)f->at + (size_t)(row * f->stride) * ct_dtype_size(f->dtype);
}

#define AHEAD 8 /* rows to prefetch: they lie far apart, where the hardware does not */

/* Rows `row` and row + 1 in pairs, PANEL columns from `column` on: half of them to each side. */
CPU_INLINE void pair_rows(enum ct_dtype dtype, const struct cpu_packed_from *f, int64_t row,
                          int64_t column, void *left, void *right)
{
    const void *even = row_of(f, row), *odd = row_of(f, row + 1);
    int64_t n_even = row < f->rows ? f->columns : 0, n_odd = row + 1 < f->rows ? f->columns : 0;

    for (int64_t i = 0; i < CPU_PANEL; i += CPU_LANES) {
        vu low = __builtin_convertvector(halves(dtype, even, column + i, n_even), vu);
        vu high = __builtin_convertvector(halves(dtype, odd, column + i, n_odd), vu);
        vu both = low | high << 16;

        memcpy(i < HALF ? (uint32_t *)left + i : (uint32_t *)right + i - HALF, &both, sizeof(both));
    }
}

CPU_INLINE void prefetch_rows(const struct cpu_packed_from *f, int64_t row, int64_t column)
{
    size_t at = (size_t)column * ct_dtype_size(f->dtype);

    __builtin_prefetch((const char *)row_of(f, row + AHEAD) + at);
    __builtin_prefetch((const char *)row_of(f, row + 1 + AHEAD) + at);
}

#define COLUMNS_AHEAD (4 * CPU_PANEL)

/* A step of a panel before the next panel, so that what is written is contiguous. */
CPU_INLINE void pack_pairs_as(enum ct_dtype dtype, const struct cpu_packed_from *f, char *to,
                              int64_t panel, int64_t pair, int64_t half)
{
    for (int64_t row = 0; row < f->rows; row += CPU_PANEL, to += CPU_STEP_BYTES)
        for (int64_t i = 0; i < f->columns; i += CPU_PANEL) {
            char *at = to + i / CPU_PANEL * panel;
            int64_t column = i + COLUMNS_AHEAD, next = row;

            for (; column >= f->columns; next += CPU_PANEL)
                column -= (f->columns + CPU_PANEL - 1) / CPU_PANEL * CPU_PANEL;

            for (int64_t p = 0; p < HALF; p++, at += pair) {
                prefetch_rows(f, next + 2 * p - AHEAD, column);
                __builtin_prefetch(at + panel, 1);
                __builtin_prefetch(at + panel + half, 1);
                pair_rows(dtype, f, row + 2 * p, i, at, at + half);
            }
        }
}

static void pack_pairs(const struct cpu_packed_from *f, char *to, int64_t panel, int64_t pair,
                       int64_t half)
{
    if (f->dtype == CT_F32)
        pack_pairs_as(CT_F32, f, to, panel, pair, half);
    else
        pack_pairs_as(CT_BF16, f, to, panel, pair, half);
}

static void pack_backward(const struct cpu_packed_from *f, char *to, int64_t panel)
{
    pack_pairs(f, to, panel, 64, CPU_STEP_BYTES / 2);
}

static void interleave(const struct cpu_packed_from *f, char *to, int64_t panel)
{
    pack_pairs(f, to, panel, 128, 64);
}

/* 16 rows of 16 dwords, transposed; both contiguous in `to`, rows from_row dwords apart. */
CPU_INLINE void transpose_dwords(const uint32_t *from, int64_t from_row, uint32_t *to)
{
    for (int64_t i = 0; i < HALF; i += CPU_LANES)
        for (int64_t j = 0; j < HALF; j += CPU_LANES) {
            vf block[CPU_LANES];

            for (int64_t r = 0; r < CPU_LANES; r++)
                memcpy(&block[r], from + (i + r) * from_row + j, sizeof(vf));
            v_transpose(block);
            for (int64_t r = 0; r < CPU_LANES; r++)
                memcpy(to + (j + r) * HALF + i, &block[r], sizeof(vf));
        }
}

static void pack_forward(const struct cpu_packed_from *f, char *to)
{
    uint16_t rows[HALF][CPU_PANEL] __attribute__((aligned(64)));

    for (int64_t k = 0; k < f->columns; k += CPU_PANEL)
        for (int64_t half = 0; half < CPU_PANEL; half += HALF, to += CPU_STEP_BYTES / 2) {
            for (int64_t r = 0; r < HALF; r++)
                for (int64_t i = 0; i < CPU_PANEL; i += CPU_LANES) {
                    const void *row = row_of(f, half + r);
                    int64_t n = half + r < f->rows ? f->columns : 0;
                    vh v = f->dtype == CT_F32 ? halves(CT_F32, row, k + i, n)
                                              : halves(CT_BF16, row, k + i, n);

                    memcpy(&rows[r][i], &v, sizeof(v));
                }
            transpose_dwords((const uint32_t *)rows, HALF, (uint32_t *)to);
        }
}

static void transpose(const struct cpu_packed_from *f, char *to, int64_t panel)
{
    uint32_t pairs[2][HALF][HALF] __attribute__((aligned(64)));

    for (int64_t row = 0; row < f->rows; row += CPU_PANEL, to += CPU_STEP_BYTES)
        for (int64_t i = 0; i < f->columns; i += CPU_PANEL) {
            char *at = to + i / CPU_PANEL * panel;

            for (int64_t p = 0; p < HALF; p++) {
                prefetch_rows(f, row + 2 * p + CPU_PANEL - AHEAD, i);
                pair_rows(CT_BF16, f, row + 2 * p, i, pairs[0][p], pairs[1][p]);
            }
            transpose_dwords(pairs[0][0], HALF, (uint32_t *)at);
            transpose_dwords(pairs[1][0], HALF, (uint32_t *)(at + CPU_STEP_BYTES / 2));
        }
}

CPU_INLINE void finish_as(enum ct_dtype dtype, bool add, const float *sum, int64_t rows,
                          int64_t columns, char *c, int64_t c_row)
{
    for (int64_t r = 0; r < rows; r++, sum += CPU_PANEL, c += c_row)
        for (int64_t i = 0; i < columns; i += CPU_LANES) {
            vf v = v_load(sum + i);

            v_put(dtype, c, i, columns, add ? v + v_get(dtype, c, i, columns) : v);
        }
}

static void finish(const float *sum, int64_t rows, int64_t columns, enum ct_dtype dtype, void *c,
                   int64_t c_row, bool add)
{
    int64_t row = c_row * (int64_t)ct_dtype_size(dtype);

    if (dtype == CT_F32 && add)
        finish_as(CT_F32, true, sum, rows, columns, c, row);
    else if (dtype == CT_F32)
        finish_as(CT_F32, false, sum, rows, columns, c, row);
    else if (add)
        finish_as(CT_BF16, true, sum, rows, columns, c, row);
    else
        finish_as(CT_BF16, false, sum, rows, columns, c, row);
}

#ifdef CPU_BF16
#define ROWS 11
#define B_AHEAD CPU_STEP_BYTES /* bytes of B to prefetch from L2 */

/* Row r of A: every third row has a pointer, so that few registers hold addresses. */
CPU_INLINE __m512bh pair_of(const char *const at[ROWS / 3 + 1], int64_t row, int r, int64_t offset)
{
    int32_t pair;

    memcpy(&pair, at[r / 3] + r % 3 * row + offset, sizeof(pair));
    return (__m512bh)_mm512_set1_epi32(pair);
}

CPU_INLINE void dots(const int rows, const struct cpu_panel *a, const int64_t row,
                     const int64_t pair, const char *b, int64_t steps, float *sum, bool add)
{
    const char *at[ROWS / 3 + 1];
    __m512 c[ROWS][2];

    for (int r = 0; r < rows; r++)
        for (int v = 0; v < 2; v++)
            c[r][v] = add ? _mm512_loadu_ps(sum + r * CPU_PANEL + v * 16) : _mm512_setzero_ps();
    for (int i = 0; i <= (rows - 1) / 3; i++)
        at[i] = a->at + 3 * i * row;
    for (; steps > 0; steps--, b += CPU_STEP_BYTES) {
        for (int p = 0; p < HALF; p++) {
            __m512bh left = (__m512bh)_mm512_loadu_si512(b + p * 64);
            __m512bh right = (__m512bh)_mm512_loadu_si512(b + p * 64 + 1024);

            _mm_prefetch(b + p * 64 + B_AHEAD, _MM_HINT_T0);
            _mm_prefetch(b + p * 64 + 1024 + B_AHEAD, _MM_HINT_T0);
            for (int r = 0; r < rows; r++) {
                __m512bh x = pair_of(at, row, r, p * pair);

                c[r][0] = _mm512_dpbf16_ps(c[r][0], x, left);
                c[r][1] = _mm512_dpbf16_ps(c[r][1], x, right);
            }
        }
        for (int i = 0; i <= (rows - 1) / 3; i++)
            at[i] += a->step;
    }
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < 2; v++)
            _mm512_storeu_ps(sum + r * CPU_PANEL + v * 16, c[r][v]);
}

/* Two kinds of A: in place, with pairs side by side; interleaved, with rows side by side. */
CPU_INLINE void dots_rows(const int rows, const struct cpu_panel *a, const char *b, int64_t steps,
                          float *sum, bool add)
{
    if (a->pair == 4)
        dots(rows, a, a->row, 4, b, steps, sum, add);
    else
        dots(rows, a, 4, 128, b, steps, sum, add);
}

static void multiply(const struct cpu_panel *a, int rows, const char *b, int64_t steps, float *sum,
                     bool add)
{
    switch (rows) {
#define CASE(n)                                                                                    \
    case n:                                                                                        \
        dots_rows(n, a, b, steps, sum, add);                                                       \
        break;
        CASE(1)
        CASE(2)
        CASE(3)
        CASE(4)
        CASE(5)
        CASE(6)
        CASE(7)
        CASE(8)
        CASE(9)
        CASE(10)
        CASE(11)
    }
}

static void nothing(void)
{
}

static const struct cpu_unit unit = {
    .name = "dots",
    .rows = ROWS,
    .partial = true,
    .begin = nothing,
    .end = nothing,
    .multiply = multiply,
    .pack_transposed = interleave,
    .packed = {.row = 4, .pair = 128, .step = CPU_STEP_BYTES},
};
#define CHAINS 12

/* Seconds of so many dot products, or multiply-adds, in independent chains: the best of several. */
CPU_INLINE double time_chains(const bool dot)
{
    double best = 1;

    for (int i = 0; i < 16; i++) {
        __m512 sum[CHAINS] = {0}, zero = {0};
        double begin = ct_now(), end;

        for (int n = 0; n < 500; n++)
#pragma GCC unroll 12
            for (int c = 0; c < CHAINS; c++)
                if (dot)
                    __asm__ volatile("vdpbf16ps %1, %1, %0" : "+v"(sum[c]) : "v"(zero));
                else
                    __asm__ volatile("vfmadd231ps %1, %1, %0" : "+v"(sum[c]) : "v"(zero));
        end = ct_now();
        best = end - begin < best ? end - begin : best;
    }
    return best;
}

static double dots_rate(void *context)
{
    (void)context;
    return time_chains(false) / time_chains(true);
}

#define UNIT &unit, dots_rate
#else
#define UNIT NULL, NULL
#endif

const struct cpu_panels CPU_ISA(cpu_panels) = {pack_forward, pack_backward, finish,
                                               interleave,   transpose,     UNIT};
