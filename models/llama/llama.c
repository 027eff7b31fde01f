/*
 * The llama model: embedding, pre-norm layers of grouped-query attention and SwiGLU, a head.
 *
 * Weights are initialised as in TorchTitan: the embedding with standard deviation 1; q, k, v and
 * gate with 0.02; o, up and down with 0.02 / sqrt(2 (layer + 1)); the head with dim^-0.5, truncated
 * at three deviations. TorchTitan's other truncations are at the absolute value 2, a hundred
 * deviations away, and change nothing. A tied embedding is initialised as a head, whose scale
 * matters.
 */
#include <math.h>
#include <stdlib.h>
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

struct ct_model {
    struct llama_sizes sizes;
};

/* ---- configuration ---- */

static void override(int64_t *size, int64_t value)
{
    if (value)
        *size = value;
}

static int apply_overrides(struct llama_sizes *sizes)
{
    if (config.n_heads)
        sizes->kv_heads = config.n_heads;
    override(&sizes->dim, config.dim);
    override(&sizes->layers, config.n_layers);
    override(&sizes->heads, config.n_heads);
    override(&sizes->kv_heads, config.n_kv_heads);
    override(&sizes->vocabulary, config.vocab_size);
    if (config.dim)
        sizes->ffn_dim = llama_ffn_dim(config.dim, 1, 256);
    override(&sizes->ffn_dim, config.ffn_dim);
    if ((config.dim || config.n_heads) && !config.head_dim) {
        if (sizes->dim % sizes->heads)
            return ct_fail(CT_ECONFIG, "a width of %lld does not divide by %lld heads",
                           (long long)sizes->dim, (long long)sizes->heads);
        sizes->head_dim = sizes->dim / sizes->heads;
    }
    override(&sizes->head_dim, config.head_dim);
    if (config.rope_theta > 0)
        sizes->rope.theta = config.rope_theta;
    if (config.rope_factor > 0)
        sizes->rope.factor = config.rope_factor;
    if (config.norm_eps > 0)
        sizes->norm_eps = config.norm_eps;
    if (strcmp(config.tie_embeddings, "auto"))
        sizes->tied = !strcmp(config.tie_embeddings, "true");
    if (sizes->rope.factor > 1 && !sizes->rope.original_max_position)
        return ct_fail(CT_ECONFIG, "rope_factor cannot scale a model without Llama 3.1 scaling");
    return llama_check(sizes);
}

static void destroy(struct ct_model *model)
{
    free(model);
}

static int read_sizes(struct llama_sizes *sizes)
{
    const struct ct_model_config *model = &ct_config.model;
    int rc = *model->init_from ? llama_read_config(model->init_from, sizes)
                               : llama_flavor(model->flavor, sizes);

    if (rc < 0)
        return rc;
    rc = apply_overrides(sizes);
    return rc < 0 ? ct_context(rc, "[llama]") : 0;
}

static int create(struct ct_run *run, struct ct_model **out)
{
    struct ct_model *model = calloc(1, sizeof(*model));
    int rc = model ? read_sizes(&model->sizes) : ct_fail(CT_ENOMEM, "a model");

    (void)run;
    if (rc < 0) {
        destroy(model);
        return rc;
    }
    *out = model;
    return 0;
}

/* ---- graph ---- */

/* State shared by the functions below while one graph is built. */
struct build {
    struct ct_builder b;
    const struct llama_sizes *sizes;
    const struct ct_model_request *request;
    struct ct_value *documents;
    struct ct_value *embedding;
    int64_t layer;
    char name[96];
};

static const char *named(struct build *s, const char *what)
{
    snprintf(s->name, sizeof(s->name), "layers.%lld.%s", (long long)s->layer, what);
    return s->name;
}

static struct ct_value *parameter(struct build *s, const char *what, int64_t rows, int64_t columns,
                                  struct ct_init init)
{
    snprintf(s->name, sizeof(s->name), "model.layers.%lld.%s.weight", (long long)s->layer, what);
    return ct_parameter(&s->b, s->name, columns ? 2 : 1, (int64_t[]){rows, columns}, init);
}

/* Multiply x by a new weight: value `name`, parameter `what`. */
static struct ct_value *linear(struct build *s, const char *name, struct ct_value *x,
                               const char *what, int64_t rows, int64_t columns, double std)
{
    struct ct_value *w = parameter(s, what, rows, columns, CT_INIT_STD(std));

    return ct_linear(&s->b, named(s, name), x, w);
}

static struct ct_value *norm(struct build *s, const char *name, struct ct_value *x,
                             const char *what)
{
    struct ct_value *w = parameter(s, what, s->sizes->dim, 0, CT_INIT_ONE);

    return ct_rms_norm(&s->b, named(s, name), x, w, s->sizes->norm_eps);
}

static struct ct_value *heads(struct build *s, const char *name, struct ct_value *x, int64_t count)
{
    return ct_view(&s->b, named(s, name), x, 4,
                   (int64_t[]){s->request->batch, s->request->seq_len, count, s->sizes->head_dim});
}

static struct ct_value *attention(struct build *s, struct ct_value *x, double depth_std)
{
    int64_t dim = s->sizes->dim, head = s->sizes->head_dim, kv_dim = s->sizes->kv_heads * head;
    struct ct_value *h = norm(s, "attention_norm", x, "input_layernorm");
    struct ct_value *q = linear(s, "q", h, "self_attn.q_proj", s->sizes->heads * head, dim, 0.02);
    struct ct_value *k = linear(s, "k", h, "self_attn.k_proj", kv_dim, dim, 0.02);
    struct ct_value *v = linear(s, "v", h, "self_attn.v_proj", kv_dim, dim, 0.02);

    q = heads(s, "q_heads", q, s->sizes->heads);
    q = ct_rope(&s->b, named(s, "q_rope"), q, NULL, &s->sizes->rope);
    k = heads(s, "k_heads", k, s->sizes->kv_heads);
    k = ct_rope(&s->b, named(s, "k_rope"), k, NULL, &s->sizes->rope);
    v = heads(s, "v_heads", v, s->sizes->kv_heads);
    h = ct_attention(&s->b, named(s, "attention"), q, k, v, s->documents, NULL);
    h = ct_view(&s->b, named(s, "attention_flat"), h, 3,
                (int64_t[]){s->request->batch, s->request->seq_len, s->sizes->heads * head});
    h = linear(s, "o", h, "self_attn.o_proj", dim, s->sizes->heads * head, depth_std);
    return ct_add(&s->b, named(s, "attention_sum"), x, h);
}

static struct ct_value *feed_forward(struct build *s, struct ct_value *x, double depth_std)
{
    int64_t dim = s->sizes->dim, ffn = s->sizes->ffn_dim;
    struct ct_value *h = norm(s, "ffn_norm", x, "post_attention_layernorm");
    struct ct_value *gate = linear(s, "gate", h, "mlp.gate_proj", ffn, dim, 0.02);
    struct ct_value *up = linear(s, "up", h, "mlp.up_proj", ffn, dim, depth_std);

    gate = ct_silu(&s->b, named(s, "silu"), gate);
    h = ct_mul(&s->b, named(s, "swiglu"), gate, up);
    h = linear(s, "down", h, "mlp.down_proj", dim, ffn, depth_std);
    return ct_add(&s->b, named(s, "ffn_sum"), x, h);
}

static struct ct_init head_init(const struct build *s)
{
    return (struct ct_init){CT_INIT_NORMAL, .a = 1 / sqrt((double)s->sizes->dim), .truncate = 3};
}

static struct ct_value *embed(struct build *s, struct ct_value *tokens)
{
    s->b.region = "embedding";
    s->embedding = ct_parameter(&s->b, "model.embed_tokens.weight", 2,
                                (int64_t[]){s->sizes->vocabulary, s->sizes->dim},
                                s->sizes->tied ? head_init(s) : CT_INIT_STD(1));
    return ct_embedding(&s->b, "embedding", tokens, s->embedding);
}

static void head(struct build *s, struct ct_value *x, struct ct_value *labels)
{
    int64_t shape[] = {s->sizes->vocabulary, s->sizes->dim};
    struct ct_value *w = s->embedding;

    s->b.region = "head";
    x = ct_rms_norm(&s->b, "norm", x,
                    ct_parameter(&s->b, "model.norm.weight", 1, &s->sizes->dim, CT_INIT_ONE),
                    s->sizes->norm_eps);
    if (!s->sizes->tied)
        w = ct_parameter(&s->b, "lm_head.weight", 2, shape, head_init(s));
    x = ct_linear(&s->b, "logits", x, w);
    if (labels)
        x = ct_cross_entropy(&s->b, "loss", x, labels);
    ct_graph_fetch(s->b.graph, labels ? "loss" : "logits", x);
}

static int build(struct ct_model *model, struct ct_graph *graph,
                 const struct ct_model_request *request)
{
    int64_t shape[] = {request->batch, request->seq_len};
    struct build s = {.b = ct_builder_at_end(graph, CT_PART_F, "embedding"),
                      .sizes = &model->sizes,
                      .request = request};
    struct ct_value *tokens, *labels = NULL, *x;

    tokens = ct_input(&s.b, "tokens", shape);
    if (!request->logits)
        labels = ct_input(&s.b, "labels", shape);
    if (request->documents)
        s.documents = ct_input(&s.b, "documents", shape);
    x = embed(&s, tokens);
    for (s.layer = 0; s.layer < model->sizes.layers; s.layer++) {
        double depth_std = 0.02 / sqrt(2.0 * (double)(s.layer + 1));
        char region[32];

        snprintf(region, sizeof(region), "layers.%lld", (long long)s.layer);
        s.b.region = region;
        x = attention(&s, x, depth_std);
        x = feed_forward(&s, x, depth_std);
    }
    head(&s, x, labels);
    return s.b.status;
}

/* ---- facts ---- */

static int64_t vocabulary(const struct ct_model *model)
{
    return model->sizes.vocabulary;
}

/*
 * Six per parameter that a matrix product reads, and 12 L H d s for attention. TorchTitan leaves
 * out an embedding even if it is also the head; here it counts, because the head's product is
 * computed.
 */
static void flops_per_token(const struct ct_model *model, int64_t seq_len, double *whole,
                            double *halved)
{
    const struct llama_sizes *s = &model->sizes;
    double products = 6 * (double)(llama_parameters(s) - llama_lookup_parameters(s));
    double attention_flops = 12 * (double)(s->layers * s->heads * s->head_dim) * (double)seq_len;

    *whole = products + attention_flops;
    *halved = products + attention_flops / 2;
}

static int write_config(const struct ct_model *model, FILE *out)
{
    return llama_write_config(&model->sizes, out);
}

static const struct ct_shard_rule shard_plan[] = {
    {"model.embed_tokens.weight", CT_SHARD_VOCAB},
    {"*.self_attn.[qkv]_proj.weight", CT_SHARD_COLWISE},
    {"*.self_attn.o_proj.weight", CT_SHARD_ROWWISE},
    {"*.mlp.gate_proj.weight", CT_SHARD_COLWISE},
    {"*.mlp.up_proj.weight", CT_SHARD_COLWISE},
    {"*.mlp.down_proj.weight", CT_SHARD_ROWWISE},
    {"*norm.weight", CT_SHARD_REPLICATE},
    {"lm_head.weight", CT_SHARD_VOCAB},
    {0},
};

static const struct ct_model_ops ops = {.size = sizeof(struct ct_model_ops),
                                        .create = create,
                                        .destroy = destroy,
                                        .build = build,
                                        .vocabulary = vocabulary,
                                        .flops_per_token = flops_per_token,
                                        .shard_plan = shard_plan,
                                        .write_config = write_config};

CT_PLUGIN(.name = "llama", .version = "1.0",
          .summary = "Model: Llama 3, 3.1 and 3.2 (debug, 1B, 3B, 8B, 70B, 405B)",
          .options = options, .config = &config, .config_size = sizeof(config),
          .offers = CT_OFFERS({CT_MODEL, "llama", &ops}));
