/*
 * Llama 4 (Meta 2025), the part for text: mixtures of chosen experts, whose input is scaled, and a
 * shared one; attention within chunks, and in some layers attention to all tokens, without rope
 * and with a temperature.
 */
#include <math.h>

#include <ctitan/config.h>
#include <ctitan/error.h>
#include <ctitan/lib/hf.h>
#include <ctitan/lib/mixture.h>
#include <ctitan/plugin.h>
#include <ctitan/run.h>

struct ct_model {
    struct ct_decoder_sizes sizes; /* ffn_dim: of layers that are no mixtures */
    struct ct_mixture mixture;
    int64_t mixture_step;         /* every so many layers is a mixture, unless the list is given */
    int64_t whole_step;           /* every so many layers has no rope, unless the list is given */
    struct ct_hf_layers mixtures; /* layers that are mixtures */
    struct ct_hf_layers rotated;  /* layers with rope */
    struct ct_hf_layers chunked; /* layers with attention within chunks; not given: all with rope */
    int64_t chunk;               /* tokens; 0: none are chunked */
    bool normed;                 /* queries and keys with rope are normalised */
    bool tempered;               /* queries without rope have a temperature */
    int64_t every;               /* tokens: its ct_temper */
    double temperature;          /* its scale */
};

static struct config {
    struct ct_decoder_options decoder;
    struct ct_mixture_options mixture;
    int64_t mixture_step, whole_step, chunk, every;
} config;

static const struct ct_option options[] = {
    CT_DECODER_OPTIONS(struct config, decoder),
    CT_MIXTURE_SIZE_OPTIONS(struct config, mixture),
    CT_OPT_INT(struct config, mixture_step, "interleave_moe_layer_step", "0", 0, 1e4,
               "One in this many layers has experts; 0: as in the flavor"),
    CT_OPT_INT(
        struct config, whole_step, "no_rope_layer_interval", "0", 0, 1e4,
        "One in this many layers has no rotary embedding and attends to all tokens; 0: as in "
        "the flavor"),
    CT_OPT_INT(struct config, chunk, "attention_chunk_size", "0", 0, 1e9,
               "Tokens of a chunk, within which the other layers attend; 0: the flavor's"),
    CT_OPT_INT(struct config, every, "floor_scale", "0", 0, 1e9,
               "Tokens after which the temperature of layers without rope rises; 0: the flavor's"),
    {0}};

#define FLAVOR(name, count, d, l, h, kv, size, ffn, vocab, most, f, e, x, step, norms, near)       \
    {                                                                                              \
        .sizes = {.flavor = name,                                                                  \
                  .parameters = count,                                                             \
                  .dim = d,                                                                        \
                  .layers = l,                                                                     \
                  .heads = h,                                                                      \
                  .kv_heads = kv,                                                                  \
                  .head_dim = size,                                                                \
                  .ffn_dim = ffn,                                                                  \
                  .vocabulary = vocab,                                                             \
                  .max_position = most,                                                            \
                  .norm_eps = 1e-5,                                                                \
                  .rope = {.theta = 500000,                                                        \
                           .factor = f,                                                            \
                           .low_freq_factor = 1,                                                   \
                           .high_freq_factor = 1,                                                  \
                           .original_max_position = 8192,                                          \
                           .interleaved = true}},                                                  \
        .mixture = {.experts = e,                                                                  \
                    .expert_dim = x,                                                               \
                    .shared = 1,                                                                   \
                    .choice = {.k = 1, .scores = CT_SCORES_SIGMOID},                               \
                    .scaled_inputs = true,                                                         \
                    .router = "feed_forward.router",                                               \
                    .where = "feed_forward.experts",                                               \
                    .shared_where = "feed_forward.shared_expert"},                                 \
        .mixture_step = step, .whole_step = 4, .chunk = near, .normed = norms, .tempered = true,   \
        .every = near, .temperature = 0.1                                                          \
    }

static const struct ct_model flavors[] = {
    FLAVOR("debug", 6035712, 256, 4, 8, 2, 32, 512, 2048, 4096, 1, 8, 256, 2, true, 64),
    FLAVOR("17Bx16E", 107769861120, 5120, 48, 40, 8, 128, 16384, 202048, 10485760, 16, 16, 8192, 1,
           true, 8192),
    FLAVOR("17Bx128E", 400711848960, 5120, 48, 40, 8, 128, 16384, 202048, 1048576, 1, 128, 8192, 2,
           false, 8192),
    {.sizes = {0}},
};

#define FIELD(f) offsetof(struct ct_model, f)

static const struct ct_hf_key keys[] = {
    {"vocab_size", CT_HF_SIZE, FIELD(sizes.vocabulary), 202048},
    {"hidden_size", CT_HF_SIZE, FIELD(sizes.dim), 5120},
    {"intermediate_size", CT_HF_SIZE, FIELD(mixture.expert_dim), 8192},
    {"intermediate_size_mlp", CT_HF_SIZE, FIELD(sizes.ffn_dim), 16384},
    {"num_hidden_layers", CT_HF_DEPTH, FIELD(sizes.layers), -1},
    {"num_attention_heads", CT_HF_SIZE, FIELD(sizes.heads), 40},
    {"num_key_value_heads", CT_HF_SIZE, FIELD(sizes.kv_heads), 8},
    {"head_dim", CT_HF_SIZE, FIELD(sizes.head_dim), 128},
    {"max_position_embeddings", CT_HF_SIZE, FIELD(sizes.max_position), 131072},
    {"rms_norm_eps", CT_HF_NUMBER, FIELD(sizes.norm_eps), 1e-5},
    {"tie_word_embeddings", CT_HF_BOOL, FIELD(sizes.tied), 0},
    {"pad_token_id", CT_HF_TOKEN, FIELD(sizes.padding), 0},
    {"rope_theta", CT_HF_ROPE, FIELD(sizes.rope), 500000},
    {"num_local_experts", CT_HF_SIZE, FIELD(mixture.experts), 16},
    {"num_experts_per_tok", CT_HF_SIZE, FIELD(mixture.choice.k), 1},
    {"interleave_moe_layer_step", CT_HF_SIZE, FIELD(mixture_step), 1},
    {"moe_layers", CT_HF_LAYERS, FIELD(mixtures), -1},
    {"use_qk_norm", CT_HF_BOOL, FIELD(normed), 1},
    {"no_rope_layer_interval", CT_HF_SIZE, FIELD(whole_step), 4},
    {"no_rope_layers", CT_HF_FLAGS, FIELD(rotated), 0},
    {"layer_types", CT_HF_CHUNKED, FIELD(chunked), 0},
    {"attention_chunk_size", CT_HF_PART, FIELD(chunk), 8192},
    {"attn_temperature_tuning", CT_HF_BOOL, FIELD(tempered), 1},
    {"floor_scale", CT_HF_SIZE, FIELD(every), 8192},
    {"attn_scale", CT_HF_NUMBER, FIELD(temperature), 0.1},
    {0},
};

static const struct ct_hf_fixed fixed[] = {
    {"hidden_act", "\"silu\"|\"swish\"", false},
    {"attention_bias", "false", false},
    {"is_causal", "true", false},
    {"output_router_logits", "false", false},
    {"router_jitter_noise", "0.0", true},
    {"attention_dropout", "0.0", true},
    {0},
};

static const struct ct_hf_config hf_config = {
    "llama4_text", "Llama4ForCausalLM", keys,
    fixed,         .outer = "llama4",   .ignored = "router_aux_loss_coef, for_llm_compressor"};

/* ---- sizes ---- */

static bool is_mixture(const struct ct_model *m, int64_t layer)
{
    return m->mixtures.given ? ct_hf_has_layer(&m->mixtures, layer)
                             : (layer + 1) % m->mixture_step == 0;
}

static bool is_rotated(const struct ct_model *m, int64_t layer)
{
    return m->rotated.given ? ct_hf_has_layer(&m->rotated, layer)
                            : (layer + 1) % m->whole_step != 0;
}

static bool is_chunked(const struct ct_model *m, int64_t layer)
{
    return m->chunk &&
           (m->chunked.given ? ct_hf_has_layer(&m->chunked, layer) : is_rotated(m, layer));
}

static bool any(const struct ct_model *m, bool (*is)(const struct ct_model *m, int64_t layer))
{
    for (int64_t layer = 0; layer < m->sizes.layers; layer++)
        if (is(m, layer))
            return true;
    return false;
}

static bool is_listed(const struct ct_model *m, int64_t layer)
{
    return m->chunked.given && ct_hf_has_layer(&m->chunked, layer);
}

/* Options that would change nothing are refused. */
static int check(const struct ct_model *m)
{
    if (!m->chunk && any(m, is_listed))
        return ct_fail(CT_ECONFIG, "layer_types has chunked_attention, but attention_chunk_size is "
                                   "null");
    if (config.chunk && !any(m, is_chunked))
        return ct_fail(CT_ECONFIG, "attention_chunk_size = %lld: no layer is chunked",
                       (long long)config.chunk);
    if (config.every && !m->tempered)
        return ct_fail(CT_ECONFIG, "floor_scale = %lld: attn_temperature_tuning is false",
                       (long long)config.every);
    if (config.mixture.log_load && !any(m, is_mixture))
        return ct_fail(CT_ECONFIG, "log_load = %lld: no layer is a mixture",
                       (long long)config.mixture.log_load);
    return 0;
}

/* The recipe's steps hold in the place of config.json's lists. */
static int apply(const struct ct_run *run, struct ct_model *m)
{
    int rc;

    (void)run;
    if (config.mixture_step) {
        m->mixture_step = config.mixture_step;
        m->mixtures.given = false;
    }
    if (config.whole_step) {
        m->whole_step = config.whole_step;
        m->rotated.given = m->chunked.given = false;
    }
    if (config.chunk)
        m->chunk = config.chunk;
    if (config.every)
        m->every = config.every;
    rc = check(m);
    return rc < 0 ? rc : ct_mixture_apply(&config.mixture, &m->mixture);
}

static const struct ct_model_ops ops;
static const struct ct_decoder_family family = {"llama4", &ops, .apply = apply};

static int create(struct ct_run *run, struct ct_model **out)
{
    return ct_decoder_create(run, &family, &config.decoder, out);
}

/* ---- graph ---- */

static const struct ct_model *model_of(const struct ct_decoder *d)
{
    return (const struct ct_model *)(const void *)d->sizes;
}

/* Tokens of a sequence, of which a graph that generates gets parts only. */
static int64_t longest(const struct ct_decoder *d)
{
    int64_t context = ct_config.training.seq_len, fed = d->request->seq_len;

    return d->request->logits && context > fed ? context : fed;
}

/* The documents for a layer's attention. Chunks are made once, for all layers. */
static struct ct_value *documents_of(struct ct_decoder *d)
{
    int64_t size = model_of(d)->chunk, most;
    struct ct_value *made;

    if (!is_chunked(model_of(d), d->layer) || size >= longest(d))
        return d->documents;
    most = (longest(d) + size - 1) / size;
    made = ct_graph_find(d->b.graph, "document_chunks");
    return made ? made
                : ct_document_chunks(&d->b, "document_chunks", d->tokens, d->positions,
                                     d->documents, &(struct ct_document_chunks){size, most});
}

/* Rotated, and perhaps normalised; q or k, one of the names below. The norm is of x times rope's
   amplitude, which its eps stands for. */
static struct ct_value *rotate(struct ct_decoder *d, struct ct_value *x, const char *rope,
                               const char *norm)
{
    double amplitude = d->sizes->rope.amplitude > 0 ? d->sizes->rope.amplitude : 1;

    x = ct_rope(&d->b, ct_decoder_named(d, rope), x, d->positions, &d->rope);
    if (model_of(d)->normed)
        x = ct_rms_norm_plain(&d->b, ct_decoder_named(d, norm), x,
                              d->sizes->norm_eps / (amplitude * amplitude));
    return x;
}

static struct ct_value *attention(struct ct_decoder *d, struct ct_value *x)
{
    const struct ct_model *m = model_of(d);
    const struct ct_decoder_sizes *s = d->sizes;
    struct ct_value *h = ct_decoder_norm(d, "attention_norm", x, "input_layernorm", s->dim);
    struct ct_value *q = ct_decoder_heads(d, h, "q", s->heads, false);
    struct ct_value *k = ct_decoder_heads(d, h, "k", s->kv_heads, false);
    struct ct_value *v = ct_decoder_heads(d, h, "v", s->kv_heads, false);
    struct ct_value *documents = documents_of(d);
    struct ct_attention how = {.causal = true};

    if (is_rotated(m, d->layer)) {
        q = rotate(d, q, "q_rope", "q_norm");
        k = rotate(d, k, "k_rope", "k_norm");
    } else if (m->tempered) {
        q = ct_temper(&d->b, ct_decoder_named(d, "q_temper"), q, d->positions,
                      &(struct ct_temper){m->temperature, m->every, 1});
    }
    if (s->rope.amplitude > 0 && is_rotated(m, d->layer) && !m->normed)
        how.scale = ct_decoder_scale(s);
    h = ct_attention(&d->b, ct_decoder_named(d, "attention"), q, k, v, documents, &how);
    return ct_decoder_attention_sum(d, x, h, false);
}

static struct ct_value *feed_forward(struct ct_decoder *d, struct ct_value *x)
{
    struct ct_value *h;

    if (is_mixture(model_of(d), d->layer))
        return ct_decoder_mixture(d, x, &model_of(d)->mixture);
    h = ct_decoder_norm(d, "ffn_norm", x, "post_attention_layernorm", d->sizes->dim);
    h = ct_decoder_swiglu(d, "", h, "feed_forward", d->sizes->ffn_dim);
    return ct_add(&d->b, ct_decoder_named(d, "ffn_sum"), x, h);
}

static int build(struct ct_model *model, struct ct_graph *graph,
                 const struct ct_model_request *request)
{
    static const struct ct_decoder_parts parts = {attention, feed_forward};

    return ct_decoder_build_with(model, graph, request, &parts);
}

/* ---- facts ---- */

/* Keys that a token sees of its chunk, counted as if attention were not causal. */
static double seen_in_chunks(double chunk, double tokens)
{
    double whole = floor(tokens / chunk) * chunk, rest = tokens - whole;

    return (whole * chunk + rest * rest) / tokens;
}

/* Six per element of a weight that a token's products read, and for each key that a query sees 12
   per feature of all heads. */
static void flops_per_token(const struct ct_model *m, int64_t seq_len, double *whole,
                            double *halved)
{
    const struct ct_decoder_sizes *s = &m->sizes;
    int64_t q = s->heads * s->head_dim, kv = s->kv_heads * s->head_dim;
    double dim = (double)s->dim, t = (double)seq_len, seen = 0;
    double products = 6 * dim * (double)(s->vocabulary + s->layers * (2 * q + 2 * kv));

    for (int64_t layer = 0; layer < s->layers; layer++) {
        products += is_mixture(m, layer) ? ct_mixture_flops(&m->mixture, s->dim)
                                         : 18 * dim * (double)s->ffn_dim;
        seen += is_chunked(m, layer) ? seen_in_chunks((double)m->chunk, t) : t;
    }
    *whole = products + 12 * (double)q * seen;
    *halved = products + 12 * (double)q * seen / 2;
}

static const struct ct_shard_rule shard_plan[] = {
    {"model.embed_tokens.weight", CT_SHARD_VOCAB},
    {"*.self_attn.[qkv]_proj.weight", CT_SHARD_COLWISE},
    {"*.self_attn.o_proj.weight", CT_SHARD_ROWWISE},
    {"*.gate_proj.weight", CT_SHARD_COLWISE},
    {"*.up_proj.weight", CT_SHARD_COLWISE},
    {"*.down_proj.weight", CT_SHARD_ROWWISE},
    {"*.feed_forward.router.weight", CT_SHARD_REPLICATE},
    {"*norm.weight", CT_SHARD_REPLICATE},
    {"lm_head.weight", CT_SHARD_VOCAB},
    {0},
};

/* Tensors of all experts, inputs times outputs; gate's outputs are before up's. */
static const struct ct_stored_rule stored[] = {
    {".experts.gate_proj.weight", ".experts.gate_up_proj", true, 0, 2},
    {".experts.up_proj.weight", ".experts.gate_up_proj", true, 1, 2},
    {".experts.down_proj.weight", ".experts.down_proj", true, 0, 0},
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

CT_PLUGIN(.name = "llama4", .version = "1.0",
          .summary = "Model: Llama 4 (debug, 17Bx16E, 17Bx128E)", .options = options,
          .config = &config, .config_size = sizeof(config),
          .offers = CT_OFFERS({CT_MODEL, "llama4", &ops}, {CT_HOOK, "llama4", &hook}));
