/*
 * Causal attention with grouped heads (Vaswani et al. 2017; Ainslie et al. 2023). The row statistic
 * lse, the log of the sum of exponentials of the scaled scores, is all that the backward needs
 * besides the operands: p = exp(s - lse) (Dao et al. 2022).
 */
#include <math.h>

#include "standard.h"

/* Addresses into q[b, t, h, d], k, v[b, t, g, d] and lse[b, h, t]. */
struct heads {
    int64_t batch, t, h, g, d;
    const double *documents; /* [b, t], or NULL */
    double scale;
};

static struct heads heads_of(const struct ct_tensor *q, const struct ct_tensor *k,
                             const double *documents)
{
    return (struct heads){q->shape[0],
                          q->shape[1],
                          q->shape[2],
                          k->shape[2],
                          q->shape[3],
                          documents,
                          1 / sqrt((double)q->shape[3])};
}

static int64_t query_at(const struct heads *a, int64_t b, int64_t i, int64_t h)
{
    return ((b * a->t + i) * a->h + h) * a->d;
}

static int64_t key_at(const struct heads *a, int64_t b, int64_t j, int64_t h)
{
    return ((b * a->t + j) * a->g + h / (a->h / a->g)) * a->d;
}

/* Does token i see token j <= i? */
static bool sees(const struct heads *a, int64_t b, int64_t i, int64_t j)
{
    return !a->documents || a->documents[b * a->t + i] == a->documents[b * a->t + j];
}

static double dot(const double *x, const double *y, int64_t n)
{
    double sum = 0;

    for (int64_t k = 0; k < n; k++)
        sum += x[k] * y[k];
    return sum;
}

static void add_scaled(double *y, double a, const double *x, int64_t n)
{
    for (int64_t k = 0; k < n; k++)
        y[k] += a * x[k];
}

/* Scores of one query; -inf where it does not see. Returns their log sum exp. */
static double scores(const struct heads *a, const double *q, const double *k, int64_t b, int64_t i,
                     int64_t h, double *s)
{
    double largest = -INFINITY, sum = 0;

    for (int64_t j = 0; j <= i; j++) {
        s[j] = sees(a, b, i, j)
                   ? a->scale * dot(q + query_at(a, b, i, h), k + key_at(a, b, j, h), a->d)
                   : -INFINITY;
        largest = fmax(largest, s[j]);
    }
    for (int64_t j = 0; j <= i; j++)
        sum += exp(s[j] - largest);
    return largest + log(sum);
}

static int attention_reference(const struct ct_launch *l)
{
    struct ct_reference r = ct_reference_begin(l);
    struct heads a = heads_of(&l->in[0], &l->in[1], r.in[3]);
    double *s = ct_arena_array(&r.arena, double, a.t);

    for (int64_t row = 0; row < a.batch * a.h * a.t; row++) {
        int64_t b = row / a.t / a.h, h = row / a.t % a.h, i = row % a.t;
        double lse = scores(&a, r.in[0], r.in[1], b, i, h, s);

        r.out[1][row] = lse;
        for (int64_t j = 0; j <= i; j++)
            add_scaled(r.out[0] + query_at(&a, b, i, h), exp(s[j] - lse),
                       r.in[2] + key_at(&a, b, j, h), a.d);
    }
    return ct_reference_end(&r, 0);
}

static double attention_flops(const struct ct_tensor *in, const struct ct_tensor *out, int ins,
                              int outs)
{
    (void)out;
    (void)ins;
    (void)outs;
    return 2.0 * (double)ct_tensor_count(&in[0]) * (double)in[0].shape[1];
}

static int attention_vjp(struct ct_vjp *v)
{
    struct ct_value **in = v->op->in, **out = v->op->out;

    if (!v->dout[0])
        return 0;
    return ct_emit_gradients(
        v, "attention_grad",
        (struct ct_value *[]){v->dout[0], in[0], in[1], in[2], out[0], out[1], in[3]}, 7, NULL,
        (int[]){0, 1, 2}, 3);
}

const struct ct_op_type ct_op_attention = {
    .name = "attention",
    .summary = "causal attention: softmax(q k^T / root of d) v",
    .operands = "q T, k T, v T, ?documents i -> o T, lse W",
    .rule = "bThD,bTgD,bTgD,?bT->bThD,bhT",
    .tie = "hg",
    .outputs = "lse",
    .vjp = attention_vjp,
    .flops = attention_flops,
    .reference = attention_reference,
};

static int attention_grad_reference(const struct ct_launch *l)
{
    struct ct_reference r = ct_reference_begin(l);
    const double *d_o = r.in[0], *q = r.in[1], *k = r.in[2], *v = r.in[3], *o = r.in[4];
    struct heads a = heads_of(&l->in[1], &l->in[2], r.in[6]);
    double *s = ct_arena_array(&r.arena, double, a.t);

    for (int64_t row = 0; row < a.batch * a.h * a.t; row++) {
        int64_t b = row / a.t / a.h, h = row / a.t % a.h, i = row % a.t;
        int64_t at = query_at(&a, b, i, h);
        double delta = dot(d_o + at, o + at, a.d);

        scores(&a, q, k, b, i, h, s);
        for (int64_t j = 0; j <= i; j++) {
            int64_t key = key_at(&a, b, j, h);
            double p = exp(s[j] - r.in[5][row]);
            double ds = p * (dot(d_o + at, v + key, a.d) - delta) * a.scale;

            add_scaled(r.out[0] + at, ds, k + key, a.d);
            add_scaled(r.out[1] + key, ds, q + at, a.d);
            add_scaled(r.out[2] + key, p, d_o + at, a.d);
        }
    }
    return ct_reference_end(&r, 0);
}

static double attention_grad_flops(const struct ct_tensor *in, const struct ct_tensor *out, int ins,
                                   int outs)
{
    return 2.5 * attention_flops(in, out, ins, outs);
}

const struct ct_op_type ct_op_attention_grad = {
    .name = "attention_grad",
    .summary = "gradient of attention",
    .operands = "do T, q T, k T, v T, o T, lse W, ?documents i -> dq T, dk T, dv T",
    .rule = "bThD,bThD,bTgD,bTgD,bThD,bhT,?bT->bThD,bTgD,bTgD",
    .tie = "hg",
    .outputs = "dk dv",
    .flops = attention_grad_flops,
    .reference = attention_grad_reference,
};

struct ct_value *ct_attention(struct ct_builder *b, const char *name, struct ct_value *q,
                              struct ct_value *k, struct ct_value *v, struct ct_value *documents)
{
    return ct_emit1(b, "attention", name, (struct ct_value *[]){q, k, v, documents}, 4, NULL);
}
