/*
 * Qwen3-MoE (Yang et al. 2025): Qwen3 whose feed-forward layers are mixtures of experts, except in
 * listed layers.
 */
#include <ctitan/lib/hf.h>
#include <ctitan/lib/mixture.h>
#include <ctitan/plugin.h>
#include <ctitan/run.h>

struct ct_model {
    struct ct_decoder_sizes sizes;
    struct ct_mixture mixture;
    int64_t sparse_step;       /* every so many layers is a mixture */
    struct ct_hf_layers dense; /* layers that are no mixtures */
};

static struct config {
    struct ct_decoder_options decoder;
    struct ct_mixture_options mixture;
    double aux_loss_coef;
} config;

static const struct ct_option options[] = {CT_DECODER_OPTIONS(struct config, decoder),
                                           CT_MIXTURE_OPTIONS(struct config, mixture),
                                           CT_MIXTURE_BALANCE_OPTION(struct config, aux_loss_coef),
                                           {0}};

#define FLAVOR(name, count, d, l, h, kv, ffn, vocab, e, expert)                                    \
    {                                                                                              \
        .sizes = {.flavor = name,                                                                  \
                  .parameters = count,                                                             \
                  .dim = d,                                                                        \
                  .layers = l,                                                                     \
                  .heads = h,                                                                      \
                  .kv_heads = kv,                                                                  \
                  .head_dim = 128,                                                                 \
                  .ffn_dim = ffn,                                                                  \
                  .vocabulary = vocab,                                                             \
                  .max_position = 40960,                                                           \
                  .norm_eps = 1e-6,                                                                \
                  .rope = {.theta = 1000000, .factor = 1},                                         \
                  .qk_norm = true},                                                                \
        .mixture = {.experts = e, .expert_dim = expert, .choice = {.k = 8, .normalised = true}},   \
        .sparse_step = 1                                                                           \
    }

static const struct ct_model flavors[] = {
    FLAVOR("debug", 13651200, 256, 4, 16, 8, 3072, 2048, 16, 128),
    FLAVOR("30B-A3B", 30532122624, 2048, 48, 32, 4, 6144, 151936, 128, 768),
    FLAVOR("235B-A22B", 235093634560, 4096, 94, 64, 4, 12288, 151936, 128, 1536),
    {.sizes = {0}},
};

static const struct ct_hf_key keys[] = {
    CT_DECODER_KEYS(struct ct_model, 0, 32768),
    {"num_experts|num_local_experts", CT_HF_SIZE, offsetof(struct ct_model, mixture.experts), -1},
    {"num_experts_per_tok", CT_HF_SIZE, offsetof(struct ct_model, mixture.choice.k), -1},
    {"moe_intermediate_size", CT_HF_SIZE, offsetof(struct ct_model, mixture.expert_dim), -1},
    {"decoder_sparse_step", CT_HF_SIZE, offsetof(struct ct_model, sparse_step), 1},
    {"norm_topk_prob", CT_HF_BOOL, offsetof(struct ct_model, mixture.choice.normalised), 0},
    {"mlp_only_layers", CT_HF_LAYERS, offsetof(struct ct_model, dense), 0},
    CT_MIXTURE_WHOLE_KEYS(struct ct_model, mixture, 0.001),
    {0},
};

static const struct ct_hf_fixed fixed[] = {
    CT_DECODER_FIXED,
    {"use_sliding_window", "false", false},
    {0},
};

static const struct ct_hf_config hf_config = {"qwen3_moe", "Qwen3MoeForCausalLM", keys, fixed,
                                              .ignored =
                                                  "sliding_window, max_window_layers, layer_types"};

static bool is_mixture(const struct ct_model *m, int64_t layer)
{
    return !ct_hf_has_layer(&m->dense, layer) && (layer + 1) % m->sparse_step == 0;
}

static int64_t count_mixtures(const struct ct_model *m)
{
    int64_t mixtures = 0;

    for (int64_t layer = 0; layer < m->sizes.layers; layer++)
        mixtures += is_mixture(m, layer);
    return mixtures;
}

static int apply(const struct ct_run *run, struct ct_model *m)
{
    int rc = ct_mixture_apply(&config.mixture, &m->mixture);

    return rc < 0 ? rc
                  : ct_mixture_apply_balance(run, &m->mixture, count_mixtures(m),
                                             config.aux_loss_coef);
}

static const struct ct_model_ops ops;
static const struct ct_decoder_family family = {"qwen3_moe", &ops, .apply = apply};

static int create(struct ct_run *run, struct ct_model **out)
{
    return ct_decoder_create(run, &family, &config.decoder, out);
}

/* ---- graph ---- */

static const struct ct_model *model_of(const struct ct_decoder *d)
{
    return (const struct ct_model *)(const void *)d->sizes;
}

static struct ct_value *feed_forward(struct ct_decoder *d, struct ct_value *x)
{
    const struct ct_model *m = model_of(d);

    return is_mixture(m, d->layer) ? ct_decoder_mixture(d, x, &m->mixture)
                                   : ct_decoder_feed_forward(d, x);
}

static struct ct_value *end(struct ct_decoder *d, struct ct_value *x)
{
    return ct_decoder_balance(d, x, &model_of(d)->mixture);
}

static int build(struct ct_model *model, struct ct_graph *graph,
                 const struct ct_model_request *request)
{
    static const struct ct_decoder_parts parts = {ct_decoder_attention, feed_forward, end};
    struct ct_mixture_sums sums = {0};
    struct ct_model own = *model;

    if (own.mixture.whole.wanted)
        own.mixture.sums = &sums;
    return ct_decoder_build_with(&own, graph, request, &parts);
}

/* ---- facts ---- */

static void flops_per_token(const struct ct_model *m, int64_t seq_len, double *whole,
                            double *halved)
{
    int64_t dim = m->sizes.dim;
    double more = ct_mixture_flops(&m->mixture, dim) - 18 * (double)dim * (double)m->sizes.ffn_dim;

    ct_decoder_flops(m, seq_len, whole, halved);
    for (int64_t layer = 0; layer < m->sizes.layers; layer++)
        if (is_mixture(m, layer)) {
            *whole += more;
            *halved += more;
        }
}

static const struct ct_stored_rule stored[] = {CT_MIXTURE_STORED, {0}};

static const struct ct_model_ops ops = {.size = sizeof(struct ct_model_ops),
                                        .flavors = flavors,
                                        .flavor_size = sizeof(*flavors),
                                        .create = create,
                                        .destroy = ct_decoder_destroy,
                                        .build = build,
                                        .vocabulary = ct_decoder_vocabulary,
                                        .flops_per_token = flops_per_token,
                                        .shard_plan = ct_decoder_shard_plan,
                                        .description = &hf_config,
                                        .stored = stored,
                                        .weights = &ct_hf_weights};

static const struct ct_hook hook = CT_MIXTURE_HOOK(&config.mixture);

CT_PLUGIN(.name = "qwen3_moe", .version = "1.0",
          .summary = "Model: Qwen3-MoE (debug, 30B-A3B, 235B-A22B)", .options = options,
          .config = &config, .config_size = sizeof(config),
          .offers = CT_OFFERS({CT_MODEL, "qwen3_moe", &ops}, {CT_HOOK, "qwen3_moe", &hook}));
