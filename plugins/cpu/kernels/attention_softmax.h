/* The softmax of a tile of queries over tiles of keys, with a running maximum and sum. */
#ifndef CPU_KERNELS_ATTENTION_SOFTMAX_H
#define CPU_KERNELS_ATTENTION_SOFTMAX_H

#include "attention.h"

/* By query of a tile: the largest score so far, the sum, the factor of what was there before. */
struct running {
    float *top, *sum, *rescale;
};

static inline void carve_running(uintptr_t *at, struct running *r)
{
    r->top = carve_floats(at, TILE);
    r->sum = carve_floats(at, TILE);
    r->rescale = carve_floats(at, TILE);
}

static inline void begin_running(const struct running *r)
{
    for (int64_t q = 0; q < TILE; q += CPU_LANES) {
        v_store(r->top + q, v_set(MASKED));
        v_store(r->sum + q, v_set(0));
    }
}

/* Scores of so many keys, [all][TILE] -> new maxima and sums, and weights as B, which may lie where
   the scores do. */
static inline void softmax(const struct attention *a, const struct running *r, const float *scores,
                           int64_t all, bool diagonal, char *weights)
{
    float unit = a->scale * LOG2_E;

    for (int64_t q = 0; q < TILE; q += CPU_LANES) {
        int64_t keys = diagonal && GRAIN < TILE ? keys_of(true, q) : all;
        const float *s = scores + q;
        vf old = v_load(r->top + q), top[4] = {old, old, old, old}, factor, sum[2], shift;

        for (int64_t k = 0; k < keys; k += 4)
            for (int i = 0; i < 4; i++)
                top[i] = v_max(top[i], v_load(s + (k + i) * TILE));
        top[0] = v_max(v_max(top[0], top[1]), v_max(top[2], top[3]));
        factor = v_exp2((old - top[0]) * unit);
        sum[0] = v_load(r->sum + q) * factor;
        sum[1] = (vf){0};
        shift = v_max(v_set(LOWEST), top[0] * unit);
        for (int64_t k = 0; k < keys; k += 2) {
            vf even = v_exp2(v_load(s + k * TILE) * unit - shift);
            vf odd = v_exp2(v_load(s + (k + 1) * TILE) * unit - shift);

            put_pair(weights, k, q, even, odd);
            sum[0] += even;
            sum[1] += odd;
        }
        v_store(r->top + q, top[0]);
        v_store(r->sum + q, sum[0] + sum[1]);
        v_store(r->rescale + q, factor);
    }
}

/* o[size][TILE], by the factors of the newest scores. */
static inline void rescale(const struct head *h, const struct running *r, float *o)
{
    for (int64_t q = 0; q < TILE; q += CPU_LANES) {
        vf factor = v_load(r->rescale + q);
        for (int64_t i = 0; i < h->size; i++)
            v_store(o + i * TILE + q, v_load(o + i * TILE + q) * factor);
    }
}

/* Stores lse; the factors become 1 / sum. A query that saw no key has a sum of 0: its factor is 0,
   its lse -inf. */
static inline void end_running(const struct attention *a, const struct running *r,
                               const struct ct_tensor *lse, int64_t b, int64_t head, int64_t tile)
{
    int64_t n = tokens_in(a->queries, tile);
    float *out = (float *)lse->data + b * lse->stride[0] + head * lse->stride[1] + tile * TILE;

    for (int64_t q = 0; q < TILE; q += CPU_LANES) {
        vf sum = v_load(r->sum + q), lse_q = v_load(r->top + q) * a->scale + v_log(sum);
        vi none = sum == 0;

        v_store(r->rescale + q, v_select(none, v_set(0), 1.0f / sum));
        if (q < n)
            v_put(CT_F32, out, q, n, v_select(none, v_set(-INFINITY), lse_q));
    }
}

#endif
