/*
 * KTO (Ethayarajh et al. 2024): answers that are each desirable or not, without pairs.
 *
 * With the log-probability p of an answer and that of the reference, r, the loss of an answer is
 *
 *   desirable      w (1 - sigmoid(beta (p - r - z)))
 *   undesirable    u (1 - sigmoid(beta (z - p + r)))
 *
 * z is the mean of p - r over prompts with the answers to others, at least 0; it has no gradient.
 * So a pair of log-probabilities is of a prompt with its answer, and with another one's.
 */
#include <math.h>

#include <ctitan/lib/ops.h>

#include "dpo.h"

/* ---- the divergence ---- */

static int divergence_forward(const struct ct_launch *l)
{
    struct ct_reference r = ct_reference_begin(l);

    for (int64_t i = 0; i < l->in[0].shape[0]; i++)
        *r.out[0] += r.in[0][2 * i + 1] - r.in[1][2 * i + 1];
    return ct_reference_end(&r, 0);
}

/* It is a constant of the loss: no gradient. */
const struct ct_op_type dpo_divergence_type = {
    .size = sizeof(struct ct_op_type),
    .name = "divergence",
    .summary = "sum over pairs of the second log-probability less that of the reference",
    .signature = "policy[pC] T, reference[pC] F -> sum[] T",
    .samples = "real[4,2] given[4,2]",
    .reference = divergence_forward,
};

/* ---- the loss ---- */

static const struct ct_option attributes[] = {
    CT_OPT_FLOAT(struct dpo_kto, beta, "beta", "0.1", 0, 1e6, "Scale of the rewards"),
    CT_OPT_FLOAT(struct dpo_kto, desirable, "desirable", "1", 0, 1e6, "Weight of these answers"),
    CT_OPT_FLOAT(struct dpo_kto, undesirable, "undesirable", "1", 0, 1e6, "Weight of the others"),
    CT_OPT_FLOAT(struct dpo_kto, answers, "answers", "1", 0, 1e18, "Answers that `sum` is of"),
    {0}};

struct answer {
    double reward, weight, sign, value; /* value: the sigmoid */
};

/* Operands from number `first` on: policy, reference, desirable, sum. */
static struct answer answer_at(const struct ct_launch *l, const struct ct_reference *r, int first,
                               int64_t i)
{
    const struct dpo_kto *a = l->op->attrs;
    double z = fmax(0, *r->in[first + 3] / a->answers);
    double x = r->in[first][2 * i] - r->in[first + 1][2 * i];
    bool desirable = r->in[first + 2][2 * i] > 0;
    struct answer answer = {a->beta * x, desirable ? a->desirable : a->undesirable,
                            desirable ? 1 : -1, 0};

    answer.value = dpo_sigmoid(answer.sign * a->beta * (x - z));
    return answer;
}

static int forward(const struct ct_launch *l)
{
    struct ct_reference r = ct_reference_begin(l);

    for (int64_t i = 0; i < l->in[0].shape[0]; i++) {
        struct answer answer = answer_at(l, &r, 0, i);

        *r.out[0] += answer.weight * (1 - answer.value);
        *r.out[answer.sign > 0 ? 1 : 2] += answer.reward;
    }
    return ct_reference_end(&r, 0);
}

static int backward(const struct ct_launch *l)
{
    struct ct_reference r = ct_reference_begin(l);
    const struct dpo_kto *a = l->op->attrs;

    for (int64_t i = 0; i < l->in[1].shape[0]; i++) {
        struct answer answer = answer_at(l, &r, 1, i);

        r.out[0][2 * i] =
            -*r.in[0] * answer.weight * answer.sign * a->beta * answer.value * (1 - answer.value);
    }
    return ct_reference_end(&r, 0);
}

static int vjp(struct ct_vjp *v);

const struct ct_op_type dpo_kto_type = {
    .size = sizeof(struct ct_op_type),
    .name = "kto",
    .summary = "sum of the losses of answers, and of the rewards of each kind",
    .signature = "policy[pC] T, reference[pC] F, desirable[pC] F, sum[] F -> "
                 "loss[] T, chosen[] T, rejected[] T",
    .attrs = attributes,
    .attrs_size = sizeof(struct dpo_kto),
    .samples = "answers=4: real[4,2] given[4,2] given[4,2] given[]",
    .vjp = vjp,
    .reference = forward,
};

const struct ct_op_type dpo_kto_grad_type = {
    .size = sizeof(struct ct_op_type),
    .name = "kto_grad",
    .summary = "gradient of kto",
    .signature = "dloss[] T, policy[pC] T, reference[pC] F, desirable[pC] F, sum[] F -> "
                 "dpolicy[pC] T",
    .attrs = attributes,
    .attrs_size = sizeof(struct dpo_kto),
    .samples = "answers=4: real[] real[4,2] given[4,2] real[4,2] given[]",
    .reference = backward,
};

static int vjp(struct ct_vjp *v)
{
    const struct ct_op *op = v->op;

    if (!v->dout[0])
        return 0;
    return ct_emit_gradients(
        v, &dpo_kto_grad_type,
        (struct ct_value *[]){v->dout[0], op->in[0], op->in[1], op->in[2], op->in[3]}, 5, op->attrs,
        (int[]){0}, 1);
}

int dpo_build_kto(struct ct_objective *o, struct ct_value *policy, struct ct_value *reference)
{
    const struct dpo_kto how = {dpo_config.beta, dpo_config.desirable, dpo_config.undesirable,
                                (double)o->request->batch / 2};
    struct ct_builder b = ct_objective_builder(o);
    struct ct_value *kinds = ct_view(&b, NULL, ct_input_tensor(&b, "kinds", 1, &o->request->batch),
                                     2, (int64_t[]){o->request->batch / 2, 2});
    struct ct_value *sum = ct_emit_type1(&b, &dpo_divergence_type, "divergence",
                                         (struct ct_value *[]){policy, reference}, 2, NULL);
    struct ct_op *op = ct_emit_type(&b, &dpo_kto_type, "loss",
                                    (struct ct_value *[]){policy, reference, kinds, sum}, 4, &how);
    /* The divergence of the step: the loss uses those of its microbatches. */
    struct ct_value *divergence = ct_scale(&b, "divergence.step", sum, 1);
    struct ct_value *answers = ct_input(&b, "pairs", NULL);
    struct ct_value *desirable = ct_input(&b, "desirable", NULL);
    struct ct_value *undesirable = ct_input(&b, "undesirable", NULL);

    if (b.status < 0)
        return b.status;
    ct_graph_fetch_mean(o->graph, "loss", op->out[0], answers);
    ct_graph_fetch_mean(o->graph, "reward_chosen", op->out[1], desirable);
    ct_graph_fetch_mean(o->graph, "reward_rejected", op->out[2], undesirable);
    ct_graph_fetch_mean(o->graph, "divergence", divergence, answers);
    return 0;
}
