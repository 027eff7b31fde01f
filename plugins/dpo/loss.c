/*
 * The loss of pairs.
 *
 * With the log-probability p of an answer and that of the reference, r, an answer's reward is
 * beta (p - r), and x is (p - r) of the preferred answer less that of the other. For ipo and
 * simpo, p and r are divided by the number of the answer's tokens. With m = beta x and a label
 * smoothing e:
 *
 *   dpo      -(1 - e) log sigmoid(m) - e log sigmoid(-m)              Rafailov et al. 2023
 *   robust   (-(1 - e) log sigmoid(m) + e log sigmoid(-m)) / (1 - 2e) Chowdhury et al. 2024
 *   ipo      (x - 1 / (2 beta))^2, and ipo_sum, not divided by tokens Azar et al. 2023
 *   hinge    max(0, 1 - m)                                            Zhao et al. 2023
 *   simpo    -log sigmoid(m - gamma), without a reference             Meng et al. 2024
 */
#include <math.h>

#include "dpo.h"

static const struct ct_option attributes[] = {
    CT_OPT_FLOAT(struct dpo_preference, beta, "beta", "0.1", 0, 1e6, "Scale of the rewards"),
    CT_OPT_FLOAT(struct dpo_preference, label_smoothing, "label_smoothing", "0", 0, 0.5,
                 "Share of pairs whose answers are taken to be exchanged"),
    CT_OPT_FLOAT(struct dpo_preference, gamma, "gamma", "0", 0, 1e6, "Margin of simpo"),
    CT_OPT_ENUM(struct dpo_preference, loss, "loss", "dpo", "dpo|robust|ipo|ipo_sum|hinge|simpo",
                "Loss of a pair"),
    {0}};

static const struct dpo_preference *attributes_of(const struct ct_launch *l)
{
    return l->op->attrs;
}

/* Operands of a pair: policy, reference and tokens, the last two perhaps absent. */
static double reward(const struct ct_reference *r, int first, int64_t answer)
{
    const double *reference = r->in[first + 1], *tokens = r->in[first + 2];
    double d = r->in[first][answer] - (reference ? reference[answer] : 0);

    return tokens ? d / tokens[answer] : d;
}

static int preference_forward(const struct ct_launch *l)
{
    struct ct_reference r = ct_reference_begin(l);
    const struct dpo_preference *a = attributes_of(l);

    for (int64_t i = 0; i < l->in[0].shape[0]; i++) {
        double chosen = reward(&r, 0, 2 * i), rejected = reward(&r, 0, 2 * i + 1);

        *r.out[0] += dpo_loss_of(a, chosen - rejected);
        *r.out[1] += a->beta * chosen;
        *r.out[2] += a->beta * rejected;
        *r.out[3] += chosen > rejected;
    }
    return ct_reference_end(&r, 0);
}

static int preference_backward(const struct ct_launch *l)
{
    struct ct_reference r = ct_reference_begin(l);
    const double *tokens = r.in[3];

    for (int64_t i = 0; i < l->in[1].shape[0]; i++) {
        double x = reward(&r, 1, 2 * i) - reward(&r, 1, 2 * i + 1);
        double d = *r.in[0] * dpo_slope_of(attributes_of(l), x);

        r.out[0][2 * i] = tokens ? d / tokens[2 * i] : d;
        r.out[0][2 * i + 1] = -(tokens ? d / tokens[2 * i + 1] : d);
    }
    return ct_reference_end(&r, 0);
}

static int preference_vjp(struct ct_vjp *v);

/* C: both of a pair, on one rank. */
const struct ct_op_type dpo_preference_type = {
    .size = sizeof(struct ct_op_type),
    .name = "preference",
    .summary = "sum of the losses of pairs of log-probabilities, and of their rewards",
    .signature = "policy[pC] T, ?reference[pC] F, ?tokens[pC] F -> "
                 "loss[] T, chosen[] T, rejected[] T, right[] T",
    .attrs = attributes,
    .attrs_size = sizeof(struct dpo_preference),
    .samples = "real[4,2] given[4,2] given[4,2]; loss=robust: real[4,2] given[4,2]",
    .vjp = preference_vjp,
    .reference = preference_forward,
};

const struct ct_op_type dpo_preference_grad_type = {
    .size = sizeof(struct ct_op_type),
    .name = "preference_grad",
    .summary = "gradient of preference",
    .signature = "dloss[] T, policy[pC] T, ?reference[pC] F, ?tokens[pC] F -> dpolicy[pC] T",
    .attrs = attributes,
    .attrs_size = sizeof(struct dpo_preference),
    .samples = "real[] real[4,2] given[4,2] given[4,2]",
    .reference = preference_backward,
};

/* The reference and the numbers of tokens get no gradient. */
static int preference_vjp(struct ct_vjp *v)
{
    const struct ct_op *op = v->op;

    if (!v->dout[0])
        return 0;
    return ct_emit_gradients(
        v, &dpo_preference_grad_type,
        (struct ct_value *[]){v->dout[0], op->in[0], ct_op_input(op, 1), ct_op_input(op, 2)}, 4,
        op->attrs, (int[]){0}, 1);
}
