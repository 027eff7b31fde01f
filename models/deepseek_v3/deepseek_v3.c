/*
 * DeepSeek-V3 (DeepSeek-AI 2024): latent attention, and mixtures of experts behind some dense
 * layers.
 *
 * Keys and values of all heads are products of one small vector of each token, the latent. Rotary
 * positions are in further features of queries and keys, and those of the keys are the same for all
 * heads. Queries may go through a small vector, too.
 *
 * Experts are chosen by sigmoid scores and a bias, which evens out how often each is chosen without
 * a loss of its own (Wang et al. 2024): each step raises it for the experts that were chosen less
 * often than the mean, and lowers it for the others.
 */
#include <math.h>
#include <string.h>

#include <jansson.h>

#include <ctitan/config.h>
#include <ctitan/error.h>
#include <ctitan/lib/hf.h>
#include <ctitan/lib/json.h>
#include <ctitan/lib/mixture.h>
#include <ctitan/plugin.h>
#include <ctitan/run.h>

#define LATENT_EPS 1e-6 /* of the norms of small vectors; fixed in transformers */

/* sizes.head_dim are the features of a head that are rotated. */
struct ct_model {
    struct ct_decoder_sizes sizes;
    struct ct_mixture mixture;
    int64_t dense_layers;        /* the first layers, which are no mixtures */
    struct ct_hf_layers dense;   /* those that are none, where files list them */
    int64_t predicted;           /* depths of multi-token prediction in files */
    int64_t q_latent, kv_latent; /* widths of the small vectors; q_latent 0: none */
    int64_t key_dim, value_dim;  /* of a head: features that are not rotated */
};

static struct config {
    struct ct_decoder_options decoder;
    struct ct_mixture_options mixture;
    struct ct_predictions predictions;
    int64_t dense_layers, shared, groups, groups_chosen;
    int64_t q_latent, kv_latent, key_dim, value_dim;
    double rate;
} config;

static const struct ct_option options[] = {
    CT_DECODER_SIZE_OPTIONS(struct config, decoder),
    CT_DECODER_FFN_OPTION(struct config, decoder),
    CT_OPT_INT(struct config, q_latent, "q_lora_rank", "-1", -1, 1e6,
               "Width of the vector that queries are made of; 0: none; -1: the flavor's"),
    CT_OPT_INT(struct config, kv_latent, "kv_lora_rank", "0", 0, 1e6,
               "Width of the vector that keys and values are made of; 0: the flavor's"),
    CT_OPT_INT(struct config, key_dim, "qk_nope_head_dim", "0", 0, 1e5,
               "Features of a head's query and key that are not rotated; 0: the flavor's"),
    CT_OPT_INT(struct config, decoder.head_dim, "qk_rope_head_dim", "0", 0, 1e5,
               "Features of a head's query and key that are rotated; 0: the flavor's"),
    CT_OPT_INT(struct config, value_dim, "v_head_dim", "0", 0, 1e5,
               "Features of a head's value; 0: the flavor's"),
    CT_OPT_INT(struct config, dense_layers, "n_dense_layers", "-1", -1, 1e4,
               "Layers at the beginning without experts; -1: the flavor's"),
    CT_MIXTURE_OPTIONS(struct config, mixture),
    CT_OPT_INT(struct config, groups, "n_groups", "0", 0, 1e6,
               "Groups of experts, n_groups_chosen of which a token chooses from; 0: the flavor's"),
    CT_OPT_INT(struct config, groups_chosen, "n_groups_chosen", "0", 0, 1e6,
               "Groups that a token chooses; 0: the flavor's"),
    CT_OPT_INT(struct config, shared, "n_shared_experts", "-1", -1, 1e4,
               "Experts that every token uses; -1: the flavor's"),
    CT_PREDICTION_OPTIONS(struct config, predictions),
    CT_OPT_FLOAT(struct config, rate, "load_balance_coeff", "1e-3", 0, 1,
                 "What a step adds to the bias of an expert that was chosen too rarely, and takes "
                 "from that of others; 0: biases stay as they are"),
    {0}};

static const struct ct_model flavors[] = {
    {.sizes = {.flavor = "debug",
               .parameters = 11715408,
               .dim = 256,
               .layers = 6,
               .heads = 8,
               .kv_heads = 8,
               .head_dim = 16,
               .ffn_dim = 1024,
               .vocabulary = 2048,
               .max_position = 4096,
               .norm_eps = 1e-6,
               .rope = {.theta = 10000, .factor = 1, .interleaved = true}},
     .mixture = {.experts = 16,
                 .expert_dim = 128,
                 .shared = 1,
                 .choice = {.k = 4,
                            .normalised = true,
                            .scores = CT_SCORES_SIGMOID,
                            .groups = 4,
                            .groups_chosen = 2,
                            .scale = 2.5},
                 .corrected = true},
     .dense_layers = 1,
     .q_latent = 128,
     .kv_latent = 128,
     .key_dim = 32,
     .value_dim = 32},
    /* Moonlight (Liu et al. 2025) */
    {.sizes = {.flavor = "16B-A3B",
               .parameters = 15960110208,
               .dim = 2048,
               .layers = 27,
               .heads = 16,
               .kv_heads = 16,
               .head_dim = 64,
               .ffn_dim = 11264,
               .vocabulary = 163840,
               .max_position = 8192,
               .norm_eps = 1e-5,
               .rope = {.theta = 50000, .factor = 1, .interleaved = true}},
     .mixture = {.experts = 64,
                 .expert_dim = 1408,
                 .shared = 2,
                 .choice = {.k = 6,
                            .normalised = true,
                            .scores = CT_SCORES_SIGMOID,
                            .groups = 1,
                            .groups_chosen = 1,
                            .scale = 2.446},
                 .corrected = true},
     .dense_layers = 1,
     .kv_latent = 512,
     .key_dim = 128,
     .value_dim = 128},
    {.sizes = {.flavor = "671B-A37B",
               .parameters = 671026419200,
               .dim = 7168,
               .layers = 61,
               .heads = 128,
               .kv_heads = 128,
               .head_dim = 64,
               .ffn_dim = 18432,
               .vocabulary = 129280,
               .max_position = 163840,
               .norm_eps = 1e-6,
               .rope = {.theta = 10000,
                        .factor = 40,
                        .scaling = CT_ROPE_YARN,
                        .beta_fast = 32,
                        .beta_slow = 1,
                        .original_max_position = 4096,
                        .mscale_all_dim = 1,
                        .interleaved = true}},
     .mixture = {.experts = 256,
                 .expert_dim = 2048,
                 .shared = 1,
                 .choice = {.k = 8,
                            .normalised = true,
                            .scores = CT_SCORES_SIGMOID,
                            .groups = 8,
                            .groups_chosen = 4,
                            .scale = 2.5},
                 .corrected = true},
     .dense_layers = 3,
     .q_latent = 1536,
     .kv_latent = 512,
     .key_dim = 128,
     .value_dim = 128},
    /* Kimi K2 (Kimi Team 2025) */
    {.sizes = {.flavor = "1T-A32B",
               .parameters = 1026408232448,
               .dim = 7168,
               .layers = 61,
               .heads = 64,
               .kv_heads = 64,
               .head_dim = 64,
               .ffn_dim = 18432,
               .vocabulary = 163840,
               .max_position = 131072,
               .norm_eps = 1e-6,
               .rope = {.theta = 50000,
                        .factor = 32,
                        .scaling = CT_ROPE_YARN,
                        .beta_fast = 1,
                        .beta_slow = 1,
                        .original_max_position = 4096,
                        .mscale_all_dim = 1,
                        .interleaved = true}},
     .mixture = {.experts = 384,
                 .expert_dim = 2048,
                 .shared = 1,
                 .choice = {.k = 8,
                            .normalised = true,
                            .scores = CT_SCORES_SIGMOID,
                            .groups = 1,
                            .groups_chosen = 1,
                            .scale = 2.827},
                 .corrected = true},
     .dense_layers = 1,
     .q_latent = 1536,
     .kv_latent = 512,
     .key_dim = 128,
     .value_dim = 128},
    {.sizes = {0}},
};

#define FIELD(f) offsetof(struct ct_model, f)

static const struct ct_hf_key keys[] = {
    {"vocab_size", CT_HF_SIZE, FIELD(sizes.vocabulary), -1},
    {"hidden_size", CT_HF_SIZE, FIELD(sizes.dim), -1},
    {"intermediate_size", CT_HF_SIZE, FIELD(sizes.ffn_dim), -1},
    {"num_hidden_layers", CT_HF_DEPTH, FIELD(sizes.layers), -1},
    {"num_attention_heads", CT_HF_SIZE, FIELD(sizes.heads), -1},
    {"num_key_value_heads", CT_HF_SIZE, FIELD(sizes.kv_heads), 0},
    {"qk_rope_head_dim|head_dim", CT_HF_SIZE, FIELD(sizes.head_dim), 64},
    {"qk_nope_head_dim", CT_HF_SIZE, FIELD(key_dim), 128},
    {"v_head_dim", CT_HF_SIZE, FIELD(value_dim), 128},
    {"q_lora_rank", CT_HF_PART, FIELD(q_latent), 1536},
    {"kv_lora_rank", CT_HF_SIZE, FIELD(kv_latent), 512},
    {"max_position_embeddings", CT_HF_SIZE, FIELD(sizes.max_position), 4096},
    {"rms_norm_eps", CT_HF_NUMBER, FIELD(sizes.norm_eps), 1e-6},
    {"tie_word_embeddings", CT_HF_BOOL, FIELD(sizes.tied), 0},
    {"pad_token_id", CT_HF_TOKEN, FIELD(sizes.padding), 0},
    {"rope_theta", CT_HF_ROPE, FIELD(sizes.rope), 10000},
    {"rope_interleave", CT_HF_BOOL, FIELD(sizes.rope.interleaved), 1},
    {"first_k_dense_replace", CT_HF_COUNT, FIELD(dense_layers), 3},
    {"n_routed_experts|num_local_experts", CT_HF_SIZE, FIELD(mixture.experts), 256},
    {"n_shared_experts", CT_HF_COUNT, FIELD(mixture.shared), 1},
    {"num_experts_per_tok", CT_HF_SIZE, FIELD(mixture.choice.k), 8},
    {"moe_intermediate_size", CT_HF_SIZE, FIELD(mixture.expert_dim), 2048},
    {"n_group", CT_HF_SIZE, FIELD(mixture.choice.groups), 8},
    {"topk_group", CT_HF_SIZE, FIELD(mixture.choice.groups_chosen), 4},
    {"routed_scaling_factor", CT_HF_NUMBER, FIELD(mixture.choice.scale), 2.5},
    {"norm_topk_prob", CT_HF_BOOL, FIELD(mixture.choice.normalised), 1},
    {"num_nextn_predict_layers", CT_HF_COUNT, FIELD(predicted), 0},
    {0},
};

static const struct ct_hf_fixed fixed[] = {
    CT_DECODER_FIXED,
    {"use_sliding_window", "false", false},
    {"attention_bias", "false", false},
    {"scoring_func", "\"sigmoid\"", false},
    {"topk_method", "\"noaux_tc\"", false},
    {"moe_layer_freq", "1", false},
    {0},
};

static const struct ct_hf_config hf_config = {"deepseek_v3", "DeepseekV3ForCausalLM", keys, fixed,
                                              .ignored =
                                                  "output_router_logits, qk_head_dim, "
                                                  "head_dim, ep_size, aux_loss_alpha, seq_aux"};

/* GLM-4.7-Flash (GLM Team 2026). */
static const struct ct_hf_key glm_keys[] = {
    {"vocab_size", CT_HF_SIZE, FIELD(sizes.vocabulary), 154880},
    {"hidden_size", CT_HF_SIZE, FIELD(sizes.dim), 2048},
    {"intermediate_size", CT_HF_SIZE, FIELD(sizes.ffn_dim), 10240},
    {"num_hidden_layers", CT_HF_DEPTH, FIELD(sizes.layers), 47},
    {"num_attention_heads", CT_HF_SIZE, FIELD(sizes.heads), 20},
    {"num_key_value_heads", CT_HF_SIZE, FIELD(sizes.kv_heads), 20},
    {"qk_rope_head_dim|head_dim", CT_HF_SIZE, FIELD(sizes.head_dim), 64},
    {"qk_nope_head_dim", CT_HF_SIZE, FIELD(key_dim), 192},
    {"v_head_dim", CT_HF_SIZE, FIELD(value_dim), 256},
    {"q_lora_rank", CT_HF_PART, FIELD(q_latent), 768},
    {"kv_lora_rank", CT_HF_SIZE, FIELD(kv_latent), 512},
    {"max_position_embeddings", CT_HF_SIZE, FIELD(sizes.max_position), 202752},
    {"rms_norm_eps", CT_HF_NUMBER, FIELD(sizes.norm_eps), 1e-5},
    {"tie_word_embeddings", CT_HF_BOOL, FIELD(sizes.tied), 0},
    {"pad_token_id", CT_HF_TOKEN, FIELD(sizes.padding), 0},
    {"rope_theta", CT_HF_ROPE, FIELD(sizes.rope), 10000},
    {"rope_interleave", CT_HF_BOOL, FIELD(sizes.rope.interleaved), 1},
    {"mlp_layer_types", CT_HF_TYPES, FIELD(dense), 0, "dense|sparse"},
    {"n_routed_experts|num_local_experts", CT_HF_SIZE, FIELD(mixture.experts), 64},
    {"n_shared_experts", CT_HF_COUNT, FIELD(mixture.shared), 1},
    {"num_experts_per_tok", CT_HF_SIZE, FIELD(mixture.choice.k), 4},
    {"moe_intermediate_size", CT_HF_SIZE, FIELD(mixture.expert_dim), 1536},
    {"n_group", CT_HF_SIZE, FIELD(mixture.choice.groups), 1},
    {"topk_group", CT_HF_SIZE, FIELD(mixture.choice.groups_chosen), 1},
    {"routed_scaling_factor", CT_HF_NUMBER, FIELD(mixture.choice.scale), 1.8},
    {"norm_topk_prob", CT_HF_BOOL, FIELD(mixture.choice.normalised), 1},
    {"num_nextn_predict_layers|num_mtp_layers", CT_HF_COUNT, FIELD(predicted), 0},
    {0},
};

static const struct ct_hf_fixed glm_fixed[] = {
    CT_DECODER_FIXED,
    {"use_sliding_window", "false", false},
    {"attention_bias", "false", false},
    {"scoring_func", "\"sigmoid\"", false},
    {"topk_method", "\"noaux_tc\"", false},
    {"moe_layer_freq", "1", false},
    {"first_k_dense_replace", "1", false}, /* transformers takes mlp_layer_types alone */
    {0},
};

static const struct ct_hf_config glm_config = {"glm4_moe_lite", "Glm4MoeLiteForCausalLM", glm_keys,
                                               glm_fixed,
                                               .ignored = "output_router_logits, qk_head_dim"};

/* The description that a config.json is of. */
static const struct ct_hf_config *description_of(const char *type)
{
    return type && !strcmp(type, glm_config.model_type) ? &glm_config : &hf_config;
}

/* ---- sizes ---- */

static bool is_dense(const struct ct_model *m, int64_t layer)
{
    return m->dense.given ? ct_hf_has_layer(&m->dense, layer) : layer < m->dense_layers;
}

/* A list is written where files have one. */
static void list_dense(struct ct_model *m, const struct ct_hf_config *description)
{
    if (config.dense_layers >= 0)
        m->dense.given = false;
    if (m->dense.given || description != &glm_config)
        return;
    memset(m->dense.bits, 0, sizeof(m->dense.bits));
    for (int64_t i = 0; i < m->sizes.layers && i < m->dense_layers; i++)
        m->dense.bits[i / 64] |= UINT64_C(1) << i % 64;
    m->dense.given = true;
}

static void override(int64_t *size, int64_t value, int64_t unset)
{
    if (value != unset)
        *size = value;
}

static int apply(const struct ct_run *run, struct ct_model *m)
{
    const struct ct_decoder_sizes *s = &m->sizes;

    (void)run;
    override(&m->q_latent, config.q_latent, -1);
    override(&m->kv_latent, config.kv_latent, 0);
    override(&m->key_dim, config.key_dim, 0);
    override(&m->value_dim, config.value_dim, 0);
    override(&m->dense_layers, config.dense_layers, -1);
    override(&m->mixture.shared, config.shared, -1);
    override(&m->mixture.choice.groups, config.groups, 0);
    m->predicted = config.predictions.depths;
    override(&m->mixture.choice.groups_chosen, config.groups_chosen, 0);
    if (s->kv_heads != s->heads)
        return ct_fail(CT_ECONFIG, "%lld heads of queries, but %lld of keys and values",
                       (long long)s->heads, (long long)s->kv_heads);
    if (s->rope.amplitude > 0 && s->rope.amplitude != 1)
        return ct_fail(CT_ECONFIG,
                       "yarn with an attention factor of %g is not supported: mscale and "
                       "mscale_all_dim must be equal, or attention_factor 1",
                       s->rope.amplitude);
    return ct_mixture_apply(&config.mixture, &m->mixture);
}

static const struct ct_model_ops ops;

/* ---- predictions, and where files have them ---- */

static struct ct_predictions predictions_of(const struct ct_model *m)
{
    return (struct ct_predictions){.depths = m->predicted,
                                   .weight = config.predictions.weight,
                                   .embedding_norm = "model.layers.#.enorm",
                                   .hidden_norm = "model.layers.#.hnorm",
                                   .projection = "model.layers.#.eh_proj",
                                   .norm = "model.layers.#.shared_head.norm",
                                   .embedding_copies = "model.layers.#.embed_tokens",
                                   .head_copies = "model.layers.#.shared_head.head"};
}

static const struct ct_stored_rule stored[] = {CT_MIXTURE_STORED, {0}};

static const struct ct_stored_rule *rules_of(const struct ct_model *m, struct ct_arena *arena)
{
    struct ct_predictions p = predictions_of(m);
    size_t room = CT_COUNT(stored) + (size_t)(CT_PREDICTION_RULES * (p.depths + 1));
    struct ct_stored_rule *rules = ct_arena_array(arena, struct ct_stored_rule, room);
    int count = ct_prediction_stored(arena, &p, m->sizes.layers, "model.embed_tokens",
                                     m->sizes.tied ? NULL : "lm_head", rules);

    memcpy(rules + count, stored, sizeof(stored));
    return rules;
}

static int stored_for(const char *text, struct ct_arena *arena, const struct ct_stored_rule **rules)
{
    struct ct_model m = {0};
    json_t *root;
    int rc = ct_json_read(text, strlen(text), "config.json", 0, &root);

    if (rc < 0)
        return rc;
    rc = ct_hf_read_config_text(description_of(ct_hf_model_type(root)), text, "config.json", &m);
    json_decref(root);
    if (rc == 0)
        *rules = rules_of(&m, arena);
    return rc;
}

static int choose_description(const void **description)
{
    json_t *root = NULL;
    int rc = *ct_config.model.init_from ? ct_hf_read_root(ct_config.model.init_from, &root) : 0;

    *description = description_of(ct_hf_model_type(root));
    json_decref(root);
    return rc < 0 ? ct_context(CT_ECONFIG, "[model] init_from") : 0;
}

static int create(struct ct_run *run, struct ct_model **out)
{
    struct ct_model_ops own = ops;
    const struct ct_decoder_family family = {"deepseek_v3", &own, .own_heads = true,
                                             .apply = apply};
    int rc = choose_description(&own.description);

    if (rc == 0)
        rc = ct_decoder_create(run, &family, &config.decoder, out);
    if (rc == 0)
        list_dense(*out, own.description);
    if (rc < 0 || !run)
        return rc;
    own.stored = rules_of(*out, &run->arena);
    run->model_ops = ct_arena_copy(&run->arena, &own, sizeof(own));
    return 0;
}

/* ---- graph ---- */

static const struct ct_model *model_of(const struct ct_decoder *d)
{
    return (const struct ct_model *)(const void *)d->sizes;
}

static struct ct_value *latent_norm(struct ct_decoder *d, const char *name, struct ct_value *x,
                                    const char *what, int64_t size)
{
    struct ct_value *w = ct_decoder_weight(d, what, 1, &size, CT_INIT_ONE);

    return ct_rms_norm(&d->b, ct_decoder_named(d, name), x, w, LATENT_EPS);
}

static struct ct_value *heads(struct ct_decoder *d, const char *name, struct ct_value *x,
                              int64_t count, int64_t size)
{
    return ct_view(&d->b, ct_decoder_named(d, name), x, 4,
                   (int64_t[]){d->request->batch, d->request->seq_len, count, size});
}

static struct ct_value *flat(struct ct_decoder *d, const char *name, struct ct_value *x,
                             int64_t size)
{
    return ct_view(&d->b, ct_decoder_named(d, name), x, 3,
                   (int64_t[]){d->request->batch, d->request->seq_len, size});
}

static struct ct_value *queries(struct ct_decoder *d, struct ct_value *h)
{
    const struct ct_model *m = model_of(d);
    int64_t size = m->key_dim + m->sizes.head_dim, rows = m->sizes.heads * size;
    struct ct_rope rope = d->rope;

    if (m->q_latent) {
        h = ct_decoder_linear(d, "q_latent", h, "self_attn.q_a_proj", m->q_latent, m->sizes.dim,
                              0.02);
        h = latent_norm(d, "q_latent_norm", h, "self_attn.q_a_layernorm", m->q_latent);
        h = ct_decoder_linear(d, "q", h, "self_attn.q_b_proj", rows, m->q_latent, 0.02);
    } else {
        h = ct_decoder_linear(d, "q", h, "self_attn.q_proj", rows, m->sizes.dim, 0.02);
    }
    h = heads(d, "q_heads", h, m->sizes.heads, size);
    rope.first = m->key_dim;
    return ct_rope(&d->b, ct_decoder_named(d, "q_rope"), h, d->positions, &rope);
}

/* Returns the keys; *v: the values. */
static struct ct_value *keys_and_values(struct ct_decoder *d, struct ct_value *h,
                                        struct ct_value **v)
{
    const struct ct_model *m = model_of(d);
    int64_t rotated = m->sizes.head_dim, widths[] = {m->kv_latent, rotated};
    int64_t size = m->key_dim + m->value_dim;
    const char *name[4];
    struct ct_value *part[2], *k;

    for (int i = 0; i < 4; i++)
        name[i] = ct_decoder_named(d, (const char *[]){"kv_latent", "k_shared", "k", "v"}[i]);
    h = ct_decoder_linear(d, "kv_latent_and_k", h, "self_attn.kv_a_proj_with_mqa",
                          m->kv_latent + rotated, m->sizes.dim, 0.02);
    ct_split(&d->b, (const char *[]){name[0], name[1]}, h, widths, 2, part);
    k = heads(d, "k_shared_head", part[1], 1, rotated);
    k = ct_rope(&d->b, ct_decoder_named(d, "k_rope"), k, d->positions, &d->rope);
    k = flat(d, "k_rope_flat", k, rotated);
    h = latent_norm(d, "kv_latent_norm", part[0], "self_attn.kv_a_layernorm", m->kv_latent);
    h = ct_decoder_linear(d, "kv", h, "self_attn.kv_b_proj", m->sizes.heads * size, m->kv_latent,
                          0.02);
    h = heads(d, "kv_heads", h, m->sizes.heads, size);
    return ct_expand_latent(&d->b, (const char *[]){name[2], name[3]}, h, k, m->key_dim, v);
}

/* As transformers: YaRN makes scores larger. */
static double scale(const struct ct_model *m)
{
    const struct ct_rope *rope = &m->sizes.rope;
    double root = 1 / sqrt((double)(m->key_dim + m->sizes.head_dim)), more;

    if (rope->factor <= 1 || rope->scaling != CT_ROPE_YARN)
        return root;
    more = 0.1 * rope->mscale_all_dim * log(rope->factor) + 1;
    return root * more * more;
}

static struct ct_value *attention(struct ct_decoder *d, struct ct_value *x)
{
    const struct ct_model *m = model_of(d);
    struct ct_attention how = {.causal = true, .scale = scale(m)};
    struct ct_value *h = ct_decoder_norm(d, "attention_norm", x, "input_layernorm", m->sizes.dim);
    struct ct_value *q = queries(d, h), *v, *k = keys_and_values(d, h, &v);

    h = ct_attention(&d->b, ct_decoder_named(d, "attention"), q, k, v, d->documents, &how);
    return ct_decoder_attention_sum(d, x, h, false);
}

static struct ct_value *feed_forward(struct ct_decoder *d, struct ct_value *x)
{
    const struct ct_model *m = model_of(d);

    return is_dense(m, d->layer) ? ct_decoder_feed_forward(d, x)
                                 : ct_decoder_mixture(d, x, &m->mixture);
}

static int build(struct ct_model *model, struct ct_graph *graph,
                 const struct ct_model_request *request)
{
    const struct ct_predictions predictions = predictions_of(model);
    const struct ct_decoder_parts parts = {attention, feed_forward, .predictions = &predictions};

    return ct_decoder_build_with(model, graph, request, &parts);
}

/* ---- facts ---- */

/* Six per element of a weight that a token's products read, and for each pair of tokens six per
   feature of a head's query and value. */
static void flops_per_token(const struct ct_model *m, int64_t seq_len, double *whole,
                            double *halved)
{
    const struct ct_decoder_sizes *s = &m->sizes;
    int64_t q = s->heads * (m->key_dim + s->head_dim), v = s->heads * m->value_dim;
    int64_t kv = s->heads * m->key_dim + v;
    int64_t weights = (m->q_latent ? m->q_latent * (s->dim + q) : s->dim * q) +
                      s->dim * (m->kv_latent + s->head_dim) + m->kv_latent * kv + v * s->dim;
    int64_t layers = s->layers + m->predicted;
    int64_t dense = 0;
    double products, pairs;

    for (int64_t i = 0; i < layers; i++)
        dense += is_dense(m, i);
    products =
        6 * (double)(s->vocabulary * s->dim + layers * weights + dense * 3 * s->dim * s->ffn_dim) +
        (double)(layers - dense) * ct_mixture_flops(&m->mixture, s->dim) +
        (double)m->predicted * ct_prediction_flops(s);
    pairs = 6 * (double)(layers * (q + v)) * (double)seq_len;

    *whole = products + pairs;
    *halved = products + pairs / 2;
}

static const struct ct_shard_rule shard_plan[] = {
    {"model.embed_tokens.weight", CT_SHARD_VOCAB},
    {"*.self_attn.q_proj.weight", CT_SHARD_COLWISE},
    {"*.self_attn.*_b_proj.weight", CT_SHARD_COLWISE},
    {"*.self_attn.*_a_proj*.weight", CT_SHARD_REPLICATE},
    {"*.self_attn.o_proj.weight", CT_SHARD_ROWWISE},
    {"*.gate_proj.weight", CT_SHARD_COLWISE},
    {"*.up_proj.weight", CT_SHARD_COLWISE},
    {"*.down_proj.weight", CT_SHARD_ROWWISE},
    {"*.mlp.gate.*", CT_SHARD_REPLICATE},
    {"*norm.weight", CT_SHARD_REPLICATE},
    {"*.eh_proj.weight", CT_SHARD_REPLICATE},
    {"lm_head.weight", CT_SHARD_VOCAB},
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
                                        .stored_for = stored_for,
                                        .weights = &ct_hf_weights};

/* ---- the biases of the choice ---- */

static int correct(struct ct_builder *b, struct ct_value *const *params, size_t count,
                   struct ct_value *lr, struct ct_value *step, struct ct_value *clip)
{
    (void)lr, (void)step;
    return ct_mixture_correct(b, params, count, clip, config.rate);
}

static const struct ct_optimizer_ops corrects = {.size = sizeof(struct ct_optimizer_ops),
                                                 .build = correct,
                                                 .takes = ct_mixture_is_correction,
                                                 .no_norm = true};

static const struct ct_hook hook = CT_MIXTURE_HOOK(&config.mixture);

CT_PLUGIN(.name = "deepseek_v3", .version = "1.0",
          .summary = "Model: DeepSeek-V3 (debug, 16B-A3B, 671B-A37B, 1T-A32B)", .options = options,
          .config = &config, .config_size = sizeof(config),
          .offers = CT_OFFERS({CT_MODEL, "deepseek_v3", &ops},
                              {CT_OPTIMIZER, "deepseek_v3", &corrects},
                              {CT_HOOK, "deepseek_v3", &hook}));
