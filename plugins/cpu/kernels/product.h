/*
 * Products of small matrices in float32: c[i][j] (+)= sum over l of a(i, l) b[l][j], where a is
 * read element by element with any strides, and b and c by vectors, in register blocks.
 */
#ifndef CPU_KERNELS_PRODUCT_H
#define CPU_KERNELS_PRODUCT_H

#include "vector.h"

/* c[i][j] (+)= sum over l of a[i row + l step] b[l][j]; m a multiple of 4, n of CPU_LANES. */
struct product {
    float *c;
    const float *a, *b;
    int64_t c_row, row, step, b_row;
    int64_t m, n, k;
    bool add;
};

CPU_INLINE void block(const int rows, const int vectors, const struct product *p, int64_t i,
                      int64_t j)
{
    const float *a = p->a + i * p->row, *b = p->b + j;
    float *c = p->c + i * p->c_row + j;
    int64_t row = p->row;
    vf sum[16][4];

    for (int r = 0; r < rows; r++)
        for (int v = 0; v < vectors; v++)
            sum[r][v] = p->add ? v_load(c + r * p->c_row + v * CPU_LANES) : (vf){0};
    for (int64_t l = p->k; l > 0; l--, a += p->step, b += p->b_row) {
        vf line[4];
        for (int v = 0; v < vectors; v++)
            line[v] = v_load(b + v * CPU_LANES);
        for (int r = 0; r < rows; r++)
            for (int v = 0; v < vectors; v++)
                sum[r][v] += a[r * row] * line[v];
    }
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < vectors; v++)
            v_store(c + r * p->c_row + v * CPU_LANES, sum[r][v]);
}

/* vectors columns of c from j on, in blocks of as many rows as fill the registers */
CPU_INLINE void panel(const int rows, const int vectors, const struct product *p, int64_t j)
{
    int64_t i = 0;

    for (; i + rows <= p->m; i += rows)
        block(rows, vectors, p, i, j);
    for (; i < p->m; i += 4)
        block(4, vectors, p, i, j);
}

static inline void multiply(struct product p)
{
    int64_t j = 0;

#if CPU_REGISTERS == 32
    for (; j + 4 * CPU_LANES <= p.n; j += 4 * CPU_LANES)
        panel(4, 4, &p, j);
    if (j + 2 * CPU_LANES <= p.n) {
        panel(8, 2, &p, j);
        j += 2 * CPU_LANES;
    }
    if (j < p.n)
        panel(16, 1, &p, j);
#else
    for (; j + 2 * CPU_LANES <= p.n; j += 2 * CPU_LANES)
        panel(4, 2, &p, j);
    if (j < p.n)
        panel(8, 1, &p, j);
#endif
}

#endif
