/*
 * GEMMs of few rows of A, which read B as it lies: each element of C is a dot product along k.
 *
 * A block of ROWS rows and COLUMNS columns lies in vectors of partial sums, whose lanes are added
 * at the end. So an element's sum has one order, whatever the block that it is in.
 */
#include "loops.h"

#include <ctitan/lib/vector.h>

#define ROWS 4
#define COLUMNS (CPU_REGISTERS / 8)

CPU_INLINE void multiply_block(const enum ct_dtype a_type, const enum ct_dtype b_type,
                               const int rows, const int columns, const struct cpu_few_rows *g,
                               const char *a, const char *b, float *c)
{
    int64_t a_row = g->k * (int64_t)ct_dtype_size(a_type),
            b_row = g->k * (int64_t)ct_dtype_size(b_type);
    vf sum[ROWS][COLUMNS] = {{{0}}};

    for (int64_t k = 0; k < g->k; k += CPU_LANES) {
        vf column[COLUMNS];

#pragma GCC unroll 4
        for (int j = 0; j < columns; j++)
            column[j] = v_get(b_type, b + j * b_row, k, g->k);
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++) {
            vf x = v_get(a_type, a + r * a_row, k, g->k);

#pragma GCC unroll 4
            for (int j = 0; j < columns; j++)
                sum[r][j] = x * column[j] + sum[r][j];
        }
    }
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int j = 0; j < columns; j++)
            c[r * g->c_row + j] = v_sum(sum[r][j]);
}

CPU_INLINE void multiply_columns(const enum ct_dtype a_type, const enum ct_dtype b_type,
                                 const int columns, const struct cpu_few_rows *g, const char *b,
                                 float *c)
{
    const char *a = g->a;
    int64_t left = g->rows, step = ROWS * g->k * (int64_t)ct_dtype_size(a_type);

    for (; left >= ROWS; left -= ROWS, a += step, c += ROWS * g->c_row)
        multiply_block(a_type, b_type, ROWS, columns, g, a, b, c);
    if (left == 3)
        multiply_block(a_type, b_type, 3, columns, g, a, b, c);
    else if (left == 2)
        multiply_block(a_type, b_type, 2, columns, g, a, b, c);
    else if (left == 1)
        multiply_block(a_type, b_type, 1, columns, g, a, b, c);
}

CPU_INLINE void multiply_few(const enum ct_dtype a_type, const enum ct_dtype b_type,
                             const struct cpu_few_rows *g, int64_t begin, int64_t end)
{
    int64_t b_row = g->k * (int64_t)ct_dtype_size(b_type), j = begin;
    const char *b = g->b;

    for (; j + COLUMNS <= end; j += COLUMNS)
        multiply_columns(a_type, b_type, COLUMNS, g, b + j * b_row, g->c + j);
    for (; j < end; j++)
        multiply_columns(a_type, b_type, 1, g, b + j * b_row, g->c + j);
}

void CPU_ISA(cpu_multiply_few)(const struct cpu_few_rows *g, int64_t begin, int64_t end)
{
    if (g->a_type == CT_F32 && g->b_type == CT_F32)
        multiply_few(CT_F32, CT_F32, g, begin, end);
    else if (g->a_type == CT_F32)
        multiply_few(CT_F32, CT_BF16, g, begin, end);
    else
        multiply_few(CT_BF16, CT_BF16, g, begin, end);
}
