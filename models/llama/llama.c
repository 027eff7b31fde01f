/*
 * The llama model: embedding, pre-norm layers of grouped-query attention and SwiGLU, a head.
 *
 * Each residual add is fused with the norm that follows it, and belongs to that norm's region.
 * Weights start as TorchTitan's do: the embedding at deviation 1; q, k, v and gate at 0.02; o, up
 * and down at 0.02 / sqrt(2 (layer + 1)); the head at dim^-0.5, cut at three deviations (its other
 * truncations are at the absolute value 2, a hundred deviations away, and cut nothing). A tied
 * embedding starts as a head, since that is what it scales.
 */
#include <math.h>
#include <string.h>

#include <ctitan/error.h>
#include <ctitan/model.h>
#include <ctitan/plugin.h>
#include <ctitan/recipe.h>

#include "llama.h"

static struct config {
    int64_t dim, n_layers, n_heads, n_kv_heads, head_dim, ffn_dim, vocab_size;
    double rope_theta, rope_factor, norm_eps;
    const char *tie_embeddings;
} config;

static const struct ct_option options[] = {
    CT_OPT_INT(struct config, dim, "dim", "0", 0, 1e6, "Width of the model; 0: the flavor's"),
    CT_OPT_INT(struct config, n_layers, "n_layers", "0", 0, 1e4,
               "Number of layers; 0: the flavor's"),
    CT_OPT_INT(struct config, n_heads, "n_heads", "0", 0, 1e4,
               "Number of attention heads; 0: the flavor's"),
    CT_OPT_INT(struct config, n_kv_heads, "n_kv_heads", "0", 0, 1e4,
               "Number of key/value heads; 0: the flavor's, or n_heads where that is set"),
    CT_OPT_INT(struct config, head_dim, "head_dim", "0", 0, 1e5,
               "Features of a head; 0: the flavor's, or dim / n_heads where one of these is set"),
    CT_OPT_INT(struct config, ffn_dim, "ffn_dim", "0", 0, 1e7,
               "Width of the feed-forward layers; 0: the flavor's, or 8/3 dim, rounded up to a "
               "multiple of 256, where dim is set"),
    CT_OPT_INT(struct config, vocab_size, "vocab_size", "0", 0, 1e8,
               "Size of the vocabulary; 0: the flavor's"),
    CT_OPT_FLOAT(struct config, rope_theta, "rope_theta", "0", 0, 1e12,
                 "Base of the rotary embedding; 0: the flavor's"),
    CT_OPT_FLOAT(struct config, rope_factor, "rope_factor", "0", 0, 1e6,
                 "Llama 3.1 scaling of the rotary embedding; 1: none, 0: the flavor's"),
    CT_OPT_FLOAT(struct config, norm_eps, "norm_eps", "0", 0, 1,
                 "Added to the mean square in norms; 0: the flavor's"),
    CT_OPT_CHOICE(struct config, tie_embeddings, "tie_embeddings", "auto", "auto|true|false",
                  "Use the embedding as the head's weight; auto: as the flavor does"),
    {0},
};

static struct llama_sizes sizes;

/* ---- configuration ---- */

static void override(int64_t *size, int64_t value)
{
    if (value)
        *size = value;
}

static int apply_overrides(void)
{
    if (config.n_heads)
        sizes.kv_heads = config.n_heads;
    override(&sizes.dim, config.dim);
    override(&sizes.layers, config.n_layers);
    override(&sizes.heads, config.n_heads);
    override(&sizes.kv_heads, config.n_kv_heads);
    override(&sizes.vocabulary, config.vocab_size);
    if (config.dim)
        sizes.ffn_dim = llama_ffn_dim(config.dim, 1, 256);
    override(&sizes.ffn_dim, config.ffn_dim);
    if ((config.dim || config.n_heads) && !config.head_dim) {
        if (sizes.dim % sizes.heads)
            return ct_fail(CT_ECONFIG, "a width of %lld does not divide by %lld heads",
                           (long long)sizes.dim, (long long)sizes.heads);
        sizes.head_dim = sizes.dim / sizes.heads;
    }
    override(&sizes.head_dim, config.head_dim);
    if (config.rope_theta > 0)
        sizes.rope.theta = config.rope_theta;
    if (config.rope_factor > 0)
        sizes.rope.factor = config.rope_factor;
    if (config.norm_eps > 0)
        sizes.norm_eps = config.norm_eps;
    if (strcmp(config.tie_embeddings, "auto"))
        sizes.tied = !strcmp(config.tie_embeddings, "true");
    if (sizes.rope.factor > 1 && !sizes.rope.original_max_position)
        return ct_fail(CT_ECONFIG, "rope_factor cannot scale a model without Llama 3.1 scaling");
    return llama_check(&sizes);
}

static int configure(struct ct_run *run)
{
    const struct ct_model_config *model = &ct_config.model;
    int rc = *model->init_from ? llama_read_config(model->init_from, &sizes)
                               : llama_flavor(model->flavor, &sizes);

    (void)run;
    if (rc < 0)
        return rc;
    rc = apply_overrides();
    return rc < 0 ? ct_context(rc, "[llama]") : 0;
}

/* ---- graph ---- */

/* What the functions below share while one graph is built. */
struct build {
    struct ct_builder b;
    const struct ct_model_request *request;
    struct ct_value *documents;
    struct ct_value *x, *residual; /* the stream is x + residual; residual NULL: x */
    struct ct_value *embedding;
    char name[96];
};

static const char *layer_name(struct build *s, int64_t layer, const char *what)
{
    snprintf(s->name, sizeof(s->name), "layers.%lld.%s", (long long)layer, what);
    return s->name;
}

static struct ct_value *matrix(struct build *s, int64_t layer, const char *what, int64_t rows,
                               int64_t columns, double std)
{
    snprintf(s->name, sizeof(s->name), "model.layers.%lld.%s.weight", (long long)layer, what);
    return ct_parameter(&s->b, s->name, 2, (int64_t[]){rows, columns}, (struct ct_init){std, 0});
}

static struct ct_value *norm_weight(struct build *s, const char *name)
{
    return ct_parameter(&s->b, name, 1, &sizes.dim, (struct ct_init){0, 0});
}

static struct ct_value *layer_norm_weight(struct build *s, int64_t layer, const char *what)
{
    snprintf(s->name, sizeof(s->name), "model.layers.%lld.%s.weight", (long long)layer, what);
    return norm_weight(s, s->name);
}

/* Norm of the stream; what is still to be added to it is added first. */
static struct ct_value *norm(struct build *s, const char *name, struct ct_value *w)
{
    struct ct_value *sum = NULL, *y;

    if (!s->residual)
        return ct_rms_norm(&s->b, name, s->x, w, sizes.norm_eps);
    y = ct_add_rms_norm(&s->b, name, s->x, s->residual, w, sizes.norm_eps, &sum);
    s->x = sum;
    s->residual = NULL;
    return y;
}

static struct ct_value *heads(struct build *s, int64_t layer, const char *what, struct ct_value *x,
                              int64_t count, bool rotate)
{
    char name[16];

    snprintf(name, sizeof(name), "%s_heads", what);
    x = ct_view(&s->b, layer_name(s, layer, name), x, 4,
                (int64_t[]){s->request->batch, s->request->seq_len, count, sizes.head_dim});
    snprintf(name, sizeof(name), "%s_rope", what);
    return rotate ? ct_rope(&s->b, layer_name(s, layer, name), x, NULL, &sizes.rope) : x;
}

static void attention(struct build *s, int64_t layer, double depth_std)
{
    int64_t q_dim = sizes.heads * sizes.head_dim, kv_dim = sizes.kv_heads * sizes.head_dim;
    char names[3][32];
    struct ct_value *w[3], *y[3], *x;

    w[0] = layer_norm_weight(s, layer, "input_layernorm");
    x = norm(s, layer_name(s, layer, "attention_norm"), w[0]);
    w[0] = matrix(s, layer, "self_attn.q_proj", q_dim, sizes.dim, 0.02);
    w[1] = matrix(s, layer, "self_attn.k_proj", kv_dim, sizes.dim, 0.02);
    w[2] = matrix(s, layer, "self_attn.v_proj", kv_dim, sizes.dim, 0.02);
    for (int i = 0; i < 3; i++)
        snprintf(names[i], sizeof(names[i]), "layers.%lld.%c", (long long)layer, "qkv"[i]);
    ct_linears(&s->b, (const char *[]){names[0], names[1], names[2]}, x, w, 3, y);
    y[0] = heads(s, layer, "q", y[0], sizes.heads, true);
    y[1] = heads(s, layer, "k", y[1], sizes.kv_heads, true);
    y[2] = heads(s, layer, "v", y[2], sizes.kv_heads, false);
    x = ct_attention(&s->b, layer_name(s, layer, "attention"), y[0], y[1], y[2], s->documents);
    x = ct_view(&s->b, layer_name(s, layer, "attention_flat"), x, 3,
                (int64_t[]){s->request->batch, s->request->seq_len, q_dim});
    w[0] = matrix(s, layer, "self_attn.o_proj", sizes.dim, q_dim, depth_std);
    s->residual = ct_linear(&s->b, layer_name(s, layer, "o"), x, w[0]);
}

static void feed_forward(struct build *s, int64_t layer, double depth_std)
{
    char names[2][32];
    struct ct_value *w[2], *y[2], *x;

    w[0] = layer_norm_weight(s, layer, "post_attention_layernorm");
    x = norm(s, layer_name(s, layer, "ffn_norm"), w[0]);
    w[0] = matrix(s, layer, "mlp.gate_proj", sizes.ffn_dim, sizes.dim, 0.02);
    w[1] = matrix(s, layer, "mlp.up_proj", sizes.ffn_dim, sizes.dim, depth_std);
    for (int i = 0; i < 2; i++)
        snprintf(names[i], sizeof(names[i]), "layers.%lld.%s", (long long)layer, i ? "up" : "gate");
    ct_linears(&s->b, (const char *[]){names[0], names[1]}, x, w, 2, y);
    x = ct_swiglu(&s->b, layer_name(s, layer, "swiglu"), y[0], y[1]);
    w[0] = matrix(s, layer, "mlp.down_proj", sizes.dim, sizes.ffn_dim, depth_std);
    s->residual = ct_linear(&s->b, layer_name(s, layer, "down"), x, w[0]);
}

static void embed(struct build *s, struct ct_value *tokens)
{
    double head_std = 1 / sqrt((double)sizes.dim);
    struct ct_init init = {sizes.tied ? head_std : 1, sizes.tied ? 3 : 0};

    s->b.region = "embedding";
    s->embedding = ct_parameter(&s->b, "model.embed_tokens.weight", 2,
                                (int64_t[]){sizes.vocabulary, sizes.dim}, init);
    s->x = ct_embedding(&s->b, "embedding", tokens, s->embedding);
}

static void head(struct build *s, struct ct_value *labels)
{
    struct ct_value *w = s->embedding, *x;

    s->b.region = "head";
    x = norm(s, "norm", norm_weight(s, "model.norm.weight"));
    if (!sizes.tied)
        w = ct_parameter(&s->b, "lm_head.weight", 2, (int64_t[]){sizes.vocabulary, sizes.dim},
                         (struct ct_init){1 / sqrt((double)sizes.dim), 3});
    x = labels ? ct_linear_cross_entropy(&s->b, "loss", x, w, labels)
               : ct_linear(&s->b, "logits", x, w);
    if (x)
        ct_graph_fetch(s->b.graph, labels ? "loss" : "logits", x);
}

static int build(struct ct_graph *graph, const struct ct_model_request *request)
{
    int64_t shape[] = {request->batch, request->seq_len};
    struct build s = {.b = ct_builder_at_end(graph, CT_PART_F, "embedding"), .request = request};
    struct ct_value *tokens, *labels = NULL;

    tokens = ct_graph_source(graph, CT_ROLE_INPUT, "tokens", CT_I32, 2, shape);
    if (!request->logits)
        labels = ct_graph_source(graph, CT_ROLE_INPUT, "labels", CT_I32, 2, shape);
    if (request->documents)
        s.documents = ct_graph_source(graph, CT_ROLE_INPUT, "documents", CT_I32, 2, shape);
    embed(&s, tokens);
    for (int64_t layer = 0; layer < sizes.layers; layer++) {
        double depth_std = 0.02 / sqrt(2.0 * (double)(layer + 1));
        char region[32];

        snprintf(region, sizeof(region), "layers.%lld", (long long)layer);
        s.b.region = region;
        attention(&s, layer, depth_std);
        feed_forward(&s, layer, depth_std);
    }
    head(&s, labels);
    return s.b.status;
}

/* ---- facts ---- */

static int64_t vocabulary(void)
{
    return sizes.vocabulary;
}

/*
 * Six per parameter that a matrix product reads (TorchTitan leaves out an embedding even where it
 * is the head too; the head's product is done all the same, so here it counts), and 12 L H d s for
 * attention.
 */
static void flops_per_token(int64_t seq_len, double *whole, double *halved)
{
    double products = 6 * (double)(llama_parameters(&sizes) - llama_lookup_parameters(&sizes));
    double attention_flops =
        12 * (double)(sizes.layers * sizes.heads * sizes.head_dim) * (double)seq_len;

    *whole = products + attention_flops;
    *halved = products + attention_flops / 2;
}

static int write_config(FILE *out)
{
    return llama_write_config(&sizes, out);
}

static const struct ct_tp_rule tp_plan[] = {
    {"model.embed_tokens.weight", CT_TP_VOCAB},
    {"*.self_attn.[qkv]_proj.weight", CT_TP_COLWISE},
    {"*.self_attn.o_proj.weight", CT_TP_ROWWISE},
    {"*.mlp.gate_proj.weight", CT_TP_COLWISE},
    {"*.mlp.up_proj.weight", CT_TP_COLWISE},
    {"*.mlp.down_proj.weight", CT_TP_ROWWISE},
    {"*norm.weight", CT_TP_REPLICATE},
    {"lm_head.weight", CT_TP_VOCAB},
    {0},
};

static const struct ct_model_ops ops = {.configure = configure,
                                        .build = build,
                                        .vocabulary = vocabulary,
                                        .flops_per_token = flops_per_token,
                                        .tp_plan = tp_plan,
                                        .write_config = write_config};

CT_PLUGIN(.name = "llama", .version = "1.0",
          .summary = "Model: Llama 3, 3.1 and 3.2 (debug, 1B, 3B, 8B, 70B, 405B)",
          .options = options, .config = &config, .config_size = sizeof(config),
          .offers = CT_OFFERS({CT_MODEL, "llama", &ops}));
