/*
 * Mixture of experts (Shazeer et al. 2017): the chosen feed-forward layers.
 *
 * The weights of all experts are stacked in three tensors. A rank computes what its experts add to
 * its tokens: if experts are split over ranks, the results are unreduced, and every expert has as
 * many tokens as chose it. Tokens and choices are in no buffers of limited size, so none is
 * dropped. The backward computes the hidden layers again from x.
 */
#include <math.h>
#include <string.h>

#include <ctitan/error.h>
#include <ctitan/lib/ops.h>

#include "list.h"

/* ---- the experts ---- */

enum { X, WEIGHTS, IDS, GATE, UP, DOWN, GATE_BIAS, UP_BIAS, OPERANDS };

/* The operands of an op, from input `at` on. */
struct experts {
    int64_t tokens, k, n, f, count, first; /* experts of this rank, and the first one's number */
    const double *x, *weights, *ids, *gate, *up, *down;
    const double *gate_bias, *up_bias; /* NULL: none */
    double alpha, limit, offset;       /* limit: infinite where there is none */
    double *g, *u, *h;                 /* [f] of one token and expert; g and u before the limits */
};

static struct experts experts_of(const struct ct_launch *l, struct ct_reference *r, int at)
{
    const struct ct_experts *how = l->op->attrs;
    int64_t f = l->in[at + GATE].shape[1];
    bool biased = l->ins > at + GATE_BIAS;

    return (struct experts){
        .tokens = ct_rows(&l->in[at]),
        .k = ct_columns(&l->in[at + WEIGHTS]),
        .n = ct_columns(&l->in[at]),
        .f = f,
        .count = l->in[at + GATE].shape[0],
        .first = ct_launch_offset(l, l->op->in[at + GATE], 0),
        .x = r->in[at],
        .weights = r->in[at + WEIGHTS],
        .ids = r->in[at + IDS],
        .gate = r->in[at + GATE],
        .up = r->in[at + UP],
        .down = r->in[at + DOWN],
        .gate_bias = biased ? r->in[at + GATE_BIAS] : NULL,
        .up_bias = biased ? r->in[at + UP_BIAS] : NULL,
        .alpha = how->alpha != 0 ? how->alpha : 1,
        .limit = how->limit > 0 ? how->limit : INFINITY,
        .offset = how->offset,
        .g = ct_arena_array(&r->arena, double, f),
        .u = ct_arena_array(&r->arena, double, f),
        .h = ct_arena_array(&r->arena, double, f),
    };
}

/* NaN stays NaN. */
static double at_most(double x, double limit)
{
    return x > limit ? limit : x;
}

static double within(double x, double limit)
{
    return x < -limit ? -limit : at_most(x, limit);
}

/* The hidden layer of choice i of a token: false if this rank has no expert for it. */
static bool hidden(const struct experts *s, int64_t i, int64_t *expert)
{
    const double *x = s->x + i / s->k * s->n;
    int64_t e = (int64_t)s->ids[i] - s->first;

    if (s->ids[i] == CT_NO_EXPERT || e < 0 || e >= s->count)
        return false;
    for (int64_t j = 0; j < s->f; j++) {
        int64_t at = e * s->f + j;
        const double *gate = s->gate + at * s->n, *up = s->up + at * s->n;
        double g = s->gate_bias ? s->gate_bias[at] : 0, u = s->up_bias ? s->up_bias[at] : 0;

        for (int64_t n = 0; n < s->n; n++) {
            g += gate[n] * x[n];
            u += up[n] * x[n];
        }
        s->g[j] = g;
        s->u[j] = u;
        g = at_most(g, s->limit);
        s->h[j] = g * sigmoid_of(s->alpha * g) * (within(u, s->limit) + s->offset);
    }
    *expert = e;
    return true;
}

static int check_ids(const struct ct_launch *l, const struct experts *s, int at)
{
    int rc = 0;

    for (int64_t i = 0; rc == 0 && i < s->tokens * s->k; i++)
        if (s->ids[i] != CT_NO_EXPERT)
            rc = ct_checked_index(s->ids, i, l->op->in[at + GATE]->shape[0], "expert");
    return rc;
}

/* y[rows] += factor w[rows, columns] x[columns] */
static void multiply(const double *w, int64_t rows, int64_t columns, const double *x, double factor,
                     double *y)
{
    for (int64_t i = 0; i < rows; i++) {
        double sum = 0;

        for (int64_t j = 0; j < columns; j++)
            sum += w[i * columns + j] * x[j];
        y[i] += factor * sum;
    }
}

/* y[columns] += factor w[rows, columns]^T x[rows] */
static void multiply_transposed(const double *w, int64_t rows, int64_t columns, const double *x,
                                double factor, double *y)
{
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < columns; j++)
            y[j] += factor * w[i * columns + j] * x[i];
}

/* w[rows, columns] += factor x[rows] y[columns]^T */
static void add_outer(double *w, int64_t rows, int64_t columns, double factor, const double *x,
                      const double *y)
{
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < columns; j++)
            w[i * columns + j] += factor * x[i] * y[j];
}

static int experts_reference(const struct ct_launch *l)
{
    struct ct_reference r = ct_reference_begin(l);
    struct experts s = experts_of(l, &r, 0);
    int rc = check_ids(l, &s, 0);
    int64_t e;

    for (int64_t i = 0; rc == 0 && i < s.tokens * s.k; i++)
        if (hidden(&s, i, &e))
            multiply(s.down + e * s.n * s.f, s.n, s.f, s.h, s.weights[i], r.out[0] + i / s.k * s.n);
    return ct_reference_end(&r, rc);
}

/* With h = g sigmoid(alpha g) (u + offset) and dh of one choice: dg over g and du over u. They are
   0 beyond the limits. */
static void hidden_gradients(const struct experts *s, const double *dh)
{
    for (int64_t j = 0; j < s->f; j++) {
        double g = at_most(s->g[j], s->limit), u = within(s->u[j], s->limit);
        double a = sigmoid_of(s->alpha * g);

        s->g[j] =
            s->g[j] > s->limit ? 0 : dh[j] * (u + s->offset) * a * (1 + s->alpha * g * (1 - a));
        s->u[j] = fabs(s->u[j]) > s->limit ? 0 : dh[j] * g * a;
    }
}

/* Where gradients go: NULL where they are not wanted. */
struct gradients {
    double *x, *weights;                            /* of tokens */
    double *gate, *up, *down, *gate_bias, *up_bias; /* of the experts' weights */
};

/* The gradients of choice i of a token, with its hidden layer in s; dh[f] is scratch. */
static void add_gradients(const struct experts *s, int64_t i, int64_t e, const double *dy,
                          double *dh, const struct gradients *d)
{
    const double *x = s->x + i / s->k * s->n;

    memset(dh, 0, sizeof(*dh) * (size_t)s->f);
    multiply_transposed(s->down + e * s->n * s->f, s->n, s->f, dy, 1, dh);
    if (d->down)
        add_outer(d->down + e * s->n * s->f, s->n, s->f, s->weights[i], dy, s->h);
    for (int64_t j = 0; j < s->f; j++) {
        if (d->x)
            d->weights[i] += dh[j] * s->h[j];
        dh[j] *= s->weights[i];
    }
    hidden_gradients(s, dh);
    if (d->x) {
        multiply_transposed(s->gate + e * s->f * s->n, s->f, s->n, s->g, 1, d->x + i / s->k * s->n);
        multiply_transposed(s->up + e * s->f * s->n, s->f, s->n, s->u, 1, d->x + i / s->k * s->n);
    }
    if (d->down) {
        add_outer(d->gate + e * s->f * s->n, s->f, s->n, 1, s->g, x);
        add_outer(d->up + e * s->f * s->n, s->f, s->n, 1, s->u, x);
    }
    for (int64_t j = 0; d->down && s->gate_bias && j < s->f; j++) {
        d->gate_bias[e * s->f + j] += s->g[j];
        d->up_bias[e * s->f + j] += s->u[j];
    }
}

/* Inputs are dy, then those of experts. Outputs: gradients of tokens, of weights, or both. */
static int gradients_reference(const struct ct_launch *l, bool tokens, bool weights)
{
    struct ct_reference r = ct_reference_begin(l);
    struct experts s = experts_of(l, &r, 1);
    double **out = r.out, *dh = ct_arena_array(&r.arena, double, s.f);
    struct gradients d = {0};
    int rc = check_ids(l, &s, 1);
    int64_t e;

    if (tokens) {
        d.x = *out++;
        d.weights = *out++;
    }
    if (weights) {
        d.gate = *out++;
        d.up = *out++;
        d.down = *out++;
        d.gate_bias = s.gate_bias ? *out++ : NULL;
        d.up_bias = s.gate_bias ? *out : NULL;
    }
    for (int64_t i = 0; rc == 0 && i < s.tokens * s.k; i++)
        if (hidden(&s, i, &e))
            add_gradients(&s, i, e, r.in[0] + i / s.k * s.n, dh, &d);
    return ct_reference_end(&r, rc);
}

static int experts_dx_reference(const struct ct_launch *l)
{
    return gradients_reference(l, true, false);
}

static int experts_dw_reference(const struct ct_launch *l)
{
    return gradients_reference(l, false, true);
}

static int experts_grad_reference(const struct ct_launch *l)
{
    return gradients_reference(l, true, true);
}

/* Two per element of the three weights, for each choice of an expert on this rank; choices are
   taken to be even. */
static double flops_of(const struct ct_op *op, const struct ct_tensor *in, int at)
{
    const struct ct_tensor *gate = &in[at + GATE];
    double share = (double)gate->shape[0] / (double)op->in[at + GATE]->shape[0];

    return 2.0 * share * (double)ct_tensor_count(&in[at + WEIGHTS]) * 3 * (double)gate->shape[1] *
           (double)gate->shape[2];
}

static double experts_flops(const struct ct_op *op, const struct ct_tensor *in,
                            const struct ct_tensor *out)
{
    (void)out;
    return flops_of(op, in, 0);
}

/* gate and up are multiplied again; then there are dh, and two products for x. */
static double experts_dx_flops(const struct ct_op *op, const struct ct_tensor *in,
                               const struct ct_tensor *out)
{
    (void)out;
    return 5.0 / 3 * flops_of(op, in, 1);
}

/* The same, with three for the weights. */
static double experts_dw_flops(const struct ct_op *op, const struct ct_tensor *in,
                               const struct ct_tensor *out)
{
    (void)out;
    return 2 * flops_of(op, in, 1);
}

static double experts_grad_flops(const struct ct_op *op, const struct ct_tensor *in,
                                 const struct ct_tensor *out)
{
    (void)out;
    return 8.0 / 3 * flops_of(op, in, 1);
}

static int experts_vjp(struct ct_vjp *v)
{
    const struct ct_op *op = v->op;
    struct ct_value *all[1 + OPERANDS] = {v->dout[0]};
    int rc;

    memcpy(all + 1, op->in, (size_t)op->ins * sizeof(*all));
    rc = ct_emit_gradients(v, &ct_op_experts_dx, all, 1 + op->ins, op->attrs, (int[]){X, WEIGHTS},
                           2);
    return rc < 0 ? rc
                  : ct_emit_gradients(v, &ct_op_experts_dw, all, 1 + op->ins, op->attrs,
                                      (int[]){GATE, UP, DOWN, GATE_BIAS, UP_BIAS}, op->ins - GATE);
}

/* Inputs from `at` on are the operands. */
static int check_biases(const struct ct_op *op, int at)
{
    if (op->ins > at + OPERANDS)
        return ct_fail(CT_EINVAL, "takes gate_bias and up_bias once");
    if (op->ins == at + OPERANDS && (!op->in[at + GATE_BIAS] || !op->in[at + UP_BIAS]))
        return ct_fail(CT_EINVAL, "takes both gate_bias and up_bias, or none");
    return 0;
}

static int experts_infer(struct ct_op *op)
{
    return check_biases(op, 0);
}

static int experts_grad_infer(struct ct_op *op)
{
    return check_biases(op, 1);
}

const struct ct_option ct_experts_attrs[] = {
    CT_OPT_FLOAT(struct ct_experts, alpha, "alpha", "0", -1e300, 1e300,
                 "Factor of the gate in the sigmoid; 0: 1"),
    CT_OPT_FLOAT(struct ct_experts, limit, "limit", "0", 0, 1e300,
                 "Upper limit of the gate, and of the other half's magnitude; 0: none"),
    CT_OPT_FLOAT(struct ct_experts, offset, "offset", "0", -1e300, 1e300,
                 "Added to the other half"),
    {0}};

#define INPUTS                                                                                     \
    "x[.N] T, weights[.K] W, ids[.K] i, gate[efN] T, up[efN] T, down[eNf] T, "                     \
    "*(?gate_bias[ef] T, ?up_bias[ef] T)"

const struct ct_op_type ct_op_experts = {
    .size = sizeof(struct ct_op_type),
    .name = "experts",
    .summary = "sum over the chosen experts of weight * down (silu(gate x) * up x)",
    .signature = INPUTS " -> y[.N] T",
    .attrs = ct_experts_attrs,
    .attrs_size = sizeof(struct ct_experts),
    .infer = experts_infer,
    .vjp = experts_vjp,
    .flops = experts_flops,
    .reference = experts_reference,
    .samples =
        "@inner_roundings=3 @flops=576: real[2,3,4] statistic[2,3,2] index[2,3,2] real[6,2,4] "
        "real[6,2,4] real[6,4,2];"
        " @inner_roundings=3 @flops=576 alpha=1.702 limit=1 offset=1: real[2,3,4] statistic[2,3,2] "
        "index[2,3,2] real[6,2,4] real[6,2,4] real[6,4,2] real[6,2] real[6,2]",
};

const struct ct_op_type ct_op_experts_dx = {
    .size = sizeof(struct ct_op_type),
    .name = "experts_dx",
    .summary = "gradient of experts towards tokens and weights of choices",
    .signature = "dy[.N] T, " INPUTS " -> dx[.N] T, dweights[.K] W",
    .flags = CT_OP_ANY_DTYPE,
    .attrs = ct_experts_attrs,
    .attrs_size = sizeof(struct ct_experts),
    .infer = experts_grad_infer,
    .flops = experts_dx_flops,
    .reference = experts_dx_reference,
    .samples =
        "@inner_roundings=3 @inner_roundings=3: real[3,4] real[3,4] statistic[3,2] index[3,2] "
        "real[6,2,4] real[6,2,4] real[6,4,2];"
        " @inner_roundings=3 @inner_roundings=3 alpha=1.702 limit=1 offset=1: real[3,4] real[3,4] "
        "statistic[3,2] index[3,2] real[6,2,4] real[6,2,4] real[6,4,2] real[6,2] real[6,2]",
};

const struct ct_op_type ct_op_experts_dw = {
    .size = sizeof(struct ct_op_type),
    .name = "experts_dw",
    .summary = "gradient of experts towards their weights",
    .signature = "dy[.N] T, " INPUTS " -> dgate[efN] T, dup[efN] T, ddown[eNf] T, "
                 "*(dgate_bias[ef] T, dup_bias[ef] T)",
    .flags = CT_OP_ANY_DTYPE,
    .attrs = ct_experts_attrs,
    .attrs_size = sizeof(struct ct_experts),
    .infer = experts_grad_infer,
    .flops = experts_dw_flops,
    .reference = experts_dw_reference,
    .samples = "@inner_roundings=3 @flops=576: real[3,4] real[3,4] statistic[3,2] index[3,2] "
               "real[6,2,4] real[6,2,4] real[6,4,2];"
               " @inner_roundings=3 @flops=576 alpha=1.702 limit=1 offset=1: real[3,4] real[3,4] "
               "statistic[3,2] index[3,2] real[6,2,4] real[6,2,4] real[6,4,2] real[6,2] real[6,2]",
};

const struct ct_op_type ct_op_experts_grad = {
    .size = sizeof(struct ct_op_type),
    .name = "experts_grad",
    .summary = "experts_dx and experts_dw in one",
    .signature = "dy[.N] T, " INPUTS " -> dx[.N] T, dweights[.K] W, dgate[efN] T, dup[efN] T, "
                 "ddown[eNf] T, *(dgate_bias[ef] T, dup_bias[ef] T)",
    .flags = CT_OP_ANY_DTYPE,
    .attrs = ct_experts_attrs,
    .attrs_size = sizeof(struct ct_experts),
    .infer = experts_grad_infer,
    .flops = experts_grad_flops,
    .reference = experts_grad_reference,
    .samples =
        "@inner_roundings=3 @inner_roundings=3: real[3,4] real[3,4] statistic[3,2] index[3,2] "
        "real[6,2,4] real[6,2,4] real[6,4,2];"
        " @inner_roundings=3 @inner_roundings=3 alpha=1.702 limit=1 offset=1: real[3,4] real[3,4] "
        "statistic[3,2] index[3,2] real[6,2,4] real[6,2,4] real[6,4,2] real[6,2] real[6,2]",
};

struct ct_value *ct_experts(struct ct_builder *b, const char *name,
                            const struct ct_expert_operands *of, const struct ct_experts *how)
{
    return ct_emit_type1(b, &ct_op_experts, name,
                         (struct ct_value *[]){of->x, of->weights, of->ids, of->gate, of->up,
                                               of->down, of->gate_bias, of->up_bias},
                         of->gate_bias || of->up_bias ? OPERANDS : GATE_BIAS, how);
}
