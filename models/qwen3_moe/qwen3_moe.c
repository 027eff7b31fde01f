/*
 * Qwen3-MoE (Yang et al. 2025): Qwen3 whose feed-forward layers are mixtures of experts, except in
 * listed layers. The weights of a layer's experts are stacked; files have a tensor for each expert.
 */
#include <ctitan/error.h>
#include <ctitan/lib/decoder.h>
#include <ctitan/plugin.h>
#include <ctitan/run.h>

#include "load.h"

struct ct_model {
    struct ct_decoder_sizes sizes;
    int64_t experts, chosen, expert_dim;
    int64_t sparse_step; /* every so many layers is a mixture */
    bool normalised;
    struct ct_hf_layers dense; /* layers that are no mixtures */
    double balance;            /* of struct ct_top_k */
};

static struct config {
    struct ct_decoder_options decoder;
    int64_t n_experts, n_chosen, expert_dim;
    double aux_loss_coef;
    int64_t log_load;
} config;

static const struct ct_option options[] = {
    CT_DECODER_OPTIONS(struct config, decoder),
    CT_OPT_INT(struct config, n_experts, "n_experts", "0", 0, 1e6,
               "Experts of a layer; 0: the flavor's"),
    CT_OPT_INT(struct config, n_chosen, "n_chosen", "0", 0, 1e6,
               "Experts that a token chooses; 0: the flavor's"),
    CT_OPT_INT(struct config, expert_dim, "expert_dim", "0", 0, 1e7,
               "Width of an expert; 0: the flavor's"),
    CT_OPT_FLOAT(struct config, aux_loss_coef, "router_aux_loss_coef", "0", 0, 1e6,
                 "Weight of the loss that evens out how often each expert is chosen; 0: none"),
    CT_OPT_INT(struct config, log_load, "log_load", "0", 0, 1e15,
               "Steps between two reports of how often each expert is chosen; 0: none"),
    {0}};

#define FLAVOR(name, d, l, h, kv, ffn, vocab, e, expert)                                           \
    {                                                                                              \
        .sizes = {.flavor = name,                                                                  \
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
        .experts = e, .chosen = 8, .expert_dim = expert, .sparse_step = 1, .normalised = true      \
    }

static const struct ct_model flavors[] = {
    FLAVOR("debug", 256, 4, 16, 8, 3072, 2048, 16, 128),
    FLAVOR("30B-A3B", 2048, 48, 32, 4, 6144, 151936, 128, 768),
    FLAVOR("235B-A22B", 4096, 94, 64, 4, 12288, 151936, 128, 1536),
    {.sizes = {0}},
};

static const struct ct_hf_key keys[] = {
    CT_DECODER_KEYS(struct ct_model),
    {"num_experts|num_local_experts", CT_HF_SIZE, offsetof(struct ct_model, experts), -1},
    {"num_experts_per_tok", CT_HF_SIZE, offsetof(struct ct_model, chosen), -1},
    {"moe_intermediate_size", CT_HF_SIZE, offsetof(struct ct_model, expert_dim), -1},
    {"decoder_sparse_step", CT_HF_SIZE, offsetof(struct ct_model, sparse_step), 1},
    {"norm_topk_prob", CT_HF_BOOL, offsetof(struct ct_model, normalised), 0},
    {"mlp_only_layers", CT_HF_LAYERS, offsetof(struct ct_model, dense), 0},
    {0},
};

static const struct ct_hf_fixed fixed[] = {
    CT_DECODER_FIXED,
    {"output_router_logits", "false", false},
    {0},
};

static const struct ct_hf_config hf_config = {"qwen3_moe", "Qwen3MoeForCausalLM", keys, fixed};

static const struct ct_decoder_family family = {"qwen3_moe", &hf_config, flavors,
                                                sizeof(struct ct_model)};

static bool is_mixture(const struct ct_model *m, int64_t layer)
{
    bool dense = layer < CT_HF_MAX_LAYERS && m->dense.bits[layer / 64] >> layer % 64 & 1;

    return !dense && (layer + 1) % m->sparse_step == 0;
}

/*
 * The loss of one sequence and mixture is that of the Switch Transformer (Fedus et al. 2021), as in
 * transformers: E sum_e f[e] P[e], where f[e] is the number of choices of expert e for each token,
 * and P[e] its mean probability. Losses are averaged over mixtures and the step's sequences.
 * Sequences are never split into microbatches, so the gradient is the same however a step is.
 */
static double balance(const struct ct_run *run, const struct ct_model *m)
{
    const struct ct_training_config *t = &ct_config.training;
    int64_t dp = ct_mesh_degree(&run->mesh, run->batch_axes), mixtures = 0;
    double sequences =
        (double)(t->global_batch_size < 0 ? t->local_batch_size * dp : t->global_batch_size);

    for (int64_t layer = 0; layer < m->sizes.layers; layer++)
        mixtures += is_mixture(m, layer);
    return mixtures ? config.aux_loss_coef * (double)m->experts /
                          ((double)t->seq_len * (double)t->seq_len * sequences * (double)mixtures)
                    : 0;
}

static int create(struct ct_run *run, struct ct_model **out)
{
    struct ct_model *m;
    int rc = ct_decoder_create(&family, &config.decoder, &m);

    if (rc < 0)
        return rc;
    m->experts = config.n_experts ? config.n_experts : m->experts;
    m->chosen = config.n_chosen ? config.n_chosen : m->chosen;
    m->expert_dim = config.expert_dim ? config.expert_dim : m->expert_dim;
    if (m->chosen > m->experts) {
        rc = ct_fail(CT_ECONFIG, "[qwen3_moe] a token cannot choose %lld of %lld experts",
                     (long long)m->chosen, (long long)m->experts);
        ct_decoder_destroy(m);
        return rc;
    }
    m->balance = balance(run, m);
    *out = m;
    return 0;
}

/* ---- graph ---- */

static struct ct_value *expert_weight(struct ct_decoder *d, const struct ct_model *m,
                                      const char *what, int64_t rows, int64_t columns, double std)
{
    return ct_decoder_parameter(d, what, 3, (int64_t[]){m->experts, rows, columns},
                                CT_INIT_STD(std));
}

static struct ct_value *mixture(struct ct_decoder *d, struct ct_value *x)
{
    const struct ct_model *m = (const struct ct_model *)(const void *)d->sizes;
    int64_t dim = d->sizes->dim, f = m->expert_dim;
    struct ct_value *h, *logits, *weights, *ids, *gate, *up, *down, *load;

    if (!is_mixture(m, d->layer))
        return ct_decoder_feed_forward(d, x);
    h = ct_decoder_norm(d, "ffn_norm", x, "post_attention_layernorm", dim);
    logits = ct_decoder_linear(d, "router", h, "mlp.gate", m->experts, dim, 0.02);
    weights = ct_top_k(&d->b, ct_decoder_named(d, "choice"), logits, NULL,
                       &(struct ct_top_k){m->chosen, m->normalised, m->balance}, &ids);
    if (config.log_load && !d->request->logits) {
        ct_expert_load(&d->b, ct_decoder_named(d, "load"), ids, logits, &load);
        load_fetch(d->b.graph, d->layer, load);
    }
    gate = expert_weight(d, m, "mlp.experts.gate_proj", f, dim, 0.02);
    up = expert_weight(d, m, "mlp.experts.up_proj", f, dim, d->depth_std);
    down = expert_weight(d, m, "mlp.experts.down_proj", dim, f, d->depth_std);
    h = ct_experts(&d->b, ct_decoder_named(d, "experts"), h, weights, ids, gate, up, down);
    return ct_add(&d->b, ct_decoder_named(d, "ffn_sum"), x, h);
}

static int build(struct ct_model *model, struct ct_graph *graph,
                 const struct ct_model_request *request)
{
    return ct_decoder_build_with(model, graph, request, mixture);
}

/* ---- facts ---- */

/* Of a mixture, a token's products read the router and the chosen experts. */
static void flops_per_token(const struct ct_model *m, int64_t seq_len, double *whole,
                            double *halved)
{
    int64_t dim = m->sizes.dim, more = m->experts * dim + 3 * m->chosen * m->expert_dim * dim;

    ct_decoder_flops(m, seq_len, whole, halved);
    for (int64_t layer = 0; layer < m->sizes.layers; layer++)
        if (is_mixture(m, layer)) {
            *whole += 6 * (double)(more - 3 * dim * m->sizes.ffn_dim);
            *halved += 6 * (double)(more - 3 * dim * m->sizes.ffn_dim);
        }
}

static int write_config(const struct ct_model *model, FILE *out)
{
    return ct_hf_write_config(&hf_config, model, out);
}

static const struct ct_stored_rule stored[] = {
    {".experts.gate_proj.weight", ".experts.#.gate_proj.weight", false, 0, 0},
    {".experts.up_proj.weight", ".experts.#.up_proj.weight", false, 0, 0},
    {".experts.down_proj.weight", ".experts.#.down_proj.weight", false, 0, 0},
    {0},
};

static const struct ct_model_ops ops = {.size = sizeof(struct ct_model_ops),
                                        .create = create,
                                        .destroy = ct_decoder_destroy,
                                        .build = build,
                                        .vocabulary = ct_decoder_vocabulary,
                                        .flops_per_token = flops_per_token,
                                        .shard_plan = ct_decoder_shard_plan,
                                        .write_config = write_config,
                                        .stored = stored};

/* ---- how even the choices are ---- */

static int step_end(const struct ct_event_data *data, void *context)
{
    int64_t step = data->result->step;

    (void)context;
    if (!config.log_load || data->run->rank != 0 ||
        (step != 1 && step % config.log_load && step != ct_config.training.steps))
        return 0;
    return load_report(data->run, step);
}

static const struct ct_hook hook = {
    .size = sizeof(struct ct_hook), .events = 1u << CT_EVENT_STEP_END, .call = step_end};

CT_PLUGIN(.name = "qwen3_moe", .version = "1.0",
          .summary = "Model: Qwen3-MoE (debug, 30B-A3B, 235B-A22B)", .options = options,
          .config = &config, .config_size = sizeof(config),
          .offers = CT_OFFERS({CT_MODEL, "qwen3_moe", &ops}, {CT_HOOK, "qwen3_moe", &hook}));
