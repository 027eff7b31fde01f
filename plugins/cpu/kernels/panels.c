/*
 * Products of panels (products/unit.h): the rounding of results, and the units "dots" and
 * "multiply_adds".
 *
 * With AVX-512 a block of up to 8 rows and 32 columns lies in 16 accumulators, with AVX2 one of 6
 * rows and 16 columns in 12, so that a panel takes two passes. Portable code has blocks of 6 rows
 * and 8 columns. Per word of k there are two loads of B, and for each row one broadcast and two dot
 * products or multiply-adds, so that these are the limit and not the loads.
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

static void widen(const void *from, float *to, int64_t n)
{
    for (int64_t i = 0; i < n; i += CPU_LANES)
        v_put(CT_F32, (char *)to, i, n, v_get(CT_BF16, from, i, n));
}

#if CPU_REGISTERS == 16 && !defined(__clang__)
/* The tree-pre pass would read the first words of B in front of the loop, and spill the sums. */
#pragma GCC optimize("no-tree-pre")
#endif

#define ROWS (CPU_LANES == 16 ? 8 : 6)
#define VECTORS 2                  /* of B, in a pass */
#define PASS (VECTORS * CPU_LANES) /* columns */
#define WORDS 8                    /* of k at a time: half a step */
#define WORD_BYTES 64              /* of 16 columns */
#define HALF (CPU_STEP_BYTES / 2)  /* of a step: its left and its right columns */
/* Bytes of B to prefetch: what is read next, and what the first rows of a block find in no L2. */
#define B_AHEAD CPU_STEP_BYTES
#define B_SOON (4 * CPU_STEP_BYTES)

/* Bytes from a row of a step to its vector v, or from the first vector of a pass. */
CPU_INLINE int64_t vector_at(int v)
{
    return v * CPU_LANES / CPU_LINE * HALF + v * CPU_LANES % CPU_LINE * 4;
}

/* Row r of A: every third row has a pointer, so that few registers hold addresses. A compiler that
   knew `row` would keep sums of it and of all offsets, in more registers than there are. */
CPU_INLINE vf word_of(const char *const at[ROWS / 3 + 1], int64_t row, int r, int64_t offset)
{
    int32_t word;

    __asm__("" : "+r"(row));
    memcpy(&word, at[r / 3] + r % 3 * row + offset, sizeof(word));
#if CPU_LANES == 16
    return (vf)_mm512_set1_epi32(word);
#elif CPU_LANES == 8
    return (vf)_mm256_set1_epi32(word);
#else
    return (vf)v_seti(word);
#endif
}

/* sum + a b, of numbers or of pairs. */
CPU_INLINE vf product(const enum ct_dtype dtype, vf sum, vf a, vf b)
{
#ifdef CPU_BF16
    if (dtype == CT_BF16)
        return _mm512_dpbf16_ps(sum, (__m512bh)a, (__m512bh)b);
#endif
    (void)dtype;
#if CPU_LANES == 8 /* in place: the compiler would move sums between registers */
    __asm__("vfmadd231ps %2, %1, %0" : "+x"(sum) : "x"(a), "x"(b));
    return sum;
#else
    return a * b + sum;
#endif
}

/* Loops over rows and vectors are unrolled early: else sums would pass through the stack. */
CPU_INLINE void load(const int rows, const int vectors, const float *sum, vf c[ROWS][VECTORS])
{
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 2
        for (int v = 0; v < vectors; v++)
            c[r][v] = sum ? v_load(sum + r * CPU_PANEL + v * CPU_LANES) : (vf){0};
}

/* Fetches the columns of B that half a step reads. */
CPU_INLINE void fetch_columns(const char *b)
{
#pragma GCC unroll 8
    for (int w = 0; w < WORDS; w++)
#pragma GCC unroll 2
        for (int v = 0; v < VECTORS; v += CPU_LINE / CPU_LANES)
            __builtin_prefetch(b + w * WORD_BYTES + vector_at(v), 0, 2);
}

CPU_INLINE void add(const enum ct_dtype dtype, const int rows, const int vectors,
                    const struct cpu_panel *a, const int64_t row, const int64_t word, const char *b,
                    int64_t depth, bool first, vf c[ROWS][VECTORS])
{
    const char *at[ROWS / 3 + 1];
    int64_t words = (depth * cpu_bytes_of(dtype) + 3) / 4;

#pragma GCC unroll 3
    for (int i = 0; i <= (rows - 1) / 3; i++)
        at[i] = a->at + 3 * i * row;
    for (int64_t k = 0; k < words; k += WORDS) {
        if (first && k % (2 * WORDS) == 0)
            cpu_fetch_soon(a, k / (2 * WORDS));
        if (a->new_b)
            fetch_columns(b + B_SOON);
#pragma GCC unroll 8
        for (int w = 0; w < WORDS; w++) {
            vf columns[VECTORS];

#pragma GCC unroll 2
            for (int v = 0; v < vectors; v++) {
                const char *from = b + w * WORD_BYTES + vector_at(v);

                memcpy(&columns[v], from, sizeof(vf));
                if (v * CPU_LANES % CPU_LINE == 0)
                    __builtin_prefetch(from + B_AHEAD);
            }
#pragma GCC unroll 8
            for (int r = 0; r < rows; r++) {
                vf x = word_of(at, row, r, w * word);

#pragma GCC unroll 2
                for (int v = 0; v < vectors; v++)
                    c[r][v] = product(dtype, c[r][v], x, columns[v]);
            }
        }
#pragma GCC unroll 3
        for (int i = 0; i <= (rows - 1) / 3; i++)
            at[i] += k % (2 * WORDS) ? a->step - WORDS * word : WORDS * word;
        b += k % (2 * WORDS) ? CPU_STEP_BYTES - WORDS * WORD_BYTES : WORDS * WORD_BYTES;
    }
}

/* Two kinds of A: in place, with words side by side; interleaved, with rows side by side. */
CPU_INLINE void add_panel(const enum ct_dtype dtype, const int rows, const int vectors,
                          const struct cpu_panel *a, const char *b, int64_t depth, bool first,
                          vf c[ROWS][VECTORS])
{
    if (a->word == 4)
        add(dtype, rows, vectors, a, a->row, 4, b, depth, first, c);
    else
        add(dtype, rows, vectors, a, 4, 128, b, depth, first, c);
}

CPU_INLINE void multiply_part(const enum ct_dtype dtype, const int rows, const int vectors,
                              const struct cpu_panel *a, const char *b, int64_t depth, bool first,
                              float *sum, bool more)
{
    vf c[ROWS][VECTORS];

    load(rows, vectors, more ? sum : NULL, c);
    add_panel(dtype, rows, vectors, a, b, depth, first, c);
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 2
        for (int v = 0; v < vectors; v++)
            v_store(sum + r * CPU_PANEL + v * CPU_LANES, c[r][v]);
}

CPU_INLINE void multiply_as(const enum ct_dtype dtype, const struct cpu_panel *a, const char *b,
                            struct cpu_extent extent, float *sum, bool more)
{
    for (int j = 0; j < extent.columns; j += PASS, sum += PASS) {
        const char *from = b + vector_at(j / CPU_LANES);

        switch (extent.rows * 2 + (extent.columns - j > CPU_LANES)) {
#define CASES(rows)                                                                                \
    case rows * 2:                                                                                 \
        multiply_part(dtype, rows, 1, a, from, extent.depth, j == 0, sum, more);                   \
        break;                                                                                     \
    case rows * 2 + 1:                                                                             \
        multiply_part(dtype, rows, 2, a, from, extent.depth, j == 0, sum, more);                   \
        break;
            CASES(1)
            CASES(2)
            CASES(3)
            CASES(4)
            CASES(5)
            CASES(6)
#if CPU_LANES == 16
            CASES(7)
            CASES(8)
#endif
        }
    }
}

CPU_INLINE void put(enum ct_dtype dtype, bool add, vf c[ROWS][VECTORS], char *to, int64_t row,
                    int64_t column)
{
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; r++, to += row)
#pragma GCC unroll 2
        for (int i = 0; i < VECTORS; i++) {
            int64_t at = column + i * CPU_LANES;

            v_put(dtype, to, at, CPU_PANEL,
                  add ? c[r][i] + v_get(dtype, to, at, CPU_PANEL) : c[r][i]);
        }
}

CPU_INLINE void complete_as(const enum ct_dtype dtype, const struct cpu_panel *a, const char *b,
                            int64_t depth, const float *sum, const struct cpu_result *to)
{
    for (int j = 0; j < CPU_PANEL; j += PASS) {
        vf c[ROWS][VECTORS];

        load(ROWS, VECTORS, sum ? sum + j : NULL, c);
        add_panel(dtype, ROWS, VECTORS, a, b + vector_at(j / CPU_LANES), depth, j == 0, c);
        if (to->dtype == CT_F32 && to->add)
            put(CT_F32, true, c, to->at, to->row, j);
        else if (to->dtype == CT_F32)
            put(CT_F32, false, c, to->at, to->row, j);
        else if (to->add)
            put(CT_BF16, true, c, to->at, to->row, j);
        else
            put(CT_BF16, false, c, to->at, to->row, j);
    }
}

static void nothing(void)
{
}

/* Words side by side for all columns of a panel. */
static void interleave(enum ct_dtype dtype, const struct cpu_packed_from *from, char *to,
                       int64_t panel)
{
    struct cpu_lines lines = cpu_panel_lines(dtype, panel);

    lines.line = CPU_LINE_BYTES;
    lines.row = 2 * CPU_LINE_BYTES;
    CPU_ISA(cpu_pack_rows)(&lines, from, to);
}

/* The unit `unit_` name, for a dtype. Panels of gradients are so deep; bytes of B stay in L2. */
#define UNIT_OF(unit_name, unit_dtype, unit_depth, bytes)                                          \
    static void multiply_##unit_name(const struct cpu_panel *a, const char *b,                     \
                                     struct cpu_extent extent, float *sum, bool more)              \
    {                                                                                              \
        multiply_as(unit_dtype, a, b, extent, sum, more);                                          \
    }                                                                                              \
    static void complete_##unit_name(const struct cpu_panel *a, const char *b, int64_t depth,      \
                                     const float *sum, const struct cpu_result *to,                \
                                     struct cpu_beside *beside)                                    \
    {                                                                                              \
        (void)beside;                                                                              \
        complete_as(unit_dtype, a, b, depth, sum, to);                                             \
    }                                                                                              \
    static void pack_##unit_name(const struct cpu_packed_from *from, char *to, int64_t panel)      \
    {                                                                                              \
        interleave(unit_dtype, from, to, panel);                                                   \
    }                                                                                              \
    static const struct cpu_unit unit_##unit_name = {                                              \
        .name = #unit_name,                                                                        \
        .dtype = unit_dtype,                                                                       \
        .rows = ROWS,                                                                              \
        .partial = true,                                                                           \
        .depth = unit_depth,                                                                       \
        .columns = 128,                                                                            \
        .block = bytes,                                                                            \
        .begin = nothing,                                                                          \
        .end = nothing,                                                                            \
        .multiply = multiply_##unit_name,                                                          \
        .complete = complete_##unit_name,                                                          \
        .pack_transposed = pack_##unit_name,                                                       \
        .packed = {.row = 4, .word = 128, .step = CPU_STEP_BYTES},                                 \
    };

#if CPU_LANES == 16
UNIT_OF(multiply_adds, CT_F32, 512, 512 << 10)
#define MULTIPLY_ADDS &unit_multiply_adds
#elif CPU_LANES == 8 /* processors with L2 caches of 256 KB */
UNIT_OF(multiply_adds_avx2, CT_F32, 256, 128 << 10)
#define MULTIPLY_ADDS &unit_multiply_adds_avx2
#else
UNIT_OF(multiply_adds_portable, CT_F32, 256, 128 << 10)
#define MULTIPLY_ADDS &unit_multiply_adds_portable
#endif

#ifdef CPU_BF16
UNIT_OF(dots, CT_BF16, 1024, 512 << 10)

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

#define DOTS &unit_dots
#define RATE dots_rate
#else
#define DOTS NULL
#define RATE NULL
#endif

const struct cpu_panels CPU_ISA(cpu_panels) = {CPU_ISA(cpu_pack_rows),
                                               CPU_ISA(cpu_pack_columns),
                                               CPU_ISA(cpu_pack_transposed),
                                               finish,
                                               widen,
                                               DOTS,
                                               MULTIPLY_ADDS,
                                               RATE};
