/*
 * A model with a layer of attention for each set of features: no change of scores, a soft-cap or
 * ALiBi; with and without a window; with and without a sink. And data of random tokens, in
 * documents or not. [features] without leaves one feature out.
 */
#include <stdlib.h>
#include <string.h>

#include <ctitan/error.h>
#include <ctitan/input.h>
#include <ctitan/lib/hf.h>
#include <ctitan/lib/ops.h>
#include <ctitan/model.h>
#include <ctitan/plugin.h>
#include <ctitan/rng.h>

enum { LAYERS = 12, DIM = 32, HEADS = 4, KV_HEADS = 2, HEAD_DIM = 8, VOCABULARY = 64 };

static struct config {
    const char *without;
    bool documents;
} config;

static const struct ct_option options[] = {
    CT_OPT_CHOICE(struct config, without, "without", "none", "none|softcap|alibi|window|sink",
                  "The feature that no layer has"),
    CT_OPT_BOOL(struct config, documents, "documents", "false", "Several documents in a sample"),
    {0}};

/* ---- the model ---- */

struct ct_model {
    int unused;
};

static int create(struct ct_run *run, struct ct_model **model)
{
    (void)run;
    *model = calloc(1, sizeof(**model));
    return *model ? 0 : ct_fail(CT_ENOMEM, "a model");
}

static void destroy(struct ct_model *model)
{
    free(model);
}

struct build {
    struct ct_builder b;
    const struct ct_model_request *request;
    struct ct_value *documents;
    int layer;
};

static struct ct_value *weight(struct build *m, const char *what, int ndim, const int64_t *shape,
                               double std)
{
    return ct_parameter(&m->b, ct_arena_printf(m->b.graph->arena, "layers.%d.%s", m->layer, what),
                        ndim, shape, ct_init_weight(std, 1));
}

static struct ct_value *heads(struct build *m, const char *what, struct ct_value *x, int64_t count)
{
    struct ct_value *w = weight(m, what, 2, (int64_t[]){count * HEAD_DIM, DIM}, 0.3);

    return ct_view(&m->b, NULL, ct_linear(&m->b, NULL, x, w), 4,
                   (int64_t[]){m->request->batch, m->request->seq_len, count, HEAD_DIM});
}

static bool has(const char *feature, int number)
{
    return number && strcmp(config.without, feature) != 0;
}

static struct ct_value *layer(struct build *m, struct ct_value *x)
{
    static const struct ct_rope rope = {.theta = 10000, .factor = 1};
    const struct ct_attention how = {.causal = true,
                                     .softcap = has("softcap", m->layer % 3 == 1) ? 0.8 : 0,
                                     .alibi = has("alibi", m->layer % 3 == 2) ? 8 : 0,
                                     .window = has("window", m->layer / 3 % 2) ? 5 : 0};
    struct ct_value *q = ct_rope(&m->b, NULL, heads(m, "q.weight", x, HEADS), NULL, &rope);
    struct ct_value *k = ct_rope(&m->b, NULL, heads(m, "k.weight", x, KV_HEADS), NULL, &rope);
    struct ct_value *v = heads(m, "v.weight", x, KV_HEADS), *o;

    if (has("sink", m->layer / 6))
        o = ct_attention_with_sink(&m->b, NULL, q, k, v, m->documents,
                                   weight(m, "sinks", 1, (int64_t[]){HEADS}, 1), &how);
    else
        o = ct_attention(&m->b, NULL, q, k, v, m->documents, &how);
    o = ct_view(&m->b, NULL, o, 3, (int64_t[]){m->request->batch, m->request->seq_len, DIM});
    o = ct_linear(&m->b, NULL, o, weight(m, "o.weight", 2, (int64_t[]){DIM, DIM}, 0.2));
    return ct_rms_norm_plain(&m->b, NULL, ct_add(&m->b, NULL, x, o), 1e-5);
}

static int build(struct ct_model *model, struct ct_graph *graph,
                 const struct ct_model_request *request)
{
    const int64_t shape[] = {request->batch, request->seq_len};
    struct build m = {.b = ct_builder_at_end(graph, CT_PART_F, "embedding"), .request = request};
    struct ct_value *x, *table;

    (void)model;
    if (request->documents)
        m.documents = ct_input(&m.b, "documents", shape);
    table = ct_parameter(&m.b, "embedding.weight", 2, (int64_t[]){VOCABULARY, DIM},
                         ct_init_weight(1, 1));
    x = ct_embedding(&m.b, NULL, ct_input(&m.b, "tokens", shape), table);
    for (; m.layer < LAYERS; m.layer++) {
        m.b.region = ct_arena_printf(graph->arena, "layers.%d", m.layer);
        x = layer(&m, x);
    }
    m.b.region = "head";
    ct_graph_fetch(graph, "logits", ct_linear(&m.b, "logits", x, table));
    return m.b.status;
}

static int64_t vocabulary(const struct ct_model *model)
{
    (void)model;
    return VOCABULARY;
}

static void flops_per_token(const struct ct_model *m, int64_t seq_len, double *whole,
                            double *halved)
{
    (void)m;
    *whole = 6.0 * LAYERS * 3 * DIM * DIM + 12.0 * LAYERS * DIM * (double)seq_len;
    *halved = *whole - 6.0 * LAYERS * DIM * (double)seq_len;
}

static const struct ct_shard_rule shard_plan[] = {
    {"embedding.weight", CT_SHARD_VOCAB},
    {"*.[qkv].weight", CT_SHARD_COLWISE},
    {"*.sinks", CT_SHARD_COLWISE},
    {"*.o.weight", CT_SHARD_ROWWISE},
    {0},
};

static const struct ct_model_ops model_ops = {.size = sizeof(struct ct_model_ops),
                                              .create = create,
                                              .destroy = destroy,
                                              .build = build,
                                              .vocabulary = vocabulary,
                                              .flops_per_token = flops_per_token,
                                              .shard_plan = shard_plan,
                                              .weights = &ct_hf_weights};

/* ---- the data ---- */

struct ct_data {
    int64_t seq_len;
};

static int open_data(const struct ct_data_request *request, struct ct_data **data)
{
    *data = malloc(sizeof(**data));
    if (!*data)
        return ct_fail(CT_ENOMEM, "a data source");
    **data = (struct ct_data){request->seq_len};
    return 0;
}

static void close_data(struct ct_data *data)
{
    free(data);
}

static int32_t token(int64_t sample, int64_t at)
{
    return (int32_t)(ct_philox(1, (uint64_t)sample, (uint64_t)at).v[0] % VOCABULARY);
}

static int read_sample(struct ct_data *data, int64_t index, int32_t *tokens, int32_t *labels,
                       int32_t *documents)
{
    for (int64_t i = 0; i < data->seq_len; i++) {
        tokens[i] = token(index, i);
        labels[i] = token(index, i + 1);
        if (documents)
            documents[i] = (int32_t)((i + 3 * index) / 13);
    }
    return 0;
}

static bool has_documents(void)
{
    return config.documents;
}

static int64_t data_vocabulary(struct ct_data *data)
{
    (void)data;
    return VOCABULARY;
}

static const struct ct_data_ops data_ops = {.size = sizeof(struct ct_data_ops),
                                            .open = open_data,
                                            .close = close_data,
                                            .read = read_sample,
                                            .has_documents = has_documents,
                                            .vocabulary = data_vocabulary};

CT_PLUGIN(.name = "features", .version = "1.0", .summary = "Model: features of attention",
          .options = options, .config = &config, .config_size = sizeof(config),
          .offers = CT_OFFERS({CT_MODEL, "features", &model_ops},
                              {CT_DATA, "features", &data_ops}));
