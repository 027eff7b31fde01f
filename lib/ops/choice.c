/*
 * The choice of experts for each token of a mixture (Shazeer et al. 2017), and how even it is.
 */
#include <math.h>

#include <ctitan/lib/ops.h>

#include "list.h"

static const struct ct_option top_k_attrs[] = {
    CT_OPT_INT(struct ct_top_k, k, "k", "1", 1, 1 << 20, "Experts for each token"),
    CT_OPT_BOOL(struct ct_top_k, normalised, "normalised", "true", "Weights of a token sum to 1"),
    CT_OPT_FLOAT(struct ct_top_k, balance, "balance", "0", 0, 1e300,
                 "Factor of the loads of experts in the gradient; 0: they are not counted"),
    {0}};

static void probabilities(const double *x, int64_t n, double *p)
{
    double largest = -INFINITY, sum = 0;

    for (int64_t i = 0; i < n; i++)
        largest = fmax(largest, x[i]);
    for (int64_t i = 0; i < n; i++)
        sum += p[i] = exp(x[i] - largest);
    for (int64_t i = 0; i < n; i++)
        p[i] /= sum;
}

/* The logit that follows `last` in the order of size, then index; last -1: the largest. Logits are
   ordered as their probabilities are, but do not round to equal ones. */
static int64_t next_largest(const double *x, int64_t n, int64_t last)
{
    int64_t best = -1;

    for (int64_t i = 0; i < n; i++) {
        if (last >= 0 && (x[i] > x[last] || (x[i] == x[last] && i <= last)))
            continue;
        if (best < 0 || x[i] > x[best])
            best = i;
    }
    return best;
}

static int top_k_infer(struct ct_op *op)
{
    const struct ct_top_k *a = op->attrs;
    const struct ct_value *x = op->in[0];

    if (a->balance > 0 && x->ndim != 3)
        return ct_fail(CT_EINVAL, "balance needs logits [b, t, e], but these have %d dimensions",
                       x->ndim);
    if (a->k > x->shape[x->ndim - 1])
        return ct_fail(CT_EINVAL, "k = %lld of %lld experts", (long long)a->k,
                       (long long)x->shape[x->ndim - 1]);
    for (int i = 0; i < 2; i++)
        op->out[i]->shape[x->ndim - 1] = a->k;
    return 0;
}

static int top_k_reference(const struct ct_launch *l)
{
    struct ct_reference r = ct_reference_begin(l);
    const struct ct_top_k *a = l->op->attrs;
    int64_t n = ct_columns(&l->in[0]);
    double *p = ct_arena_array(&r.arena, double, n);

    for (int64_t row = 0; row < ct_rows(&l->in[0]); row++) {
        double *weights = r.out[0] + row * a->k, *ids = r.out[1] + row * a->k, sum = 0;
        const double *x = r.in[0] + row * n;
        int64_t last = -1;

        probabilities(x, n, p);
        for (int64_t k = 0; k < a->k; k++) {
            last = next_largest(x, n, last);
            if (last < 0)
                return ct_reference_end(&r, ct_fail(CT_EINVAL, "a logit of the router is NaN"));
            ids[k] = (double)last;
            sum += weights[k] = p[last];
        }
        for (int64_t k = 0; a->normalised && k < a->k; k++)
            weights[k] /= sum;
    }
    return ct_reference_end(&r, 0);
}

static int top_k_vjp(struct ct_vjp *v)
{
    struct ct_value *in[] = {v->dout[0], v->op->out[1], v->op->in[0], NULL}, *total;
    bool balanced = ((const struct ct_top_k *)v->op->attrs)->balance > 0;

    if (!v->dout[0] || !v->wanted[0])
        return 0;
    if (balanced)
        in[3] = ct_expert_load(v->b, "load", in[1], in[2], &total);
    return ct_emit_gradients(v, balanced ? &ct_op_balanced_top_k_grad : &ct_op_top_k_grad, in,
                             balanced ? 4 : 3, v->op->attrs, (int[]){0}, 1);
}

const struct ct_op_type ct_op_top_k = {
    .size = sizeof(struct ct_op_type),
    .name = "top_k",
    .summary = "the k largest probabilities, and their indices; the lower index of equal ones",
    .signature = "x[.E] T -> weights[.K] W, ids[.K] i",
    .attrs = top_k_attrs,
    .attrs_size = sizeof(struct ct_top_k),
    .infer = top_k_infer,
    .vjp = top_k_vjp,
    .reference = top_k_reference,
};

/* With p = softmax(x), s the chosen p's sum and w = p / s (or p): dp = (dw - sum(dw w)) / s at the
   chosen (or dw), else 0; dx = p (dp - sum(dp p)). With loads, dp is balance times the load more.
 */
static int top_k_grad_reference(const struct ct_launch *l)
{
    struct ct_reference r = ct_reference_begin(l);
    const struct ct_top_k *a = l->op->attrs;
    bool normalised = a->normalised, balanced = l->ins > 3;
    int64_t k = ct_columns(&l->in[0]), n = ct_columns(&l->in[2]);
    double *p = ct_arena_array(&r.arena, double, n);

    for (int64_t row = 0; row < ct_rows(&l->in[2]); row++) {
        const double *dw = r.in[0] + row * k, *ids = r.in[1] + row * k;
        double *dx = r.out[0] + row * n, sum = 0, mean = 0, dot = 0;

        probabilities(r.in[2] + row * n, n, p);
        for (int64_t i = 0; i < k; i++) {
            int rc = ct_checked_index(ids, i, n, "expert");

            if (rc < 0)
                return ct_reference_end(&r, rc);
            sum += p[(int64_t)ids[i]];
            mean += dw[i] * p[(int64_t)ids[i]];
        }
        for (int64_t i = 0; i < k; i++) {
            double dp = normalised ? (dw[i] - mean / sum) / sum : dw[i];

            dx[(int64_t)ids[i]] += dp;
            dot += dp * p[(int64_t)ids[i]];
        }
        for (int64_t e = 0; balanced && e < n; e++) {
            double dp = a->balance * r.in[3][row / l->in[2].shape[1] * n + e];

            dx[e] += dp;
            dot += dp * p[e];
        }
        for (int64_t e = 0; e < n; e++)
            dx[e] = p[e] * (dx[e] - dot);
    }
    return ct_reference_end(&r, 0);
}

const struct ct_op_type ct_op_top_k_grad = {
    .size = sizeof(struct ct_op_type),
    .name = "top_k_grad",
    .summary = "gradient of top_k",
    .signature = "dweights[.K] W, ids[.K] i, x[.E] T -> dx[.E] T",
    .flags = CT_OP_ANY_DTYPE,
    .attrs = top_k_attrs,
    .attrs_size = sizeof(struct ct_top_k),
    .reference = top_k_grad_reference,
};

const struct ct_op_type ct_op_balanced_top_k_grad = {
    .size = sizeof(struct ct_op_type),
    .name = "balanced_top_k_grad",
    .summary = "gradient of top_k, and of balance * load * softmax(x)",
    .signature = "dweights[btK] W, ids[btK] i, x[btE] T, load[bE] W -> dx[btE] T",
    .flags = CT_OP_ANY_DTYPE,
    .attrs = top_k_attrs,
    .attrs_size = sizeof(struct ct_top_k),
    .reference = top_k_grad_reference,
};

struct ct_value *ct_top_k(struct ct_builder *b, const char *name, struct ct_value *x,
                          const struct ct_top_k *attrs, struct ct_value **ids)
{
    struct ct_op *op = ct_emit_type(b, &ct_op_top_k, name, &x, 1, attrs);

    *ids = op ? op->out[1] : NULL;
    return op ? op->out[0] : NULL;
}

/* ---- loads ---- */

static int expert_load_reference(const struct ct_launch *l)
{
    struct ct_reference r = ct_reference_begin(l);
    int64_t n = ct_columns(&l->in[1]), each = ct_tensor_count(&l->in[0]) / l->in[0].shape[0];
    int rc = 0;

    for (int64_t i = 0; rc >= 0 && i < ct_tensor_count(&l->in[0]); i++) {
        rc = ct_checked_index(r.in[0], i, n, "expert");
        if (rc < 0)
            break;
        r.out[0][i / each * n + (int64_t)r.in[0][i]]++;
        r.out[1][(int64_t)r.in[0][i]]++;
    }
    return ct_reference_end(&r, rc);
}

/* Counts do not change with the logits. */
static int expert_load_vjp(struct ct_vjp *v)
{
    (void)v;
    return 0;
}

const struct ct_op_type ct_op_expert_load = {
    .size = sizeof(struct ct_op_type),
    .name = "expert_load",
    .summary = "number of choices of each expert, by sequence and of all",
    .signature = "ids[btK] i, x[btE] T -> load[bE] W, total[E] W",
    .vjp = expert_load_vjp,
    .reference = expert_load_reference,
};

struct ct_value *ct_expert_load(struct ct_builder *b, const char *name, struct ct_value *ids,
                                struct ct_value *x, struct ct_value **total)
{
    struct ct_op *op =
        ct_emit_type(b, &ct_op_expert_load, name, (struct ct_value *[]){ids, x}, 2, NULL);

    *total = op ? op->out[1] : NULL;
    return op ? op->out[0] : NULL;
}
