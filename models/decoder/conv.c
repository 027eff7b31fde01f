/*
 * The mixer of LFM2's linear layers (Liquid AI 2025): a convolution along the sequence between two
 * gates. Files have one tensor of the three projections; here each is a weight of its own, so that
 * ranks can split channels.
 */
#include <math.h>

#include "build.h"

static struct ct_value *project(struct build *s, struct ct_value *h, const char *part)
{
    int64_t dim = s->d.sizes->dim;
    const char *weight, *name;

    weight = ct_decoder_text(&s->d, "%s.%s_proj", s->m->family->weight[WEIGHT_CONV], part);
    name = ct_decoder_text(&s->d, "conv_%s", part);
    return ct_decoder_project(&s->d, name, h, weight, dim, dim, 0.02, s->m->state.conv_bias);
}

static struct ct_value *convolve(struct build *s, struct ct_value *x)
{
    struct ct_decoder *d = &s->d;
    int64_t dim = d->sizes->dim, size = s->m->state.conv_size, stored[] = {dim, 1, size};
    double bound = 1 / sqrt((double)size);
    struct ct_init init = {.kind = CT_INIT_UNIFORM, .a = -bound, .b = bound};
    struct ct_value *w, *bias = NULL;
    const char *name;

    name = ct_decoder_text(d, "%s.conv.weight", s->m->family->weight[WEIGHT_CONV]);
    w = ct_decoder_parameter(d, name, 3, stored, init);
    w = ct_view(&d->b, ct_decoder_named(d, "conv_taps"), w, 2, (int64_t[]){dim, size});
    name = ct_decoder_text(d, "%s.conv.bias", s->m->family->weight[WEIGHT_CONV]);
    if (s->m->state.conv_bias)
        bias = ct_decoder_parameter(d, name, 1, &dim, init);
    return ct_causal_conv(&d->b, ct_decoder_named(d, "conv"), x, w, bias, d->documents);
}

struct ct_value *gated_conv(struct build *s, struct ct_value *h)
{
    struct ct_decoder *d = &s->d;
    int64_t dim = d->sizes->dim;
    struct ct_value *b = project(s, h, "b"), *c = project(s, h, "c"), *x = project(s, h, "x");
    const char *name;

    x = ct_mul(&d->b, ct_decoder_named(d, "conv_input"), b, x);
    x = convolve(s, x);
    x = ct_mul(&d->b, ct_decoder_named(d, "conv_gated"), c, x);
    name = ct_decoder_text(d, "%s.out_proj", s->m->family->weight[WEIGHT_CONV]);
    return ct_decoder_project(d, "conv_out", x, name, dim, dim, d->depth_std,
                              s->m->state.conv_bias);
}
