/*
 * The graph of a decoder, one part of the model after the other.
 */
#include <math.h>

#include <ctitan/config.h>
#include <ctitan/error.h>
#include <ctitan/input.h>
#include <ctitan/lib/decoder.h>
#include <ctitan/lib/names.h>

/* Whether what can be put behind the number of the layer: one of d->name has it. */
static bool is_part(struct ct_decoder *d, const char *what)
{
    if (what && what != d->name)
        return true;
    if (d->b.status == 0)
        d->b.status = ct_fail(CT_EINVAL,
                              "layer %lld: %s is no name of a part: pass \"q\", not "
                              "NULL or what ct_decoder_named made of it",
                              (long long)d->layer, what ? what : "NULL");
    return false;
}

const char *ct_decoder_named(struct ct_decoder *d, const char *what)
{
    if (is_part(d, what))
        d->name = ct_decoder_text(d, "layers.%lld.%s", (long long)d->layer, what);
    return d->name;
}

static const char *layers_of(const struct ct_decoder *d)
{
    return d->layers ? d->layers : "model.layers";
}

struct ct_value *ct_decoder_parameter(struct ct_decoder *d, const char *what, int ndim,
                                      const int64_t *shape, struct ct_init init)
{
    if (!is_part(d, what))
        return NULL;
    d->name = ct_decoder_text(d, "%s.%lld.%s", layers_of(d), (long long)(d->layer - d->from), what);
    return ct_parameter(&d->b, d->name, ndim, shape, init);
}

struct ct_value *ct_decoder_weight(struct ct_decoder *d, const char *what, int ndim,
                                   const int64_t *shape, struct ct_init init)
{
    return is_part(d, what)
               ? ct_decoder_parameter(d, ct_decoder_text(d, "%s.weight", what), ndim, shape, init)
               : NULL;
}

struct ct_value *ct_decoder_linear(struct ct_decoder *d, const char *name, struct ct_value *x,
                                   const char *what, int64_t rows, int64_t columns, double std)
{
    struct ct_value *w;

    if (!is_part(d, name))
        return NULL;
    w = ct_decoder_weight(d, what, 2, (int64_t[]){rows, columns}, ct_init_weight(std, 1));
    return ct_linear(&d->b, ct_decoder_named(d, name), x, w);
}

struct ct_value *ct_decoder_biased(struct ct_decoder *d, const char *name, struct ct_value *x,
                                   const char *what, int64_t rows, int64_t columns, double std,
                                   double bias_std)
{
    const char *product, *bias;
    struct ct_init init = bias_std > 0 ? ct_init_weight(bias_std, 1) : (struct ct_init){0};
    struct ct_value *row;

    if (!is_part(d, name) || !is_part(d, what))
        return NULL;
    product = ct_decoder_text(d, "%s_product", name);
    bias = ct_decoder_text(d, "%s.bias", what);
    x = ct_decoder_linear(d, product, x, what, rows, columns, std);
    row = ct_decoder_parameter(d, bias, 1, &rows, init);
    return ct_bias(&d->b, ct_decoder_named(d, name), x, row);
}

struct ct_value *ct_decoder_project(struct ct_decoder *d, const char *name, struct ct_value *x,
                                    const char *what, int64_t rows, int64_t columns, double std,
                                    bool biased)
{
    return biased ? ct_decoder_biased(d, name, x, what, rows, columns, std, 0)
                  : ct_decoder_linear(d, name, x, what, rows, columns, std);
}

struct ct_value *ct_decoder_norm(struct ct_decoder *d, const char *name, struct ct_value *x,
                                 const char *what, int64_t size)
{
    struct ct_value *w;

    if (!is_part(d, name))
        return NULL;
    w = ct_decoder_weight(d, what, 1, &size, CT_INIT_ONE);
    return ct_rms_norm(&d->b, ct_decoder_named(d, name), x, w, d->sizes->norm_eps);
}

static struct ct_value *heads(struct ct_decoder *d, const char *name, struct ct_value *x,
                              int64_t count)
{
    return ct_view(&d->b, ct_decoder_named(d, name), x, 4,
                   (int64_t[]){d->request->batch, d->request->seq_len, count, d->sizes->head_dim});
}

struct ct_value *ct_decoder_heads(struct ct_decoder *d, struct ct_value *h, const char *what,
                                  int64_t count, bool biased)
{
    int64_t rows = count * d->sizes->head_dim, dim = d->sizes->dim;
    const char *weight, *view;

    weight = ct_decoder_text(d, "self_attn.%s_proj", what);
    view = ct_decoder_text(d, "%s_heads", what);
    h = ct_decoder_project(d, what, h, weight, rows, dim, 0.02, biased);
    return heads(d, view, h, count);
}

struct ct_value *ct_decoder_attention_sum(struct ct_decoder *d, struct ct_value *x,
                                          struct ct_value *h, bool biased)
{
    int64_t dim = d->sizes->dim, all = h ? h->shape[2] * h->shape[3] : 0;

    h = ct_view(&d->b, ct_decoder_named(d, "attention_flat"), h, 3,
                (int64_t[]){d->request->batch, d->request->seq_len, all});
    h = ct_decoder_project(d, "o", h, "self_attn.o_proj", dim, all, d->depth_std, biased);
    return ct_add(&d->b, ct_decoder_named(d, "attention_sum"), x, h);
}

double ct_decoder_scale(const struct ct_decoder_sizes *s)
{
    double amplitude = s->rope.amplitude > 0 ? s->rope.amplitude : 1;

    return amplitude * amplitude / sqrt((double)s->head_dim);
}

struct ct_value *ct_decoder_attention(struct ct_decoder *d, struct ct_value *x)
{
    const struct ct_decoder_sizes *s = d->sizes;
    int64_t dim = s->dim, q_dim = s->heads * s->head_dim, kv_dim = s->kv_heads * s->head_dim;
    bool bias = s->attention_bias;
    struct ct_value *h = ct_decoder_norm(d, "attention_norm", x, "input_layernorm", dim);
    struct ct_value *q = ct_decoder_project(d, "q", h, "self_attn.q_proj", q_dim, dim, 0.02, bias);
    struct ct_value *k = ct_decoder_project(d, "k", h, "self_attn.k_proj", kv_dim, dim, 0.02, bias);
    struct ct_value *v = ct_decoder_project(d, "v", h, "self_attn.v_proj", kv_dim, dim, 0.02, bias);
    struct ct_attention how = {.causal = true,
                               .window = ct_hf_has_layer(&s->sliding, d->layer) ? s->window : 0};

    if (s->rope.amplitude > 0)
        how.scale = ct_decoder_scale(s);
    q = heads(d, "q_heads", q, s->heads);
    k = heads(d, "k_heads", k, s->kv_heads);
    v = heads(d, "v_heads", v, s->kv_heads);
    if (s->qk_norm) {
        q = ct_decoder_norm(d, "q_norm", q, "self_attn.q_norm", s->head_dim);
        k = ct_decoder_norm(d, "k_norm", k, "self_attn.k_norm", s->head_dim);
    }
    q = ct_rope(&d->b, ct_decoder_named(d, "q_rope"), q, d->positions, &d->rope);
    k = ct_rope(&d->b, ct_decoder_named(d, "k_rope"), k, d->positions, &d->rope);
    h = ct_attention(&d->b, ct_decoder_named(d, "attention"), q, k, v, d->documents, &how);
    return ct_decoder_attention_sum(d, x, h, bias);
}

struct ct_value *ct_decoder_swiglu(struct ct_decoder *d, const char *prefix, struct ct_value *h,
                                   const char *where, int64_t width)
{
    static const char *const names[] = {"gate", "up", "silu", "swiglu", "down"};
    const char *name[CT_COUNT(names)], *weight[3];
    int64_t dim = d->sizes->dim;
    bool bias = d->sizes->mlp_bias;
    struct ct_value *gate, *up;

    for (size_t i = 0; i < CT_COUNT(names); i++)
        name[i] = ct_decoder_text(d, "%s%s", prefix, names[i]);
    for (size_t i = 0; i < CT_COUNT(weight); i++)
        weight[i] =
            ct_decoder_text(d, "%s.%s_proj", where, (const char *[]){"gate", "up", "down"}[i]);
    gate = ct_decoder_project(d, name[0], h, weight[0], width, dim, 0.02, bias);
    up = ct_decoder_project(d, name[1], h, weight[1], width, dim, d->depth_std, bias);
    gate = ct_silu(&d->b, ct_decoder_named(d, name[2]), gate);
    h = ct_mul(&d->b, ct_decoder_named(d, name[3]), gate, up);
    return ct_decoder_project(d, name[4], h, weight[2], dim, width, d->depth_std, bias);
}

struct ct_value *ct_decoder_feed_forward(struct ct_decoder *d, struct ct_value *x)
{
    struct ct_value *h =
        ct_decoder_norm(d, "ffn_norm", x, "post_attention_layernorm", d->sizes->dim);

    h = ct_decoder_swiglu(d, "", h, "mlp", d->sizes->ffn_dim);
    return ct_add(&d->b, ct_decoder_named(d, "ffn_sum"), x, h);
}

struct ct_init ct_decoder_head_init(const struct ct_decoder_sizes *sizes)
{
    struct ct_init init = ct_init_weight(1 / sqrt((double)sizes->dim), 1);

    init.truncate = ct_config.initializer_range > 0 ? 0 : 3;
    return init;
}

/* The token; -1: none. */
int64_t ct_decoder_padding(const struct ct_decoder_sizes *s)
{
    return s->padding < 0 ? s->vocabulary + s->padding : s->padding - 1;
}

double ct_decoder_depth_std(int64_t layer)
{
    return 0.02 / sqrt(2.0 * (double)(layer + 1));
}

static struct ct_value *look_up(struct ct_decoder *d, const char *name, struct ct_value *tokens)
{
    return ct_padded_embedding(&d->b, name, tokens, d->embedding, ct_decoder_padding(d->sizes));
}

static struct ct_value *look_up_ahead(struct ct_decoder *d, const char *name,
                                      struct ct_value *tokens)
{
    return look_up(d, ct_decoder_named(d, name), tokens);
}

static struct ct_value *embed(struct ct_decoder *d)
{
    d->b.region = CT_REGION_EMBEDDING;
    d->embedding = ct_parameter(
        &d->b, "model.embed_tokens.weight", 2, (int64_t[]){d->sizes->vocabulary, d->sizes->dim},
        d->sizes->tied ? ct_decoder_head_init(d->sizes) : ct_init_weight(1, 1));
    return look_up(d, "embedding", d->tokens);
}

/* By a weight of the whole model. */
static struct ct_value *norm(struct ct_decoder *d, const char *name, struct ct_value *x,
                             const char *weight)
{
    const char *parameter;

    parameter = ct_decoder_text(d, "%s.weight", weight);
    return ct_rms_norm(&d->b, name, x,
                       ct_parameter(&d->b, parameter, 1, &d->sizes->dim, CT_INIT_ONE),
                       d->sizes->norm_eps);
}

static struct ct_value *norm_ahead(struct ct_decoder *d, const char *name, struct ct_value *x,
                                   const char *weight)
{
    return norm(d, ct_decoder_named(d, name), x, weight);
}

static struct ct_value *logits(struct ct_decoder *d, const char *name, struct ct_value *x)
{
    int64_t shape[] = {d->sizes->vocabulary, d->sizes->dim};

    if (!d->head)
        d->head = d->sizes->tied ? d->embedding
                                 : ct_parameter(&d->b, "lm_head.weight", 2, shape,
                                                ct_decoder_head_init(d->sizes));
    return ct_linear(&d->b, name, x, d->head);
}

static struct ct_value *layer(struct ct_decoder *d, struct ct_value *x)
{
    return d->parts->feed_forward(d, d->parts->attention(d, x));
}

static struct ct_value *end(struct ct_decoder *d, struct ct_value *x)
{
    x = norm(d, "norm", x, "model.norm");
    return d->parts->end ? d->parts->end(d, x) : x;
}

/* The final norm belongs to the region of what reads it first. */
void ct_decoder_finish(struct ct_decoder *d, struct ct_value *x, ct_decoder_part_fn *last,
                       const struct ct_predictions *p, const struct ct_prediction_parts *parts)
{
    bool predicts = p && p->depths;

    d->b.region =
        predicts ? ct_arena_printf(d->b.graph->arena, "layers.%lld", (long long)d->sizes->layers)
                 : CT_REGION_HEAD;
    x = last(d, x);
    if (predicts)
        ct_decoder_predict(d, x, p, parts);
    d->b.region = CT_REGION_HEAD;
    ct_graph_fetch(d->b.graph, "logits", parts->logits(d, "logits", x));
    if (predicts)
        ct_decoder_predicted(d, p);
}

int ct_decoder_build_with(struct ct_model *model, struct ct_graph *graph,
                          const struct ct_model_request *request,
                          const struct ct_decoder_parts *parts)
{
    static const struct ct_prediction_parts own = {look_up_ahead, norm_ahead, layer, logits};
    int64_t shape[] = {request->batch, request->seq_len};
    struct ct_decoder d = {.b = ct_builder_at_end(graph, CT_PART_F, CT_REGION_EMBEDDING),
                           .sizes = (const struct ct_decoder_sizes *)(const void *)model,
                           .request = request,
                           .parts = parts};
    struct ct_value *x;
    int rc;

    d.rope = d.sizes->rope;
    rc = ct_decoder_fit_rope(d.sizes, request, d.sizes->head_dim, &d.rope);
    if (rc < 0)
        return rc;
    d.tokens = ct_input(&d.b, "tokens", shape);
    if (request->documents) {
        d.documents = ct_input(&d.b, "documents", shape);
        d.positions = ct_input(&d.b, "positions", shape);
    }
    x = embed(&d);
    for (d.layer = 0; d.layer < d.sizes->layers; d.layer++) {
        d.b.region = ct_decoder_text(&d, "layers.%lld", (long long)d.layer);
        d.depth_std = ct_decoder_depth_std(d.layer);
        x = layer(&d, x);
    }
    ct_decoder_finish(&d, x, end, parts->predictions, &own);
    return d.b.status;
}

int ct_decoder_build(struct ct_model *model, struct ct_graph *graph,
                     const struct ct_model_request *request)
{
    static const struct ct_decoder_parts parts = {ct_decoder_attention, ct_decoder_feed_forward};

    return ct_decoder_build_with(model, graph, request, &parts);
}
