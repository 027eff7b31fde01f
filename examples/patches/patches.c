/*
 * A model of images and tokens, and data for it: patches of an image, rows of numbers, stand in the
 * places of tokens at the beginning of a sequence, as in Fuyu (Bavishi et al. 2023).
 *
 * "patches" is a stream of the data, [seq_len, size] for a sample: zeros where there is a token. It
 * runs along the sequence, so every mesh splits it as it splits the tokens. The model adds a linear
 * layer of it to the embeddings.
 *
 * In the data each image has one bright number in each of its patches. The tokens behind the image
 * tell where these are, one after the other.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <ctitan/error.h>
#include <ctitan/input.h>
#include <ctitan/lib/hf.h>
#include <ctitan/lib/ops.h>
#include <ctitan/model.h>
#include <ctitan/plugin.h>
#include <ctitan/rng.h>

#define SIZE 12      /* numbers in a patch */
#define IMAGE 4      /* patches in an image */
#define NOTHING SIZE /* the token in a patch's place */
#define VOCABULARY (SIZE + 1)
#define MASKED (-100)

struct ct_model {
    int64_t dim, n_layers, n_heads;
};

static struct ct_model config;

static const struct ct_option options[] = {
    CT_OPT_INT(struct ct_model, dim, "dim", "64", 1, 1e6, "Width of the model"),
    CT_OPT_INT(struct ct_model, n_layers, "n_layers", "2", 1, 1e4, "Number of layers"),
    CT_OPT_INT(struct ct_model, n_heads, "n_heads", "2", 1, 1e4, "Number of attention heads"),
    {0}};

/* ---- the model ---- */

static int create(struct ct_run *run, struct ct_model **model)
{
    (void)run;
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
    return ct_linear(&m->b, NULL, x,
                     ct_parameter(&m->b, name, 2, (int64_t[]){rows, columns}, CT_INIT_STD(0.1)));
}

static struct ct_value *norm(struct build *m, struct ct_value *x, const char *what)
{
    char name[64];

    snprintf(name, sizeof(name), "layers.%lld.%s.weight", (long long)m->layer, what);
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
    struct ct_value *h = norm(m, x, "attention_norm"), *q, *k, *v;

    q = ct_rope(&m->b, NULL, heads(m, linear(m, h, "q", dim, dim)), NULL, &rope);
    k = ct_rope(&m->b, NULL, heads(m, linear(m, h, "k", dim, dim)), NULL, &rope);
    v = heads(m, linear(m, h, "v", dim, dim));
    h = ct_attention(&m->b, NULL, q, k, v, m->documents, NULL);
    h = ct_view(&m->b, NULL, h, 3, (int64_t[]){m->request->batch, m->request->seq_len, dim});
    x = ct_add(&m->b, NULL, x, linear(m, h, "o", dim, dim));
    h = norm(m, x, "ffn_norm");
    h = ct_swiglu(&m->b, NULL, linear(m, h, "gate", 2 * dim, dim),
                  linear(m, h, "up", 2 * dim, dim));
    return ct_add(&m->b, NULL, x, linear(m, h, "down", dim, 2 * dim));
}

static struct ct_value *embed(struct build *m, struct ct_value *table)
{
    const int64_t shape[] = {m->request->batch, m->request->seq_len, SIZE};
    struct ct_value *patches = ct_input_tensor(&m->b, "patches", 3, shape);
    struct ct_value *w =
        ct_parameter(&m->b, "patches.weight", 2, (int64_t[]){m->s->dim, SIZE}, CT_INIT_STD(0.5));
    struct ct_value *x = ct_embedding(&m->b, NULL, ct_input(&m->b, "tokens", shape), table);

    return ct_add(&m->b, NULL, x, ct_linear(&m->b, NULL, patches, w));
}

static int build(struct ct_model *model, struct ct_graph *graph,
                 const struct ct_model_request *request)
{
    struct build m = {
        .b = ct_builder_at_end(graph, CT_PART_F, "embedding"), .s = model, .request = request};
    struct ct_value *table, *x;

    if (model->dim % (2 * model->n_heads))
        return ct_fail(CT_ECONFIG, "[patches] dim = %lld does not divide by twice n_heads = %lld",
                       (long long)model->dim, (long long)model->n_heads);
    if (request->documents)
        m.documents = ct_input(&m.b, "documents", (int64_t[]){request->batch, request->seq_len});
    table = ct_parameter(&m.b, "embedding.weight", 2, (int64_t[]){VOCABULARY, model->dim},
                         CT_INIT_STD(0.5));
    x = embed(&m, table);
    for (; m.layer < model->n_layers; m.layer++) {
        m.b.region = ct_arena_printf(graph->arena, "layers.%lld", (long long)m.layer);
        x = layer(&m, x);
    }
    m.b.region = "head";
    x = norm(&m, x, "norm");
    ct_graph_fetch(graph, "logits", ct_linear(&m.b, "logits", x, table));
    return m.b.status;
}

static int64_t model_vocabulary(const struct ct_model *model)
{
    (void)model;
    return VOCABULARY;
}

/* Six for each weight of a product, and 12 L d s for attention. */
static void flops_per_token(const struct ct_model *m, int64_t seq_len, double *whole,
                            double *halved)
{
    double d = (double)m->dim, layers = (double)m->n_layers;
    double attention = 12 * layers * d * (double)seq_len;

    *whole = 6 * (10 * layers * d * d + (VOCABULARY + SIZE) * d) + attention;
    *halved = *whole - attention / 2;
}

static const struct ct_shard_rule shard_plan[] = {
    {"embedding.weight", CT_SHARD_VOCAB},
    {"patches.weight", CT_SHARD_REPLICATE},
    {"*.[qkv].weight", CT_SHARD_COLWISE},
    {"*.gate.weight", CT_SHARD_COLWISE},
    {"*.up.weight", CT_SHARD_COLWISE},
    {"*.o.weight", CT_SHARD_ROWWISE},
    {"*.down.weight", CT_SHARD_ROWWISE},
    {"*norm.weight", CT_SHARD_REPLICATE},
    {0},
};

static const struct ct_model_ops model_ops = {.size = sizeof(struct ct_model_ops),
                                              .create = create,
                                              .destroy = destroy,
                                              .build = build,
                                              .vocabulary = model_vocabulary,
                                              .flops_per_token = flops_per_token,
                                              .shard_plan = shard_plan,
                                              .weights = &ct_hf_weights};

/* ---- the data ---- */

struct ct_data {
    struct ct_data_request request;
};

static int list_streams(const struct ct_data_request *request, struct ct_arena *arena,
                        const struct ct_data_stream **streams)
{
    const size_t size = sizeof(struct ct_data_stream);
    const struct ct_data_stream list[] = {
        {size, "tokens", CT_I32, 1, {request->seq_len}, 0, "tokens, behind the image"},
        {size, "labels", CT_I32, 1, {request->seq_len}, 0, "the next token"},
        {size, "patches", CT_F32, 2, {request->seq_len, SIZE}, 0, "the image"},
        {0}};

    *streams = ct_arena_copy(arena, list, sizeof(list));
    return 0;
}

static int open_data(const struct ct_data_request *request, struct ct_data **data)
{
    *data = malloc(sizeof(**data));
    if (!*data)
        return ct_fail(CT_ENOMEM, "a data source");
    (*data)->request = *request;
    return 0;
}

static void close_data(struct ct_data *data)
{
    free(data);
}

static int32_t bright(const struct ct_data *data, int64_t index, int64_t patch)
{
    struct ct_philox random =
        ct_philox(data->request.seed, data->request.validation, (uint64_t)index);

    return (int32_t)(random.v[patch % IMAGE] % SIZE);
}

/* Behind the image its numbers are told, again and again. */
static int32_t token_at(const struct ct_data *data, int64_t index, int64_t i)
{
    return i < IMAGE ? NOTHING : bright(data, index, i - IMAGE);
}

static int read_sample(struct ct_data *data, int64_t index, void *const *sample)
{
    int32_t *tokens = sample[0], *labels = sample[1];
    float *patches = sample[2];

    if (patches)
        memset(patches, 0, sizeof(*patches) * SIZE * (size_t)data->request.seq_len);
    for (int64_t i = 0; i < data->request.seq_len; i++) {
        if (tokens)
            tokens[i] = token_at(data, index, i);
        if (labels)
            labels[i] = i < IMAGE - 1 ? MASKED : token_at(data, index, i + 1);
        if (patches && i < IMAGE)
            patches[i * SIZE + bright(data, index, i)] = 1;
    }
    return 0;
}

static int64_t data_vocabulary(struct ct_data *data)
{
    (void)data;
    return VOCABULARY;
}

static const struct ct_data_ops data_ops = {.size = sizeof(struct ct_data_ops),
                                            .open = open_data,
                                            .close = close_data,
                                            .vocabulary = data_vocabulary,
                                            .streams = list_streams,
                                            .read_streams = read_sample};

CT_PLUGIN(.name = "patches", .version = "1.0",
          .summary = "Model: patches of images in the places of tokens, and such data",
          .options = options, .config = &config, .config_size = sizeof(config),
          .offers = CT_OFFERS({CT_MODEL, "patches", &model_ops}, {CT_DATA, "patches", &data_ops}));
