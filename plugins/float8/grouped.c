/*
 * Rounding by tiles, and products in float32, whose sums have a fixed order on any number of
 * threads.
 */
#include <math.h>
#include <string.h>

#include <ctitan/number.h>

#include "grouped.h"

#define LARGEST 448.0f /* of float8_e4m3 */
#define LANES 16       /* sums side by side */

/* ---- rounding ---- */

struct rounding {
    float *x;
    int64_t rows, columns, tile_rows, tile_columns, across;
    enum float8_rule rule;
};

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static void round_tile(const struct rounding *r, int64_t row, int64_t column)
{
    int64_t row_end = least(row + r->tile_rows, r->rows);
    int64_t end = least(column + r->tile_columns, r->columns);
    float amax = 0, scale;

    for (int64_t i = row; i < row_end; i++)
        for (int64_t j = column; j < end; j++)
            amax = fmaxf(amax, fabsf(r->x[i * r->columns + j]));
    scale = float8_scale_of(amax, LARGEST, r->rule);
    for (int64_t i = row; i < row_end; i++)
        for (int64_t j = column; j < end; j++) {
            float *x = &r->x[i * r->columns + j];

            *x = ct_e4m3_to_f32(ct_f32_to_e4m3(*x * scale)) / scale;
        }
}

static void round_tiles(void *context, int64_t begin, int64_t end)
{
    const struct rounding *r = context;

    for (int64_t i = begin; i < end; i++)
        round_tile(r, i / r->across * r->tile_rows, i % r->across * r->tile_columns);
}

void float8_round_trip(const struct ct_launch *l, float *x, int64_t rows, int64_t columns,
                       const struct float8_tile *tile)
{
    struct rounding r = {x,
                         rows,
                         columns,
                         tile->rows ? tile->rows : rows,
                         tile->columns ? tile->columns : columns,
                         0,
                         tile->rule};

    if (!rows || !columns)
        return;
    r.across = (columns + r.tile_columns - 1) / r.tile_columns;
    ct_parallel(l, (rows + r.tile_rows - 1) / r.tile_rows * r.across, round_tiles, &r);
}

/* ---- products ---- */

struct multiplying {
    float *c;
    const float *a, *b;
    int64_t m, n, k;
    bool add;
};

static float dot(const float *x, const float *y, int64_t n)
{
    float sum[LANES] = {0}, whole = 0;
    int64_t i = 0;

    for (; i + LANES <= n; i += LANES)
        for (int k = 0; k < LANES; k++)
            sum[k] += x[i + k] * y[i + k];
    for (; i < n; i++)
        whole += x[i] * y[i];
    for (int k = 0; k < LANES; k++)
        whole += sum[k];
    return whole;
}

static void rows_nt(void *context, int64_t begin, int64_t end)
{
    const struct multiplying *p = context;

    for (int64_t i = begin; i < end; i++)
        for (int64_t j = 0; j < p->n; j++)
            p->c[i * p->n + j] = dot(p->a + i * p->k, p->b + j * p->k, p->k);
}

static void add_scaled(float *y, float factor, const float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        y[i] += factor * x[i];
}

static void rows_nn(void *context, int64_t begin, int64_t end)
{
    const struct multiplying *p = context;

    for (int64_t i = begin; i < end; i++) {
        float *c = p->c + i * p->n;

        if (!p->add)
            memset(c, 0, sizeof(*c) * (size_t)p->n);
        for (int64_t k = 0; k < p->k; k++)
            add_scaled(c, p->a[i * p->k + k], p->b + k * p->n, p->n);
    }
}

static void rows_tn(void *context, int64_t begin, int64_t end)
{
    const struct multiplying *p = context;

    for (int64_t i = begin; i < end; i++) {
        float *c = p->c + i * p->n;

        memset(c, 0, sizeof(*c) * (size_t)p->n);
        for (int64_t k = 0; k < p->k; k++)
            add_scaled(c, p->a[k * p->m + i], p->b + k * p->n, p->n);
    }
}

void float8_multiply_nt(const struct ct_launch *l, float *c, const float *a, const float *b,
                        int64_t m, int64_t n, int64_t k)
{
    struct multiplying p = {c, a, b, m, n, k, false};

    ct_parallel(l, m, rows_nt, &p);
}

void float8_multiply_nn(const struct ct_launch *l, float *c, const float *a, const float *b,
                        int64_t m, int64_t n, int64_t k, bool add)
{
    struct multiplying p = {c, a, b, m, n, k, add};

    ct_parallel(l, m, rows_nn, &p);
}

void float8_multiply_tn(const struct ct_launch *l, float *c, const float *a, const float *b,
                        int64_t m, int64_t n, int64_t k)
{
    struct multiplying p = {c, a, b, m, n, k, false};

    ct_parallel(l, m, rows_tn, &p);
}
