/*
 * Tiles of attention in float32 (attention.h).
 *
 * All five matrix products of attention are of one shape (product.h). Operands are packed to
 * float32, heads padded with zeros to whole vectors.
 *
 * On the diagonal a tile is split into spans of GRAIN keys, each with the queries that may see one
 * of them.
 */
#ifndef CPU_KERNELS_TILE_H
#define CPU_KERNELS_TILE_H

#include "attention.h"
#include "product.h"

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
