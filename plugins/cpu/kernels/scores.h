/*
 * Changes of attention's scores, by tiles: a bound that they approach, c tanh(s / c), and slopes
 * that lower them with the distance of query and key. Scores are products that are not scaled yet.
 */
#ifndef CPU_KERNELS_SCORES_H
#define CPU_KERNELS_SCORES_H

#include <ctitan/lib/ops.h>

#include "attention_mask.h"

/* Both of scores that are not scaled; 0: none. */
struct change {
    float cap;
    double alibi; /* exponent of the slopes */
    float unit;   /* 1 / scale */
    int64_t first_head, heads;
};

/* The queries are input `at`. */
static inline struct change change_of(const struct ct_launch *launch, int at,
                                      const struct attention *a)
{
    const struct ct_value *q = launch->op->in[at];
    double alibi = ct_op_float(launch->op, "alibi");

    return (struct change){.cap = (float)ct_op_float(launch->op, "softcap") / a->scale,
                           .alibi = alibi,
                           .unit = 1 / a->scale,
                           .first_head = alibi > 0 ? ct_launch_offset(launch, q, 2) : 0,
                           .heads = alibi > 0 ? q->shape[2] : 0};
}

/* A polynomial where 1 - 2 / (e^2x + 1) cancels (Moshier's cephes). */
CPU_INLINE vf tanh_of(vf x)
{
    vf size = v_max(x, -x), square = x * x;
    vf far = 1.0f - 2.0f * v_rcp(1.0f + v_exp(v_min(size, v_set(20)) * 2.0f));
    vf near = square * -5.70498872745e-3f + 2.06390887954e-2f;

    near = near * square - 5.37397155531e-2f;
    near = near * square + 1.33314422036e-1f;
    near = near * square - 3.33332819422e-1f;
    near = near * square * x + x;
    far = v_select(x < 0.0f, -far, far);
    return v_select(size < 0.625f, near, v_select(x == x, far, x));
}

static inline void cap_scores(float cap, bool diagonal, float *scores)
{
    float per_cap = 1 / cap;

    for (int64_t q = 0; q < TILE; q += CPU_LANES)
        for (int64_t k = 0; k < keys_of(diagonal, q); k++) {
            float *s = scores + k * TILE + q;

            v_store(s, tanh_of(v_load(s) * per_cap) * cap);
        }
}

/* Positions of a tile's tokens; of those that do not exist, the last one's. */
static inline void positions_in(const struct side *s, int64_t b, int64_t tile, float *position)
{
    struct side real = *s;
    int64_t n = tokens_in(s->tokens, tile);

    real.behind = false;
    for (int64_t i = 0; i < TILE; i++)
        position[i] = (float)position_of(&real, b, tile * TILE + (i < n ? i : n - 1));
}

static inline void slope_scores(const struct change *c, const struct attention_mask *s, int64_t b,
                                int64_t head, int64_t query_tile, int64_t key_tile, bool diagonal,
                                float *scores)
{
    float queries[TILE], keys[TILE];
    float slope = (float)ct_alibi_slope(c->alibi, c->heads, c->first_head + head) * c->unit;

    positions_in(&s->queries, b, query_tile, queries);
    positions_in(&s->keys, b, key_tile, keys);
    for (int64_t q = 0; q < TILE; q += CPU_LANES) {
        vf position = v_load(queries + q);

        for (int64_t k = 0; k < keys_of(diagonal, q); k++) {
            float *at = scores + k * TILE + q;
            vf behind = position - keys[k];

            v_store(at, v_load(at) - v_max(behind, -behind) * slope);
        }
    }
}

/* Scores of a tile that are not masked yet. */
static inline void change_scores(const struct change *c, const struct attention_mask *s, int64_t b,
                                 int64_t head, int64_t query_tile, int64_t key_tile, unsigned how,
                                 float *scores)
{
    if (c->cap > 0)
        cap_scores(c->cap, how & DIAGONAL, scores);
    if (c->alibi > 0)
        slope_scores(c, s, b, head, query_tile, key_tile, how & DIAGONAL, scores);
}

/* The derivative of a changed score, which may be MASKED, times x. per_cap 0: x */
CPU_INLINE vf through_change(float per_cap, vf score, vf x)
{
    vf t = v_max(score * per_cap, v_set(-1));

    return x - x * t * t;
}

static inline float per_cap(const struct change *c)
{
    return c->cap > 0 ? 1 / c->cap : 0;
}

#endif
