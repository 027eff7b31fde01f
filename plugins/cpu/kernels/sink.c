/*
 * A sink of attention: rows of o[b, t, h, v] times w = 1 / (1 + exp(sink - lse)), and the gradient.
 *
 * A unit of work is some tokens of one sequence, with all their heads. The weights of a block of
 * heads are made first, along the tokens, as lse[b, h, t] lies in memory. The gradient of the sink
 * is summed per unit, then over the units in their order: it does not depend on the number of
 * threads.
 */
#include <omp.h>

#include "../cpu.h"
#include "kernels.h"
#include <ctitan/lib/cpu/runs.h>
#include "vector.h"

#define TOKENS 32 /* of a unit */
#define HEADS 64  /* of a block */

/* By head and token of a block: w, and 1 - w. */
struct weights {
    float w[HEADS][TOKENS], rest[HEADS][TOKENS];
};

struct unit {
    int64_t b, t, tokens;
};

static int64_t units_of(const struct ct_tensor *o)
{
    return o->shape[0] * ((o->shape[1] + TOKENS - 1) / TOKENS);
}

static struct unit unit_at(const struct ct_tensor *o, int64_t i)
{
    int64_t each = (o->shape[1] + TOKENS - 1) / TOKENS, t = i % each * TOKENS;

    return (struct unit){i / each, t, o->shape[1] - t < TOKENS ? o->shape[1] - t : TOKENS};
}

static float sink_of(const struct ct_tensor *sink, int64_t h)
{
    return sink->dtype == CT_F32 ? ((const float *)sink->data)[h]
                                 : ct_bf16_to_f32(((const uint16_t *)sink->data)[h]);
}

/* The exponential is of the negative distance: 1 - w is exact where w is 1, too. */
static void weigh(const struct ct_tensor *lse, const struct ct_tensor *sink, const struct unit *u,
                  int64_t first, int64_t heads, struct weights *weights)
{
    for (int64_t h = 0; h < heads; h++) {
        const float *from =
            (const float *)lse->data + u->b * lse->stride[0] + (first + h) * lse->stride[1] + u->t;
        vf score = v_set(sink_of(sink, first + h));

        for (int64_t i = 0; i < u->tokens; i += CPU_LANES) {
            vf statistic = v_get(CT_F32, from, i, u->tokens), above = score - statistic;
            vf e = v_exp((vf)((vu)above | 0x80000000u)), larger = 1.0f / (1.0f + e);
            vf smaller = e * larger;
            vi less = above > 0, nothing = statistic == v_set(-INFINITY);

            smaller = v_select(nothing, v_set(0), smaller);
            larger = v_select(nothing, v_set(1), larger);
            less |= nothing;
            v_store(weights->w[h] + i, v_select(less, smaller, larger));
            v_store(weights->rest[h] + i, v_select(less, larger, smaller));
        }
    }
}

static void *row_at(const struct ct_tensor *t, const struct unit *u, int64_t token, int64_t head)
{
    int64_t at = u->b * t->stride[0] + (u->t + token) * t->stride[1] + head * t->stride[2];

    return (char *)t->data + at * (int64_t)ct_dtype_size(t->dtype);
}

/* ---- forward ---- */

CPU_INLINE void scale_unit(enum ct_dtype dtype, const struct ct_launch *l, const struct unit *u)
{
    const struct ct_tensor *o = l->in, *y = l->out;
    int64_t heads = o->shape[2], n = o->shape[3];
    struct weights weights;

    for (int64_t first = 0; first < heads; first += HEADS) {
        int64_t count = heads - first < HEADS ? heads - first : HEADS;

        weigh(l->in + 1, l->in + 2, u, first, count, &weights);
        for (int64_t t = 0; t < u->tokens; t++)
            for (int64_t h = 0; h < count; h++) {
                const void *from = row_at(o, u, t, first + h);
                void *to = row_at(y, u, t, first + h);
                float w = weights.w[h][t];

                for (int64_t i = 0; i < n; i += CPU_LANES)
                    v_put(dtype, to, i, n, v_get(dtype, from, i, n) * w);
            }
    }
}

bool CPU_ISA(cpu_attention_sink_accepts)(const struct ct_prepare *p)
{
    enum ct_dtype dtype = p->in[0].dtype;

    return cpu_is_compute_dtype(dtype) && p->in[1].dtype == CT_F32 && p->in[2].dtype == dtype &&
           p->out[0].dtype == dtype;
}

int CPU_ISA(cpu_attention_sink_run)(const struct ct_launch *l)
{
    const struct ct_tensor *o = l->in;

#pragma omp parallel for schedule(static) if (cpu_worth_threads(ct_tensor_count(o)))
    for (int64_t i = 0; i < units_of(o); i++) {
        struct unit u = unit_at(o, i);

        if (o->dtype == CT_F32)
            scale_unit(CT_F32, l, &u);
        else
            scale_unit(CT_BF16, l, &u);
    }
    return 0;
}

/* ---- its gradient ---- */

/* do = w dy, or do + w dy; returns dy . y. */
CPU_INLINE float gradient_row(enum ct_dtype dtype, const void *dy, const void *y, void *d_o,
                              float w, bool add, int64_t n)
{
    vf sum = {0};

    for (int64_t i = 0; i < n; i += CPU_LANES) {
        vf d = v_get(dtype, dy, i, n), old = add ? v_get(dtype, d_o, i, n) : v_set(0);

        sum += d * v_get(dtype, y, i, n);
        v_put(dtype, d_o, i, n, old + d * w);
    }
    return v_sum(sum);
}

/* dsink: of this unit, by head. */
CPU_INLINE void gradient_unit(enum ct_dtype dtype, const struct ct_launch *l, const struct unit *u,
                              float *dsink)
{
    const struct ct_tensor *dy = l->in, *y = l->in + 1, *d_o = l->out;
    int64_t heads = dy->shape[2], n = dy->shape[3];
    bool add = l->accumulate & 1;
    struct weights weights;

    for (int64_t first = 0; first < heads; first += HEADS) {
        int64_t count = heads - first < HEADS ? heads - first : HEADS;

        weigh(l->in + 2, l->in + 3, u, first, count, &weights);
        for (int64_t t = 0; t < u->tokens; t++)
            for (int64_t h = 0; h < count; h++)
                dsink[first + h] -=
                    weights.rest[h][t] *
                    gradient_row(dtype, row_at(dy, u, t, first + h), row_at(y, u, t, first + h),
                                 row_at(d_o, u, t, first + h), weights.w[h][t], add, n);
    }
}

bool CPU_ISA(cpu_attention_sink_grad_accepts)(const struct ct_prepare *p)
{
    const struct ct_tensor *in = p->in, *out = p->out;

    return cpu_is_compute_dtype(in[0].dtype) && in[1].dtype == in[0].dtype &&
           in[2].dtype == CT_F32 && in[3].dtype == in[0].dtype && out[0].dtype == in[0].dtype &&
           cpu_is_compute_dtype(out[1].dtype);
}

int CPU_ISA(cpu_attention_sink_grad_prepare)(struct ct_prepare *p)
{
    p->workspace = (size_t)(units_of(p->in) * p->in[0].shape[2]) * sizeof(float);
    return 0;
}

int CPU_ISA(cpu_attention_sink_grad_run)(const struct ct_launch *l)
{
    const struct ct_tensor *dy = l->in, *dsink = l->out + 1;
    int64_t heads = dy->shape[2], units = units_of(dy);
    float *partial = l->workspace;

    memset(partial, 0, (size_t)(units * heads) * sizeof(*partial));
#pragma omp parallel for schedule(static) if (cpu_worth_threads(ct_tensor_count(dy)))
    for (int64_t i = 0; i < units; i++) {
        struct unit u = unit_at(dy, i);

        if (dy->dtype == CT_F32)
            gradient_unit(CT_F32, l, &u, partial + i * heads);
        else
            gradient_unit(CT_BF16, l, &u, partial + i * heads);
    }
    for (int64_t h = 0; h < heads; h += CPU_LANES) {
        vf sum = l->accumulate >> 1 & 1 ? v_get(dsink->dtype, dsink->data, h, heads) : v_set(0);

        for (int64_t i = 0; i < units; i++)
            sum += v_get(CT_F32, partial + i * heads, h, heads);
        v_put(dsink->dtype, dsink->data, h, heads, sum);
    }
    return 0;
}
