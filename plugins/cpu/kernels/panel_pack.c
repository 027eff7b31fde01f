/*
 * Packing of matrices in lines (panel_pack.h).
 *
 * Rows are read along; the next ones are prefetched, as they lie far apart. For a transposed
 * matrix, squares of 16 rows by 16 elements of 4 bytes (float32, or pairs of bfloat16) are
 * transposed in registers.
 */
#include "../products/unit.h"
#include "vector.h"

#define ROWS_AHEAD 16

/* Into the L2 cache. */
CPU_INLINE void fetch(const char *at)
{
    __builtin_prefetch(at, 0, 2);
}

CPU_INLINE const char *row_of(enum ct_dtype dtype, const struct cpu_packed_from *f, int64_t row)
{
    return (const char *)f->at + row * f->stride * cpu_bytes_of(dtype);
}

/* A vector from i on as float32; those beyond n are zero. */
CPU_INLINE vf floats(enum ct_dtype dtype, const char *row, int64_t i, int64_t n, bool round)
{
    vf v = {0};

    if (n > i)
        v = v_get(dtype, row, i, n);
    return round ? v_widen(v_narrow(v)) : v;
}

/* The first n of bfloat16 elements; the rest is zero. A load whose mask is empty would be slow. */
CPU_INLINE vh halves_at(const char *at, int64_t n)
{
    vh v = {0};

    if (n >= CPU_LANES)
        memcpy(&v, at, sizeof(v));
    else if (n > 0)
#if CPU_LANES == 16
        v = (vh)_mm256_maskz_loadu_epi16((__mmask16)((1 << n) - 1), at);
#else
        memcpy(&v, at, (size_t)n * 2);
#endif
    return v;
}

/* A vector from i on as bfloat16. */
CPU_INLINE vh halves(enum ct_dtype dtype, const char *row, int64_t i, int64_t n)
{
    if (dtype == CT_F32)
        return n > i ? v_narrow(v_get(CT_F32, row, i, n)) : (vh){0};
    return halves_at(row + i * 2, n - i);
}

/* Elements i .. of two rows in pairs. */
CPU_INLINE vu pairs(enum ct_dtype dtype, const char *even, int64_t evens, const char *odd,
                    int64_t odds, int64_t i)
{
    if (dtype == CT_F32)
        return v_pairs(floats(CT_F32, even, i, evens, false), floats(CT_F32, odd, i, odds, false));
    return v_extend(halves(CT_BF16, odd, i, odds)) << 16 |
           v_extend(halves(CT_BF16, even, i, evens));
}

CPU_INLINE vu join(vh low, vh high)
{
#if CPU_LANES == 16
    return (vu)_mm512_inserti64x4(_mm512_castsi256_si512((__m256i)low), (__m256i)high, 1);
#elif CPU_LANES == 8
    return (vu)_mm256_inserti128_si256(_mm256_castsi128_si256((__m128i)low), (__m128i)high, 1);
#else
    return (vu)__builtin_shufflevector(low, high, 0, 1, 2, 3, 4, 5, 6, 7);
#endif
}

/* A vector of 4 bytes each from i on: elements as float32, or pairs of neighbours. */
CPU_INLINE vu words(enum ct_dtype from, enum ct_dtype to, const char *row, int64_t i, int64_t n,
                    bool round)
{
    if (to == CT_F32)
        return (vu)floats(from, row, i, n, round);
    return join(halves(from, row, 2 * i, n), halves(from, row, 2 * i + CPU_LANES, n));
}

CPU_INLINE void put(char *at, vu v, bool stream)
{
#if CPU_LANES == 16
    if (stream) {
        _mm512_stream_si512((__m512i *)at, (__m512i)v);
        return;
    }
#elif CPU_LANES == 8
    if (stream) {
        _mm256_stream_si256((__m256i *)at, (__m256i)v);
        return;
    }
#else
    (void)stream;
#endif
    memcpy(at, &v, sizeof(v));
}

/* After streams: other threads see what was written. */
static void publish(bool stream)
{
#if CPU_LANES > 4
    if (stream)
        _mm_sfence();
#else
    (void)stream;
#endif
}

/* A row of lines, from one row or two. */
CPU_INLINE void pack_row(enum ct_dtype from, enum ct_dtype to, const struct cpu_lines *l,
                         const struct cpu_packed_from *f, int64_t row, char *at)
{
    const char *even = row_of(from, f, row), *odd = even + f->stride * cpu_bytes_of(from);
    int64_t evens = row < f->rows ? f->columns : 0, odds = row + 1 < f->rows ? f->columns : 0,
            next = ROWS_AHEAD * f->stride * cpu_bytes_of(from), columns = f->columns,
            panel = l->panel, line = l->line;
    int lines = l->columns / CPU_LINE;
    bool round = l->round, stream = l->stream;

    for (int64_t i = 0; i < columns; at += panel)
        for (int j = 0; j < lines; j++)
            for (int part = 0; part < CPU_LINE; part += CPU_LANES, i += CPU_LANES) {
                if (i * cpu_bytes_of(from) % CPU_LINE_BYTES == 0) {
                    fetch(even + next + i * cpu_bytes_of(from));
                    fetch(odd + next + i * cpu_bytes_of(from));
                }
                put(at + j * line + part * 4,
                    to == CT_F32 ? (vu)floats(from, even, i, evens, round)
                                 : pairs(from, even, evens, odd, odds, i),
                    stream);
            }
}

CPU_INLINE void pack_rows_as(enum ct_dtype from, enum ct_dtype to, const struct cpu_lines *l,
                             const struct cpu_packed_from *f, char *at)
{
    int64_t each = to == CT_F32 ? 1 : 2;

    for (int64_t row = 0; row < f->rows; row += CPU_LINE * each, at += l->step)
        for (int64_t r = 0; r < CPU_LINE; r++)
            pack_row(from, to, l, f, row + r * each, at + r * l->row);
}

/* 16 rows as columns of 16 rows of lines, from element i of 4 bytes on. */
CPU_INLINE void pack_square(enum ct_dtype from, enum ct_dtype to, const struct cpu_lines *l,
                            const struct cpu_packed_from *f, int64_t row, int64_t i, char *at)
{
    bool round = l->round, stream = l->stream;

    for (int64_t r = 0; r < CPU_LINE; r += CPU_LANES)
        for (int64_t j = 0; j < CPU_LINE; j += CPU_LANES) {
            vf square[CPU_LANES];

            for (int64_t k = 0; k < CPU_LANES; k++)
                square[k] = (vf)words(from, to, row_of(from, f, row + r + k), i + j,
                                      row + r + k < f->rows ? f->columns : 0, round);
            v_transpose(square);
            for (int64_t k = 0; k < CPU_LANES; k++)
                put(at + (j + k) * l->row + r * 4, (vu)square[k], stream);
        }
}

CPU_INLINE void pack_columns_as(enum ct_dtype from, enum ct_dtype to, const struct cpu_lines *l,
                                const struct cpu_packed_from *f, char *at)
{
    int64_t each = to == CT_F32 ? 1 : 2;

    for (int64_t row = 0; row < f->rows; row += l->columns, at += l->panel)
        for (int64_t i = 0; i * each < f->columns; i += CPU_LINE)
            for (int64_t part = 0; part < l->columns; part += CPU_LINE)
                pack_square(from, to, l, f, row + part, i,
                            at + i / CPU_LINE * l->step + part / CPU_LINE * l->line);
}

void CPU_ISA(cpu_pack_rows)(const struct cpu_lines *l, const struct cpu_packed_from *f, char *to)
{
    if (l->dtype == CT_BF16 && f->dtype == CT_BF16)
        pack_rows_as(CT_BF16, CT_BF16, l, f, to);
    else if (l->dtype == CT_BF16)
        pack_rows_as(CT_F32, CT_BF16, l, f, to);
    else if (f->dtype == CT_BF16)
        pack_rows_as(CT_BF16, CT_F32, l, f, to);
    else
        pack_rows_as(CT_F32, CT_F32, l, f, to);
    publish(l->stream);
}

void CPU_ISA(cpu_pack_columns)(const struct cpu_lines *l, const struct cpu_packed_from *f, char *to)
{
    if (l->dtype == CT_BF16 && f->dtype == CT_BF16)
        pack_columns_as(CT_BF16, CT_BF16, l, f, to);
    else if (l->dtype == CT_BF16)
        pack_columns_as(CT_F32, CT_BF16, l, f, to);
    else if (f->dtype == CT_BF16)
        pack_columns_as(CT_BF16, CT_F32, l, f, to);
    else
        pack_columns_as(CT_F32, CT_F32, l, f, to);
    publish(l->stream);
}

/* 16 pairs of rows as columns of pairs. */
CPU_INLINE void pack_pairs(const struct cpu_packed_from *f, int64_t row, int64_t column, char *at)
{
    int64_t step = f->stride * cpu_bytes_of(CT_BF16);

    for (int64_t r = 0; r < CPU_LINE; r += CPU_LANES)
        for (int64_t j = 0; j < CPU_LINE; j += CPU_LANES) {
            vf square[CPU_LANES];

            for (int64_t k = 0; k < CPU_LANES; k++) {
                int64_t i = row + 2 * (r + k);
                const char *even = row_of(CT_BF16, f, i);

                fetch(even + CPU_PANEL * step + column * cpu_bytes_of(CT_BF16));
                fetch(even + (CPU_PANEL + 1) * step + column * cpu_bytes_of(CT_BF16));
                square[k] = (vf)pairs(CT_BF16, even, i < f->rows ? f->columns : 0, even + step,
                                      i + 1 < f->rows ? f->columns : 0, column + j);
            }
            v_transpose(square);
            for (int64_t k = 0; k < CPU_LANES; k++)
                put(at + (j + k) * CPU_LINE_BYTES + r * 4, (vu)square[k], false);
        }
}

void CPU_ISA(cpu_pack_transposed)(const struct cpu_packed_from *f, char *to, int64_t panel)
{
    for (int64_t row = 0; row < f->rows; row += CPU_PANEL, to += CPU_STEP_BYTES)
        for (int64_t i = 0; i < f->columns; i += CPU_PANEL)
            for (int64_t half = 0; half < CPU_PANEL; half += CPU_LINE)
                pack_pairs(f, row, i + half, to + i / CPU_PANEL * panel + half * CPU_LINE_BYTES);
}
