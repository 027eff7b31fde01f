/*
 * Llama 3, 3.1 and 3.2. The debug model follows TorchTitan's, which is a small Llama 3.1.
 */
#include <ctitan/error.h>
#include <ctitan/lib/decoder.h>
#include <ctitan/lib/hf.h>
#include <ctitan/plugin.h>

struct ct_model {
    struct ct_decoder_sizes sizes;
};

static struct config {
    struct ct_decoder_options decoder;
    double rope_factor;
} config;

static const struct ct_option options[] = {
    CT_DECODER_OPTIONS(struct config, decoder),
    CT_OPT_FLOAT(struct config, rope_factor, "rope_factor", "0", 0, 1e6,
                 "Llama 3.1 scaling factor of the rotary embedding; 1: none; 0: the flavor's"),
    {0}};

/* Llama 3.1 scales RoPE by 8 from 8192 positions, Llama 3.2 by 32. */
#define FLAVOR(name, count, d, l, h, kv, head, ffn, vocab, scale, t)                               \
    {                                                                                              \
        {                                                                                          \
            .flavor = name, .parameters = count, .dim = d, .layers = l, .heads = h,                \
            .kv_heads = kv, .head_dim = head, .ffn_dim = ffn, .vocabulary = vocab,                 \
            .max_position = 131072, .norm_eps = 1e-5,                                              \
            .rope = {.theta = 500000,                                                              \
                     .factor = scale,                                                              \
                     .low_freq_factor = 1,                                                         \
                     .high_freq_factor = 4,                                                        \
                     .original_max_position = 8192},                                               \
            .tied = t                                                                              \
        }                                                                                          \
    }

static const struct ct_model flavors[] = {
    FLAVOR("debug", 6163712, 256, 6, 16, 16, 16, 768, 2048, 8, false),
    FLAVOR("1B", 1235814400, 2048, 16, 32, 8, 64, 8192, 128256, 32, true),
    FLAVOR("3B", 3212749824, 3072, 28, 24, 8, 128, 8192, 128256, 32, true),
    FLAVOR("8B", 8030261248, 4096, 32, 32, 8, 128, 14336, 128256, 8, false),
    FLAVOR("70B", 70553706496, 8192, 80, 64, 8, 128, 28672, 128256, 8, false),
    FLAVOR("405B", 405853388800, 16384, 126, 128, 8, 128, 53248, 128256, 8, false),
    {{0}},
};

static const struct ct_hf_key keys[] = {
    CT_DECODER_KEYS(struct ct_model, 0, 2048),
    {"mlp_bias", CT_HF_BOOL, offsetof(struct ct_model, sizes.mlp_bias), 0},
    {0},
};

static const struct ct_hf_fixed fixed[] = {
    CT_DECODER_FIXED,
    {"use_sliding_window", "false", false},
    {"sliding_window", NULL, false},
    {0},
};

static const struct ct_hf_config hf_config = {"llama", "LlamaForCausalLM", keys, fixed};

static const struct ct_model_ops ops;
static const struct ct_decoder_family family = {"llama", &ops};

static int create(struct ct_run *run, struct ct_model **out)
{
    struct ct_model *model;
    int rc = ct_decoder_create(run, &family, &config.decoder, &model);

    if (rc < 0)
        return rc;
    if (config.rope_factor > 0 && config.rope_factor < 1) {
        ct_decoder_destroy(model);
        return ct_fail(CT_ECONFIG, "[llama] rope_factor = %g is below 1", config.rope_factor);
    }
    if (config.rope_factor > 0)
        model->sizes.rope.factor = config.rope_factor;
    if (model->sizes.rope.factor > 1 && model->sizes.rope.scaling == CT_ROPE_LLAMA3 &&
        !model->sizes.rope.original_max_position) {
        ct_decoder_destroy(model);
        return ct_fail(CT_ECONFIG,
                       "[llama] rope_factor cannot scale a model without Llama 3.1 scaling");
    }
    *out = model;
    return 0;
}

static const struct ct_model_ops ops = {.size = sizeof(struct ct_model_ops),
                                        .flavors = flavors,
                                        .flavor_size = sizeof(*flavors),
                                        .create = create,
                                        .destroy = ct_decoder_destroy,
                                        .build = ct_decoder_build,
                                        .vocabulary = ct_decoder_vocabulary,
                                        .flops_per_token = ct_decoder_flops,
                                        .shard_plan = ct_decoder_shard_plan,
                                        .description = &hf_config,
                                        .weights = &ct_hf_weights};

CT_PLUGIN(.name = "llama", .version = "1.0",
          .summary = "Model: Llama 3, 3.1 and 3.2 (debug, 1B, 3B, 8B, 70B, 405B)",
          .options = options, .config = &config, .config_size = sizeof(config),
          .offers = CT_OFFERS({CT_MODEL, "llama", &ops}));
