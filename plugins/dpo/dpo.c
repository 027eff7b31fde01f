/*
 * The objective of preference pairs: direct preference optimization and its relatives (loss.c).
 *
 * The loss of a step is the mean over the pairs of the global batch. The reference is the model
 * that training began with: a second forward pass without what is trained (lora's adapters), one
 * with a second set of weights, or log-probabilities that are stored with the data.
 */
#include <string.h>

#include <ctitan/config.h>
#include <ctitan/error.h>
#include <ctitan/hook.h>
#include <ctitan/program.h>
#include <ctitan/run.h>
#include <ctitan/stage.h>
#include <ctitan/option_use.h>

#include "dpo.h"

struct dpo_config dpo_config;

static const struct ct_option options[] = {
    CT_OPT_STRING(
        struct dpo_config, path, "path", NULL,
        "JSON lines of pairs: prompt, chosen, rejected, each a text, a list of tokens, or a "
        "list of messages for the model's chat template; for kto: prompt, completion, and label, "
        "true or false"),
    CT_OPT_STRING(struct dpo_config, validation_path, "validation_path", "",
                  "The same, for validation"),
    CT_OPT_ENUM(struct dpo_config, loss, "loss", "dpo",
                "dpo|robust|ipo|ipo_sum|hinge|simpo|kto|orpo",
                "Loss of a pair: that of DPO, with label smoothing also cDPO; of robust DPO; of "
                "IPO, whose log-probabilities are means over tokens, or with ipo_sum their sums; "
                "of SLiC; of SimPO, which has no reference; of KTO, for answers without pairs; of "
                "ORPO, which learns the chosen answer, too, and has no reference"),
    CT_OPT_FLOAT(struct dpo_config, beta, "beta", "0.1", 1e-6, 1e6,
                 "Larger values keep the model nearer to the reference; for orpo: the weight of "
                 "the preference"),
    CT_OPT_FLOAT(struct dpo_config, label_smoothing, "label_smoothing", "0", 0, 0.499,
                 "Share of pairs whose answers are taken to be exchanged, for dpo and robust"),
    CT_OPT_FLOAT(struct dpo_config, gamma, "gamma", "0.5", 0, 1e6,
                 "Margin between the rewards of simpo"),
    CT_OPT_FLOAT(struct dpo_config, desirable, "desirable_weight", "1", 0, 1e6,
                 "Weight of desirable answers, for kto"),
    CT_OPT_FLOAT(struct dpo_config, undesirable, "undesirable_weight", "1", 0, 1e6,
                 "Weight of undesirable answers, for kto"),
    CT_OPT_ENUM(struct dpo_config, divergence, "divergence", "step", "step|microbatch",
                "For kto: what the divergence from the reference is the mean over; a step must "
                "be one microbatch, or each microbatch has its own"),
    CT_OPT_ENUM(struct dpo_config, reference, "reference", "pass", "pass|stored|weights",
                "Log-probabilities of the reference: pass: of a second forward without adapters; "
                "stored: the data's; weights: of a second forward with weights of its own, which "
                "are not trained"),
    CT_OPT_STRING(struct dpo_config, reference_from, "reference_from", "",
                  "For weights: the folder that has them, of the same model; empty: a copy of the "
                  "weights that training begins with"),
    CT_OPT_STRING(struct dpo_config, reference_path, "reference_path", "",
                  "For stored: the file that `ctitan data RECIPE --reference FILE` wrote; empty: "
                  "the lines have them. Data of validation has its own"),
    {0}};

static struct ct_value *pairs_of(struct ct_objective *o, struct ct_builder *b,
                                 struct ct_value *answers)
{
    return ct_view(b, NULL, answers, 2, (int64_t[]){o->request->batch / 2, 2});
}

struct ct_value *dpo_log_probabilities(struct ct_objective *o, const char *name,
                                       struct ct_value *logits, const char *labels)
{
    const int64_t shape[] = {o->request->batch, o->request->seq_len};
    struct ct_builder b = ct_objective_builder(o);
    struct ct_value *in[] = {logits, ct_input(&b, labels, shape)};

    return pairs_of(o, &b, ct_emit_type1(&b, &dpo_logp_type, name, in, 2, NULL));
}

bool dpo_has_reference(void)
{
    return dpo_config.loss != DPO_SIMPO && dpo_config.loss != DPO_ORPO;
}

static struct ct_weight_set reference_weights = {
    .size = sizeof(struct ct_weight_set), .name = "reference", .option = "[dpo] reference_from"};

/* The result of a pass other than the trained one; NULL: there is none. */
static int pass_reference(struct ct_objective *o, struct ct_value **reference)
{
    struct ct_value *logits;
    int rc;

    *reference = NULL;
    if (!dpo_has_reference() || dpo_config.reference == DPO_STORED)
        return 0;
    reference_weights.folder = dpo_config.reference_from;
    rc = dpo_config.reference == DPO_WEIGHTS
             ? ct_objective_forward_set(o, &reference_weights, &logits)
             : ct_objective_forward(o, CT_FORWARD_REFERENCE, &logits);
    if (rc < 0)
        return rc;
    *reference = dpo_log_probabilities(o, "reference_logp", logits, "labels");
    return *reference ? 0 : CT_EINVAL;
}

/* The reference's values in the data; NULL: it has none. */
static struct ct_value *stored_reference(struct ct_objective *o, struct ct_builder *b)
{
    return dpo_has_reference() && dpo_config.reference == DPO_STORED
               ? pairs_of(o, b, ct_input_tensor(b, "reference", 1, &o->request->batch))
               : NULL;
}

static int check_use(void)
{
    bool kto = dpo_config.loss == DPO_KTO, simpo = dpo_config.loss == DPO_SIMPO;
    const struct ct_option_use uses[] = {
        {"reference_path", dpo_has_reference(), "this loss takes no reference"},
        {"reference_from", dpo_has_reference(), "this loss takes no reference"},
        {"reference", dpo_has_reference(), "this loss takes no reference"},
        {"reference_path", dpo_config.reference == DPO_STORED, "set reference = stored"},
        {"reference_from", dpo_config.reference == DPO_WEIGHTS, "set reference = weights"},
        {"gamma", simpo, "only the loss simpo has a margin"},
        {"desirable_weight", kto, "only the loss kto takes it"},
        {"undesirable_weight", kto, "only the loss kto takes it"},
        {"divergence", kto, "only the loss kto takes it"},
        {0}};

    return ct_options_check_use(options, &dpo_config, "dpo", uses);
}

static int check_request(const struct ct_objective *o)
{
    int rc = check_use();

    if (rc < 0)
        return rc;
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
    if (dpo_config.loss != DPO_IPO && dpo_config.loss != DPO_SIMPO && dpo_config.loss != DPO_ORPO)
        return NULL;
    return pairs_of(o, b, ct_input_tensor(b, "answer_tokens", 1, &o->request->batch));
}

static int build_pairs(struct ct_objective *o, struct ct_value *policy, struct ct_value *reference,
                       struct ct_value *tokens)
{
    const struct dpo_preference how = {dpo_config.beta, dpo_config.label_smoothing,
                                       dpo_config.gamma, dpo_config.loss};
    struct ct_builder b = ct_objective_builder(o);
    struct ct_op *op = ct_emit_type(&b, &dpo_preference_type, "loss",
                                    (struct ct_value *[]){policy, reference, tokens}, 3, &how);
    struct ct_value *over = ct_input(&b, "pairs", NULL);

    if (!op || !over)
        return b.status;
    ct_graph_fetch_mean(o->graph, "loss", op->out[0], over);
    ct_graph_fetch_mean(o->graph, "reward_chosen", op->out[1], over);
    ct_graph_fetch_mean(o->graph, "reward_rejected", op->out[2], over);
    ct_graph_fetch_mean(o->graph, "accuracy", op->out[3], over);
    return 0;
}

static int build(struct ct_objective *o)
{
    struct ct_value *logits, *policy, *reference = NULL, *tokens;
    struct ct_builder b;
    int rc = check_request(o);

    if (rc == 0)
        rc = pass_reference(o, &reference);
    if (rc == 0)
        rc = ct_objective_forward(o, CT_FORWARD_TRAINED, &logits);
    if (rc < 0)
        return rc;
    policy = dpo_log_probabilities(o, "policy_logp", logits, "labels");
    b = ct_objective_builder(o);
    if (!reference)
        reference = stored_reference(o, &b);
    tokens = token_counts(o, &b);
    if (!policy || b.status < 0)
        return policy ? b.status : CT_EINVAL;
    if (dpo_config.loss == DPO_KTO)
        return dpo_build_kto(o, policy, reference);
    if (dpo_config.loss == DPO_ORPO)
        return dpo_build_orpo(o, logits, policy, tokens);
    return build_pairs(o, policy, reference, tokens);
}

/* ---- what losses are divided by ---- */

static double count_kind(const void *const *data, int64_t elements, bool desirable)
{
    const float *kinds = data[0];
    double count = 0;

    for (int64_t i = 0; i < elements; i++)
        count += desirable ? kinds[i] > 0 : kinds[i] < 0;
    return count;
}

static double count_desirable(const void *const *data, int64_t elements)
{
    return count_kind(data, elements, true);
}

static double count_undesirable(const void *const *data, int64_t elements)
{
    return count_kind(data, elements, false);
}

static double count_trained(const void *const *data, int64_t elements)
{
    const int32_t *labels = data[0];
    double count = 0;

    for (int64_t i = 0; i < elements; i++)
        count += labels[i] != CT_MASKED;
    return count;
}

static const char *const of_kinds[] = {"kinds", NULL};
static const char *const of_trained[] = {"trained_labels", NULL};

static const struct ct_count counts[] = {{.size = sizeof(struct ct_count),
                                          .name = "pairs",
                                          .summary = "pairs of the step",
                                          .per_sample = 0.5},
                                         {.size = sizeof(struct ct_count),
                                          .name = "desirable",
                                          .summary = "desirable answers of the step",
                                          .streams = of_kinds,
                                          .count = count_desirable},
                                         {.size = sizeof(struct ct_count),
                                          .name = "undesirable",
                                          .summary = "undesirable answers of the step",
                                          .streams = of_kinds,
                                          .count = count_undesirable},
                                         {.size = sizeof(struct ct_count),
                                          .name = "trained_tokens",
                                          .summary = "tokens of the step that orpo learns",
                                          .streams = of_trained,
                                          .count = count_trained},
                                         {0}};

static const struct ct_objective_ops objective = {
    .size = sizeof(struct ct_objective_ops), .build = build, .counts = counts};

/* ---- the plan ---- */

static int check_program(const struct ct_program *program, const char *what)
{
    if (!program || program->microbatches < 2)
        return 0;
    return ct_fail(CT_ECONFIG,
                   "[dpo] loss = kto: its divergence is the mean over a %s, which has %d "
                   "microbatches: make it one, by local_batch_size and microbatch_size, or set "
                   "[dpo] divergence = microbatch",
                   what, program->microbatches);
}

static int check_stage(struct ct_run *run, size_t stage)
{
    int rc = ct_run_look_at_stage(run, stage);

    if (rc == 0)
        rc = check_program(run->program, "step");
    if (rc == 0)
        rc = check_program(run->validation_program, "validation");
    return rc < 0 && stage
               ? ct_context(rc, "the stage from step %lld on", (long long)ct_stage_at(stage)->begin)
               : rc;
}

/* The mean over several microbatches is not known in the first of them. */
static int on_event(const struct ct_event_data *data, void *context)
{
    int rc = 0;

    (void)context;
    if (dpo_config.loss != DPO_KTO || dpo_config.divergence == DPO_OF_MICROBATCH ||
        !data->run->streams || !ct_objective_is("dpo"))
        return 0;
    for (size_t k = 0; rc == 0 && k < ct_stage_count(); k++)
        rc = check_stage(data->run, k);
    return rc == 0 ? ct_run_look_at_stage(data->run, 0) : rc;
}

static const struct ct_hook hook = {.size = sizeof(struct ct_hook),
                                    .events =
                                        1u << CT_EVENT_PLAN_READY | 1u << CT_EVENT_STAGE_BEGIN,
                                    .call = on_event};

CT_PLUGIN(.name = "dpo", .version = "1.0",
          .summary = "Objective: preference (DPO, IPO, hinge, SimPO, KTO, ORPO), and its data",
          .options = options, .config = &dpo_config, .config_size = sizeof(dpo_config),
          .offers = CT_OFFERS(
              {CT_OBJECTIVE, "dpo", &objective}, {CT_DATA, "dpo", &dpo_data},
              {CT_OP, "sequence_logp", &dpo_logp_type},
              {CT_OP, "sequence_logp_grad", &dpo_logp_grad_type},
              {CT_OP, "preference", &dpo_preference_type},
              {CT_OP, "preference_grad", &dpo_preference_grad_type},
              {CT_OP, "divergence", &dpo_divergence_type}, {CT_OP, "kto", &dpo_kto_type},
              {CT_OP, "kto_grad", &dpo_kto_grad_type}, {CT_OP, "orpo", &dpo_orpo_type},
              {CT_OP, "orpo_grad", &dpo_orpo_grad_type}, {CT_CODE, "cuda", &dpo_cuda_code},
              {CT_KERNELS, "cuda", dpo_cuda_kernels}, {CT_HOOK, "dpo", &hook}));
