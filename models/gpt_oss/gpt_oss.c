/*
 * gpt-oss (OpenAI 2025): mixtures of experts with biases and a clamped SwiGLU, and attention with
 * biases and a sink, which in every second layer sees a window only.
 */
#include <ctitan/config.h>
#include <ctitan/lib/hf.h>
#include <ctitan/lib/mixture.h>
#include <ctitan/plugin.h>
#include <ctitan/run.h>

struct ct_model {
    struct ct_decoder_sizes sizes;
    struct ct_mixture mixture;
};

static struct config {
    struct ct_decoder_options decoder;
    struct ct_mixture_options mixture;
    double aux_loss_coef;
    int64_t window;
} config;

static const struct ct_option options[] = {
    CT_DECODER_SIZE_OPTIONS(struct config, decoder),
    CT_DECODER_HEAD_OPTIONS(struct config, decoder),
    CT_OPT_INT(struct config, window, "sliding_window", "0", 0, 1e9,
               "Tokens that attention sees in every second layer, from the first on; 0: the "
               "flavor's"),
    CT_MIXTURE_OPTIONS(struct config, mixture),
    CT_MIXTURE_BALANCE_OPTION(struct config, aux_loss_coef),
    {0}};

#define ROPE(f)                                                                                    \
    {                                                                                              \
        .theta = 150000, .factor = f, .scaling = CT_ROPE_YARN, .original_max_position = 4096,      \
        .beta_fast = 32, .beta_slow = 1, .fractional = true, .amplitude = 1.3465735902799727       \
    }

static const struct ct_rope rope = ROPE(32); /* where config.json has none */

#define FLAVOR(name, count, d, l, h, kv, size, vocab, e, expert, w)                                \
    {                                                                                              \
        .sizes = {.flavor = name,                                                                  \
                  .parameters = count,                                                             \
                  .dim = d,                                                                        \
                  .layers = l,                                                                     \
                  .heads = h,                                                                      \
                  .kv_heads = kv,                                                                  \
                  .head_dim = size,                                                                \
                  .vocabulary = vocab,                                                             \
                  .max_position = 131072,                                                          \
                  .norm_eps = 1e-5,                                                                \
                  .rope = ROPE(32),                                                                \
                  .window = w},                                                                    \
        .mixture = {                                                                               \
            .experts = e,                                                                          \
            .expert_dim = expert,                                                                  \
            .choice = {.k = 4, .normalised = true},                                                \
            .biased = true,                                                                        \
            .router = "mlp.router",                                                                \
            .activation = {.alpha = 1.702, .limit = 7, .offset = 1}                                \
        }                                                                                          \
    }

static const struct ct_model flavors[] = {
    FLAVOR("debug", 8033088, 256, 4, 8, 2, 32, 2048, 8, 256, 64),
    FLAVOR("20B", 20914757184, 2880, 24, 64, 8, 64, 201088, 32, 2880, 128),
    FLAVOR("120B", 116829156672, 2880, 36, 64, 8, 64, 201088, 128, 2880, 128),
    {.sizes = {0}},
};

#define FIELD(f) offsetof(struct ct_model, f)

static const struct ct_hf_key keys[] = {
    {"vocab_size", CT_HF_SIZE, FIELD(sizes.vocabulary), -1},
    {"hidden_size", CT_HF_SIZE, FIELD(sizes.dim), -1},
    {"num_hidden_layers", CT_HF_DEPTH, FIELD(sizes.layers), -1},
    {"num_attention_heads", CT_HF_SIZE, FIELD(sizes.heads), -1},
    {"num_key_value_heads", CT_HF_SIZE, FIELD(sizes.kv_heads), 8},
    {"head_dim", CT_HF_SIZE, FIELD(sizes.head_dim), 64},
    {"max_position_embeddings", CT_HF_SIZE, FIELD(sizes.max_position), 131072},
    {"rms_norm_eps", CT_HF_NUMBER, FIELD(sizes.norm_eps), 1e-5},
    {"tie_word_embeddings", CT_HF_BOOL, FIELD(sizes.tied), 0},
    {"pad_token_id", CT_HF_TOKEN, FIELD(sizes.padding), 0},
    {"rope_theta", CT_HF_ROPE, FIELD(sizes.rope), 150000},
    {"sliding_window", CT_HF_SIZE, FIELD(sizes.window), 128},
    {"layer_types", CT_HF_SLIDING, FIELD(sizes.sliding), 0},
    {"num_local_experts|num_experts", CT_HF_SIZE, FIELD(mixture.experts), -1},
    {"num_experts_per_tok", CT_HF_SIZE, FIELD(mixture.choice.k), 4},
    {"intermediate_size", CT_HF_SIZE, FIELD(mixture.expert_dim), -1},
    CT_MIXTURE_WHOLE_KEYS(struct ct_model, mixture, 0.001),
    {"swiglu_alpha", CT_HF_NUMBER, FIELD(mixture.activation.alpha), 1.702},
    {"swiglu_limit", CT_HF_NUMBER, FIELD(mixture.activation.limit), 7},
    {0},
};

static const struct ct_hf_fixed fixed[] = {
    {"hidden_act", "\"silu\"|\"swish\"", false},
    {"attention_bias", "true", false},
    {"is_causal", "true", false},
    {"attention_dropout", "0.0", true},
    {0},
};

static const struct ct_hf_config hf_config = {"gpt_oss",
                                              "GptOssForCausalLM",
                                              keys,
                                              fixed,
                                              "mxfp4",
                                              &rope,
                                              .ignored =
                                                  "experts_per_token, initial_context_length"};

/* ---- sizes ---- */

static int apply(const struct ct_run *run, struct ct_model *m)
{
    int rc = ct_mixture_apply(&config.mixture, &m->mixture);

    if (rc < 0)
        return rc;
    for (size_t i = 0; !*ct_config.model.init_from && i < CT_COUNT(m->sizes.sliding.bits); i++)
        m->sizes.sliding.bits[i] = CT_HF_EVERY_SECOND;
    if (config.window)
        m->sizes.window = config.window;
    return ct_mixture_apply_balance(run, &m->mixture, m->sizes.layers, config.aux_loss_coef);
}

static const struct ct_model_ops ops;
static const struct ct_decoder_family family = {"gpt_oss", &ops, .no_ffn = true, .apply = apply};

static int create(struct ct_run *run, struct ct_model **out)
{
    return ct_decoder_create(run, &family, &config.decoder, out);
}

/* ---- graph ---- */

static const struct ct_model *model_of(const struct ct_decoder *d)
{
    return (const struct ct_model *)(const void *)d->sizes;
}

static struct ct_value *attention(struct ct_decoder *d, struct ct_value *x)
{
    const struct ct_decoder_sizes *s = d->sizes;
    struct ct_attention how = {.causal = true, .scale = ct_decoder_scale(s)};
    struct ct_value *h = ct_decoder_norm(d, "attention_norm", x, "input_layernorm", s->dim);
    struct ct_value *q = ct_decoder_heads(d, h, "q", s->heads, true);
    struct ct_value *k = ct_decoder_heads(d, h, "k", s->kv_heads, true);
    struct ct_value *v = ct_decoder_heads(d, h, "v", s->kv_heads, true), *sink;

    q = ct_rope(&d->b, ct_decoder_named(d, "q_rope"), q, d->positions, &d->rope);
    k = ct_rope(&d->b, ct_decoder_named(d, "k_rope"), k, d->positions, &d->rope);
    sink = ct_decoder_parameter(d, "self_attn.sinks", 1, &s->heads, ct_init_weight(0.02, 1));
    how.window = ct_hf_has_layer(&s->sliding, d->layer) ? s->window : 0;
    h = ct_attention_with_sink(&d->b, ct_decoder_named(d, "attention"), q, k, v, d->documents, sink,
                               &how);
    return ct_decoder_attention_sum(d, x, h, true);
}

static struct ct_value *feed_forward(struct ct_decoder *d, struct ct_value *x)
{
    return ct_decoder_mixture(d, x, &model_of(d)->mixture);
}

static struct ct_value *end(struct ct_decoder *d, struct ct_value *x)
{
    return ct_decoder_balance(d, x, &model_of(d)->mixture);
}

static int build(struct ct_model *model, struct ct_graph *graph,
                 const struct ct_model_request *request)
{
    static const struct ct_decoder_parts parts = {attention, feed_forward, end};
    struct ct_mixture_sums sums = {0};
    struct ct_model own = *model;

    if (own.mixture.whole.wanted)
        own.mixture.sums = &sums;
    return ct_decoder_build_with(&own, graph, request, &parts);
}

/* ---- facts ---- */

/* Six per element of a weight that a token's products read, and for each key that a query sees 12
   per feature of all heads. */
static void flops_per_token(const struct ct_model *m, int64_t seq_len, double *whole,
                            double *halved)
{
    const struct ct_decoder_sizes *s = &m->sizes;
    int64_t q = s->heads * s->head_dim, kv = s->kv_heads * s->head_dim;
    struct ct_decoder_seen seen = ct_decoder_seen_by_all(s, seq_len);
    double products = 6 * (double)(s->vocabulary * s->dim + s->layers * s->dim * (2 * q + 2 * kv)) +
                      (double)s->layers * ct_mixture_flops(&m->mixture, s->dim);

    *whole = products + 12 * (double)q * seen.whole;
    *halved = products + 12 * (double)q * seen.halved;
}

static const struct ct_shard_rule shard_plan[] = {
    {"model.embed_tokens.weight", CT_SHARD_VOCAB},
    {"*.self_attn.[qkv]_proj.*", CT_SHARD_COLWISE},
    {"*.self_attn.sinks", CT_SHARD_COLWISE},
    {"*.self_attn.o_proj.weight", CT_SHARD_ROWWISE},
    {"*.self_attn.o_proj.bias", CT_SHARD_REPLICATE},
    {"*.experts.gate_proj.weight", CT_SHARD_COLWISE},
    {"*.experts.up_proj.weight", CT_SHARD_COLWISE},
    {"*.experts.down_proj.weight", CT_SHARD_ROWWISE},
    {"*.experts.gate_proj.bias", CT_SHARD_ROWWISE}, /* its rows are experts */
    {"*.experts.up_proj.bias", CT_SHARD_ROWWISE},
    {"*.experts.down_proj.bias", CT_SHARD_REPLICATE},
    {"*.mlp.router.*", CT_SHARD_REPLICATE},
    {"*norm.weight", CT_SHARD_REPLICATE},
    {"lm_head.weight", CT_SHARD_VOCAB},
    {0},
};

/* Tensors of all experts, inputs times outputs; gate's and up's outputs take turns. */
static const struct ct_stored_rule stored[] = {
    {".experts.gate_proj.weight", ".experts.gate_up_proj", true, 0, 2, .interleaved = true},
    {".experts.up_proj.weight", ".experts.gate_up_proj", true, 1, 2, .interleaved = true},
    {".experts.gate_proj.bias", ".experts.gate_up_proj_bias", false, 0, 2, .interleaved = true},
    {".experts.up_proj.bias", ".experts.gate_up_proj_bias", false, 1, 2, .interleaved = true},
    {".experts.down_proj.weight", ".experts.down_proj", true, 0, 0},
    {".experts.down_proj.bias", ".experts.down_proj_bias", false, 0, 0},
    {0},
};

static const struct ct_model_ops ops = {.size = sizeof(struct ct_model_ops),
                                        .flavors = flavors,
                                        .flavor_size = sizeof(*flavors),
                                        .create = create,
                                        .destroy = ct_decoder_destroy,
                                        .build = build,
                                        .vocabulary = ct_decoder_vocabulary,
                                        .flops_per_token = flops_per_token,
                                        .shard_plan = shard_plan,
                                        .description = &hf_config,
                                        .stored = stored,
                                        .weights = &ct_hf_weights};

static const struct ct_hook hook = CT_MIXTURE_HOOK(&config.mixture);

CT_PLUGIN(.name = "gpt_oss", .version = "1.0", .summary = "Model: gpt-oss (debug, 20B, 120B)",
          .options = options, .config = &config, .config_size = sizeof(config),
          .offers = CT_OFFERS({CT_MODEL, "gpt_oss", &ops}, {CT_HOOK, "gpt_oss", &hook}));
