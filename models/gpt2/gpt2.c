/*
 * GPT-2 (Radford et al. 2019): learned positions, layer norms, biases, GELU and a tied head. The
 * weights of q, k and v are three parameters, which Hugging Face's files store as one.
 */
#include <math.h>
#include <stdlib.h>

#include <ctitan/error.h>
#include <ctitan/input.h>
#include <ctitan/lib/hf.h>
#include <ctitan/lib/hf_config.h>
#include <ctitan/lib/names.h>
#include <ctitan/lib/ops.h>
#include <ctitan/model.h>
#include <ctitan/plugin.h>

struct ct_model {
    const char *flavor; /* these two as struct ct_flavor */
    int64_t parameters;
    int64_t dim, n_layers, n_heads, ffn_dim, vocab_size, max_positions;
    double norm_eps;
    enum ct_gelu_kind activation;
    bool scaled; /* scores of layer i are divided by i + 1 */
};

static struct ct_model config; /* 0: the flavor's */

static const struct ct_option options[] = {
    CT_OPT_INT(struct ct_model, dim, "dim", "0", 0, 1e6, "Width of the model; 0: the flavor's"),
    CT_OPT_INT(struct ct_model, n_layers, "n_layers", "0", 0, 1e4,
               "Number of layers; 0: the flavor's"),
    CT_OPT_INT(struct ct_model, n_heads, "n_heads", "0", 0, 1e4,
               "Number of attention heads; 0: the flavor's"),
    CT_OPT_INT(struct ct_model, ffn_dim, "ffn_dim", "0", 0, 1e7,
               "Width of the feed-forward layers; 0: the flavor's, or 4 dim where that is set"),
    CT_OPT_INT(struct ct_model, vocab_size, "vocab_size", "0", 0, 1e8,
               "Size of the vocabulary; 0: the flavor's"),
    CT_OPT_INT(struct ct_model, max_positions, "max_positions", "0", 0, 1e7,
               "Longest sequence: rows of the table of positions; 0: the flavor's"),
    {0}};

static const struct ct_model flavors[] = {
    {"debug", 5525504, 256, 6, 4, 1024, 2048, 1024, 1e-5, CT_GELU_TANH},
    {"124M", 124439808, 768, 12, 12, 3072, 50257, 1024, 1e-5, CT_GELU_TANH},
    {"355M", 354823168, 1024, 24, 16, 4096, 50257, 1024, 1e-5, CT_GELU_TANH},
    {"774M", 774030080, 1280, 36, 20, 5120, 50257, 1024, 1e-5, CT_GELU_TANH},
    {"1558M", 1557611200, 1600, 48, 25, 6400, 50257, 1024, 1e-5, CT_GELU_TANH},
    {0},
};

/* ---- sizes ---- */

static const struct ct_hf_key keys[] = {
    {"n_embd|hidden_size", CT_HF_SIZE, offsetof(struct ct_model, dim), 768},
    {"n_layer|num_hidden_layers", CT_HF_DEPTH, offsetof(struct ct_model, n_layers), 12},
    {"n_head|num_attention_heads", CT_HF_SIZE, offsetof(struct ct_model, n_heads), 12},
    {"n_inner", CT_HF_SIZE, offsetof(struct ct_model, ffn_dim), 0},
    {"vocab_size", CT_HF_SIZE, offsetof(struct ct_model, vocab_size), 50257},
    {"n_positions|max_position_embeddings", CT_HF_SIZE, offsetof(struct ct_model, max_positions),
     1024},
    {"activation_function", CT_HF_CHOICE, offsetof(struct ct_model, activation), CT_GELU_TANH,
     "gelu=gelu_python|gelu_new=gelu_pytorch_tanh"},
    {"scale_attn_by_inverse_layer_idx", CT_HF_BOOL, offsetof(struct ct_model, scaled), 0},
    {"layer_norm_epsilon", CT_HF_NUMBER, offsetof(struct ct_model, norm_eps), 1e-5},
    {0},
};

static const struct ct_hf_fixed fixed[] = {
    {"tie_word_embeddings", "true", false},
    {"scale_attn_weights", "true", false},
    {"add_cross_attention", "false", false},
    {"is_causal", "true", false},
    {"attn_pdrop", "0.0", true},
    {"embd_pdrop", "0.0", true},
    {"resid_pdrop", "0.0", true},
    {0},
};

static const struct ct_hf_config hf_config = {"gpt2", "GPT2LMHeadModel", keys, fixed,
                                              .ignored = "reorder_and_upcast_attn"};

static int apply_options(struct ct_model *m)
{
    const struct {
        int64_t *size, value;
    } changes[] = {
        {&m->dim, config.dim},
        {&m->ffn_dim, config.dim || !m->ffn_dim ? 4 * (config.dim ? config.dim : m->dim) : 0},
        {&m->ffn_dim, config.ffn_dim},
        {&m->n_layers, config.n_layers},
        {&m->n_heads, config.n_heads},
        {&m->vocab_size, config.vocab_size},
        {&m->max_positions, config.max_positions},
    };

    for (size_t i = 0; i < CT_COUNT(changes); i++)
        if (changes[i].value)
            *changes[i].size = changes[i].value;
    if (m->dim % m->n_heads)
        return ct_fail(CT_ECONFIG, "[gpt2] a width of %lld does not divide by %lld heads",
                       (long long)m->dim, (long long)m->n_heads);
    return 0;
}

static const struct ct_model_ops ops;

static int create(struct ct_run *run, struct ct_model **out)
{
    struct ct_model *model = calloc(1, sizeof(*model));
    int rc = model ? ct_hf_sizes(&ops, "gpt2", model) : ct_fail(CT_ENOMEM, "a model");

    (void)run;
    if (rc == 0)
        rc = apply_options(model);
    if (rc < 0)
        free(model);
    else
        *out = model;
    return rc;
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
    const char *prefix; /* "h.3.", or "" */
};

/* "transformer.h.3.attn.q.weight": a parameter of the current layer. */
static struct ct_value *parameter(struct build *m, const char *what, const char *kind, int ndim,
                                  int64_t rows, int64_t columns, struct ct_init init)
{
    const char *name =
        ct_arena_printf(m->b.graph->arena, "transformer.%s%s.%s", m->prefix, what, kind);

    return ct_parameter(&m->b, name, ndim, (int64_t[]){rows, columns}, init);
}

static struct ct_value *norm(struct build *m, struct ct_value *x, const char *what)
{
    struct ct_value *w = parameter(m, what, "weight", 1, m->s->dim, 0, CT_INIT_ONE);
    struct ct_value *b = parameter(m, what, "bias", 1, m->s->dim, 0, (struct ct_init){0});

    return ct_layer_norm(&m->b, NULL, x, w, b, m->s->norm_eps);
}

static struct ct_value *linear(struct build *m, struct ct_value *x, const char *what, int64_t rows,
                               int64_t columns, double std)
{
    struct ct_value *w =
        parameter(m, what, "weight", 2, rows, columns, ct_init_weight(std, std / 0.02));
    struct ct_value *b = parameter(m, what, "bias", 1, rows, 0, (struct ct_init){0});

    return ct_bias(&m->b, NULL, ct_linear(&m->b, NULL, x, w), b);
}

static struct ct_value *heads(struct build *m, struct ct_value *x, const char *what)
{
    x = linear(m, x, what, m->s->dim, m->s->dim, 0.02);
    return ct_view(&m->b, NULL, x, 4,
                   (int64_t[]){m->request->batch, m->request->seq_len, m->s->n_heads,
                               m->s->dim / m->s->n_heads});
}

static struct ct_value *layer(struct build *m, struct ct_value *x, int64_t index)
{
    int64_t dim = m->s->dim, ffn = m->s->ffn_dim;
    double root = sqrt((double)(dim / m->s->n_heads));
    struct ct_attention how = {.causal = true, .scale = 1 / (root * (double)(index + 1))};
    double deep = 0.02 / sqrt(2.0 * (double)m->s->n_layers);
    struct ct_value *h = norm(m, x, "ln_1"), *q, *k, *v;

    q = heads(m, h, "attn.q");
    k = heads(m, h, "attn.k");
    v = heads(m, h, "attn.v");
    h = ct_attention(&m->b, NULL, q, k, v, m->documents, m->s->scaled ? &how : NULL);
    h = ct_view(&m->b, NULL, h, 3, (int64_t[]){m->request->batch, m->request->seq_len, dim});
    x = ct_add(&m->b, NULL, x, linear(m, h, "attn.c_proj", dim, dim, deep));
    h = linear(m, norm(m, x, "ln_2"), "mlp.c_fc", ffn, dim, 0.02);
    h = ct_gelu(&m->b, NULL, h, m->s->activation == CT_GELU_TANH);
    return ct_add(&m->b, NULL, x, linear(m, h, "mlp.c_proj", dim, ffn, deep));
}

static int build(struct ct_model *model, struct ct_graph *graph,
                 const struct ct_model_request *request)
{
    int64_t shape[] = {request->batch, request->seq_len};
    struct build m = {.b = ct_builder_at_end(graph, CT_PART_F, CT_REGION_EMBEDDING),
                      .s = model,
                      .request = request,
                      .prefix = ""};
    struct ct_value *table, *places, *x, *y;

    if (request->seq_len > model->max_positions)
        return ct_fail(CT_ECONFIG,
                       "[training] seq_len = %lld is larger than [gpt2] max_positions = %lld",
                       (long long)request->seq_len, (long long)model->max_positions);
    if (request->documents)
        m.documents = ct_input(&m.b, "documents", shape);
    table =
        parameter(&m, "wte", "weight", 2, model->vocab_size, model->dim, ct_init_weight(0.02, 1));
    places = parameter(&m, "wpe", "weight", 2, model->max_positions, model->dim,
                       ct_init_weight(0.01, 1));
    x = ct_embedding(&m.b, "embedding", ct_input(&m.b, "tokens", shape), table);
    y = ct_embedding(&m.b, "places", ct_input(&m.b, "positions", shape), places);
    x = ct_add(&m.b, NULL, x, y);
    for (int64_t i = 0; i < model->n_layers; i++) {
        m.prefix = ct_arena_printf(graph->arena, "h.%lld.", (long long)i);
        m.b.region = ct_arena_printf(graph->arena, "layers.%lld", (long long)i);
        x = layer(&m, x, i);
    }
    m.prefix = "";
    m.b.region = CT_REGION_HEAD;
    ct_graph_fetch(graph, "logits", ct_linear(&m.b, "logits", norm(&m, x, "ln_f"), table));
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
    double layer = (double)m->dim * (4 * (double)m->dim + 2 * (double)m->ffn_dim);
    double attention = 12 * (double)(m->n_layers * m->dim) * (double)seq_len;

    *whole = 6 * ((double)m->n_layers * layer + (double)(m->vocab_size * m->dim)) + attention;
    *halved = *whole - attention / 2;
}

static const struct ct_shard_rule shard_plan[] = {
    {"*.wte.weight", CT_SHARD_VOCAB},      {"*.wpe.weight", CT_SHARD_REPLICATE},
    {"*.attn.[qkv].*", CT_SHARD_COLWISE},  {"*.mlp.c_fc.*", CT_SHARD_COLWISE},
    {"*.c_proj.weight", CT_SHARD_ROWWISE}, {"*.c_proj.bias", CT_SHARD_REPLICATE},
    {"*.ln_*", CT_SHARD_REPLICATE},        {0},
};

/* Hugging Face stores inputs times outputs (Conv1D), and the causal mask of each layer. */
static const struct ct_stored_rule stored[] = {
    {".attn.q.weight", ".attn.c_attn.weight", true, 0, 3},
    {".attn.k.weight", ".attn.c_attn.weight", true, 1, 3},
    {".attn.v.weight", ".attn.c_attn.weight", true, 2, 3},
    {".attn.q.bias", ".attn.c_attn.bias", false, 0, 3},
    {".attn.k.bias", ".attn.c_attn.bias", false, 1, 3},
    {".attn.v.bias", ".attn.c_attn.bias", false, 2, 3},
    {".attn.c_proj.weight", ".attn.c_proj.weight", true, 0, 0},
    {".mlp.c_fc.weight", ".mlp.c_fc.weight", true, 0, 0},
    {".mlp.c_proj.weight", ".mlp.c_proj.weight", true, 0, 0},
    {".attn.bias", NULL, false, 0, 0},
    {".attn.masked_bias", NULL, false, 0, 0},
    {0},
};

static const struct ct_model_ops ops = {
    .size = sizeof(struct ct_model_ops),
    .flavors = flavors,
    .flavor_size = sizeof(*flavors),
    .create = create,
    .destroy = destroy,
    .build = build,
    .vocabulary = vocabulary,
    .flops_per_token = flops_per_token,
    .shard_plan = shard_plan,
    .description = &hf_config,
    .stored = stored,
    .weights = &ct_hf_weights,
};

CT_PLUGIN(.name = "gpt2", .version = "1.0",
          .summary = "Model: GPT-2 (debug, 124M, 355M, 774M, 1558M)", .options = options,
          .config = &config, .config_size = sizeof(config),
          .offers = CT_OFFERS({CT_MODEL, "gpt2", &ops}));
