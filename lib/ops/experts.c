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

#include <ctitan/lib/ops.h>

#include "list.h"

/* ---- the experts ---- */

/* The operands x, weights, ids, gate, up, down of an op, from input `at` on. */
struct experts {
    int64_t tokens, k, n, f, count, first; /* experts of this rank, and the first one's number */
    const double *x, *weights, *ids, *gate, *up, *down;
    double *g, *u, *h; /* [f] of one token and expert */
};

static struct experts experts_of(const struct ct_launch *l, struct ct_reference *r, int at)
{
    int64_t f = l->in[at + 3].shape[1];

    return (struct experts){
        .tokens = ct_rows(&l->in[at]),
        .k = ct_columns(&l->in[at + 1]),
        .n = ct_columns(&l->in[at]),
        .f = f,
        .count = l->in[at + 3].shape[0],
        .first = ct_launch_offset(l, l->op->in[at + 3], 0),
        .x = r->in[at],
        .weights = r->in[at + 1],
        .ids = r->in[at + 2],
        .gate = r->in[at + 3],
        .up = r->in[at + 4],
        .down = r->in[at + 5],
        .g = ct_arena_array(&r->arena, double, f),
        .u = ct_arena_array(&r->arena, double, f),
        .h = ct_arena_array(&r->arena, double, f),
    };
}

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

/* The hidden layer of choice i of a token: false if this rank has no expert for it. */
static bool hidden(const struct experts *s, int64_t i, int64_t *expert)
{
    const double *x = s->x + i / s->k * s->n;
    int64_t e = (int64_t)s->ids[i] - s->first;

    if (s->ids[i] == CT_NO_EXPERT || e < 0 || e >= s->count)
        return false;
    for (int64_t j = 0; j < s->f; j++) {
        const double *gate = s->gate + (e * s->f + j) * s->n, *up = s->up + (e * s->f + j) * s->n;

        s->g[j] = s->u[j] = 0;
        for (int64_t n = 0; n < s->n; n++) {
            s->g[j] += gate[n] * x[n];
            s->u[j] += up[n] * x[n];
        }
        s->h[j] = s->g[j] * sigmoid(s->g[j]) * s->u[j];
    }
    *expert = e;
    return true;
}

static int check_ids(const struct ct_launch *l, const struct experts *s, int at)
{
    int rc = 0;

    for (int64_t i = 0; rc == 0 && i < s->tokens * s->k; i++)
        if (s->ids[i] != CT_NO_EXPERT)
            rc = ct_checked_index(s->ids, i, l->op->in[at + 3]->shape[0], "expert");
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

/* With h = silu(g) u and dh of one choice: dg over g and du over u. */
static void hidden_gradients(const struct experts *s, const double *dh)
{
    for (int64_t j = 0; j < s->f; j++) {
        double g = s->g[j], a = sigmoid(g);

        s->g[j] = dh[j] * s->u[j] * a * (1 + g * (1 - a));
        s->u[j] = dh[j] * g * a;
    }
}

/* Inputs are dy, then those of experts. */
static int experts_dx_reference(const struct ct_launch *l)
{
    struct ct_reference r = ct_reference_begin(l);
    struct experts s = experts_of(l, &r, 1);
    double *dh = ct_arena_array(&r.arena, double, s.f);
    int rc = check_ids(l, &s, 1);
    int64_t e;

    for (int64_t i = 0; rc == 0 && i < s.tokens * s.k; i++) {
        const double *dy = r.in[0] + i / s.k * s.n;
        double *dx = r.out[0] + i / s.k * s.n;

        if (!hidden(&s, i, &e))
            continue;
        memset(dh, 0, sizeof(*dh) * (size_t)s.f);
        multiply_transposed(s.down + e * s.n * s.f, s.n, s.f, dy, 1, dh);
        for (int64_t j = 0; j < s.f; j++) {
            r.out[1][i] += dh[j] * s.h[j];
            dh[j] *= s.weights[i];
        }
        hidden_gradients(&s, dh);
        multiply_transposed(s.gate + e * s.f * s.n, s.f, s.n, s.g, 1, dx);
        multiply_transposed(s.up + e * s.f * s.n, s.f, s.n, s.u, 1, dx);
    }
    return ct_reference_end(&r, rc);
}

static int experts_dw_reference(const struct ct_launch *l)
{
    struct ct_reference r = ct_reference_begin(l);
    struct experts s = experts_of(l, &r, 1);
    double *dh = ct_arena_array(&r.arena, double, s.f);
    int rc = check_ids(l, &s, 1);
    int64_t e;

    for (int64_t i = 0; rc == 0 && i < s.tokens * s.k; i++) {
        const double *dy = r.in[0] + i / s.k * s.n, *x = s.x + i / s.k * s.n;

        if (!hidden(&s, i, &e))
            continue;
        memset(dh, 0, sizeof(*dh) * (size_t)s.f);
        multiply_transposed(s.down + e * s.n * s.f, s.n, s.f, dy, s.weights[i], dh);
        add_outer(r.out[2] + e * s.n * s.f, s.n, s.f, s.weights[i], dy, s.h);
        hidden_gradients(&s, dh);
        add_outer(r.out[0] + e * s.f * s.n, s.f, s.n, 1, s.g, x);
        add_outer(r.out[1] + e * s.f * s.n, s.f, s.n, 1, s.u, x);
    }
    return ct_reference_end(&r, rc);
}

/* Two per element of the three weights, for each choice of an expert on this rank; choices are
   taken to be even. */
static double flops_of(const struct ct_op *op, const struct ct_tensor *in, int at)
{
    double share = (double)in[at + 3].shape[0] / (double)op->in[at + 3]->shape[0];

    return 2.0 * share * (double)ct_tensor_count(&in[at + 1]) * 3 * (double)in[at + 3].shape[1] *
           (double)in[at + 3].shape[2];
}

static double experts_flops(const struct ct_op *op, const struct ct_tensor *in,
                            const struct ct_tensor *out)
{
    (void)out;
    return flops_of(op, in, 0);
}

/* gate and up are multiplied again. */
static double experts_grad_flops(const struct ct_op *op, const struct ct_tensor *in,
                                 const struct ct_tensor *out)
{
    (void)out;
    return 5.0 / 3 * flops_of(op, in, 1);
}

static int experts_vjp(struct ct_vjp *v)
{
    struct ct_value **in = v->op->in;
    struct ct_value *all[7] = {v->dout[0], in[0], in[1], in[2], in[3], in[4], in[5]};
    int rc = ct_emit_gradients(v, &ct_op_experts_dx, all, 7, NULL, (int[]){0, 1}, 2);

    return rc < 0 ? rc : ct_emit_gradients(v, &ct_op_experts_dw, all, 7, NULL, (int[]){3, 4, 5}, 3);
}

#define OPERANDS "x[.N] T, weights[.K] W, ids[.K] i, gate[efN] T, up[efN] T, down[eNf] T"

const struct ct_op_type ct_op_experts = {
    .size = sizeof(struct ct_op_type),
    .name = "experts",
    .summary = "sum over the chosen experts of weight * down (silu(gate x) * up x)",
    .signature = OPERANDS " -> y[.N] T",
    .vjp = experts_vjp,
    .flops = experts_flops,
    .reference = experts_reference,
};

const struct ct_op_type ct_op_experts_dx = {
    .size = sizeof(struct ct_op_type),
    .name = "experts_dx",
    .summary = "gradient of experts towards tokens and weights of choices",
    .signature = "dy[.N] T, " OPERANDS " -> dx[.N] T, dweights[.K] W",
    .flags = CT_OP_ANY_DTYPE,
    .flops = experts_grad_flops,
    .reference = experts_dx_reference,
};

const struct ct_op_type ct_op_experts_dw = {
    .size = sizeof(struct ct_op_type),
    .name = "experts_dw",
    .summary = "gradient of experts towards their weights",
    .signature = "dy[.N] T, " OPERANDS " -> dgate[efN] T, dup[efN] T, ddown[eNf] T",
    .flags = CT_OP_ANY_DTYPE,
    .flops = experts_grad_flops,
    .reference = experts_dw_reference,
};

struct ct_value *ct_experts(struct ct_builder *b, const char *name, struct ct_value *x,
                            struct ct_value *weights, struct ct_value *ids, struct ct_value *gate,
                            struct ct_value *up, struct ct_value *down)
{
    return ct_emit_type1(b, &ct_op_experts, name,
                         (struct ct_value *[]){x, weights, ids, gate, up, down}, 6, NULL);
}
