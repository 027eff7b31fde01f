/*
 * ORPO (Hong et al. 2024): the chosen answer is learnt, and preferred by its odds, without a
 * reference.
 *
 * With p the mean log-probability of the tokens of an answer, its log-odds are
 * p - log(1 - exp(p)), and x is those of the chosen answer less those of the other. The loss is
 *
 *   N + beta mean over pairs of -log sigmoid(x)
 *
 * with N the mean cross entropy of the tokens of the chosen sequences, prompts included.
 */
#include <math.h>

#include "dpo.h"

static const struct ct_option attributes[] = {
    CT_OPT_FLOAT(struct dpo_orpo, beta, "beta", "0.1", 0, 1e6, "Weight of the odds"), {0}};

struct odds {
    double p[2], x;
};

/* Operands from number `first` on: policy, tokens. */
static struct odds odds_at(const struct ct_reference *r, int first, int64_t i)
{
    struct odds o;

    for (int k = 0; k < 2; k++)
        o.p[k] = r->in[first][2 * i + k] / r->in[first + 1][2 * i + k];
    o.x = o.p[0] - o.p[1] - log(dpo_rest(o.p[0])) + log(dpo_rest(o.p[1]));
    return o;
}

static int forward(const struct ct_launch *l)
{
    struct ct_reference r = ct_reference_begin(l);
    double beta = ((const struct dpo_orpo *)l->op->attrs)->beta, share = *r.in[3] / *r.in[4];

    for (int64_t i = 0; i < l->in[0].shape[0]; i++) {
        struct odds o = odds_at(&r, 0, i);

        *r.out[0] += -r.in[2][2 * i] * share + beta * dpo_softplus(o.x);
        *r.out[1] -= r.in[2][2 * i];
        *r.out[2] += o.x;
        *r.out[3] += beta * o.p[0];
        *r.out[4] += beta * o.p[1];
        *r.out[5] += o.p[0] > o.p[1];
    }
    return ct_reference_end(&r, 0);
}

static int backward(const struct ct_launch *l)
{
    struct ct_reference r = ct_reference_begin(l);
    double beta = ((const struct dpo_orpo *)l->op->attrs)->beta, share = *r.in[3] / *r.in[4];

    for (int64_t i = 0; i < l->in[1].shape[0]; i++) {
        struct odds o = odds_at(&r, 1, i);
        double d = -*r.in[0] * beta * dpo_sigmoid(-o.x);

        for (int k = 0; k < 2; k++)
            r.out[0][2 * i + k] = (k ? -d : d) * dpo_odds_slope(o.p[k]) / r.in[2][2 * i + k];
        r.out[1][2 * i] = -*r.in[0] * share;
    }
    return ct_reference_end(&r, 0);
}

static int vjp(struct ct_vjp *v);

const struct ct_op_type dpo_orpo_type = {
    .size = sizeof(struct ct_op_type),
    .name = "orpo",
    .summary = "sum over pairs of the loss, of its terms, and of the rewards",
    .signature = "policy[pC] T, tokens[pC] F, trained[pC] T, pairs[] F, trained_tokens[] F -> "
                 "loss[] T, entropy[] T, odds[] T, chosen[] T, rejected[] T, right[] T",
    .attrs = attributes,
    .attrs_size = sizeof(struct dpo_orpo),
    .samples = "real[4,2] given[4,2] real[4,2] given[] given[]",
    .vjp = vjp,
    .reference = forward,
};

const struct ct_op_type dpo_orpo_grad_type = {
    .size = sizeof(struct ct_op_type),
    .name = "orpo_grad",
    .summary = "gradient of orpo",
    .signature = "dloss[] T, policy[pC] T, tokens[pC] F, pairs[] F, trained_tokens[] F -> "
                 "dpolicy[pC] T, dtrained[pC] T",
    .attrs = attributes,
    .attrs_size = sizeof(struct dpo_orpo),
    .samples = "real[] real[4,2] given[4,2] given[] given[]",
    .reference = backward,
};

static int vjp(struct ct_vjp *v)
{
    const struct ct_op *op = v->op;

    if (!v->dout[0])
        return 0;
    return ct_emit_gradients(
        v, &dpo_orpo_grad_type,
        (struct ct_value *[]){v->dout[0], op->in[0], op->in[1], op->in[3], op->in[4]}, 5, op->attrs,
        (int[]){0, 2}, 2);
}

int dpo_build_orpo(struct ct_objective *o, struct ct_value *logits, struct ct_value *policy,
                   struct ct_value *tokens)
{
    const struct dpo_orpo how = {dpo_config.beta};
    struct ct_value *trained = dpo_log_probabilities(o, "trained_logp", logits, "trained_labels");
    struct ct_builder b = ct_objective_builder(o);
    struct ct_value *pairs = ct_input(&b, "pairs", NULL);
    struct ct_value *count = ct_input(&b, "trained_tokens", NULL);
    struct ct_op *op =
        ct_emit_type(&b, &dpo_orpo_type, "loss",
                     (struct ct_value *[]){policy, tokens, trained, pairs, count}, 5, &how);

    if (!op)
        return b.status < 0 ? b.status : ct_fail(CT_EINVAL, "orpo");
    ct_graph_fetch_mean(o->graph, "loss", op->out[0], pairs);
    ct_graph_fetch_mean(o->graph, "cross_entropy", op->out[1], count);
    ct_graph_fetch_mean(o->graph, "log_odds_ratio", op->out[2], pairs);
    ct_graph_fetch_mean(o->graph, "reward_chosen", op->out[3], pairs);
    ct_graph_fetch_mean(o->graph, "reward_rejected", op->out[4], pairs);
    ct_graph_fetch_mean(o->graph, "accuracy", op->out[5], pairs);
    return 0;
}
