/*
 * The graph of a decoder: its parts in the order of a layer, with what a family has of each.
 */
#include <math.h>
#include <string.h>

#include <ctitan/config.h>
#include <ctitan/error.h>
#include <ctitan/input.h>
#include <ctitan/lib/names.h>
#include <ctitan/number.h>

#include "build.h"

static const char *weight(const struct build *s, enum decoder_weight which)
{
    return s->m->family->weight[which];
}

static const char *named(struct build *s, const char *what)
{
    return ct_decoder_named(&s->d, what);
}

/* ---- norms and products ---- */

static bool adds_one(const struct build *s)
{
    return s->m->norm == NORM_RMS_ONE || s->m->norm == NORM_LAYER_ONE;
}

static struct ct_init norm_init(const struct build *s)
{
    return adds_one(s) ? (struct ct_init){0} : CT_INIT_ONE;
}

static bool has_norm_bias(const struct build *s)
{
    return s->m->norm == NORM_LAYER || s->m->norm == NORM_LAYER_ONE;
}

/* The norm called `name` by weights, and a bias unless that is NULL. */
static struct ct_value *norm_by(struct build *s, const char *name, struct ct_value *x,
                                struct ct_value *w, struct ct_value *bias)
{
    struct ct_builder *b = &s->d.b;
    double eps = s->d.sizes->norm_eps;
    const char *part;

    if (!has_norm_bias(s))
        return ct_rms_norm_offset(b, name, x, w, eps, adds_one(s));
    part = ct_decoder_text(&s->d, "%s_weight", name);
    if (adds_one(s))
        w = ct_add(b, part, w, ct_ones(b, part, w));
    return ct_layer_norm(b, name, x, w, bias, eps);
}

/* The norm of rows of this size, with weights called `what` of the layer. */
static struct ct_value *norm(struct build *s, const char *name, struct ct_value *x,
                             const char *what, int64_t size, bool bias)
{
    struct ct_decoder *d = &s->d;
    struct ct_value *w, *b = NULL;
    const char *part;

    if (s->m->norm == NORM_LAYER_PLAIN)
        return whiten(&d->b, named(s, name), x, d->sizes->norm_eps);
    w = ct_decoder_weight(d, what, 1, &size, norm_init(s));
    part = ct_decoder_text(d, "%s.bias", what);
    if (bias && has_norm_bias(s))
        b = ct_decoder_parameter(d, part, 1, &size, (struct ct_init){0});
    return norm_by(s, named(s, name), x, w, b);
}

/* ---- attention ---- */

/* Each head's rows by a weight of their own. */
static struct ct_value *norm_each(struct build *s, const char *name, struct ct_value *x,
                                  const char *what, int64_t heads)
{
    struct ct_decoder *d = &s->d;
    int64_t size = d->sizes->head_dim, shape[] = {heads, size}, all = heads * size;
    struct ct_value *w = ct_decoder_weight(d, what, 2, shape, CT_INIT_ONE);
    const char *part;

    part = ct_decoder_text(d, "%s_white", name);
    x = whiten(&d->b, named(s, part), x, d->sizes->norm_eps);
    part = ct_decoder_text(d, "%s_flat", name);
    x = ct_view(&d->b, named(s, part), x, 3,
                (int64_t[]){d->request->batch, d->request->seq_len, all});
    part = ct_decoder_text(d, "%s_weights", name);
    w = ct_view(&d->b, named(s, part), w, 1, &all);
    part = ct_decoder_text(d, "%s_rows", name);
    x = scale_columns(&d->b, named(s, part), x, w);
    return ct_view(&d->b, named(s, name), x, 4,
                   (int64_t[]){d->request->batch, d->request->seq_len, heads, size});
}

/* One of q, k and v: "q" and so on. normed: by which weights; WEIGHT_COUNT: not at all. */
static struct ct_value *heads(struct build *s, const char *name, struct ct_value *h,
                              enum decoder_weight which, enum decoder_weight normed, int64_t count)
{
    struct ct_decoder *d = &s->d;
    bool now = normed < WEIGHT_COUNT && !s->m->qk_rotated;
    enum decoder_qk_norm how = now ? s->m->qk_norm : QK_NORM_NONE;
    int64_t size = d->sizes->head_dim, rows = count * size;
    const char *view, *norms, *clipped;

    view = ct_decoder_text(d, "%s_heads", name);
    norms = ct_decoder_text(d, "%s_norm", name);
    clipped = ct_decoder_text(d, "%s_clipped", name);
    h = ct_decoder_project(&s->d, name, h, weight(s, which), rows, d->sizes->dim, 0.02,
                           s->m->q_bias);
    if (how == QK_NORM_WHOLE)
        h = norm(s, norms, h, weight(s, normed), rows, s->m->qk_bias);
    if (s->m->clip > 0)
        h = clip(&d->b, named(s, clipped), h, s->m->clip);
    h = ct_view(&d->b, named(s, view), h, 4,
                (int64_t[]){d->request->batch, d->request->seq_len, count, size});
    if (how == QK_NORM_HEAD)
        h = norm(s, norms, h, weight(s, normed), size, s->m->qk_bias);
    if (how == QK_NORM_EACH)
        h = norm_each(s, norms, h, weight(s, normed), count);
    return h;
}

/* Attention's result times the sigmoid of a projection of its input. The sigmoid is in float32, and
   a weight of each feature: a row of one number. */
static struct ct_value *gate_output(struct build *s, struct ct_value *o, struct ct_value *h)
{
    struct ct_decoder *d = &s->d;
    int64_t all = d->sizes->heads * d->sizes->head_dim;
    int64_t rows[] = {d->request->batch, d->request->seq_len, all, 1};
    struct ct_value *gate = ct_decoder_project(d, "q_gate", h, weight(s, WEIGHT_Q_GATE), all,
                                               d->sizes->dim, 0.02, s->m->q_bias);

    gate = ct_sigmoid(&d->b, named(s, "q_gate_sigmoid"), gate);
    o = ct_view(&d->b, named(s, "attention_rows"), o, 4, rows);
    o = ct_scale_rows(&d->b, named(s, "attention_scaled"), o, gate);
    return ct_view(&d->b, named(s, "attention_gated"), o, 3, rows);
}

/* Attention of h, which is normed. */
static struct ct_value *attention(struct build *s, struct ct_value *input)
{
    struct ct_decoder *d = &s->d;
    const struct ct_decoder_sizes *z = d->sizes;
    struct ct_attention how = {.causal = true, .scale = decoder_scale(s->m)};
    struct ct_value *q = heads(s, "q", input, WEIGHT_Q, WEIGHT_Q_NORM, z->heads);
    struct ct_value *k = heads(s, "k", input, WEIGHT_K, WEIGHT_K_NORM, z->kv_heads);
    struct ct_value *v = heads(s, "v", input, WEIGHT_V, WEIGHT_COUNT, z->kv_heads), *h;
    int64_t all = z->heads * z->head_dim;

    if (decoder_rotates(s->m, s->like)) {
        q = ct_rope(&d->b, named(s, "q_rope"), q, d->positions, &d->rope);
        k = ct_rope(&d->b, named(s, "k_rope"), k, d->positions, &d->rope);
    }
    if (d->rope.temper > 0)
        q = ct_temper(&d->b, named(s, "q_temper"), q, d->positions,
                      &(struct ct_temper){d->rope.temper, d->rope.original_max_position, 0});
    if (s->m->qk_rotated && s->m->qk_norm == QK_NORM_HEAD) {
        q = norm(s, "q_norm", q, weight(s, WEIGHT_Q_NORM), z->head_dim, s->m->qk_bias);
        k = norm(s, "k_norm", k, weight(s, WEIGHT_K_NORM), z->head_dim, s->m->qk_bias);
    }
    how.softcap = s->m->soft_cap;
    how.window = decoder_slides(s->m, s->like) ? s->m->window : 0;
    h = ct_attention(&d->b, named(s, "attention"), q, k, v, d->documents, &how);
    h = ct_view(&d->b, named(s, "attention_flat"), h, 3,
                (int64_t[]){d->request->batch, d->request->seq_len, all});
    if (s->m->output_gate)
        h = gate_output(s, h, input);
    return ct_decoder_project(&s->d, "o", h, weight(s, WEIGHT_O), z->dim, all, d->depth_std,
                              s->m->o_bias);
}

/* ---- feed-forward ---- */

static struct ct_value *activate(struct build *s, struct ct_value *x)
{
    struct ct_builder *b = &s->d.b;

    switch (s->m->activation) {
    case ACTIVATION_SILU:
        return ct_silu(b, named(s, "silu"), x);
    case ACTIVATION_GELU:
    case ACTIVATION_GELU_TANH:
        return ct_gelu(b, named(s, "gelu"), x, s->m->activation == ACTIVATION_GELU_TANH);
    case ACTIVATION_RELU:
    case ACTIVATION_RELU2:
        return relu(b, named(s, "relu"), x, s->m->activation == ACTIVATION_RELU2);
    }
    return NULL;
}

struct ct_value *decoder_squared(struct ct_decoder *d, struct ct_value *h, const char *where,
                                 int64_t width)
{
    const char *weight;

    weight = ct_decoder_text(d, "%s.up_proj", where);
    h = ct_decoder_linear(d, "shared_up", h, weight, width, d->sizes->dim, 0.02);
    h = relu(&d->b, ct_decoder_named(d, "shared_relu"), h, true);
    weight = ct_decoder_text(d, "%s.down_proj", where);
    return ct_decoder_linear(d, "shared_down", h, weight, d->sizes->dim, width, d->depth_std);
}

static struct ct_value *feed_forward(struct build *s, struct ct_value *h)
{
    struct ct_decoder *d = &s->d;
    int64_t dim = d->sizes->dim, width = d->sizes->ffn_dim;
    bool bias = s->m->mlp_bias;
    struct ct_value *gate = NULL, *up;

    if (decoder_is_mixture(s->m, s->like))
        return ct_decoder_mixture_of(d, h, &s->mixture);
    if (s->m->gated)
        gate = ct_decoder_project(&s->d, "gate", h, weight(s, WEIGHT_GATE), width, dim, 0.02, bias);
    up = ct_decoder_project(&s->d, "up", h, weight(s, WEIGHT_UP), width, dim,
                            s->m->gated ? d->depth_std : 0.02, bias);
    h = activate(s, gate ? gate : up);
    if (gate)
        h = ct_mul(&d->b, named(s, "gated"), h, up);
    return ct_decoder_project(&s->d, "down", h, weight(s, WEIGHT_DOWN), dim, width, d->depth_std,
                              bias);
}

/* ---- a layer ---- */

/* y, normed if norms are after, times the multiplier, and x. */
static struct ct_value *add(struct build *s, const char *name, struct ct_value *x,
                            struct ct_value *y, enum decoder_weight after)
{
    const char *part;

    if (s->m->norms != NORMS_BEFORE && after < WEIGHT_COUNT) {
        part = ct_decoder_text(&s->d, "%s_norm", name);
        y = norm(s, part, y, weight(s, after), s->d.sizes->dim, s->m->norm_bias);
    }
    if (s->m->residual_multiplier > 0) {
        part = ct_decoder_text(&s->d, "%s_scaled", name);
        y = ct_scale(&s->d.b, named(s, part), y, s->m->residual_multiplier);
    }
    return ct_add(&s->d.b, named(s, name), x, y);
}

static struct ct_value *before(struct build *s, const char *name, struct ct_value *x,
                               enum decoder_weight which)
{
    return s->m->norms == NORMS_AFTER
               ? x
               : norm(s, name, x, weight(s, which), s->d.sizes->dim, s->m->norm_bias);
}

/* The layer's token mixer, applied to h, which is normed. */
static struct ct_value *mix(struct build *s, struct ct_value *h)
{
    switch (decoder_mixer(s->m, s->like)) {
    case MIXER_ATTENTION:
        return attention(s, h);
    case MIXER_DELTA:
        return linear_mixer(s, h);
    case MIXER_MAMBA:
        return decoder_mamba(&s->d, s->m, h);
    case MIXER_CONV:
        return gated_conv(s, h);
    }
    return NULL;
}

/* A layer that is a mixer or feed-forward. */
static struct ct_value *single(struct build *s, struct ct_value *x)
{
    struct ct_value *h = before(s, "norm", x, WEIGHT_ATTENTION_NORM);

    h = decoder_forwards(s->m, s->like) ? feed_forward(s, h) : mix(s, h);
    return add(s, "sum", x, h, WEIGHT_ATTENTION_AFTER);
}

/* The current layer becomes of the kind of one of the model's. */
static void begin(struct build *s)
{
    int rc;

    s->like = decoder_like(s->m, s->d.layer);
    rc = decoder_rope(s->m, s->like, s->d.request, &s->d.rope);
    if (rc < 0 && s->d.b.status == 0)
        s->d.b.status = rc;
}

static struct ct_value *layer(struct build *s, struct ct_value *x)
{
    struct ct_value *h, *y;

    begin(s);
    if (s->m->single)
        return single(s, x);
    h = before(s, "attention_norm", x, WEIGHT_ATTENTION_NORM);
    y = mix(s, h);
    if (!s->m->parallel) {
        x = add(s, "attention_sum", x, y, WEIGHT_ATTENTION_AFTER);
        h = before(s, "ffn_norm", x, WEIGHT_FFN_NORM);
        return add(s, "ffn_sum", x, feed_forward(s, h), WEIGHT_FFN_AFTER);
    }
    if (!s->m->shared_norm)
        h = before(s, "ffn_norm", x, WEIGHT_FFN_NORM);
    x = add(s, "attention_sum", x, y, WEIGHT_ATTENTION_AFTER);
    return add(s, "ffn_sum", x, feed_forward(s, h), WEIGHT_FFN_AFTER);
}

/* ---- the ends ---- */

/* A parameter of the whole model: "NAME.weight" or "NAME.bias". */
static struct ct_value *named_whole(struct build *s, const char *name, const char *kind, int ndim,
                                    const int64_t *shape, struct ct_init init)
{
    return ct_parameter(&s->d.b, ct_decoder_text(&s->d, "%s.%s", name, kind), ndim, shape, init);
}

static struct ct_value *whole(struct build *s, enum decoder_weight which, const char *kind,
                              int ndim, const int64_t *shape, struct ct_init init)
{
    return named_whole(s, weight(s, which), kind, ndim, shape, init);
}

/* By what embeddings are multiplied. The root is a weight's number in transformers, rounded to its
   dtype. */
static double embedding_scale(const struct ct_model *m)
{
    double scale = m->embedding_multiplier > 0 ? m->embedding_multiplier : 1;
    bool narrow = ct_config.training.mixed_precision_param == CT_BF16;
    float root = (float)sqrt((double)m->sizes.dim);

    if (!m->embedding_root)
        return scale;
    return scale * (double)(narrow ? ct_bf16_to_f32(ct_f32_to_bf16(root)) : root);
}

static struct ct_value *look_up(struct build *s, const char *name, struct ct_value *tokens)
{
    struct ct_decoder *d = &s->d;
    double scale = embedding_scale(s->m);
    const char *part;
    struct ct_value *x;

    part = ct_decoder_text(d, "%s_scaled", name);
    x = ct_padded_embedding(&d->b, name, tokens, d->embedding, ct_decoder_padding(d->sizes));
    return scale != 1 ? ct_scale(&d->b, part, x, scale) : x;
}

/* x and the embeddings of its positions, where they are learned. */
static struct ct_value *add_positions(struct build *s, struct ct_value *x)
{
    struct ct_decoder *d = &s->d;
    int64_t shape[] = {d->sizes->max_position, d->sizes->dim};
    struct ct_value *places;

    if (s->m->positions != POSITIONS_LEARNED)
        return x;
    places = whole(s, WEIGHT_PLACES, "weight", 2, shape, ct_init_weight(0.01, 1));
    shape[0] = s->m->first_position;
    if (shape[0])
        whole(s, WEIGHT_PLACES, "unused", 2, shape, (struct ct_init){0});
    places = ct_embedding(&d->b, "places", d->positions, places);
    return ct_add(&d->b, "placed", x, places);
}

static struct ct_value *embed(struct build *s)
{
    struct ct_decoder *d = &s->d;

    d->b.region = CT_REGION_EMBEDDING;
    d->embedding =
        whole(s, WEIGHT_EMBEDDING, "weight", 2, (int64_t[]){d->sizes->vocabulary, d->sizes->dim},
              d->sizes->tied ? ct_decoder_head_init(s->d.sizes) : ct_init_weight(1, 1));
    return add_positions(s, look_up(s, "embedding", d->tokens));
}

/* The norm by a weight of the whole model. */
static struct ct_value *whole_norm(struct build *s, const char *name, struct ct_value *x,
                                   const char *weight)
{
    const int64_t *dim = &s->d.sizes->dim;
    struct ct_value *w, *bias = NULL;

    if (s->m->norm == NORM_LAYER_PLAIN)
        return whiten(&s->d.b, name, x, s->d.sizes->norm_eps);
    w = named_whole(s, weight, "weight", 1, dim, norm_init(s));
    if (s->m->norm_bias && has_norm_bias(s))
        bias = named_whole(s, weight, "bias", 1, dim, (struct ct_init){0});
    return norm_by(s, name, x, w, bias);
}

/* Logits of x, which is normed. */
static struct ct_value *logits(struct build *s, const char *name, struct ct_value *x)
{
    struct ct_decoder *d = &s->d;
    int64_t shape[] = {d->sizes->vocabulary, d->sizes->dim};
    const char *product, *capped;

    product = ct_decoder_text(d, "%s%s", name, s->m->head_bias ? "_product" : "");
    capped = ct_decoder_text(d, "%s_capped", name);
    if (!d->head)
        d->head = d->sizes->tied
                      ? d->embedding
                      : whole(s, WEIGHT_HEAD, "weight", 2, shape, ct_decoder_head_init(s->d.sizes));
    if (s->m->head_bias && !s->head_bias)
        s->head_bias = whole(s, WEIGHT_HEAD, "bias", 1, shape, (struct ct_init){0});
    if (s->m->logits_divisor > 0 || s->m->logits_multiplier > 0)
        x = ct_scale(&d->b, "norm_scaled", x,
                     s->m->logits_multiplier > 0 ? s->m->logits_multiplier
                                                 : 1 / s->m->logits_divisor);
    x = ct_linear(&d->b, product, x, d->head);
    if (s->head_bias)
        x = ct_bias(&d->b, name, x, s->head_bias);
    return s->m->logits_soft_cap > 0 ? soft_cap(&d->b, capped, x, s->m->logits_soft_cap) : x;
}

/* ---- predictions of further tokens ---- */

static struct build *build_of(struct ct_decoder *d)
{
    return (struct build *)(void *)d;
}

static struct ct_value *embed_ahead(struct ct_decoder *d, const char *name, struct ct_value *tokens)
{
    return look_up(build_of(d), ct_arena_strdup(d->b.graph->arena, ct_decoder_named(d, name)),
                   tokens);
}

static struct ct_value *norm_ahead(struct ct_decoder *d, const char *name, struct ct_value *x,
                                   const char *weight)
{
    return whole_norm(build_of(d), ct_arena_strdup(d->b.graph->arena, ct_decoder_named(d, name)), x,
                      weight);
}

static struct ct_value *layer_ahead(struct ct_decoder *d, struct ct_value *x)
{
    return layer(build_of(d), x);
}

static struct ct_value *logits_ahead(struct ct_decoder *d, const char *name, struct ct_value *x)
{
    return logits(build_of(d), name, x);
}

/* Layers of predictions are not among those that the balance is of. */
static struct ct_value *last(struct ct_decoder *d, struct ct_value *x)
{
    struct build *s = build_of(d);

    x = whole_norm(s, "norm", x, weight(s, WEIGHT_FINAL_NORM));
    x = ct_decoder_balance(d, x, &s->mixture);
    s->mixture.sums = NULL;
    return x;
}

/* ---- the whole ---- */

int decoder_build(struct ct_model *model, struct ct_graph *graph,
                  const struct ct_model_request *request)
{
    static const struct ct_prediction_parts parts = {embed_ahead, norm_ahead, layer_ahead,
                                                     logits_ahead};
    int64_t shape[] = {request->batch, request->seq_len};
    struct build s = {.d = {.b = ct_builder_at_end(graph, CT_PART_F, CT_REGION_EMBEDDING),
                            .sizes = &model->sizes,
                            .request = request,
                            .layers = model->family->weight[WEIGHT_LAYERS]},
                      .m = model,
                      .mixture = model->mixture};
    struct ct_decoder *d = &s.d;
    struct ct_value *x;

    if (model->positions == POSITIONS_LEARNED && request->seq_len > model->sizes.max_position)
        return ct_fail(CT_ECONFIG,
                       "[training] seq_len = %lld is larger than the model's %lld positions",
                       (long long)request->seq_len, (long long)model->sizes.max_position);
    if (model->mixture.whole.wanted)
        s.mixture.sums = &s.sums;
    d->tokens = ct_input(&d->b, "tokens", shape);
    if (request->documents)
        d->documents = ct_input(&d->b, "documents", shape);
    if (request->documents || model->positions == POSITIONS_LEARNED)
        d->positions = ct_input(&d->b, "positions", shape);
    x = embed(&s);
    for (d->layer = 0; d->layer < model->sizes.layers; d->layer++) {
        d->b.region = ct_arena_printf(graph->arena, "layers.%lld", (long long)d->layer);
        d->depth_std = ct_decoder_depth_std(d->layer);
        x = layer(&s, x);
    }
    ct_decoder_finish(d, x, last, &model->predictions, &parts);
    return d->b.status;
}
