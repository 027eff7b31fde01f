/*
 * LoRA (Hu et al. 2021): the weights W [out, in] of linear layers stay as they are, and what is
 * trained is beside them, y = W x + (alpha / rank) B (A x), with A [rank, in] and B [out, rank].
 *
 * The adapters are added to the forward once tp has placed W, and are split as W is: B's rows like
 * W's rows, A's columns like W's columns. Where columns are split, A x is an unreduced sum. B's
 * columns are then split, too, so that each rank gets some rows of the sum, and B A x is unreduced
 * as W x is. Everything else follows: A and B are parameters like others for fsdp, checkpoints and
 * optimizers.
 *
 * With dora, each output of a layer has a magnitude (dora.c). The adapters of an embedding are
 * looked up as its table is, A [vocabulary, rank], and multiplied by B; those of stacked weights
 * are added to them (stack.c).
 *
 * Parameters but adapters lose their gradients, and with them the ops that only these needed.
 *
 * A is uniform between -1 / sqrt(in) and 1 / sqrt(in), as in peft and TorchTitan (kaiming_uniform
 * with a = sqrt(5)); B is zero. Of an embedding, A is zero and B normal, as in peft.
 */
#include <math.h>

#include <ctitan/comm.h>
#include <ctitan/error.h>
#include <ctitan/lib/hf.h>
#include <ctitan/lib/rows.h>
#include <ctitan/plugin.h>

#include "lora.h"

struct lora_config lora_config;

static const struct ct_option options[] = {
    CT_OPT_INT(struct lora_config, rank, "rank", "8", 1, 1 << 16,
               "Rank of the adapters: rows of A and columns of B"),
    CT_OPT_FLOAT(struct lora_config, alpha, "alpha", "16", 1e-6, 1e6,
                 "The product B A counts alpha / rank times, unless scaling says otherwise"),
    CT_OPT_STRING(
        struct lora_config, modules, "modules", "all-linear",
        "Layers with adapters, comma-separated: patterns of their names or of the ends of "
        "these, as in q_proj, *.mlp.*; all-linear: all linear ones but the head"),
    CT_OPT_ENUM(struct lora_config, scaling, "scaling", "lora", "lora|rslora",
                "lora: B A counts alpha / rank times; rslora: alpha / sqrt(rank) times"),
    CT_OPT_BOOL(struct lora_config, dora, "dora", "false",
                "Train a magnitude for each output of a layer, too (DoRA)"),
    CT_OPT_STRING(
        struct lora_config, trainable_tokens, "trainable_tokens", "",
        "Ids of tokens whose rows of the embedding, and of a head that is tied to it, are "
        "trained, too: 5, 17, 128000..128010"),
    CT_OPT_STRING(struct lora_config, init_from, "init_from", "",
                  "Folder of peft's adapters to begin with"),
    CT_OPT_STRING(struct lora_config, save_to, "save_to", "",
                  "Folder to write the adapters to after the last step, in peft's format"),
    {0}};

double lora_scale(void)
{
    double rank = (double)lora_config.rank;

    return lora_config.alpha / (lora_config.scaling == LORA_RSLORA ? sqrt(rank) : rank);
}

static const struct ct_transform adapt = {
    .size = sizeof(struct ct_transform),
    .name = "lora",
    .summary = "adds adapters to layers",
    .phase = CT_PHASE_SHARD,
    .gives = CT_NAMES("placed"),
    .after = CT_NAMES("placed"),
    .evaluation = true,
    .apply = lora_adapt,
};

static const struct ct_transform widen = {
    .size = sizeof(struct ct_transform),
    .name = "lora.widen",
    .summary = "keeps adapters in float32",
    .phase = CT_PHASE_PRECISION,
    .after = CT_NAMES("precision"),
    .evaluation = true,
    .apply = lora_widen,
};

static const struct ct_transform freeze = {
    .size = sizeof(struct ct_transform),
    .name = "lora.freeze",
    .summary = "drops the gradients of all parameters but adapters",
    .phase = CT_PHASE_DIFFERENTIATE,
    .needs = CT_NAMES("gradients"),
    .apply = lora_freeze,
    .required = true,
};

static const struct ct_transform again = {
    .size = sizeof(struct ct_transform),
    .name = "lora.again",
    .summary = "merges stacked weights again for the backward",
    .phase = CT_PHASE_DIFFERENTIATE,
    .needs = CT_NAMES("gradients"),
    .apply = lora_again,
};

/* ---- saving ---- */

static struct lora_merged merged; /* while the run's weights are written */

static int check_room(struct ct_run *run)
{
    const char *folder = lora_config.save_to;
    double bytes;
    int rc = lora_check_save(run, &bytes);

    if (rc == 0 && run->rank == 0)
        rc = ct_hf_check_room(run, "adapters", folder, bytes);
    rc = ct_group_agree(ct_run_world(run), rc);
    return rc < 0 ? ct_context(rc, "[lora] save_to = %s", folder) : 0;
}

static int check_folder(const struct ct_run *run)
{
    return *lora_config.save_to && run->rank == 0
               ? ct_hf_try_target("[lora] save_to", lora_config.save_to)
               : 0;
}

/* A pass of the model that training began with leaves the adapters out, unless it has weights of
   its own. */
static int check_reference(const struct ct_run *run)
{
    ct_marks reference = ct_mark(CT_REFERENCE);

    for (size_t i = 0; i < run->state_count; i++)
        if (run->states[i].set)
            return 0;
    ct_for_each_op (op, run->graph)
        if (op->marks & reference)
            return ct_fail(CT_ECONFIG,
                           "[lora] init_from: the objective compares with a pass of the model that "
                           "training began with, which would be that without these adapters; "
                           "store what it gives (dpo: `ctitan data --reference`)");
    return 0;
}

/* Rows of peft are compared with those of the weights. */
static int check_weights(void)
{
    if (!*lora_config.trainable_tokens || !*lora_config.init_from || *ct_weights_noted())
        return 0;
    return ct_fail(CT_ECONFIG,
                   "[lora] init_from has rows of the embedding, and no weights were read: "
                   "set [model] init_from, or load a checkpoint of the weights");
}

/* Adapters that a checkpoint has filled already are trained. */
static int on_ready(struct ct_run *run)
{
    int rc = *lora_config.init_from ? check_reference(run) : 0;

    if (rc == 0)
        rc = check_weights();
    if (rc == 0)
        rc = *lora_config.init_from ? lora_is_trained(run) : 1;
    if (rc == 0)
        rc = lora_load(run, lora_config.init_from);
    if (rc >= 0)
        rc = lora_start(run);
    if (rc == 0 && run->data)
        rc = lora_check_tokens(run);
    return rc == 0 && run->data ? check_folder(run) : rc;
}

static int on_event(const struct ct_event_data *data, void *context)
{
    struct ct_run *run = data->run;

    (void)context;
    switch (data->event) {
    case CT_EVENT_PLAN_READY:
        return run->data && *lora_config.save_to ? check_room(run) : 0;
    case CT_EVENT_SAVE_BEGIN:
        return lora_merge(run, &merged);
    case CT_EVENT_SAVE_END:
        return lora_unmerge(run, &merged);
    case CT_EVENT_RUN_END:
        return *lora_config.save_to ? lora_save(run, lora_config.save_to) : 0;
    default:
        return on_ready(run);
    }
}

static const struct ct_hook hook = {.size = sizeof(struct ct_hook),
                                    .events = 1u << CT_EVENT_PLAN_READY | 1u << CT_EVENT_RUN_READY |
                                              1u << CT_EVENT_SAVE_BEGIN | 1u << CT_EVENT_SAVE_END |
                                              1u << CT_EVENT_RUN_END,
                                    .call = on_event};

CT_PLUGIN(.name = "lora", .version = "1.0",
          .summary = "LoRA: low-rank adapters are trained, beside weights that stay as they are",
          .options = options, .config = &lora_config, .config_size = sizeof(lora_config),
          .offers = CT_OFFERS(
              {CT_TRANSFORM, "lora", &adapt}, {CT_TRANSFORM, "lora.widen", &widen},
              {CT_TRANSFORM, "lora.freeze", &freeze}, {CT_TRANSFORM, "lora.again", &again},
              {CT_OP, "lora.squared_norms", &lora_op_squared_norms},
              {CT_OP, "lora.magnify", &lora_op_magnify},
              {CT_OP, "lora.magnify_dm", &lora_op_magnify_dm},
              {CT_OP, "lora.merge", &lora_op_merge}, {CT_OP, "lora.merge_da", &lora_op_merge_da},
              {CT_OP, "lora.merge_db", &lora_op_merge_db}, {CT_KERNELS, "cpu", lora_dora_kernels},
              {CT_KERNELS, "cpu", lora_stack_kernels}, {CT_KERNELS, "cpu", formula_kernels},
              {CT_CODE, "cuda", &lora_cuda_code}, {CT_KERNELS, "cuda", lora_cuda_kernels},
              {CT_HOOK, "lora", &hook}, {CT_VERB, "lora", &lora_verb}));
