/*
 * Attention over two sets of keys from that over each: their statistics say how much each weighs,
 * o = (o1 exp(lse1) + o2 exp(lse2)) / (exp(lse1) + exp(lse2)). A side that saw no key has an lse of
 * -inf and weighs nothing; if neither saw one, o stays 0 and lse -inf.
 */
#include <omp.h>

#include "../cpu.h"
#include "kernels.h"
#include <ctitan/lib/cpu/runs.h>
#include "vector.h"

#define NOTHING (-1e30f) /* finite: a difference of two is 0, not NaN */
#define LOG2_E 1.44269504f

/* Heads that are done together, one a lane. */
struct shares {
    float o[CPU_LANES], other[CPU_LANES];
};

static float *statistic_at(const struct ct_tensor *lse, int64_t b, int64_t h, int64_t t)
{
    return (float *)lse->data + b * lse->stride[0] + h * lse->stride[1] + t * lse->stride[2];
}

static vf load_statistics(const struct ct_tensor *lse, int64_t b, int64_t h, int64_t t)
{
    float lane[CPU_LANES];

    for (int64_t i = 0; i < CPU_LANES; i++)
        lane[i] = h + i < lse->shape[1] ? *statistic_at(lse, b, h + i, t) : 0;
    return v_max(v_set(NOTHING), v_load(lane));
}

/* Weights of heads h, h + 1, .. of a token on either side; their statistic is merged. */
static void weigh(const struct ct_launch *launch, int64_t b, int64_t h, int64_t t, struct shares *s)
{
    const struct ct_tensor *out = launch->out + 1;
    vf a = load_statistics(launch->in + 1, b, h, t), c = load_statistics(launch->in + 3, b, h, t);
    vf top = v_max(a, c), p = v_exp2((a - top) * LOG2_E), q = v_exp2((c - top) * LOG2_E);
    vf sum = p + q, lse = v_select(top == NOTHING, v_set(-INFINITY), top + v_log(sum));
    float lane[CPU_LANES];

    v_store(s->o, p / sum);
    v_store(s->other, q / sum);
    v_store(lane, lse);
    for (int64_t i = 0; i < CPU_LANES && h + i < out->shape[1]; i++)
        *statistic_at(out, b, h + i, t) = lane[i];
}

CPU_INLINE void add_rows(enum ct_dtype from, enum ct_dtype to, const void *o, float share,
                         const void *other, float other_share, void *out, int64_t n)
{
    for (int64_t i = 0; i < n; i += CPU_LANES)
        v_put(to, out, i, n, v_get(from, o, i, n) * share + v_get(from, other, i, n) * other_share);
}

static void *row_at(const struct ct_tensor *t, int64_t b, int64_t token, int64_t head)
{
    int64_t at = b * t->stride[0] + token * t->stride[1] + head * t->stride[2];

    return (char *)t->data + at * (int64_t)ct_dtype_size(t->dtype);
}

static void merge_head(const struct ct_launch *launch, int64_t b, int64_t t, int64_t h, float share,
                       float other_share)
{
    const struct ct_tensor *in = launch->in, *out = launch->out;
    const void *o = row_at(in, b, t, h), *other = row_at(in + 2, b, t, h);
    void *to = row_at(out, b, t, h);
    int64_t n = out->shape[3];

    if (in->dtype == CT_F32 && out->dtype == CT_F32)
        add_rows(CT_F32, CT_F32, o, share, other, other_share, to, n);
    else if (in->dtype == CT_F32)
        add_rows(CT_F32, CT_BF16, o, share, other, other_share, to, n);
    else if (out->dtype == CT_F32)
        add_rows(CT_BF16, CT_F32, o, share, other, other_share, to, n);
    else
        add_rows(CT_BF16, CT_BF16, o, share, other, other_share, to, n);
}

static void merge_token(const struct ct_launch *launch, int64_t b, int64_t t)
{
    int64_t heads = launch->in->shape[2];

    for (int64_t h = 0; h < heads; h += CPU_LANES) {
        struct shares s;

        weigh(launch, b, h, t, &s);
        for (int64_t i = 0; i < CPU_LANES && h + i < heads; i++)
            merge_head(launch, b, t, h + i, s.o[i], s.other[i]);
    }
}

bool CPU_ISA(cpu_attention_merge_accepts)(const struct ct_prepare *prepare)
{
    const struct ct_tensor *in = prepare->in, *out = prepare->out;

    return cpu_is_compute_dtype(in[0].dtype) && in[2].dtype == in[0].dtype &&
           cpu_is_compute_dtype(out[0].dtype) && in[1].dtype == CT_F32 && in[3].dtype == CT_F32 &&
           out[1].dtype == CT_F32;
}

int CPU_ISA(cpu_attention_merge_run)(const struct ct_launch *launch)
{
    const struct ct_tensor *o = launch->in;
    int64_t batch = o->shape[0], tokens = o->shape[1];

#pragma omp parallel for schedule(static) if (cpu_worth_threads(ct_tensor_count(o)))
    for (int64_t i = 0; i < batch * tokens; i++)
        merge_token(launch, i / tokens, i % tokens);
    return 0;
}
