/*
 * The auxiliary loss of a mixture (Fedus et al. 2021) over all of its tokens and layers at once:
 * weight sum_e load[e] score[e]. load counts the choices of an expert, score is the sum of its
 * probabilities. Each is summed over layers and ranks before the product, which is not linear in
 * tokens. load counts as constant.
 */
#include <math.h>

#include <ctitan/pointwise.h>

#include "list.h"

const struct ct_op_type ct_op_softmax_sum = {
    .size = sizeof(struct ct_op_type),
    .name = "softmax_sum",
    .summary = "the sum over rows of their softmax",
    .signature = "x[.E] T -> sum[E] W",
    .vjp = ct_pointwise_vjp,
    .reference = ct_pointwise_reference,
    .samples = "real[2,3,6]; real[5,4]",
    .pointwise = "p = exp(x - row_max(x)); sum = column_sum(p / row_sum(p))",
};

struct ct_value *ct_softmax_sum(struct ct_builder *b, const char *name, struct ct_value *x)
{
    return ct_emit_type1(b, &ct_op_softmax_sum, name, &x, 1, NULL);
}

/* ---- the loss ---- */

static const struct ct_option balance_attrs[] = {
    CT_OPT_FLOAT(struct ct_balance, weight, "weight", "1", 0, 1e300, "Factor of the sum"), {0}};

static int loss_reference(const struct ct_launch *l)
{
    struct ct_reference r = ct_reference_begin(l);
    double weight = ((const struct ct_balance *)l->op->attrs)->weight;

    for (int64_t e = 0; e < ct_tensor_count(&l->in[0]); e++)
        r.out[0][0] += weight * r.in[0][e] * r.in[1][e];
    return ct_reference_end(&r, 0);
}

const struct ct_op_type ct_op_balance_loss = {
    .size = sizeof(struct ct_op_type),
    .name = "balance_loss",
    .summary = "weight times the sum over experts of load times score",
    .signature = "load[E] T, score[E] T -> loss[] T",
    .attrs = balance_attrs,
    .attrs_size = sizeof(struct ct_balance),
    .reference = loss_reference,
    .samples = "weight=0.5: statistic[6] statistic[6]",
};

struct ct_value *ct_balance_loss(struct ct_builder *b, const char *name, struct ct_value *load,
                                 struct ct_value *score, double weight)
{
    return ct_emit_type1(b, &ct_op_balance_loss, name, (struct ct_value *[]){load, score}, 2,
                         &(struct ct_balance){weight});
}

/* ---- its gradient, beside that of another loss ---- */

static int balanced_reference(const struct ct_launch *l)
{
    struct ct_reference r = ct_reference_begin(l);

    for (int64_t i = 0; i < ct_tensor_count(&l->out[0]); i++)
        r.out[0][i] = r.in[0][i];
    return ct_reference_end(&r, 0);
}

static int balanced_vjp(struct ct_vjp *v)
{
    double weight = ((const struct ct_balance *)v->op->attrs)->weight;

    v->din[0] = v->dout[0];
    if (v->wanted[2])
        v->din[2] = ct_scale(v->b, ct_gradient_name(v, 2), v->op->in[1], weight);
    return v->b->status;
}

const struct ct_op_type ct_op_balanced = {
    .size = sizeof(struct ct_op_type),
    .name = "balanced",
    .summary = "x; backward, balance_loss is a part of the loss",
    .signature = "x[.] T, load[E] W, score[E] W -> y[.] T",
    .flags = CT_OP_VIEW,
    .attrs = balance_attrs,
    .attrs_size = sizeof(struct ct_balance),
    .vjp = balanced_vjp,
    .reference = balanced_reference,
    .samples = "weight=0.5: real[2,4] given[6] given[6]",
};

struct ct_value *ct_balanced(struct ct_builder *b, const char *name, struct ct_value *x,
                             struct ct_value *load, struct ct_value *score, double weight)
{
    return ct_emit_type1(b, &ct_op_balanced, name, (struct ct_value *[]){x, load, score}, 3,
                         &(struct ct_balance){weight});
}
