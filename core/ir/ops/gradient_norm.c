/*
 * The gradient norm, and clipping to a largest norm.
 */
#include <math.h>

#include <ctitan/core_ops.h>
#include <ctitan/op_author.h>

static int squared_norm_reference(const struct ct_launch *l)
{
    struct ct_reference r = ct_reference_begin(l);

    for (int i = 0; i < l->ins; i++)
        for (int64_t k = 0; k < ct_tensor_count(&l->in[i]); k++)
            *r.out[0] += r.in[i][k] * r.in[i][k];
    return ct_reference_end(&r, 0);
}

const struct ct_op_type ct_op_squared_norm = {
    .size = sizeof(struct ct_op_type),
    .name = "squared_norm",
    .summary = "sum of the squares of all elements",
    .signature = "*x[.] F -> s[] d",
    .reference = squared_norm_reference,
    .samples = "real[4,6] real[2,2]",
};

static double coefficient(double norm, double max_norm)
{
    if (!isfinite(norm))
        return -1;
    return max_norm > 0 ? fmin(1, max_norm / (norm + 1e-6)) : 1;
}

static int clip_coefficient_reference(const struct ct_launch *l)
{
    const struct ct_clip_coefficient *attrs = l->op->attrs;
    struct ct_reference r = ct_reference_begin(l);

    for (int i = 0; i < l->ins; i++)
        *r.out[0] += *r.in[i];
    *r.out[0] = sqrt(*r.out[0]);
    *r.out[1] = coefficient(*r.out[0], attrs->max_norm);
    return ct_reference_end(&r, 0);
}

const struct ct_op_type ct_op_clip_coefficient = {
    .size = sizeof(struct ct_op_type),
    .name = "clip_coefficient",
    .summary = "norm from partial squares; the factor that clips it, -1 if it is not finite",
    .signature = "*s[] d -> norm[] f, coefficient[] f",
    .attrs = (const struct ct_option[]){CT_OPT_FLOAT(struct ct_clip_coefficient, max_norm,
                                                     "max_norm", "0", -INFINITY, INFINITY,
                                                     "Largest norm; 0 or less: any"),
                                        {0}},
    .attrs_size = sizeof(struct ct_clip_coefficient),
    .reference = clip_coefficient_reference,
    .samples = "max_norm=0.5: square[] square[]",
};

struct ct_value *ct_squared_norm(struct ct_builder *b, const char *name, struct ct_value *const *x,
                                 int count)
{
    return ct_emit_type1(b, &ct_op_squared_norm, name, x, count, NULL);
}

struct ct_op *ct_clip_coefficient(struct ct_builder *b, const char *name,
                                  struct ct_value *const *sums, int count, double max_norm)
{
    return ct_emit_type(b, &ct_op_clip_coefficient, name, sums, count,
                        &(struct ct_clip_coefficient){max_norm});
}
