/*
 * The objective of preference pairs: direct preference optimization and its relatives (loss.c).
 *
 * The loss of a step is the mean over the pairs of the global batch. The reference is the model
 * that training began with: a second forward pass without what is trained (lora's adapters), or
 * log-probabilities that are stored with the data.
 */
#include <string.h>

#include "dpo.h"

struct dpo_config dpo_config;

static const struct ct_option options[] = {
    CT_OPT_STRING(struct dpo_config, path, "path", NULL,
                  "JSON lines of pairs: prompt, chosen, rejected, each a text or a list of tokens"),
    CT_OPT_ENUM(struct dpo_config, loss, "loss", "dpo", "dpo|robust|ipo|ipo_sum|hinge|simpo",
                "Loss of a pair: that of DPO, with label smoothing also cDPO; of robust DPO; of "
                "IPO, whose log-probabilities are means over tokens, or with ipo_sum their sums; "
                "of SLiC; of SimPO, which has no reference"),
    CT_OPT_FLOAT(struct dpo_config, beta, "beta", "0.1", 1e-6, 1e6, "How far the model may move"),
    CT_OPT_FLOAT(struct dpo_config, label_smoothing, "label_smoothing", "0", 0, 0.499,
                 "Share of pairs whose answers are confused, for dpo and robust"),
    CT_OPT_FLOAT(struct dpo_config, gamma, "gamma", "0.5", 0, 1e6,
                 "Margin between the rewards of simpo"),
    CT_OPT_CHOICE(struct dpo_config, reference, "reference", "pass", "pass|stored",
                  "Log-probabilities of the reference: a second forward pass, or the data's"),
    {0}};

static struct ct_value *pairs_of(struct ct_objective *o, struct ct_builder *b,
                                 struct ct_value *answers)
{
    return ct_view(b, NULL, answers, 2, (int64_t[]){o->request->batch / 2, 2});
}

static struct ct_value *log_probabilities(struct ct_objective *o, struct ct_builder *b,
                                          const char *name, struct ct_value *logits)
{
    const int64_t shape[] = {o->request->batch, o->request->seq_len};
    struct ct_value *in[] = {logits, ct_input(b, "labels", shape)};

    return pairs_of(o, b, ct_emit_type1(b, &dpo_logp_type, name, in, 2, NULL));
}

/* What the model that training began with gives; NULL: the loss takes none. */
static int find_reference(struct ct_objective *o, struct ct_value **reference)
{
    struct ct_value *logits;
    struct ct_builder b;
    int rc = 0;

    *reference = NULL;
    if (dpo_config.loss == DPO_SIMPO)
        return 0;
    if (strcmp(dpo_config.reference, "stored") == 0) {
        b = ct_objective_builder(o);
        *reference = pairs_of(o, &b, ct_input_tensor(&b, "reference", 1, &o->request->batch));
        return b.status;
    }
    rc = ct_objective_forward(o, CT_FORWARD_REFERENCE, &logits);
    if (rc < 0)
        return rc;
    b = ct_objective_builder(o);
    *reference = log_probabilities(o, &b, "reference_logp", logits);
    return b.status;
}

static int check_request(const struct ct_objective *o)
{
    if (dpo_config.label_smoothing > 0 && dpo_config.loss != DPO_SIGMOID &&
        dpo_config.loss != DPO_ROBUST)
        return ct_fail(CT_ECONFIG, "[dpo] label_smoothing: only the losses dpo and robust take it");
    if (o->request->batch % 2)
        return ct_fail(CT_ECONFIG,
                       "dpo: a microbatch has %lld sequences, which are no pairs: expected an even "
                       "number",
                       (long long)o->request->batch);
    return 0;
}

/* The numbers of the answers' tokens; NULL: the loss takes sums. */
static struct ct_value *token_counts(struct ct_objective *o, struct ct_builder *b)
{
    if (dpo_config.loss != DPO_IPO && dpo_config.loss != DPO_SIMPO)
        return NULL;
    return pairs_of(o, b, ct_input_tensor(b, "answer_tokens", 1, &o->request->batch));
}

static int build(struct ct_objective *o)
{
    const struct dpo_preference how = {dpo_config.beta, dpo_config.label_smoothing,
                                       dpo_config.gamma, dpo_config.loss};
    struct ct_value *logits, *policy, *reference, *tokens, *over;
    struct ct_builder b;
    struct ct_op *op;
    int rc = check_request(o);

    if (rc == 0)
        rc = ct_objective_forward(o, CT_FORWARD_TRAINED, &logits);
    if (rc < 0)
        return rc;
    b = ct_objective_builder(o);
    policy = log_probabilities(o, &b, "policy_logp", logits);
    rc = b.status < 0 ? b.status : find_reference(o, &reference);
    if (rc < 0)
        return rc;
    b = ct_objective_builder(o);
    tokens = token_counts(o, &b);
    op = ct_emit_type(&b, &dpo_preference_type, "loss",
                      (struct ct_value *[]){policy, reference, tokens}, 3, &how);
    over = ct_input(&b, "pairs", NULL);
    if (!op || !over)
        return b.status;
    ct_graph_fetch_mean(o->graph, "loss", op->out[0], over);
    ct_graph_fetch_mean(o->graph, "reward_chosen", op->out[1], over);
    ct_graph_fetch_mean(o->graph, "reward_rejected", op->out[2], over);
    ct_graph_fetch_mean(o->graph, "accuracy", op->out[3], over);
    return 0;
}

static const struct ct_count counts[] = {{.size = sizeof(struct ct_count),
                                          .name = "pairs",
                                          .summary = "pairs of the step",
                                          .per_sample = 0.5},
                                         {0}};

static const struct ct_objective_ops objective = {
    .size = sizeof(struct ct_objective_ops), .build = build, .counts = counts};

CT_PLUGIN(.name = "dpo", .version = "1.0",
          .summary = "Objective: preference pairs (DPO, IPO, hinge, SimPO), and data of pairs",
          .options = options, .config = &dpo_config, .config_size = sizeof(dpo_config),
          .offers = CT_OFFERS({CT_OBJECTIVE, "dpo", &objective}, {CT_DATA, "dpo", &dpo_data},
                              {CT_OP, "sequence_logp", &dpo_logp_type},
                              {CT_OP, "sequence_logp_grad", &dpo_logp_grad_type},
                              {CT_OP, "preference", &dpo_preference_type},
                              {CT_OP, "preference_grad", &dpo_preference_grad_type}));
