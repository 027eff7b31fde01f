/*
 * The mixer of linear layers: the gated delta net of Qwen3-Next (Yang et al. 2024).
 *
 * Queries, keys and values are convolved over the last tokens and activated; queries and keys are
 * scaled to length 1. The state of each head forgets by `decay`, and is corrected by `beta`. What
 * it gives is normed, and multiplied by the silu of z.
 */
#include <math.h>

#include "build.h"

#define LENGTH_EPS 1e-6 /* added to the square of a length */

static struct ct_value *project(struct build *s, const char *name, struct ct_value *h, int64_t rows)
{
    const char *weight, *part;

    weight = ct_decoder_text(&s->d, "%s.%s_proj", s->m->family->weight[WEIGHT_LINEAR], name);
    part = ct_decoder_text(&s->d, "linear_%s", name);
    return ct_decoder_linear(&s->d, part, h, weight, rows, s->d.sizes->dim, 0.02);
}

/* q, k or v: [b, t, count, size] of h. */
static struct ct_value *convolved(struct build *s, const char *name, struct ct_value *h,
                                  int64_t count, int64_t size)
{
    struct ct_decoder *d = &s->d;
    int64_t rows = count * size, taps = s->m->linear.taps;
    struct ct_value *w;
    const char *part;

    h = project(s, name, h, rows);
    part = ct_decoder_text(d, "%s.%s_conv", s->m->family->weight[WEIGHT_LINEAR], name);
    w = ct_decoder_weight(d, part, 3, (int64_t[]){rows, 1, taps}, CT_INIT_STD(0.02));
    part = ct_decoder_text(d, "linear_%s_taps", name);
    w = ct_view(&d->b, ct_decoder_named(d, part), w, 2, (int64_t[]){rows, taps});
    part = ct_decoder_text(d, "linear_%s_conv", name);
    h = ct_causal_conv(&d->b, ct_decoder_named(d, part), h, w, NULL, d->documents);
    part = ct_decoder_text(d, "linear_%s_silu", name);
    h = ct_silu(&d->b, ct_decoder_named(d, part), h);
    part = ct_decoder_text(d, "linear_%s_heads", name);
    return ct_view(&d->b, ct_decoder_named(d, part), h, 4,
                   (int64_t[]){d->request->batch, d->request->seq_len, count, size});
}

/* Heads of this length. The mean square is the square of the length over the size. */
static struct ct_value *of_length(struct build *s, const char *name, struct ct_value *x,
                                  double length)
{
    struct ct_decoder *d = &s->d;
    double size = (double)s->m->linear.key_dim;
    const char *part;

    part = ct_decoder_text(d, "linear_%s_norm", name);
    x = ct_rms_norm_plain(&d->b, ct_decoder_named(d, part), x, LENGTH_EPS / size);
    part = ct_decoder_text(d, "linear_%s_unit", name);
    return ct_scale(&d->b, ct_decoder_named(d, part), x, length / sqrt(size));
}

static struct ct_value *decay(struct build *s, struct ct_value *h, int64_t heads)
{
    struct ct_decoder *d = &s->d;
    const char *where = s->m->family->weight[WEIGHT_LINEAR];
    struct ct_value *a, *bias;
    const char *name;

    name = ct_decoder_text(d, "%s.A_log", where);
    a = ct_decoder_parameter(d, name, 1, &heads,
                             (struct ct_init){.kind = CT_INIT_UNIFORM, .a = 0, .b = log(16)});
    name = ct_decoder_text(d, "%s.dt_bias", where);
    bias = ct_decoder_parameter(d, name, 1, &heads, CT_INIT_ONE);
    h = project(s, "a", h, heads);
    return ct_decay(&d->b, ct_decoder_named(d, "linear_decay"), h, a, bias);
}

struct ct_value *linear_mixer(struct build *s, struct ct_value *h)
{
    struct ct_decoder *d = &s->d;
    const struct decoder_linear *z = &s->m->linear;
    int64_t all = z->value_heads * z->value_dim, batch = d->request->batch;
    struct ct_value *q, *k, *v, *beta, *forget, *gate, *w, *o;
    const char *name;

    q = of_length(s, "q", convolved(s, "q", h, z->key_heads, z->key_dim),
                  1 / sqrt((double)z->key_dim));
    k = of_length(s, "k", convolved(s, "k", h, z->key_heads, z->key_dim), 1);
    v = convolved(s, "v", h, z->value_heads, z->value_dim);
    gate = project(s, "z", h, all);
    beta = project(s, "b", h, z->value_heads);
    beta = ct_sigmoid(&d->b, ct_decoder_named(d, "linear_beta"), beta);
    forget = decay(s, h, z->value_heads);
    o = ct_gated_delta(&d->b, ct_decoder_named(d, "linear_state"), q, k, v, forget, beta,
                       d->documents);
    name = ct_decoder_text(d, "%s.norm", s->m->family->weight[WEIGHT_LINEAR]);
    w = ct_decoder_weight(d, name, 1, &z->value_dim, CT_INIT_ONE);
    o = ct_rms_norm(&d->b, ct_decoder_named(d, "linear_norm"), o, w, d->sizes->norm_eps);
    o = ct_view(&d->b, ct_decoder_named(d, "linear_flat"), o, 3,
                (int64_t[]){batch, d->request->seq_len, all});
    gate = ct_silu(&d->b, ct_decoder_named(d, "linear_silu"), gate);
    o = ct_mul(&d->b, ct_decoder_named(d, "linear_gated"), gate, o);
    name = ct_decoder_text(d, "%s.out_proj", s->m->family->weight[WEIGHT_LINEAR]);
    return ct_decoder_linear(d, "linear_out", o, name, d->sizes->dim, all, d->depth_std);
}
