/*
 * A sink of attention: a score of each head that every query sees, and that adds no value (Xiao et
 * al. 2024; OpenAI 2025). With it the sum of exponentials is exp(lse) + exp(sink), so the result is
 * that of attention times w = exp(lse) / (exp(lse) + exp(sink)).
 *
 * With y = w o, the gradient of attention's scores is p (do . v - do . o + dlse), where do = w dy
 * and dlse = w (1 - w) dy . o. What is subtracted, do . o - dlse, is do . y. So attention_grad
 * takes y in place of o, and no gradient of lse exists.
 */
#include <math.h>

#include "list.h"

/* 0 where a query sees nothing: lse is -inf. */
static double weight(double lse, double sink)
{
    return lse == -INFINITY ? 0 : 1 / (1 + exp(sink - lse));
}

/* Weight of row (b, t, h) of x[b, t, h, v]; its head is *h. */
static double weight_of(const struct ct_tensor *x, const double *lse, const double *sink,
                        int64_t row, int64_t *h)
{
    int64_t t = x->shape[1], heads = x->shape[2];

    *h = row % heads;
    return weight(lse[(row / heads / t * heads + *h) * t + row / heads % t], sink[*h]);
}

static int sink_reference(const struct ct_launch *l)
{
    struct ct_reference r = ct_reference_begin(l);
    int64_t n = ct_columns(&l->in[0]), h;

    for (int64_t row = 0; row < ct_rows(&l->in[0]); row++) {
        double w = weight_of(&l->in[0], r.in[1], r.in[2], row, &h);

        for (int64_t i = row * n; i < (row + 1) * n; i++)
            r.out[0][i] = w * r.in[0][i];
    }
    return ct_reference_end(&r, 0);
}

static int sink_vjp(struct ct_vjp *v)
{
    struct ct_value **in = v->op->in;

    if (v->wanted[1] && in[1]->producer != in[0]->producer)
        return ct_fail(CT_EINVAL, "%%%s is not of the attention that computes %%%s", in[1]->name,
                       in[0]->name);
    return ct_emit_gradients(v, &ct_op_attention_sink_grad,
                             (struct ct_value *[]){v->dout[0], v->op->out[0], in[1], in[2]}, 4,
                             NULL, (int[]){0, 2}, 2);
}

const struct ct_op_type ct_op_attention_sink = {
    .size = sizeof(struct ct_op_type),
    .name = "attention_sink",
    .summary = "attention with one more score, which adds no value: o / (1 + exp(sink - lse))",
    .signature = "o[bthv] T, lse[bht] W, sink[h] T -> y[bthv] T",
    .inplace = (const int8_t[][2]){{0, 0}, {-1, -1}},
    .vjp = sink_vjp,
    .reference = sink_reference,
    .samples = "real[2,6,4,2] given[2,4,6] real[4]; real[2,4,2,3] given[2,2,4] real[2]",
};

static int sink_grad_reference(const struct ct_launch *l)
{
    struct ct_reference r = ct_reference_begin(l);
    int64_t n = ct_columns(&l->in[0]), h;

    for (int64_t row = 0; row < ct_rows(&l->in[0]); row++) {
        double w = weight_of(&l->in[0], r.in[2], r.in[3], row, &h);

        for (int64_t i = row * n; i < (row + 1) * n; i++) {
            r.out[0][i] = w * r.in[0][i];
            r.out[1][h] -= (1 - w) * r.in[0][i] * r.in[1][i];
        }
    }
    return ct_reference_end(&r, 0);
}

const struct ct_op_type ct_op_attention_sink_grad = {
    .size = sizeof(struct ct_op_type),
    .name = "attention_sink_grad",
    .summary = "gradient of attention_sink",
    .signature = "dy[bthv] T, y[bthv] T, lse[bht] W, sink[h] T -> do[bthv] T, dsink[h] T",
    .flags = CT_OP_ANY_DTYPE,
    .inplace = (const int8_t[][2]){{0, 0}, {-1, -1}},
    .reference = sink_grad_reference,
    .samples = "real[2,6,4,2] real[2,6,4,2] statistic[2,4,6] real[4]",
};

int ct_attention_result(const struct ct_op *attention, struct ct_value **result)
{
    struct ct_value *o = attention->out[0];
    const struct ct_op *sink = NULL;

    *result = o;
    ct_for_each_use (use, o)
        if (use->op->type == &ct_op_attention_sink && use->index == 0)
            sink = use->op;
    if (!sink)
        return 0;
    *result = sink->out[0];
    ct_for_each_use (use, o)
        if (use->op != sink)
            return ct_fail(CT_EINVAL,
                           "%%%s is used by %s beside the attention_sink of %%%s: the gradient of "
                           "attention with a sink needs all else to use what the sink gives",
                           o->name, use->op->type->name, sink->out[0]->name);
    return 0;
}

struct ct_value *ct_attention_with_sink(struct ct_builder *b, const char *name, struct ct_value *q,
                                        struct ct_value *k, struct ct_value *v,
                                        struct ct_value *documents, struct ct_value *sink,
                                        const struct ct_attention *how)
{
    const char *plain = name ? ct_arena_printf(b->graph->arena, "%s.plain", name) : NULL;
    struct ct_value *o = ct_attention(b, plain, q, k, v, documents, how);
    struct ct_value *lse = o ? o->producer->out[1] : NULL;

    return ct_emit_type1(b, &ct_op_attention_sink, name, (struct ct_value *[]){o, lse, sink}, 3,
                         NULL);
}
