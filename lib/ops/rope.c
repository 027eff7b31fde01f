/*
 * Rotary position embedding (Su et al. 2021): pair i of a head is rotated by position *
 * frequency(i). Of the d features that are rotated, a pair is i and i + d/2 (rotate-half), or 2i
 * and 2i + 1 (interleaved). Frequencies may be stretched: kept if the wave is short against the
 * first context, divided by a factor if it is long, blended between. Llama 3.1 blends by frequency,
 * YaRN (Peng et al. 2023) by the number of the pair. Or all are divided by the factor, or each by a
 * divisor of its own (LongRoPE, Ding et al. 2024).
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "list.h"

#define TURN (2 * acos(-1))

/* Share of a frequency that is kept. */
static double kept_by_llama3(const struct ct_rope *rope, double frequency)
{
    double waves = (double)rope->original_max_position * frequency / TURN;
    double low = rope->low_freq_factor, high = rope->high_freq_factor;

    if (low == high)
        return waves >= low;
    return fmin(fmax((waves - low) / (high - low), 0), 1);
}

/* The pair, as a real number, whose wave fits so many times into the original context. */
static double pair_of_waves(const struct ct_rope *rope, int64_t rotated, double waves)
{
    return (double)rotated * log((double)rope->original_max_position / (waves * TURN)) /
           (2 * log(rope->theta));
}

static double beta_fast(const struct ct_rope *rope)
{
    return rope->beta_fast > 0 ? rope->beta_fast : 32;
}

static double beta_slow(const struct ct_rope *rope)
{
    return rope->beta_slow > 0 ? rope->beta_slow : 1;
}

/* As transformers does: from one whole pair to another, unless fractional, and the last one is that
   of `rotated` features, not pairs. */
static double kept_by_yarn(const struct ct_rope *rope, int64_t rotated, int64_t pair)
{
    double low = pair_of_waves(rope, rotated, beta_fast(rope));
    double high = pair_of_waves(rope, rotated, beta_slow(rope));

    low = fmax(rope->fractional ? low : floor(low), 0);
    high = fmin(rope->fractional ? high : ceil(high), (double)(rotated - 1));
    if (low == high)
        high += 0.001;
    return 1 - fmin(fmax(((double)pair - low) / (high - low), 0), 1);
}

/* The number of a pair in the list; 0: it has none, or it is not above 0. */
static double divisor_of(const char *list, int64_t pair)
{
    char *end;

    for (int64_t i = 0; list && *list; i++, list = end + (*end == ':')) {
        double divisor = strtod(list, &end);

        if (end == list || !(divisor > 0))
            break;
        if (i == pair)
            return divisor;
    }
    return 0;
}

double ct_rope_frequency(const struct ct_rope *rope, int64_t rotated, int64_t pair)
{
    double frequency = pow(rope->theta, -2.0 * (double)pair / (double)rotated), kept;

    if (rope->scaling == CT_ROPE_LONG)
        return frequency / divisor_of(rope->divisors, pair);
    if (rope->scaling == CT_ROPE_LINEAR && rope->factor > 1)
        return frequency / rope->factor;
    if (rope->factor <= 1)
        return frequency;
    kept = rope->scaling == CT_ROPE_YARN ? kept_by_yarn(rope, rotated, pair)
                                         : kept_by_llama3(rope, frequency);
    return (1 - kept) * frequency / rope->factor + kept * frequency;
}

static int check_scaling(const struct ct_rope *rope)
{
    if (rope->scaling == CT_ROPE_LLAMA3 && rope->low_freq_factor > rope->high_freq_factor)
        return ct_fail(CT_EINVAL, "low_freq_factor %g is above high_freq_factor %g",
                       rope->low_freq_factor, rope->high_freq_factor);
    if (rope->scaling != CT_ROPE_YARN)
        return 0;
    if (beta_slow(rope) > beta_fast(rope))
        return ct_fail(CT_EINVAL, "beta_slow %g is above beta_fast %g", beta_slow(rope),
                       beta_fast(rope));
    if (rope->theta <= 1 || rope->original_max_position < 1)
        return ct_fail(CT_EINVAL,
                       "yarn needs a theta above 1 and an original_max_position, not %g and %lld",
                       rope->theta, (long long)rope->original_max_position);
    return 0;
}

/* Features of a head that are rotated. */
static int64_t rotated_of(const struct ct_rope *rope, int64_t size)
{
    return rope->rotated ? rope->rotated : size - rope->first;
}

static int check_divisors(const struct ct_rope *rope, int64_t pairs)
{
    if (divisor_of(rope->divisors, pairs - 1) > 0 && !(divisor_of(rope->divisors, pairs) > 0))
        return 0;
    return ct_fail(CT_EINVAL, "longrope needs %lld divisors above 0, not %s", (long long)pairs,
                   rope->divisors && *rope->divisors ? rope->divisors : "none");
}

static int rope_infer(struct ct_op *op)
{
    const struct ct_rope *rope = op->attrs;
    long long size = op->in[0]->shape[3], first = rope->first, n = rotated_of(rope, size);

    if (first >= size)
        return ct_fail(CT_EINVAL, "the first rotated feature is %lld, but the head size %lld",
                       first, size);
    if (n > size - first)
        return ct_fail(CT_EINVAL, "%lld features from %lld on are more than the head size %lld", n,
                       first, size);
    if (n % 2 && !rope->rotated)
        return first ? ct_fail(CT_EINVAL, "the head size %lld from feature %lld on is odd", size,
                               first)
                     : ct_fail(CT_EINVAL, "the head size %lld is odd", size);
    if (n % 2)
        return ct_fail(CT_EINVAL, "%lld features cannot be rotated in pairs", n);
    if (rope->scaling == CT_ROPE_LONG)
        return check_divisors(rope, n / 2);
    return rope->factor > 1 ? check_scaling(rope) : 0;
}

static void rotate(const struct ct_rope *rope, int64_t rotated, double position, const double *x,
                   double *y)
{
    int64_t step = rope->interleaved ? 2 : 1, other = rope->interleaved ? 1 : rotated / 2;
    double magnitude = rope->magnitude > 0 ? rope->magnitude : 1;

    for (int64_t i = 0; i < rotated / 2; i++) {
        double angle = position * ct_rope_frequency(rope, rotated, i);
        double c = magnitude * cos(angle);
        double s = magnitude * (rope->inverse ? -sin(angle) : sin(angle));
        double x1 = x[i * step], x2 = x[i * step + other];

        y[i * step] = x1 * c - x2 * s;
        y[i * step + other] = x2 * c + x1 * s;
    }
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

        memcpy(y, x, sizeof(*y) * (size_t)d);
        rotate(rope, rotated_of(rope, d), position, x + rope->first, y + rope->first);
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
    CT_OPT_ENUM(struct ct_rope, scaling, "scaling", "llama3", "llama3|yarn|linear|longrope",
                "Which wavelengths are stretched: by frequency, by the number of the pair, all, or "
                "each by its divisor"),
    CT_OPT_FLOAT(struct ct_rope, beta_fast, "beta_fast", "0", 0, 1e6,
                 "yarn: pairs are kept up to one that fits into it so many times; 0: 32"),
    CT_OPT_FLOAT(struct ct_rope, beta_slow, "beta_slow", "0", 0, 1e6,
                 "yarn: pairs are stretched fully from one that fits into it so many times; 0: 1"),
    CT_OPT_BOOL(struct ct_rope, fractional, "fractional", "false",
                "yarn: these pairs are real numbers, not rounded"),
    CT_OPT_INT(struct ct_rope, first, "first", "0", 0, 0x1p53,
               "Features of a head before this one are copied"),
    CT_OPT_INT(struct ct_rope, rotated, "rotated", "0", 0, 0x1p53,
               "Features from it on that are rotated, others are copied; 0: all"),
    CT_OPT_FLOAT(struct ct_rope, magnitude, "magnitude", "0", 0, 1e6,
                 "Factor of cosines and sines; 0: 1"),
    CT_OPT_STRING(struct ct_rope, divisors, "divisors", "", "longrope: of each pair's frequency"),
    CT_OPT_BOOL(struct ct_rope, interleaved, "interleaved", "false",
                "Pairs are features 2i and 2i + 1, not i and i + d/2"),
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
    .cache = ct_cache_positions,
    .reference = rope_reference,
    .samples = "theta=100: real[2,4,2,6] position[2,4];"
               " theta=100 factor=8 original_max_position=32: real[2,4,2,6] -;"
               " inverse=true: real[2,4,2,2] position[2,4];"
               " theta=100 first=2 interleaved=true: real[2,4,2,6] position[2,4];"
               " theta=100 rotated=4 magnitude=1.25: real[2,4,2,6] -;"
               " theta=100 first=1 rotated=4 scaling=linear factor=4: real[2,4,2,7] position[2,4];"
               " theta=100 scaling=longrope divisors=1.5:2:4: real[2,4,2,6] -;"
               " theta=100 first=3 scaling=yarn factor=8 original_max_position=32: real[2,3,2,7] -",
};

struct ct_value *ct_rope(struct ct_builder *b, const char *name, struct ct_value *x,
                         struct ct_value *positions, const struct ct_rope *rope)
{
    if (rope->dynamic && b->status == 0)
        b->status = ct_fail(CT_EINVAL,
                            "%s: the base of a dynamic rope grows with the context: fit it to the "
                            "context first (ct_decoder_fit_rope)",
                            name);
    return ct_emit_type1(b, &ct_op_rope, name, (struct ct_value *[]){x, positions}, 2, rope);
}
