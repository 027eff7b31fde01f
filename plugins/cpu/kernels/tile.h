/*
 * Tiles of attention in float32 (attention.h).
 *
 * All five matrix products of attention are one shape, c[i][j] (+)= sum over l of a(i, l) b[l][j],
 * where a is read element by element with any strides and b and c by vectors; `multiply` does it in
 * register blocks. Operands are packed to float32, heads padded with zeros to whole vectors.
 *
 * On the diagonal a tile is split into spans of GRAIN keys, each with the queries that may see one
 * of them.
 */
#ifndef CPU_KERNELS_TILE_H
#define CPU_KERNELS_TILE_H

#include "attention.h"

#define AHEAD 16 /* rows to prefetch: they lie pages apart, where the hardware does not */

/* ---- packing ---- */

/* Rows of one head as float32[TILE][width]; the rows beyond n are zero. */
CPU_INLINE void pack_as(enum ct_dtype dtype, const char *from, int64_t step, int64_t n,
                        const struct head *h, float *to)
{
    for (int64_t r = 0; r < n; r++, from += step)
        for (int64_t i = 0; i < h->width; i += CPU_LANES) {
            __builtin_prefetch(from + AHEAD * step + i * (dtype == CT_F32 ? 4 : 2));
            v_store(to + r * h->width + i, v_get(dtype, from, i, h->size));
        }
    memset(to + n * h->width, 0, (size_t)((TILE - n) * h->width) * sizeof(float));
}

static inline void pack(const struct ct_tensor *t, const struct head *h, int64_t b, int64_t head,
                        int64_t tile, float *to)
{
    const char *from = token_of(t, b, tile * TILE, head);
    int64_t step = t->stride[1] * (int64_t)ct_dtype_size(t->dtype),
            n = tokens_in(t->shape[1], tile);

    if (t->dtype == CT_F32)
        pack_as(CT_F32, from, step, n, h, to);
    else
        pack_as(CT_BF16, from, step, n, h, to);
}

/* rows[TILE][width] -> columns[width][TILE] */
static inline void pack_columns(const struct head *h, const float *rows, float *columns)
{
    for (int64_t j = 0; j < h->width; j += CPU_LANES)
        for (int64_t i = 0; i < TILE; i += CPU_LANES) {
            vf block[CPU_LANES];
            for (int64_t r = 0; r < CPU_LANES; r++)
                block[r] = v_load(rows + (i + r) * h->width + j);
            v_transpose(block);
            for (int64_t r = 0; r < CPU_LANES; r++)
                v_store(columns + (j + r) * TILE + i, block[r]);
        }
}

/* ---- products ---- */

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

static void multiply(struct product p)
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

/* Keys [key, key + keys) and queries [query, TILE) of a tile. */
struct span {
    int64_t key, keys, query;
};

static inline int spans_of(bool diagonal, struct span spans[TILE / GRAIN])
{
    if (!diagonal) {
        spans[0] = (struct span){0, TILE, 0};
        return 1;
    }
    for (int64_t i = 0; i < TILE / GRAIN; i++)
        spans[i] = (struct span){i * GRAIN, GRAIN, i * GRAIN};
    return TILE / GRAIN;
}

/* scores[key][query] = sum over the head of keys[key][..] columns[..][query] */
static inline void score(const struct head *h, bool diagonal, const float *keys,
                         const float *columns, float *scores)
{
    struct span spans[TILE / GRAIN];
    int count = spans_of(diagonal, spans);

    for (int i = 0; i < count; i++) {
        int64_t key = spans[i].key, query = spans[i].query;

        multiply((struct product){.c = scores + key * TILE + query,
                                  .c_row = TILE,
                                  .a = keys + key * h->width,
                                  .row = h->width,
                                  .step = 1,
                                  .b = columns + query,
                                  .b_row = TILE,
                                  .m = spans[i].keys,
                                  .n = TILE - query,
                                  .k = h->size});
    }
}

/* columns[..][query] += sum over keys of values[key][..] weights[key][query] */
static inline void gather(const struct head *h, bool diagonal, const float *values,
                          const float *weights, float *columns)
{
    struct span spans[TILE / GRAIN];
    int count = spans_of(diagonal, spans);

    for (int i = 0; i < count; i++) {
        int64_t key = spans[i].key, query = spans[i].query;

        multiply((struct product){.c = columns + query,
                                  .c_row = TILE,
                                  .a = values + key * h->width,
                                  .row = 1,
                                  .step = h->width,
                                  .b = weights + key * TILE + query,
                                  .b_row = TILE,
                                  .m = (h->size + 3) & ~(int64_t)3,
                                  .n = TILE - query,
                                  .k = spans[i].keys,
                                  .add = true});
    }
}

#endif
