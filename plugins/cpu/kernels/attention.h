/*
 * Parts of all attention kernels: the geometry of a call, and tokens of a head in tiles.
 *
 * A tile is TILE queries by TILE keys; a source may choose TILE before it includes this. Scores lie
 * as s[key][query], queries along the vector lanes: the softmax over keys then runs down the lanes,
 * without a horizontal step. Tokens are padded to whole tiles: padded queries are computed and
 * never stored, padded keys are masked.
 */
#ifndef CPU_KERNELS_ATTENTION_H
#define CPU_KERNELS_ATTENTION_H

#include <ctitan/op.h>

#include "vector.h"

#ifndef TILE
#define TILE 64
#define GRAIN 16 /* keys: on the diagonal, vectors of queries end at multiples */
#endif
#define MASKED (-1e30f) /* finite: a difference of two is 0, not NaN */
#define LOWEST (-1e20f) /* far above MASKED: where all is masked so far, weights are 0 */
#define LOG2_E 1.44269504f
#define LINES 128 /* bytes: processors fetch lines in pairs */

/* Elements of a token in one head. */
struct head {
    int64_t size, width; /* width: in whole vectors */
};

struct attention {
    int64_t batch, queries, keys, heads, groups;
    struct head key, value; /* of q and k; of v and o */
    int64_t query_tiles, key_tiles;
    int64_t padded; /* keys, in whole tiles */
    float scale;    /* of the scores */
};

static inline struct head head_of(const struct ct_tensor *t, int64_t vector)
{
    return (struct head){t->shape[3], (t->shape[3] + vector - 1) / vector * vector};
}

/* k and v follow q; rows of heads are padded to multiples of `vector`. */
static inline struct attention attention_of(const struct ct_op *op, const struct ct_tensor *q,
                                            int64_t vector)
{
    const struct ct_tensor *k = q + 1, *v = q + 2;
    double scale = ct_op_float(op, "scale");
    struct attention a = {q->shape[0], q->shape[1], k->shape[1], q->shape[2], k->shape[2]};

    a.key = head_of(q, vector);
    a.value = head_of(v, vector);
    a.query_tiles = (a.queries + TILE - 1) / TILE;
    a.key_tiles = (a.keys + TILE - 1) / TILE;
    a.padded = a.key_tiles * TILE;
    a.scale = (float)(scale > 0 ? scale : 1 / sqrt((double)a.key.size));
    return a;
}

static inline void *token_of(const struct ct_tensor *t, int64_t b, int64_t token, int64_t head)
{
    int64_t at = b * t->stride[0] + token * t->stride[1] + head * t->stride[2];

    return (char *)t->data + at * (int64_t)ct_dtype_size(t->dtype);
}

/* Tasks that one thread takes at a time, of `parts` per head: all of the heads whose tokens share
   lines of a cache, which two threads would take from each other with each write. */
static inline int tasks_together(const struct attention *a, const struct ct_tensor *q,
                                 int64_t parts, int64_t tasks, int threads)
{
    int64_t size = a->key.size < a->value.size ? a->key.size : a->value.size,
            bytes = size * (int64_t)ct_dtype_size(q->dtype),
            together = bytes < LINES ? LINES / bytes * parts : 1, most = tasks / (8 * threads);

    together = together < most ? together : most;
    return together > 1 ? (int)together : 1;
}

/* Tokens of a tile that exist, of so many in all. */
static inline int64_t tokens_in(int64_t tokens, int64_t tile)
{
    int64_t left = tokens - tile * TILE;

    return left < TILE ? left : TILE;
}

/* Memory for floats at *at, which moves on by whole cache lines. */
static inline float *carve_floats(uintptr_t *at, int64_t floats)
{
    float *memory = (float *)*at;

    *at += ((uintptr_t)floats * sizeof(float) + 63) & ~(uintptr_t)63;
    return memory;
}

/* columns[width][TILE], each query times its factor -> the tokens of a tile that exist */
CPU_INLINE void unpack_as(enum ct_dtype dtype, const struct head *h, const float *columns,
                          const float *factor, int64_t n, char *to, int64_t step)
{
    for (int64_t i = 0; i < n; i += CPU_LANES)
        for (int64_t j = 0; j < h->size; j += CPU_LANES) {
            vf block[CPU_LANES];
            for (int64_t r = 0; r < CPU_LANES; r++)
                block[r] = v_load(columns + (j + r) * TILE + i) * v_load(factor + i);
            v_transpose(block);
            for (int64_t r = 0; r < CPU_LANES && i + r < n; r++)
                v_put(dtype, to + (i + r) * step, j, h->size, block[r]);
        }
}

static inline void unpack(const struct ct_tensor *t, const struct head *h, int64_t b, int64_t head,
                          int64_t tile, const float *columns, const float *factor)
{
    char *to = token_of(t, b, tile * TILE, head);
    int64_t step = t->stride[1] * (int64_t)ct_dtype_size(t->dtype),
            n = tokens_in(t->shape[1], tile);

    if (t->dtype == CT_F32)
        unpack_as(CT_F32, h, columns, factor, n, to, step);
    else
        unpack_as(CT_BF16, h, columns, factor, n, to, step);
}

/* Keys from 0 on that a query of a tile may see, in grains. */
static inline int64_t keys_of(bool diagonal, int64_t query)
{
    return diagonal ? query / GRAIN * GRAIN + GRAIN : TILE;
}

#endif
