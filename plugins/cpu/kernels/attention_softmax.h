/*
 * Shared parts of attention kernels with float32 and with bfloat16 GEMMs: the running maximum
 * and sum of a tile's softmax, and how gradients are dealt out to tasks.
 */
#ifndef CPU_KERNELS_ATTENTION_SOFTMAX_H
#define CPU_KERNELS_ATTENTION_SOFTMAX_H

#include "attention.h"

/* ---- forward ---- */

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

/* ---- gradients ---- */

/*
 * A key/value head of one sequence is one task. Heads that are left when each thread has had as
 * many as the others may instead be `parts` tasks that make dk and dv of some key tiles, and as
 * many that make dq of some queries: seven products instead of five, on all threads.
 */
struct dealt {
    int64_t whole, parts; /* heads that are one task; tasks of each kind of another head */
};

struct task {
    int64_t b, group;
    int64_t first, step; /* query tiles, or chunks of them */
    int64_t begin, end;  /* key tiles */
    bool queries, keys;  /* dq; dk and dv */
};

static inline struct dealt deal_out(const struct attention *a, int threads, int64_t query_steps)
{
    int64_t heads = a->batch * a->groups, rest = heads % threads, parts;

    if (7 * rest >= 5 * threads || rest == 0)
        return (struct dealt){heads, 0};
    parts = (4 * threads + rest - 1) / rest;
    parts = parts < query_steps ? parts : query_steps;
    return (struct dealt){heads - rest, parts < a->key_tiles ? parts : a->key_tiles};
}

static inline int64_t count_tasks(const struct attention *a, const struct dealt *d)
{
    return d->whole + (a->batch * a->groups - d->whole) * 2 * d->parts;
}

/* The longest first: whole heads, then dk and dv of the first keys, then dq. */
static inline struct task task_at(const struct attention *a, const struct dealt *d, int64_t index)
{
    int64_t rest = a->batch * a->groups - d->whole, after = index - d->whole,
            head = after < 0 ? index : d->whole + after % rest, part = after < 0 ? 0 : after / rest;
    struct task t = {
        .b = head / a->groups, .group = head % a->groups, .step = 1, .end = a->key_tiles};

    t.keys = after < 0 || part < d->parts;
    t.queries = after < 0 || part >= d->parts;
    if (after >= 0 && t.keys) {
        t.begin = a->key_tiles * part / d->parts;
        t.end = a->key_tiles * (part + 1) / d->parts;
    } else if (after >= 0) {
        t.step = d->parts;
        t.first = part - d->parts;
    }
    return t;
}

#endif
