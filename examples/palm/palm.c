/*
 * A model as a separate plugin, built outside ctitan's tree: a decoder whose attention and
 * feed-forward layers run in parallel after one norm, as in PaLM (Chowdhery et al. 2022). It uses
 * plain ops. Its only statement about parallelism is the plan of which weights tensor parallelism
 * splits. One of its activations is an op type of its own, of which only the formula is written.
 */
#include <stdio.h>
#include <stdlib.h>

#include <ctitan/error.h>
#include <ctitan/input.h>
#include <ctitan/lib/hf.h>
#include <ctitan/lib/ops.h>
#include <ctitan/lib/rows.h>
#include <ctitan/model.h>
#include <ctitan/op_author.h>
#include <ctitan/plugin.h>

/* The sizes of a model. A process may have several. */
struct ct_model {
    int64_t dim, n_layers, n_heads, vocab_size;
    unsigned activation; /* position of the choice */
};

static struct ct_model config;

static const struct ct_option options[] = {
    CT_OPT_INT(struct ct_model, dim, "dim", "512", 1, 1e6, "Width of the model"),
    CT_OPT_INT(struct ct_model, n_layers, "n_layers", "8", 1, 1e4, "Number of layers"),
    CT_OPT_INT(struct ct_model, n_heads, "n_heads", "8", 1, 1e4, "Number of attention heads"),
    CT_OPT_INT(struct ct_model, vocab_size, "vocab_size", "50257", 1, 1e8,
               "Size of the vocabulary"),
    CT_OPT_ENUM(
        struct ct_model, activation, "activation", "swiglu", "swiglu|squared_relu",
        "Activation of the gate: silu, or the square of its positive part (So et al. 2021)"),
    {0}};

/* ---- an activation ---- */

/* Its reference, gradient and compiled code follow from the formula. */
static const struct ct_op_type squared_relu = CT_ACTIVATION(
    "palm.squared_relu", "the square of what is positive", "p = max(x, 0); y = p * p");

/* ---- the model ---- */

static int create(struct ct_run *run, struct ct_model **model)
{
    (void)run;
    if (config.dim % (2 * config.n_heads))
        return ct_fail(CT_ECONFIG, "[palm] dim = %lld does not divide by twice n_heads = %lld",
                       (long long)config.dim, (long long)config.n_heads);
    *model = malloc(sizeof(**model));
    if (!*model)
        return ct_fail(CT_ENOMEM, "a model");
    **model = config;
    return 0;
}

static void destroy(struct ct_model *model)
{
    free(model);
}

/* ---- graph ---- */

struct build {
    struct ct_builder b;
    const struct ct_model *s;
    const struct ct_model_request *request;
    struct ct_value *documents;
    int64_t layer;
};

/* x times a new weight of the current layer, "layers.3.q.weight". */
static struct ct_value *linear(struct build *m, struct ct_value *x, const char *what, int64_t rows,
                               int64_t columns)
{
    char name[64];

    snprintf(name, sizeof(name), "layers.%lld.%s.weight", (long long)m->layer, what);
    return ct_linear(
        &m->b, NULL, x,
        ct_parameter(&m->b, name, 2, (int64_t[]){rows, columns}, ct_init_weight(0.02, 1)));
}

static struct ct_value *norm(struct build *m, struct ct_value *x, const char *name)
{
    return ct_rms_norm(&m->b, NULL, x, ct_parameter(&m->b, name, 1, &m->s->dim, CT_INIT_ONE), 1e-6);
}

static struct ct_value *heads(struct build *m, struct ct_value *x)
{
    return ct_view(&m->b, NULL, x, 4,
                   (int64_t[]){m->request->batch, m->request->seq_len, m->s->n_heads,
                               m->s->dim / m->s->n_heads});
}

static struct ct_value *layer(struct build *m, struct ct_value *x)
{
    static const struct ct_rope rope = {.theta = 10000, .factor = 1};
    int64_t dim = m->s->dim;
    char name[64];
    struct ct_value *h, *q, *k, *v, *attention, *gate, *up, *ffn;

    snprintf(name, sizeof(name), "layers.%lld.norm.weight", (long long)m->layer);
    h = norm(m, x, name);
    q = ct_rope(&m->b, NULL, heads(m, linear(m, h, "q", dim, dim)), NULL, &rope);
    k = ct_rope(&m->b, NULL, heads(m, linear(m, h, "k", dim, dim)), NULL, &rope);
    v = heads(m, linear(m, h, "v", dim, dim));
    attention = ct_attention(&m->b, NULL, q, k, v, m->documents, NULL);
    attention = ct_view(&m->b, NULL, attention, 3,
                        (int64_t[]){m->request->batch, m->request->seq_len, dim});
    gate = linear(m, h, "gate", 4 * dim, dim);
    up = linear(m, h, "up", 4 * dim, dim);
    if (m->s->activation)
        ffn = ct_mul(&m->b, NULL, ct_emit_type1(&m->b, &squared_relu, NULL, &gate, 1, NULL), up);
    else
        ffn = ct_swiglu(&m->b, NULL, gate, up);
    x = ct_add(&m->b, NULL, x, linear(m, attention, "o", dim, dim));
    return ct_add(&m->b, NULL, x, linear(m, ffn, "down", dim, 4 * dim));
}

static int build(struct ct_model *model, struct ct_graph *graph,
                 const struct ct_model_request *request)
{
    int64_t shape[] = {request->batch, request->seq_len};
    struct build m = {
        .b = ct_builder_at_end(graph, CT_PART_F, "embedding"), .s = model, .request = request};
    struct ct_value *table, *x;

    if (request->documents)
        m.documents = ct_input(&m.b, "documents", shape);
    table = ct_parameter(&m.b, "embedding.weight", 2, (int64_t[]){model->vocab_size, model->dim},
                         ct_init_weight(0.02, 1));
    x = ct_embedding(&m.b, NULL, ct_input(&m.b, "tokens", shape), table);
    for (; m.layer < model->n_layers; m.layer++) {
        m.b.region = ct_arena_printf(graph->arena, "layers.%lld", (long long)m.layer);
        x = layer(&m, x);
    }
    m.b.region = "head";
    ct_graph_fetch(graph, "logits", ct_linear(&m.b, "logits", norm(&m, x, "norm.weight"), table));
    return m.b.status;
}

/* ---- facts ---- */

static int64_t vocabulary(const struct ct_model *model)
{
    return model->vocab_size;
}

/* Six for each weight of a product, and 12 L d s for attention. */
static void flops_per_token(const struct ct_model *m, int64_t seq_len, double *whole,
                            double *halved)
{
    double d = (double)m->dim, layers = (double)m->n_layers;
    double attention = 12 * layers * d * (double)seq_len;

    *whole = 6 * (16 * layers * d * d + (double)m->vocab_size * d) + attention;
    *halved = *whole - attention / 2;
}

static const struct ct_shard_rule shard_plan[] = {
    {"embedding.weight", CT_SHARD_VOCAB}, {"*.[qkv].weight", CT_SHARD_COLWISE},
    {"*.gate.weight", CT_SHARD_COLWISE},  {"*.up.weight", CT_SHARD_COLWISE},
    {"*.o.weight", CT_SHARD_ROWWISE},     {"*.down.weight", CT_SHARD_ROWWISE},
    {"*norm.weight", CT_SHARD_REPLICATE}, {0},
};

static const struct ct_model_ops ops = {.size = sizeof(struct ct_model_ops),
                                        .create = create,
                                        .destroy = destroy,
                                        .build = build,
                                        .vocabulary = vocabulary,
                                        .flops_per_token = flops_per_token,
                                        .shard_plan = shard_plan,
                                        .weights = &ct_hf_weights};

CT_PLUGIN(.name = "palm", .version = "1.0", .summary = "Model: layers side by side, as in PaLM",
          .options = options, .config = &config, .config_size = sizeof(config),
          .offers = CT_OFFERS({CT_MODEL, "palm", &ops}, {CT_OP, "palm.squared_relu", &squared_relu},
                              {CT_KERNELS, "cpu", formula_kernels}));
