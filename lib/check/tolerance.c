/* How far a kernel may be from the reference: the model that is described in lib/app/check.h. */
#include <math.h>

#include <ctitan/lib/app/check.h>
#include <ctitan/rng.h>

double ct_check_rounding(enum ct_dtype dtype)
{
    switch (dtype) {
    case CT_F64:
        return 0x1p-40;
    case CT_F16:
        return 0x1p-10;
    case CT_BF16:
        return 0x1.01p-8;
    case CT_E4M3:
        return 0x1p-4;
    case CT_E5M2:
        return 0x1p-3;
    default:
        return ct_dtype_is_float(dtype) ? 0x1p-23 : 0;
    }
}

/* Denormals may be flushed; those of 8-bit dtypes are rounded. */
static double finest(enum ct_dtype dtype)
{
    switch (dtype) {
    case CT_F64:
        return 0;
    case CT_F16:
        return 0x1p-14;
    case CT_E4M3:
        return 0x1p-10;
    case CT_E5M2:
        return 0x1p-17;
    default:
        return 0x1p-126;
    }
}

/* Terms of the longest sum behind one element of the outputs. */
static double terms(const struct ct_check_call *c)
{
    const struct ct_op *op = c->op;
    double most = 1, count = op->outs ? (double)ct_tensor_count(&c->out[0]) : 1;

    for (int i = 0; i < op->ins; i++) {
        const struct ct_tensor *t = &c->in[i];

        if (!op->in[i] || t->ndim == 0)
            continue;
        most = fmax(most, (double)t->shape[t->ndim - 1]);
        for (int k = 0; k < op->outs; k++)
            most =
                fmax(most, (double)ct_tensor_count(t) / (double)(ct_tensor_count(&c->out[k]) + 1));
    }
    if (op->type->flops)
        most = fmax(most, op->type->flops(op, c->in, c->out) / (2 * count));
    return most;
}

double ct_check_slack(const struct ct_check_call *c, enum ct_dtype dtype, double largest,
                      double sensitivity)
{
    bool exact = dtype == CT_F64 && !c->op->type->flops; /* products are sums in float32 */
    double slack = (8 + 3 * sqrt(terms(c))) * (exact ? 0x1p-53 : 0x1p-24);

    if (!ct_dtype_is_float(dtype))
        return 0;
    slack += c->inner_roundings * 0x1p-8;
    return slack * largest + 2 * sensitivity + finest(dtype);
}

double ct_check_error(const double *got, const double *want, int64_t count, double slack,
                      const double *own, double before, double rounding, int64_t *where)
{
    double worst = 0;

    for (int64_t i = 0; i < count; i++) {
        double a = got[i], b = want[i] + before, error;

        if (a == b || (isnan(a) && isnan(b)))
            continue;
        error = fabs(a - b) / (rounding * fabs(b) + slack + (own ? own[i] : 0));
        if (!(error <= worst)) {
            worst = isnan(error) ? INFINITY : error;
            *where = i;
        }
    }
    return worst;
}

void ct_check_disturb(double *numbers, int64_t count, int operand)
{
    struct ct_philox random = {0};

    for (int64_t i = 0; i < count; i++) {
        if (i % 128 == 0)
            random = ct_philox(9, (uint64_t)operand, (uint64_t)i);
        numbers[i] *= 1 + (random.v[i / 32 % 4] >> i % 32 & 1 ? 0x1p-22 : -0x1p-22);
    }
}
