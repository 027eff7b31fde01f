/*
 * Rotary position embedding (Su et al. 2021), rotate-half convention: pair i of a head is its
 * elements i and i + d/2, rotated by position * frequency(i). Frequencies may be stretched as in
 * Llama 3.1: kept if the wave is short against the original context, divided by a factor if it is
 * long, blended between.
 */
#include <math.h>

#include "list.h"

double ct_rope_frequency(const struct ct_rope *rope, int64_t head_size, int64_t pair)
{
    double frequency = pow(rope->theta, -2.0 * (double)pair / (double)head_size);
    double waves = (double)rope->original_max_position * frequency / (2 * acos(-1));
    double low = rope->low_freq_factor, high = rope->high_freq_factor, blend;

    if (rope->factor <= 1 || waves > high)
        return frequency;
    if (waves < low)
        return frequency / rope->factor;
    blend = (waves - low) / (high - low);
    return (1 - blend) * frequency / rope->factor + blend * frequency;
}

static int rope_infer(struct ct_op *op)
{
    const struct ct_rope *rope = op->attrs;

    if (op->in[0]->shape[3] % 2)
        return ct_fail(CT_EINVAL, "the head size %lld is odd", (long long)op->in[0]->shape[3]);
    if (rope->factor > 1 && rope->low_freq_factor >= rope->high_freq_factor)
        return ct_fail(CT_EINVAL, "low_freq_factor %g is not below high_freq_factor %g",
                       rope->low_freq_factor, rope->high_freq_factor);
    return 0;
}

static int rope_reference(const struct ct_launch *l)
{
    struct ct_reference r = ct_reference_begin(l);
    int64_t t = l->in[0].shape[1], heads = l->in[0].shape[2], d = l->in[0].shape[3];
    const struct ct_rope *rope = l->op->attrs;

    for (int64_t row = 0; row < l->in[0].shape[0] * t * heads; row++) {
        const double *x = r.in[0] + row * d;
        double *y = r.out[0] + row * d;
        int64_t token = row / heads;
        double position =
            r.in[1] ? r.in[1][token] : (double)ct_launch_position(l, l->op->in[0], 1, token % t);

        for (int64_t i = 0; i < d / 2; i++) {
            double angle = position * ct_rope_frequency(rope, d, i);
            double c = cos(angle), s = rope->inverse ? -sin(angle) : sin(angle);

            y[i] = x[i] * c - x[i + d / 2] * s;
            y[i + d / 2] = x[i + d / 2] * c + x[i] * s;
        }
    }
    return ct_reference_end(&r, 0);
}

static int rope_vjp(struct ct_vjp *v)
{
    struct ct_rope back = *(const struct ct_rope *)v->op->attrs;

    back.inverse = !back.inverse;
    return ct_emit_gradients(v, &ct_op_rope, (struct ct_value *[]){v->dout[0], v->op->in[1]}, 2,
                             &back, (int[]){0}, 1);
}

static const struct ct_option rope_attrs[] = {
    CT_OPT_FLOAT(struct ct_rope, theta, "theta", "10000", 1, 1e12, "Base of the frequencies"),
    CT_OPT_FLOAT(struct ct_rope, factor, "factor", "1", 1, 1e6,
                 "Factor by which long wavelengths are stretched"),
    CT_OPT_FLOAT(
        struct ct_rope, low_freq_factor, "low_freq_factor", "1", 0, 1e6,
        "Wavelengths that fit into the original context fewer times than this are stretched fully"),
    CT_OPT_FLOAT(struct ct_rope, high_freq_factor, "high_freq_factor", "4", 0, 1e6,
                 "Wavelengths that fit into it more often than this are kept"),
    CT_OPT_INT(struct ct_rope, original_max_position, "original_max_position", "8192", 0, 0x1p53,
               "The original context, in tokens"),
    CT_OPT_BOOL(struct ct_rope, inverse, "inverse", "false", "Turn backwards: the gradient"),
    {0},
};

const struct ct_op_type ct_op_rope = {
    .size = sizeof(struct ct_op_type),
    .name = "rope",
    .summary = "rotary position embedding",
    .signature = "x[bthD] T, ?positions[bt] i -> y[bthD] T | @t",
    .attrs = rope_attrs,
    .attrs_size = sizeof(struct ct_rope),
    .inplace = (const int8_t[][2]){{0, 0}, {-1, -1}},
    .infer = rope_infer,
    .vjp = rope_vjp,
    .reference = rope_reference,
};

struct ct_value *ct_rope(struct ct_builder *b, const char *name, struct ct_value *x,
                         struct ct_value *positions, const struct ct_rope *rope)
{
    return ct_emit_type1(b, &ct_op_rope, name, (struct ct_value *[]){x, positions}, 2, rope);
}
