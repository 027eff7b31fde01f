/*
 * The layers of Mamba-2 (Dao and Gu 2024): a projection to gate, x, B, C and dt; a convolution of
 * x, B and C along the sequence; the state space scan; a norm by group behind the gate. Files have
 * one tensor of the projection, and one of the convolution; here their parts are weights of their
 * own, so that ranks can split heads.
 */
#include <math.h>

#include "decoder.h"

/* A parameter of the mixer: "mamba.A_log". */
static struct ct_value *parameter(struct ct_decoder *d, const struct ct_model *m, const char *what,
                                  int ndim, const int64_t *shape, struct ct_init init)
{
    const char *name;

    name = ct_decoder_text(d, "%s.%s", m->family->weight[WEIGHT_MIXER], what);
    return ct_decoder_parameter(d, name, ndim, shape, init);
}

/* Rows of the projection, "x_proj". */
static struct ct_value *project(struct ct_decoder *d, const struct ct_model *m, struct ct_value *h,
                                const char *part, int64_t rows)
{
    const char *weight;

    weight = ct_decoder_text(d, "%s.%s_proj", m->family->weight[WEIGHT_MIXER], part);
    return ct_decoder_linear(d, part, h, weight, rows, m->sizes.dim, 0.02);
}

/* silu of the convolution of a part's channels. */
static struct ct_value *convolve(struct ct_decoder *d, const struct ct_model *m, struct ct_value *x,
                                 const char *part, int64_t channels)
{
    int64_t size = m->state.conv_size, stored[] = {channels, 1, size}, shape[] = {channels, size};
    double bound = 1 / sqrt((double)size);
    struct ct_init init = {.kind = CT_INIT_UNIFORM, .a = -bound, .b = bound};
    struct ct_value *w, *bias = NULL;
    const char *name;

    name = ct_decoder_text(d, "%s_conv.weight", part);
    w = parameter(d, m, name, 3, stored, init);
    name = ct_decoder_text(d, "%s_conv_weight", part);
    w = ct_view(&d->b, ct_decoder_named(d, name), w, 2, shape);
    name = ct_decoder_text(d, "%s_conv.bias", part);
    if (m->state.conv_bias)
        bias = parameter(d, m, name, 1, &channels, init);
    name = ct_decoder_text(d, "%s_conv", part);
    x = ct_causal_conv(&d->b, ct_decoder_named(d, name), x, w, bias, d->documents);
    name = ct_decoder_text(d, "%s_silu", part);
    return ct_silu(&d->b, ct_decoder_named(d, name), x);
}

static struct ct_value *heads(struct ct_decoder *d, const char *name, struct ct_value *x,
                              int64_t count, int64_t size)
{
    return ct_view(&d->b, ct_decoder_named(d, name), x, 4,
                   (int64_t[]){d->request->batch, d->request->seq_len, count, size});
}

/* The norm of y silu(gate), by group. */
static struct ct_value *gated_norm(struct ct_decoder *d, const struct ct_model *m,
                                   struct ct_value *y, struct ct_value *gate)
{
    int64_t width = m->state.heads * m->state.head_dim, groups = m->state.groups;
    struct ct_value *w = parameter(d, m, "norm.weight", 1, &width, CT_INIT_ONE);

    gate = ct_silu(&d->b, ct_decoder_named(d, "gate_silu"), gate);
    y = ct_mul(&d->b, ct_decoder_named(d, "gated_states"), y, gate);
    y = heads(d, "norm_groups", y, groups, width / groups);
    y = ct_rms_norm_plain(&d->b, ct_decoder_named(d, "norm_plain"), y, m->sizes.norm_eps);
    y = ct_view(&d->b, ct_decoder_named(d, "norm_flat"), y, 3,
                (int64_t[]){d->request->batch, d->request->seq_len, width});
    return scale_columns(&d->b, ct_decoder_named(d, "mixer_norm"), y, w);
}

struct ct_value *decoder_mamba(struct ct_decoder *d, const struct ct_model *m, struct ct_value *h)
{
    const struct decoder_state *s = &m->state;
    int64_t width = s->heads * s->head_dim, shared = s->groups * s->size;
    struct ct_init rates = {.kind = CT_INIT_UNIFORM, .a = 0, .b = log((double)s->heads + 1)};
    struct ct_value *gate = project(d, m, h, "gate", width);
    struct ct_value *x = convolve(d, m, project(d, m, h, "x", width), "x", width);
    struct ct_value *b = convolve(d, m, project(d, m, h, "b", shared), "b", shared);
    struct ct_value *c = convolve(d, m, project(d, m, h, "c", shared), "c", shared);
    struct ct_state_inputs in = {.dt = project(d, m, h, "dt", s->heads)};
    const char *weight;

    in.x = heads(d, "x_heads", x, s->heads, s->head_dim);
    in.b = heads(d, "b_groups", b, s->groups, s->size);
    in.c = heads(d, "c_groups", c, s->groups, s->size);
    in.a_log = parameter(d, m, "A_log", 1, &s->heads, rates);
    in.d = parameter(d, m, "D", 1, &s->heads, CT_INIT_ONE);
    in.dt_bias = parameter(d, m, "dt_bias", 1, &s->heads, CT_INIT_ONE);
    x = ct_state_scan(&d->b, ct_decoder_named(d, "scan"), &in, d->documents,
                      &(struct ct_state_scan){.least = s->least});
    x = ct_view(&d->b, ct_decoder_named(d, "scan_flat"), x, 3,
                (int64_t[]){d->request->batch, d->request->seq_len, width});
    x = gated_norm(d, m, x, gate);
    weight = ct_decoder_text(d, "%s.out_proj", m->family->weight[WEIGHT_MIXER]);
    return ct_decoder_linear(d, "mixer_out", x, weight, m->sizes.dim, width, d->depth_std);
}
