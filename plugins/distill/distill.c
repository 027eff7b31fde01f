/*
 * The objective of distillation: a mean, over the tokens of the global batch whose label is not
 * masked, of the divergence from a teacher and of the cross entropy of the label (loss.c).
 *
 * The teacher is a file with its likeliest tokens for each token of the data (teacher.c), the model
 * that training began with, without what lora adds, or that model with weights of a folder.
 * Validation has no teacher: its loss is the cross entropy of the labels.
 */
#include <string.h>

#include <ctitan/config.h>
#include <ctitan/core_ops.h>
#include <ctitan/lib/ops.h>
#include <ctitan/objective.h>
#include <ctitan/option_use.h>

#include "distill.h"

struct distill_config distill_config;

static const struct ct_option options[] = {
    CT_OPT_STRING(struct distill_config, path, "path", "",
                  "File of the teacher's likeliest tokens: `ctitan data RECIPE --teacher FOLDER` "
                  "writes it"),
    CT_OPT_STRING(
        struct distill_config, teacher, "teacher", "stored",
        "stored: the file; base: the model that training began with, without adapters, in "
        "a second forward pass; or the folder of weights for that pass, of a model of "
        "the same sizes"),
    CT_OPT_INT(struct distill_config, k, "k", "64", 1, 1 << 20,
               "Tokens of the teacher at each position, the likeliest of those in the file"),
    CT_OPT_FLOAT(struct distill_config, temperature, "temperature", "1", 1e-3, 1e3,
                 "The logits of both are divided by it, and the divergence is multiplied by its "
                 "square"),
    CT_OPT_FLOAT(struct distill_config, hard_weight, "hard_weight", "0", 0, 1,
                 "Weight of the cross entropy of the labels; the divergence has the rest of 1"),
    CT_OPT_ENUM(struct distill_config, divergence, "divergence", "forward", "forward|reverse",
                "Kullback-Leibler divergence of the model from the teacher, or of the teacher from "
                "the model, which takes the likeliest tokens of the teacher for all"),
    {0}};

bool distill_is_stored(void)
{
    return ct_objective_is("distill") && strcmp(distill_config.teacher, "stored") == 0;
}

static int check_options(void)
{
    const struct ct_option_use uses[] = {{"path", distill_is_stored(), "set teacher = stored"},
                                         {"k", distill_is_stored(), "set teacher = stored"},
                                         {0}};

    if (distill_is_stored() && !*distill_config.path)
        return ct_fail(CT_ECONFIG, "[distill] path: expected the file of a teacher: make it by "
                                   "ctitan data RECIPE --teacher FOLDER --output FILE");
    return ct_options_check_use(options, &distill_config, "distill", uses);
}

/* The logits of a teacher that is a model. */
static int ask_model(struct ct_objective *o, struct ct_value **logits)
{
    static struct ct_weight_set set = {
        .size = sizeof(set), .name = "teacher", .option = "[distill] teacher"};

    if (strcmp(distill_config.teacher, "base") == 0)
        return ct_objective_forward(o, CT_FORWARD_REFERENCE, logits);
    set.folder = distill_config.teacher;
    return ct_objective_forward_set(o, &set, logits);
}

/* The teacher's numbers, and the tokens that they are of; NULL: all. */
static int find_teacher(struct ct_objective *o, struct ct_value **teacher, struct ct_value **ids)
{
    const int64_t shape[] = {o->request->batch, o->request->seq_len, distill_config.k};
    struct ct_builder b = ct_objective_builder(o);

    *ids = NULL;
    if (!distill_is_stored())
        return ask_model(o, teacher);
    *ids = ct_input_tensor(&b, DISTILL_IDS, 3, shape);
    *teacher = ct_input_tensor(&b, DISTILL_LOGPS, 3, shape);
    return b.status;
}

/* A pass of the teacher comes first: its memory is free again before the other begins. */
static int build_both(struct ct_objective *o)
{
    const struct distill how = {distill_config.temperature, distill_config.hard_weight,
                                distill_config.divergence == DISTILL_REVERSE};
    const int64_t shape[] = {o->request->batch, o->request->seq_len};
    struct ct_value *logits, *labels, *teacher, *ids, *over;
    struct ct_builder b;
    struct ct_op *op;
    int rc = find_teacher(o, &teacher, &ids);

    if (rc == 0)
        rc = ct_objective_forward(o, CT_FORWARD_TRAINED, &logits);
    if (rc < 0)
        return rc;
    b = ct_objective_builder(o);
    labels = ct_input(&b, "labels", shape);
    op = ct_emit_type(&b, &distill_type, "loss",
                      (struct ct_value *[]){logits, labels, teacher, ids}, ids ? 4 : 3, &how);
    over = ct_input(&b, "valid_tokens", NULL);
    if (b.status < 0)
        return b.status;
    ct_graph_fetch_mean(o->graph, "loss", op->out[0], over);
    ct_graph_fetch_mean(o->graph, "divergence", op->out[1], over);
    ct_graph_fetch_mean(o->graph, "cross_entropy", op->out[2], over);
    return 0;
}

static int build(struct ct_objective *o)
{
    int rc = check_options();

    if (rc < 0)
        return rc;
    return o->validation ? ct_objective_cross_entropy.build(o) : build_both(o);
}

static const struct ct_objective_ops objective = {.size = sizeof(struct ct_objective_ops),
                                                  .build = build};

CT_PLUGIN(.name = "distill", .version = "1.0",
          .summary = "Objective: distillation from a teacher, stored or in a second pass",
          .options = options, .config = &distill_config, .config_size = sizeof(distill_config),
          .offers = CT_OFFERS(
              {CT_OBJECTIVE, "distill", &objective}, {CT_BESIDE, "distill", &distill_streams},
              {CT_OP, "distill", &distill_type}, {CT_OP, "distill_grad", &distill_grad_type},
              {CT_KERNELS, "cpu", distill_kernels}, {CT_CODE, "cuda", &distill_cuda_code},
              {CT_KERNELS, "cuda", distill_cuda_kernels}));
