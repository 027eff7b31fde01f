/*
 * Products of panels (products/unit.h): the rounding of results, and the unit "dots".
 *
 * dots: a block of up to 8 rows and 32 columns in 16 accumulators. Per pair of k there are two
 * loads of B, and for each row one broadcast and two dot products, so that the products are the
 * limit and not the loads.
 */
#include <ctitan/clock.h>

#include "../products/unit.h"
#include "vector.h"

CPU_INLINE void finish_as(enum ct_dtype dtype, bool add, const float *sum, int64_t rows,
                          int64_t columns, char *c, int64_t c_row)
{
    for (int64_t r = 0; r < rows; r++, sum += CPU_PANEL, c += c_row)
        for (int64_t i = 0; i < columns; i += CPU_LANES) {
            vf v = v_load(sum + i);

            v_put(dtype, c, i, columns, add ? v + v_get(dtype, c, i, columns) : v);
        }
}

static void finish(const float *sum, int64_t rows, int64_t columns, const struct cpu_result *to)
{
    if (to->dtype == CT_F32 && to->add)
        finish_as(CT_F32, true, sum, rows, columns, to->at, to->row);
    else if (to->dtype == CT_F32)
        finish_as(CT_F32, false, sum, rows, columns, to->at, to->row);
    else if (to->add)
        finish_as(CT_BF16, true, sum, rows, columns, to->at, to->row);
    else
        finish_as(CT_BF16, false, sum, rows, columns, to->at, to->row);
}

#ifdef CPU_BF16
#define ROWS 8
#define DEPTH 16 /* of B at a time: half a step */
#define PAIRS (DEPTH / 2)
#define PAIR_BYTES 64             /* of 16 columns */
#define HALF (CPU_STEP_BYTES / 2) /* of a step: its left and its right columns */
#define B_AHEAD CPU_STEP_BYTES    /* bytes of B to prefetch from L2 */

/* Row r of A: every third row has a pointer, so that few registers hold addresses. A compiler that
   knew `row` would keep sums of it and of all offsets, in more registers than there are. */
CPU_INLINE __m512bh pair_of(const char *const at[ROWS / 3 + 1], int64_t row, int r, int64_t offset)
{
    int32_t pair;

    __asm__("" : "+r"(row));
    memcpy(&pair, at[r / 3] + r % 3 * row + offset, sizeof(pair));
    return (__m512bh)_mm512_set1_epi32(pair);
}

/* All loops over rows and halves are unrolled early: else the sums would pass through the stack. */
CPU_INLINE void load(const int rows, const int halves, const float *sum, __m512 c[ROWS][2])
{
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 2
        for (int h = 0; h < halves; h++)
            c[r][h] = sum ? _mm512_loadu_ps(sum + r * CPU_PANEL + h * 16) : _mm512_setzero_ps();
}

CPU_INLINE void dots(const int rows, const int halves, const struct cpu_panel *a, const int64_t row,
                     const int64_t pair, const char *b, int64_t depth, __m512 c[ROWS][2])
{
    const char *at[ROWS / 3 + 1];

#pragma GCC unroll 3
    for (int i = 0; i <= (rows - 1) / 3; i++)
        at[i] = a->at + 3 * i * row;
    for (int64_t k = 0; k < depth; k += DEPTH) {
#pragma GCC unroll 8
        for (int p = 0; p < PAIRS; p++) {
            __m512bh columns[2];

#pragma GCC unroll 2
            for (int h = 0; h < halves; h++) {
                const char *from = b + p * PAIR_BYTES + h * HALF;

                columns[h] = (__m512bh)_mm512_loadu_si512(from);
                _mm_prefetch(from + B_AHEAD, _MM_HINT_T0);
            }
#pragma GCC unroll 8
            for (int r = 0; r < rows; r++) {
                __m512bh x = pair_of(at, row, r, p * pair);

#pragma GCC unroll 2
                for (int h = 0; h < halves; h++)
                    c[r][h] = _mm512_dpbf16_ps(c[r][h], x, columns[h]);
            }
        }
#pragma GCC unroll 3
        for (int i = 0; i <= (rows - 1) / 3; i++)
            at[i] += k % CPU_PANEL ? a->step - PAIRS * pair : PAIRS * pair;
        b += k % CPU_PANEL ? CPU_STEP_BYTES - PAIRS * PAIR_BYTES : PAIRS * PAIR_BYTES;
    }
}

/* Two kinds of A: in place, with pairs side by side; interleaved, with rows side by side. */
CPU_INLINE void dots_of(const int rows, const int halves, const struct cpu_panel *a, const char *b,
                        int64_t depth, __m512 c[ROWS][2])
{
    if (a->pair == 4)
        dots(rows, halves, a, a->row, 4, b, depth, c);
    else
        dots(rows, halves, a, 4, 128, b, depth, c);
}

CPU_INLINE void multiply_part(const int rows, const int halves, const struct cpu_panel *a,
                              const char *b, int64_t depth, float *sum, bool add)
{
    __m512 c[ROWS][2];

    load(rows, halves, add ? sum : NULL, c);
    dots_of(rows, halves, a, b, depth, c);
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 2
        for (int h = 0; h < halves; h++)
            _mm512_storeu_ps(sum + r * CPU_PANEL + h * 16, c[r][h]);
}

static void multiply(const struct cpu_panel *a, const char *b, struct cpu_extent extent, float *sum,
                     bool add)
{
    switch (extent.rows * 2 + (extent.columns > CPU_PANEL / 2)) {
#define CASES(rows)                                                                                \
    case rows * 2:                                                                                 \
        multiply_part(rows, 1, a, b, extent.depth, sum, add);                                      \
        break;                                                                                     \
    case rows * 2 + 1:                                                                             \
        multiply_part(rows, 2, a, b, extent.depth, sum, add);                                      \
        break;
        CASES(1)
        CASES(2)
        CASES(3)
        CASES(4)
        CASES(5)
        CASES(6)
        CASES(7)
        CASES(8)
    }
}

CPU_INLINE void put(enum ct_dtype dtype, bool add, __m512 c[ROWS][2], char *to, int64_t row)
{
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; r++, to += row)
#pragma GCC unroll 2
        for (int h = 0; h < 2; h++) {
            vf v = (vf)c[r][h];

            v_put(dtype, to, h * 16, CPU_PANEL, add ? v + v_get(dtype, to, h * 16, CPU_PANEL) : v);
        }
}

static void complete(const struct cpu_panel *a, const char *b, int64_t depth, const float *sum,
                     const struct cpu_result *to, struct cpu_beside *beside)
{
    __m512 c[ROWS][2];

    (void)beside;
    load(ROWS, 2, sum, c);
    dots_of(ROWS, 2, a, b, depth, c);
    if (to->dtype == CT_F32 && to->add)
        put(CT_F32, true, c, to->at, to->row);
    else if (to->dtype == CT_F32)
        put(CT_F32, false, c, to->at, to->row);
    else if (to->add)
        put(CT_BF16, true, c, to->at, to->row);
    else
        put(CT_BF16, false, c, to->at, to->row);
}

static void nothing(void)
{
}

/* Pairs side by side for all columns of a panel. */
static void interleave(const struct cpu_packed_from *from, char *to, int64_t panel)
{
    struct cpu_lines lines = cpu_panel_lines(panel);

    lines.line = CPU_LINE_BYTES;
    lines.row = 2 * CPU_LINE_BYTES;
    CPU_ISA(cpu_pack_rows)(&lines, from, to);
}

static const struct cpu_unit unit = {
    .name = "dots",
    .rows = ROWS,
    .partial = true,
    .depth = 1024,
    .columns = 128,
    .block = 512 << 10,
    .begin = nothing,
    .end = nothing,
    .multiply = multiply,
    .complete = complete,
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

const struct cpu_panels CPU_ISA(cpu_panels) = {CPU_ISA(cpu_pack_rows),
                                               CPU_ISA(cpu_pack_columns),
                                               CPU_ISA(cpu_pack_transposed),
                                               finish,
                                               CPU_ISA(cpu_swiglu_row),
                                               CPU_ISA(cpu_swiglu_grad_row),
                                               UNIT};
