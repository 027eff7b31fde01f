/*
 * A model as a separate plugin, built outside ctitan's tree: GPT-2 (Radford et al. 2019), with
 * learned positions, layer norms, biases, GELU and a tied head. It uses plain ops. Its only
 * statement about parallelism is the plan of which weights tensor parallelism splits.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include <ctitan/error.h>
#include <ctitan/input.h>
#include <ctitan/lib/ops.h>
#include <ctitan/model.h>
#include <ctitan/plugin.h>

static struct config {
    int64_t dim, n_layers, n_heads, vocab_size, max_positions;
} config;

static const struct ct_option options[] = {
    CT_OPT_INT(struct config, dim, "dim", "768", 1, 1e6, "Width of the model"),
    CT_OPT_INT(struct config, n_layers, "n_layers", "12", 1, 1e4, "Number of layers"),
    CT_OPT_INT(struct config, n_heads, "n_heads", "12", 1, 1e4, "Number of attention heads"),
    CT_OPT_INT(struct config, vocab_size, "vocab_size", "50257", 1, 1e8, "Size of the vocabulary"),
    CT_OPT_INT(struct config, max_positions, "max_positions", "1024", 1, 1e7,
               "Longest sequence: rows of the table of positions"),
    {0}};

/* A process may have several models, each with its own sizes. */
struct ct_model {
    struct config sizes;
};

static int create(struct ct_run *run, struct ct_model **model)
{
    (void)run;
    if (config.dim % config.n_heads)
        return ct_fail(CT_ECONFIG, "[gpt2] dim = %lld does not divide by n_heads = %lld",
                       (long long)config.dim, (long long)config.n_heads);
    *model = malloc(sizeof(**model));
    if (!*model)
        return ct_fail(CT_ENOMEM, "a model");
    (*model)->sizes = config;
    return 0;
}

static void destroy(struct ct_model *model)
{
    free(model);
}

/* ---- graph ---- */

struct build {
    struct ct_builder b;
    const struct config *s;
    const struct ct_model_request *request;
    struct ct_value *documents;
    char layer[32], name[128];
};

/* "h.3.attn.q.weight": a parameter of the current layer. */
static struct ct_value *parameter(struct build *m, const char *what, int ndim, int64_t rows,
                                  int64_t columns, struct ct_init init)
{
    snprintf(m->name, sizeof(m->name), "%s%s", m->layer, what);
    return ct_parameter(&m->b, m->name, ndim, (int64_t[]){rows, columns}, init);
}

static struct ct_value *norm(struct build *m, struct ct_value *x, const char *weight,
                             const char *bias)
{
    struct ct_value *w = parameter(m, weight, 1, m->s->dim, 0, CT_INIT_ONE);
    struct ct_value *b = parameter(m, bias, 1, m->s->dim, 0, (struct ct_init){CT_INIT_ZERO});

    return ct_layer_norm(&m->b, NULL, x, w, b, 1e-5);
}

static struct ct_value *linear(struct build *m, struct ct_value *x, const char *weight,
                               const char *bias, int64_t rows, int64_t columns, double std)
{
    struct ct_value *w = parameter(m, weight, 2, rows, columns, CT_INIT_STD(std));
    struct ct_value *b = parameter(m, bias, 1, rows, 0, (struct ct_init){CT_INIT_ZERO});

    return ct_bias(&m->b, NULL, ct_linear(&m->b, NULL, x, w), b);
}

static struct ct_value *heads(struct build *m, struct ct_value *x)
{
    return ct_view(&m->b, NULL, x, 4,
                   (int64_t[]){m->request->batch, m->request->seq_len, m->s->n_heads,
                               m->s->dim / m->s->n_heads});
}

static struct ct_value *layer(struct build *m, struct ct_value *x)
{
    int64_t dim = m->s->dim;
    double deep = 0.02 / sqrt(2.0 * (double)m->s->n_layers);
    struct ct_value *h = norm(m, x, "ln_1.weight", "ln_1.bias");
    struct ct_value *q = heads(m, linear(m, h, "attn.q.weight", "attn.q.bias", dim, dim, 0.02));
    struct ct_value *k = heads(m, linear(m, h, "attn.k.weight", "attn.k.bias", dim, dim, 0.02));
    struct ct_value *v = heads(m, linear(m, h, "attn.v.weight", "attn.v.bias", dim, dim, 0.02));

    h = ct_attention(&m->b, NULL, q, k, v, m->documents, NULL);
    h = ct_view(&m->b, NULL, h, 3, (int64_t[]){m->request->batch, m->request->seq_len, dim});
    h = linear(m, h, "attn.c_proj.weight", "attn.c_proj.bias", dim, dim, deep);
    x = ct_add(&m->b, NULL, x, h);
    h = norm(m, x, "ln_2.weight", "ln_2.bias");
    h = linear(m, h, "mlp.c_fc.weight", "mlp.c_fc.bias", 4 * dim, dim, 0.02);
    h = ct_gelu(&m->b, NULL, h, true);
    h = linear(m, h, "mlp.c_proj.weight", "mlp.c_proj.bias", dim, 4 * dim, deep);
    return ct_add(&m->b, NULL, x, h);
}

static int build(struct ct_model *model, struct ct_graph *graph,
                 const struct ct_model_request *request)
{
    const struct config *s = &model->sizes;
    int64_t shape[] = {request->batch, request->seq_len};
    struct build m = {ct_builder_at_end(graph, CT_PART_F, "embedding"), s, request, NULL, "", ""};
    struct ct_value *table, *places, *x, *y;

    if (request->seq_len > s->max_positions)
        return ct_fail(CT_ECONFIG, "[training] seq_len = %lld, but [gpt2] max_positions = %lld",
                       (long long)request->seq_len, (long long)s->max_positions);
    if (request->documents)
        m.documents = ct_input(&m.b, "documents", shape);
    table = parameter(&m, "wte.weight", 2, s->vocab_size, s->dim, CT_INIT_STD(0.02));
    places = parameter(&m, "wpe.weight", 2, s->max_positions, s->dim, CT_INIT_STD(0.01));
    x = ct_embedding(&m.b, NULL, ct_input(&m.b, "tokens", shape), table);
    y = ct_embedding(&m.b, "places", ct_input(&m.b, "positions", shape), places);
    x = ct_add(&m.b, NULL, x, y);
    for (int64_t i = 0; i < s->n_layers; i++) {
        snprintf(m.layer, sizeof(m.layer), "h.%lld.", (long long)i);
        m.b.region = ct_arena_printf(graph->arena, "layers.%lld", (long long)i);
        x = layer(&m, x);
    }
    m.layer[0] = '\0';
    m.b.region = "head";
    x = ct_linear(&m.b, "logits", norm(&m, x, "ln_f.weight", "ln_f.bias"), table);
    if (!request->logits)
        x = ct_cross_entropy(&m.b, "loss", x, ct_input(&m.b, "labels", shape));
    ct_graph_fetch(graph, request->logits ? "logits" : "loss", x);
    return m.b.status;
}

/* ---- facts ---- */

static int64_t vocabulary(const struct ct_model *model)
{
    return model->sizes.vocab_size;
}

/* Six for each weight of a product, and 12 L d s for attention. */
static void flops_per_token(const struct ct_model *model, int64_t seq_len, double *whole,
                            double *halved)
{
    const struct config *s = &model->sizes;
    double d = (double)s->dim, layers = (double)s->n_layers;
    double attention = 12 * layers * d * (double)seq_len;

    *whole = 6 * (12 * layers * d * d + (double)s->vocab_size * d) + attention;
    *halved = *whole - attention / 2;
}

static int write_config(const struct ct_model *model, FILE *out)
{
    const struct config *s = &model->sizes;

    fprintf(out,
            "{\"model_type\": \"gpt2\", \"n_embd\": %lld, \"n_layer\": %lld, \"n_head\": %lld, "
            "\"vocab_size\": %lld, \"n_positions\": %lld}\n",
            (long long)s->dim, (long long)s->n_layers, (long long)s->n_heads,
            (long long)s->vocab_size, (long long)s->max_positions);
    return 0;
}

static const struct ct_shard_rule shard_plan[] = {
    {"wte.weight", CT_SHARD_VOCAB},        {"wpe.weight", CT_SHARD_REPLICATE},
    {"*.attn.[qkv].*", CT_SHARD_COLWISE},  {"*.mlp.c_fc.*", CT_SHARD_COLWISE},
    {"*.c_proj.weight", CT_SHARD_ROWWISE}, {"*.c_proj.bias", CT_SHARD_REPLICATE},
    {"*ln_*", CT_SHARD_REPLICATE},         {0},
};

static const struct ct_model_ops ops = {
    .size = sizeof(struct ct_model_ops),
    .create = create,
    .destroy = destroy,
    .build = build,
    .vocabulary = vocabulary,
    .flops_per_token = flops_per_token,
    .shard_plan = shard_plan,
    .write_config = write_config,
};

CT_PLUGIN(.name = "gpt2", .version = "1.0", .summary = "Model: GPT-2", .options = options,
          .config = &config, .config_size = sizeof(config),
          .offers = CT_OFFERS({CT_MODEL, "gpt2", &ops}));
