/*
 * Biases of the chosen experts' results.
 *
 * They are small, so they stay where the tokens are, wherever the experts compute. A rank adds
 * those of the experts that its shard of the biases holds.
 */
#include <ctitan/lib/ops.h>

#include "list.h"

/* Choices, and the biases that they pick; at: the input ids. */
struct picked {
    const double *ids;
    int64_t count, k, n, first, experts, all; /* count: of choices; experts: of this rank */
};

static struct picked picked_of(const struct ct_launch *l, const struct ct_reference *r, int at)
{
    return (struct picked){.ids = r->in[at],
                           .count = ct_tensor_count(&l->in[at]),
                           .k = ct_columns(&l->in[at]),
                           .n = ct_columns(&l->in[at + 1]),
                           .first = ct_launch_offset(l, l->op->in[at + 1], 0),
                           .experts = l->in[at + 1].shape[0],
                           .all = l->op->in[at + 1]->shape[0]};
}

/* *row: where the bias of choice i begins; -1: it is nowhere, or on another rank. */
static int pick(const struct picked *p, int64_t i, int64_t *row)
{
    int64_t e = (int64_t)p->ids[i] - p->first;

    *row = e >= 0 && e < p->experts ? e * p->n : -1;
    if (p->ids[i] != CT_NO_EXPERT)
        return ct_checked_index(p->ids, i, p->all, "expert");
    *row = -1;
    return 0;
}

static int expert_bias_reference(const struct ct_launch *l)
{
    struct ct_reference r = ct_reference_begin(l);
    struct picked p = picked_of(l, &r, 1);
    int64_t row;
    int rc = 0;

    for (int64_t i = 0; rc == 0 && i < p.count; i++) {
        rc = pick(&p, i, &row);
        for (int64_t j = 0; rc == 0 && row >= 0 && j < p.n; j++)
            r.out[0][i / p.k * p.n + j] += r.in[0][i] * r.in[2][row + j];
    }
    return ct_reference_end(&r, rc);
}

static int expert_bias_vjp(struct ct_vjp *v)
{
    struct ct_value **in = v->op->in, *dy = v->dout[0];
    int rc = ct_emit_gradients(v, &ct_op_expert_bias_dweights,
                               (struct ct_value *[]){dy, in[1], in[2]}, 3, NULL, (int[]){0}, 1);

    return rc < 0 ? rc
                  : ct_emit_gradients(v, &ct_op_expert_bias_dbias,
                                      (struct ct_value *[]){dy, in[0], in[1], in[2]}, 4, NULL,
                                      (int[]){2}, 1);
}

const struct ct_op_type ct_op_expert_bias = {
    .size = sizeof(struct ct_op_type),
    .name = "expert_bias",
    .summary = "sum over the chosen experts of weight * bias",
    .signature = "weights[.K] W, ids[.K] i, bias[eN] T -> y[.N] T",
    .vjp = expert_bias_vjp,
    .reference = expert_bias_reference,
    .samples = "statistic[2,3,2] index[2,3,2] real[6,4]",
};

static int dweights_reference(const struct ct_launch *l)
{
    struct ct_reference r = ct_reference_begin(l);
    struct picked p = picked_of(l, &r, 1);
    int64_t row;
    int rc = 0;

    for (int64_t i = 0; rc == 0 && i < p.count; i++) {
        rc = pick(&p, i, &row);
        for (int64_t j = 0; rc == 0 && row >= 0 && j < p.n; j++)
            r.out[0][i] += r.in[0][i / p.k * p.n + j] * r.in[2][row + j];
    }
    return ct_reference_end(&r, rc);
}

const struct ct_op_type ct_op_expert_bias_dweights = {
    .size = sizeof(struct ct_op_type),
    .name = "expert_bias_dweights",
    .summary = "gradient of expert_bias towards the weights of choices",
    .signature = "dy[.N] T, ids[.K] i, bias[eN] T -> dweights[.K] W",
    .flags = CT_OP_ANY_DTYPE,
    .reference = dweights_reference,
    .samples = "@flops=0: real[2,3,4] index[2,3,2] real[6,4]",
};

static int dbias_reference(const struct ct_launch *l)
{
    struct ct_reference r = ct_reference_begin(l);
    struct picked p = picked_of(l, &r, 2);
    int64_t row;
    int rc = 0;

    for (int64_t i = 0; rc == 0 && i < p.count; i++) {
        rc = pick(&p, i, &row);
        for (int64_t j = 0; rc == 0 && row >= 0 && j < p.n; j++)
            r.out[0][row + j] += r.in[1][i] * r.in[0][i / p.k * p.n + j];
    }
    return ct_reference_end(&r, rc);
}

const struct ct_op_type ct_op_expert_bias_dbias = {
    .size = sizeof(struct ct_op_type),
    .name = "expert_bias_dbias",
    .summary = "gradient of expert_bias towards the biases: rows of dy, added up by expert",
    .signature = "dy[.N] T, weights[.K] W, ids[.K] i, bias[eN] T -> dbias[eN] T",
    .flags = CT_OP_ANY_DTYPE,
    .reference = dbias_reference,
    .samples = "@flops=0: real[2,3,4] statistic[2,3,2] index[2,3,2] real[6,4]",
};

struct ct_value *ct_expert_bias(struct ct_builder *b, const char *name, struct ct_value *weights,
                                struct ct_value *ids, struct ct_value *bias)
{
    return ct_emit_type1(b, &ct_op_expert_bias, name, (struct ct_value *[]){weights, ids, bias}, 3,
                         NULL);
}
