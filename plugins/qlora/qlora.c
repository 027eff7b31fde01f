/*
 * QLoRA (Dettmers et al. 2023): the weights of linear layers, which adapters leave as they are, are
 * stored in 4 or 8 bits. They are made from the model's folder when a run begins, a tensor after
 * the other, and decoded in front of each product. Gradients flow to activations, through decoded
 * weights. The head, the embedding and norms stay numbers.
 */
#include <ctitan/config.h>
#include <ctitan/error.h>
#include <ctitan/hook.h>
#include <ctitan/lib/hf.h>
#include <ctitan/plugin.h>

#include "qlora.h"

struct qlora_config qlora_config;

static const struct ct_option options[] = {
    CT_OPT_ENUM(struct qlora_config, base, "base", "nf4", "nf4|int8",
                "Numbers that weights are rounded to: 16, the quantiles of a normal distribution, "
                "or 256; times a scale for each 64 weights"),
    CT_OPT_BOOL(struct qlora_config, double_quantisation, "double_quantisation", "false",
                "Keep scales in 8 bits, with a scale for each 256 of them"),
    CT_OPT_STRING(struct qlora_config, keep, "keep", "",
                  "Weights to keep as they are, comma-separated: patterns of their names"),
    CT_OPT_STRING(struct qlora_config, adapters, "adapters", "lora",
                  "The plugin whose adapters are trained, which is loaded with this one"),
    {0}};

static const struct ct_transform quantise = {
    .size = sizeof(struct ct_transform),
    .name = "qlora",
    .summary = "stores weights of linear layers in 4 or 8 bits",
    .phase = CT_PHASE_PRECISION,
    .after = CT_NAMES("precision"),
    .evaluation = true,
    .apply = qlora_quantise,
    .required = true,
};

static const struct ct_transform again = {
    .size = sizeof(struct ct_transform),
    .name = "qlora.again",
    .summary = "decodes weights again for the backward",
    .phase = CT_PHASE_DIFFERENTIATE,
    .needs = CT_NAMES("gradients"),
    .apply = qlora_again,
};

/* Codes are made of weights that a folder or a checkpoint has. */
static int on_event(const struct ct_event_data *data, void *context)
{
    (void)context;
    if (data->event == CT_EVENT_RUN_READY && !*ct_weights_noted())
        return ct_fail(CT_ECONFIG, "[qlora] stores weights in fewer bits, and none were "
                                   "read: set [model] init_from to the model's folder");
    return 0;
}

static const struct ct_hook hook = {
    .size = sizeof(struct ct_hook), .events = 1u << CT_EVENT_RUN_READY, .call = on_event};

CT_PLUGIN(.name = "qlora", .version = "1.0",
          .summary = "QLoRA: adapters beside weights that are stored in 4 or 8 bits",
          .conflicts = CT_NAMES("float8"), .options = options, .config = &qlora_config,
          .config_size = sizeof(qlora_config), .brings = "adapters",
          .offers = CT_OFFERS({CT_OP, "qlora.dequantise", &qlora_op_dequantise},
                              {CT_KERNELS, "cpu", qlora_cpu_kernels},
                              {CT_CODE, "cuda", &qlora_cuda_code},
                              {CT_KERNELS, "cuda", qlora_cuda_kernels},
                              {CT_TRANSFORM, "qlora", &quantise},
                              {CT_TRANSFORM, "qlora.again", &again}, {CT_HOOK, "qlora", &hook}));
