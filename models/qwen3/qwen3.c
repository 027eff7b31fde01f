/*
 * Qwen3 (Yang et al. 2025): a decoder whose heads of q and k are normalised, and whose head size is
 * independent of width and heads. The debug model follows TorchTitan's.
 */
#include <ctitan/error.h>
#include <ctitan/lib/decoder.h>
#include <ctitan/lib/hf.h>
#include <ctitan/plugin.h>

struct ct_model {
    struct ct_decoder_sizes sizes;
    bool windowed;
    int64_t window_from;       /* the first layer with a window, unless the list is given */
    struct ct_hf_layers types; /* layers with a window */
};

static struct config {
    struct ct_decoder_options decoder;
} config;

static const struct ct_option options[] = {CT_DECODER_OPTIONS(struct config, decoder), {0}};

#define FLAVOR(name, count, d, l, h, ffn, vocab, t)                                                \
    {                                                                                              \
        {                                                                                          \
            .flavor = name, .parameters = count, .dim = d, .layers = l, .heads = h, .kv_heads = 8, \
            .head_dim = 128, .ffn_dim = ffn, .vocabulary = vocab, .max_position = 40960,           \
            .norm_eps = 1e-6, .rope = {.theta = 1000000, .factor = 1}, .tied = t, .qk_norm = true  \
        }                                                                                          \
    }

static const struct ct_model flavors[] = {
    FLAVOR("debug", 31987968, 256, 8, 16, 3072, 2048, true),
    FLAVOR("0.6B", 596049920, 1024, 28, 16, 3072, 151936, true),
    FLAVOR("1.7B", 1720574976, 2048, 28, 16, 6144, 151936, true),
    FLAVOR("4B", 4022468096, 2560, 36, 32, 9728, 151936, true),
    FLAVOR("8B", 8190735360, 4096, 36, 32, 12288, 151936, false),
    FLAVOR("14B", 14768307200, 5120, 40, 40, 17408, 151936, false),
    FLAVOR("32B", 32762123264, 5120, 64, 64, 25600, 151936, false),
    {{0}},
};

static const struct ct_hf_key keys[] = {
    CT_DECODER_KEYS(struct ct_model, 128, 32768),
    {"use_sliding_window", CT_HF_BOOL, offsetof(struct ct_model, windowed), 0},
    {"sliding_window", CT_HF_PART, offsetof(struct ct_model, sizes.window), 4096,
     "!use_sliding_window"},
    {"max_window_layers", CT_HF_COUNT, offsetof(struct ct_model, window_from), 28},
    {"layer_types", CT_HF_SLIDING, offsetof(struct ct_model, types), 0},
    {0},
};

static const struct ct_hf_fixed fixed[] = {CT_DECODER_FIXED, {0}};

static const struct ct_hf_config hf_config = {"qwen3", "Qwen3ForCausalLM", keys, fixed,
                                              .ignored =
                                                  "sliding_window, max_window_layers, layer_types"};

/* The layers with a window, one by one: config.json is written so. */
static int apply(const struct ct_run *run, struct ct_model *m)
{
    bool window = m->windowed && m->sizes.window;

    (void)run;
    for (int64_t i = 0; i < m->sizes.layers; i++) {
        bool listed = m->types.given ? ct_hf_has_layer(&m->types, i) : i >= m->window_from;

        if (m->types.given && listed && !window)
            return ct_decoder_fail_window(i);
        m->sizes.sliding.bits[i / 64] |= (uint64_t)(window && listed) << i % 64;
    }
    m->types = m->sizes.sliding;
    return 0;
}

static const struct ct_model_ops ops;
static const struct ct_decoder_family family = {"qwen3", &ops, .apply = apply};

static int create(struct ct_run *run, struct ct_model **model)
{
    return ct_decoder_create(run, &family, &config.decoder, model);
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

CT_PLUGIN(.name = "qwen3", .version = "1.0",
          .summary = "Model: Qwen3 (debug, 0.6B, 1.7B, 4B, 8B, 14B, 32B)", .options = options,
          .config = &config, .config_size = sizeof(config),
          .offers = CT_OFFERS({CT_MODEL, "qwen3", &ops}));
