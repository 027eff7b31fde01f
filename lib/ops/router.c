/*
 * The choice of experts for each token of a mixture (Shazeer et al. 2017), and how even it is.
 *
 * A bias for the choice alone (Wang et al. 2024) and groups of experts are those of DeepSeek-V3
 * (2024). Some programs give experts of other groups the rank 0: with negative biases these could
 * be chosen before those of the best groups. Here, and in transformers' deepseek_v3, they never
 * are.
 */
#include <math.h>

#include <ctitan/lib/ops.h>

#include "list.h"

#define LEAST_SUM 1e-20 /* added to the sum of sigmoids, as in transformers */

static const struct ct_option top_k_attrs[] = {
    CT_OPT_INT(struct ct_top_k, k, "k", "1", 1, 1 << 20, "Experts for each token"),
    CT_OPT_BOOL(struct ct_top_k, normalised, "normalised", "true", "Weights of a token sum to 1"),
    CT_OPT_FLOAT(struct ct_top_k, balance, "balance", "0", 0, 1e300,
                 "Factor of the loads of experts in the gradient; 0: they are not counted"),
    CT_OPT_ENUM(struct ct_top_k, scores, "scores", "softmax", "softmax|sigmoid",
                "Function of the logits that gives the scores"),
    CT_OPT_INT(struct ct_top_k, groups, "groups", "0", 0, 1 << 20,
               "Equal groups that experts are in; 0: none"),
    CT_OPT_INT(struct ct_top_k, groups_chosen, "groups_chosen", "0", 0, 1 << 20,
               "Groups whose experts can be chosen by a token"),
    CT_OPT_FLOAT(struct ct_top_k, scale, "scale", "0", 0, 1e300, "Factor of the weights; 0: 1"),
    {0}};

static double scale_of(const struct ct_top_k *a)
{
    return a->scale > 0 ? a->scale : 1;
}

static void scores(const struct ct_top_k *a, const double *x, int64_t n, double *score)
{
    if (a->scores == CT_SCORES_SOFTMAX)
        softmax_of(x, n, score);
    else
        for (int64_t i = 0; i < n; i++)
            score[i] = sigmoid_of(x[i]);
}

/* ---- the choice ---- */

/* Space for the choice of one token. */
struct choice {
    const struct ct_top_k *how;
    const double *bias; /* NULL: none */
    int64_t experts;
    double *score, *rank, *group_rank;
    bool *left, *group_left; /* may still be chosen */
};

static struct choice choice_begin(struct ct_reference *r, const struct ct_launch *l)
{
    int64_t n = ct_columns(&l->in[0]);

    return (struct choice){.how = l->op->attrs,
                           .bias = l->ins > 1 ? r->in[1] : NULL,
                           .experts = n,
                           .score = ct_arena_array(&r->arena, double, n),
                           .rank = ct_arena_array(&r->arena, double, n),
                           .group_rank = ct_arena_array(&r->arena, double, n),
                           .left = ct_arena_array(&r->arena, bool, n),
                           .group_left = ct_arena_array(&r->arena, bool, n)};
}

/* NaN comes last. */
static double rank_of(double x)
{
    return isnan(x) ? -INFINITY : x;
}

/* The index of the highest rank that is left; it is left no longer. */
static int64_t take(const double *rank, bool *left, int64_t n)
{
    int64_t best = -1;

    for (int64_t i = 0; i < n; i++)
        if (left[i] && (best < 0 || rank[i] > rank[best]))
            best = i;
    left[best] = false;
    return best;
}

/* A group ranks by the sum of its two highest ranks. */
static void choose_groups(struct choice *c)
{
    int64_t groups = c->how->groups, each = c->experts / groups;

    for (int64_t g = 0; g < groups; g++) {
        double first = -INFINITY, second = -INFINITY;

        for (int64_t i = g * each; i < (g + 1) * each; i++) {
            second = fmax(second, fmin(first, c->rank[i]));
            first = fmax(first, c->rank[i]);
        }
        c->group_rank[g] = rank_of(first + second);
        c->group_left[g] = true;
    }
    for (int64_t i = 0; i < c->how->groups_chosen; i++) {
        int64_t g = take(c->group_rank, c->group_left, groups);

        for (int64_t e = g * each; e < (g + 1) * each; e++)
            c->left[e] = true;
    }
}

static void choose(struct choice *c, const double *x, double *ids)
{
    scores(c->how, x, c->experts, c->score);
    for (int64_t i = 0; i < c->experts; i++) {
        c->rank[i] = rank_of(c->score[i] + (c->bias ? c->bias[i] : 0));
        c->left[i] = c->how->groups == 0;
    }
    if (c->how->groups > 0)
        choose_groups(c);
    /* Logits are ordered as their scores are, but do not round to equal ones. */
    for (int64_t i = 0; !c->bias && i < c->experts; i++)
        c->rank[i] = rank_of(x[i]);
    for (int64_t k = 0; k < c->how->k; k++)
        ids[k] = (double)take(c->rank, c->left, c->experts);
}

static int check_balance(const struct ct_top_k *a)
{
    if (a->balance > 0 && a->scores != CT_SCORES_SOFTMAX)
        return ct_fail(CT_EINVAL, "balance needs scores=softmax: it is that of probabilities");
    return 0;
}

int ct_top_k_check_groups(const struct ct_top_k *a, int64_t experts)
{
    if (a->groups > 0 && (experts % a->groups || experts / a->groups < 2))
        return ct_fail(CT_EINVAL, "%lld experts are not %lld equal groups of at least 2",
                       (long long)experts, (long long)a->groups);
    if (a->groups_chosen > a->groups || (a->groups > 0 && !a->groups_chosen))
        return ct_fail(CT_EINVAL, "groups_chosen = %lld of %lld groups",
                       (long long)a->groups_chosen, (long long)a->groups);
    if (a->groups > 0 && a->k > experts / a->groups * a->groups_chosen)
        return ct_fail(CT_EINVAL, "k = %lld of the %lld experts in %lld groups", (long long)a->k,
                       (long long)(experts / a->groups * a->groups_chosen),
                       (long long)a->groups_chosen);
    return 0;
}

static int top_k_infer(struct ct_op *op)
{
    const struct ct_top_k *a = op->attrs;
    const struct ct_value *x = op->in[0];
    int rc;

    if (a->balance > 0 && x->ndim != 3)
        return ct_fail(CT_EINVAL, "balance needs logits [b, t, e], but these have %d dimensions",
                       x->ndim);
    if (a->k > x->shape[x->ndim - 1])
        return ct_fail(CT_EINVAL, "k = %lld of %lld experts", (long long)a->k,
                       (long long)x->shape[x->ndim - 1]);
    rc = check_balance(a);
    rc = rc < 0 ? rc : ct_top_k_check_groups(a, x->shape[x->ndim - 1]);
    for (int i = 0; i < 2; i++)
        op->out[i]->shape[x->ndim - 1] = a->k;
    return rc;
}

/* The sum that weights are divided by. */
static double divisor(const struct ct_top_k *a, double sum)
{
    if (!a->normalised)
        return 1;
    return a->scores == CT_SCORES_SIGMOID ? sum + LEAST_SUM : sum;
}

static int top_k_reference(const struct ct_launch *l)
{
    struct ct_reference r = ct_reference_begin(l);
    const struct ct_top_k *a = l->op->attrs;
    struct choice c = choice_begin(&r, l);

    for (int64_t row = 0; row < ct_rows(&l->in[0]); row++) {
        double *weights = r.out[0] + row * a->k, *ids = r.out[1] + row * a->k, sum = 0;

        choose(&c, r.in[0] + row * c.experts, ids);
        for (int64_t k = 0; k < a->k; k++)
            sum += weights[k] = c.score[(int64_t)ids[k]];
        for (int64_t k = 0; k < a->k; k++)
            weights[k] = weights[k] * scale_of(a) / divisor(a, sum);
    }
    return ct_reference_end(&r, 0);
}

/* The bias has no derivative: what an optimizer lowers it by is how often its expert is chosen. The
   gradient of the logits that nobody wants is swept, but its op uses the one that arrives here. */
static int top_k_vjp(struct ct_vjp *v)
{
    struct ct_value *x = v->op->in[0], *in[] = {v->dout[0], v->op->out[1], x, NULL}, *total;
    bool balanced = ((const struct ct_top_k *)v->op->attrs)->balance > 0;
    bool biased = v->op->ins > 1 && v->wanted[1];
    struct ct_op *op;

    if (!v->dout[0] || (!v->wanted[0] && !biased))
        return 0;
    if (balanced)
        in[3] = ct_expert_load(v->b, "load", in[1], x, &total);
    op = ct_emit_type(v->b, balanced ? &ct_op_balanced_top_k_grad : &ct_op_top_k_grad,
                      ct_gradient_name(v, 0), in, balanced ? 4 : 3, v->op->attrs);
    if (op && v->wanted[0])
        v->din[0] = op->out[0];
    if (biased)
        v->din[1] = ct_expert_excess(v->b, ct_gradient_name(v, 1), in[1], x);
    return v->b->status;
}

const struct ct_op_type ct_op_top_k = {
    .size = sizeof(struct ct_op_type),
    .name = "top_k",
    .summary = "scores of the k experts that are chosen, and their indices",
    .signature = "x[.E] T, ?bias[E] W -> weights[.K] W, ids[.K] i",
    .attrs = top_k_attrs,
    .attrs_size = sizeof(struct ct_top_k),
    .infer = top_k_infer,
    .vjp = top_k_vjp,
    .reference = top_k_reference,
    .samples = "k=2: real[2,3,5];"
               " k=3 normalised=false: real[4,4];"
               " k=2 scores=sigmoid scale=2.5: real[2,3,5] given[5];"
               " k=3 scores=sigmoid groups=4 groups_chosen=2: real[2,3,8] given[8];"
               " k=2 groups=2 groups_chosen=1 normalised=false scale=0.5: real[4,6]",
};

/* ---- its gradient ---- */

/* p: scores, s: the sum of the chosen ones, w = scale p / s (or scale p). At the chosen, dp =
   scale (dw - sum(dw p) / s) / s (or scale dw), else 0. With loads, dp is balance times the load
   more. softmax: dx = p (dp - sum(dp p)); sigmoid: dx = p (1 - p) dp. */
static int top_k_grad_reference(const struct ct_launch *l)
{
    struct ct_reference r = ct_reference_begin(l);
    const struct ct_top_k *a = l->op->attrs;
    bool balanced = l->ins > 3, softmaxed = a->scores == CT_SCORES_SOFTMAX;
    int64_t k = ct_columns(&l->in[0]), n = ct_columns(&l->in[2]);
    double *p = ct_arena_array(&r.arena, double, n);

    for (int64_t row = 0; row < ct_rows(&l->in[2]); row++) {
        const double *dw = r.in[0] + row * k, *ids = r.in[1] + row * k;
        double *dx = r.out[0] + row * n, sum = 0, mean = 0, dot = 0;

        scores(a, r.in[2] + row * n, n, p);
        for (int64_t i = 0; i < k; i++) {
            int rc = ct_checked_index(ids, i, n, "expert");

            if (rc < 0)
                return ct_reference_end(&r, rc);
            sum += p[(int64_t)ids[i]];
            mean += dw[i] * p[(int64_t)ids[i]];
        }
        sum = divisor(a, sum);
        for (int64_t i = 0; i < k; i++) {
            double dp = scale_of(a) * (a->normalised ? (dw[i] - mean / sum) / sum : dw[i]);

            dx[(int64_t)ids[i]] += dp;
            dot += dp * p[(int64_t)ids[i]];
        }
        for (int64_t e = 0; balanced && e < n; e++) {
            double dp = a->balance * r.in[3][row / l->in[2].shape[1] * n + e];

            dx[e] += dp;
            dot += dp * p[e];
        }
        for (int64_t e = 0; e < n; e++)
            dx[e] = softmaxed ? p[e] * (dx[e] - dot) : p[e] * (1 - p[e]) * dx[e];
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
    .samples = "k=2 scores=sigmoid scale=2.5: statistic[3,2] index[3,2] real[3,6];"
               " k=2: statistic[3,2] index[3,2] real[3,6]",
};

static int balanced_infer(struct ct_op *op)
{
    return check_balance(op->attrs);
}

const struct ct_op_type ct_op_balanced_top_k_grad = {
    .size = sizeof(struct ct_op_type),
    .name = "balanced_top_k_grad",
    .summary = "gradient of top_k, and of balance * load * softmax(x)",
    .signature = "dweights[btK] W, ids[btK] i, x[btE] T, load[bE] W -> dx[btE] T",
    .flags = CT_OP_ANY_DTYPE,
    .attrs = top_k_attrs,
    .attrs_size = sizeof(struct ct_top_k),
    .infer = balanced_infer,
    .reference = top_k_grad_reference,
    .samples = "k=2 balance=0.5: statistic[2,3,2] index[2,3,2] real[2,3,6] statistic[2,6]",
};

struct ct_value *ct_top_k(struct ct_builder *b, const char *name, struct ct_value *x,
                          struct ct_value *bias, const struct ct_top_k *attrs,
                          struct ct_value **ids)
{
    struct ct_op *op =
        ct_emit_type(b, &ct_op_top_k, name, (struct ct_value *[]){x, bias}, bias ? 2 : 1, attrs);

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
static int no_gradient(struct ct_vjp *v)
{
    (void)v;
    return 0;
}

const struct ct_op_type ct_op_expert_load = {
    .size = sizeof(struct ct_op_type),
    .name = "expert_load",
    .summary = "number of choices of each expert, by sequence and of all",
    .signature = "ids[btK] i, x[btE] T -> load[bE] W, total[E] W",
    .vjp = no_gradient,
    .reference = expert_load_reference,
    .samples = "index[2,3,2] real[2,3,6]",
};

struct ct_value *ct_expert_load(struct ct_builder *b, const char *name, struct ct_value *ids,
                                struct ct_value *x, struct ct_value **total)
{
    struct ct_op *op =
        ct_emit_type(b, &ct_op_expert_load, name, (struct ct_value *[]){ids, x}, 2, NULL);

    *total = op ? op->out[1] : NULL;
    return op ? op->out[0] : NULL;
}

static int expert_excess_reference(const struct ct_launch *l)
{
    struct ct_reference r = ct_reference_begin(l);
    int64_t n = ct_columns(&l->in[1]), choices = ct_tensor_count(&l->in[0]);
    int rc = 0;

    for (int64_t e = 0; e < n; e++)
        r.out[0][e] = -(double)choices;
    for (int64_t i = 0; rc >= 0 && i < choices; i++) {
        rc = ct_checked_index(r.in[0], i, n, "expert");
        if (rc >= 0)
            r.out[0][(int64_t)r.in[0][i]] += (double)n;
    }
    return ct_reference_end(&r, rc);
}

const struct ct_op_type ct_op_expert_excess = {
    .size = sizeof(struct ct_op_type),
    .name = "expert_excess",
    .summary = "number of choices of each expert, less their mean; times the number of experts",
    .signature = "ids[.K] i, x[.E] T -> excess[E] W",
    .vjp = no_gradient,
    .reference = expert_excess_reference,
    .samples = "index[2,3,2] real[2,3,6]",
};

struct ct_value *ct_expert_excess(struct ct_builder *b, const char *name, struct ct_value *ids,
                                  struct ct_value *x)
{
    return ct_emit_type1(b, &ct_op_expert_excess, name, (struct ct_value *[]){ids, x}, 2, NULL);
}
