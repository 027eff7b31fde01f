/*
 * Float8 products with factors (Micikevicius et al. 2022). x is multiplied by a factor that makes
 * its largest element the dtype's largest, then rounded. The product is multiplied by the factors'
 * inverses. A factor belongs to the whole tensor, or to each row or column; rows are all dimensions
 * but the last. Factors are computed in float64 and stored in float32, as in torchao.
 */
#include <math.h>
#include <string.h>

#include <ctitan/rule.h>

#include "list.h"

#define SMALLEST 1e-12 /* lower bound for the largest element */

/* Factors depend on all of a tensor, row or column, and a transpose changes what a row is, so
   nothing is split. ("Factors" of dimensions here are those of sharding rules.) */
static int whole_factors(const struct ct_op *op, struct ct_arena *arena, struct ct_rule *rule)
{
    int n = op->ins + op->outs;

    rule->factor = ct_arena_array(arena, struct ct_factor, n * CT_MAX_DIMS);
    for (int i = 0; i < n; i++) {
        const struct ct_value *v = i < op->ins ? op->in[i] : op->out[i - op->ins];

        rule->operand[i].ndim = v->ndim;
        for (int d = 0; d < v->ndim; d++) {
            rule->operand[i].factor[d] = rule->count;
            rule->factor[rule->count] = (struct ct_factor){.letter = 'W',
                                                           .repetition = -1,
                                                           .index = rule->count,
                                                           .kind = CT_FACTOR_WHOLE,
                                                           .size = v->shape[d],
                                                           .operand = i};
            rule->count++;
        }
    }
    return 0;
}

/* ---- factors ---- */

static int check_dtype(enum ct_dtype dtype)
{
    if (dtype == CT_E4M3 || dtype == CT_E5M2)
        return 0;
    return ct_fail(CT_EINVAL, "%s is no 8-bit floating-point dtype", ct_dtype_name(dtype));
}

static int scale_infer(struct ct_op *op)
{
    const struct ct_float8_scale *attrs = op->attrs;
    const struct ct_value *x = op->in[0];
    int rc = check_dtype(attrs->dtype);

    if (rc < 0)
        return rc;
    if (x->ndim < 1)
        return ct_fail(CT_EINVAL, "x %%%s is a scalar", x->name);
    for (int i = 0; i < 2; i++) {
        struct ct_value *y = op->out[i];

        y->ndim = attrs->per != CT_PER_TENSOR;
        y->shape[0] = attrs->per == CT_PER_ROW ? ct_shape_count(x->ndim - 1, x->shape)
                                               : x->shape[x->ndim - 1];
    }
    return 0;
}

/* Index of the factor for element i of a tensor with this many columns. */
static int64_t factor_of(enum ct_float8_per per, int64_t i, int64_t columns)
{
    return per == CT_PER_TENSOR ? 0 : per == CT_PER_ROW ? i / columns : i % columns;
}

static int scale_reference(const struct ct_launch *l)
{
    const struct ct_float8_scale *attrs = l->op->attrs;
    struct ct_reference r = ct_reference_begin(l);
    double most = attrs->dtype == CT_E4M3 ? 448 : 57344;

    for (int64_t i = 0; i < ct_tensor_count(&l->in[0]); i++) {
        double *amax = &r.out[0][factor_of(attrs->per, i, ct_columns(&l->in[0]))];

        *amax = fmax(*amax, fabs(r.in[0][i]));
    }
    for (int64_t i = 0; i < ct_tensor_count(&l->out[0]); i++) {
        double factor = most / fmax(r.out[0][i], SMALLEST);

        if (attrs->power_of_two)
            factor = exp2(floor(log2(factor)));
        r.out[0][i] = ct_rounded(CT_F32, factor);
        r.out[1][i] = ct_rounded(CT_F32, 1 / r.out[0][i]);
    }
    return ct_reference_end(&r, 0);
}

#define DTYPE(T)                                                                                   \
    CT_OPT_DTYPE(T, dtype, "dtype", "float8_e4m3", "8-bit dtype: float8_e4m3 or float8_e5m2")

const struct ct_op_type ct_op_float8_scale = {
    .size = sizeof(struct ct_op_type),
    .name = "float8_scale",
    .summary = "factors that make the largest elements of x the largest of a dtype; their inverses",
    .signature = "x F -> scale f, inverse f",
    .attrs =
        (const struct ct_option[]){DTYPE(struct ct_float8_scale),
                                   CT_OPT_ENUM(struct ct_float8_scale, per, "per", "tensor",
                                               "tensor|row|column", "What has a factor of its own"),
                                   CT_OPT_BOOL(struct ct_float8_scale, power_of_two, "power_of_two",
                                               "false", "Round factors down to powers of two"),
                                   {0}},
    .attrs_size = sizeof(struct ct_float8_scale),
    .infer = scale_infer,
    .factors = whole_factors,
    .reference = scale_reference,
};

/* ---- quantising ---- */

static int check_factors(const struct ct_value *factors, enum ct_float8_per per, int64_t rows,
                         int64_t columns)
{
    int64_t wanted = per == CT_PER_ROW ? rows : columns;

    if (per == CT_PER_TENSOR)
        return factors->ndim == 0 ? 0
                                  : ct_fail(CT_EINVAL, "%%%s must be one factor", factors->name);
    if (factors->ndim == 1 && factors->shape[0] == wanted)
        return 0;
    return ct_fail(CT_EINVAL, "%%%s must be %lld factors, one for each %s", factors->name,
                   (long long)wanted, per == CT_PER_ROW ? "row" : "column");
}

static int quantise_infer(struct ct_op *op)
{
    const struct ct_float8_quantise *attrs = op->attrs;
    const struct ct_value *x = op->in[0];
    struct ct_value *q = op->out[0];
    int64_t rows, columns;
    int rc = check_dtype(attrs->dtype);

    if (rc < 0)
        return rc;
    if (x->ndim < 1)
        return ct_fail(CT_EINVAL, "x %%%s is a scalar", x->name);
    rows = ct_shape_count(x->ndim - 1, x->shape);
    columns = x->shape[x->ndim - 1];
    q->dtype = attrs->dtype;
    q->ndim = x->ndim;
    memcpy(q->shape, x->shape, sizeof(q->shape));
    if (attrs->transposed) {
        q->ndim = 2;
        q->shape[0] = columns;
        q->shape[1] = rows;
    }
    return check_factors(op->in[1], attrs->per, rows, columns);
}

static int quantise_reference(const struct ct_launch *l)
{
    struct ct_reference r = ct_reference_begin(l);
    const struct ct_float8_quantise *attrs = l->op->attrs;
    int64_t rows = ct_rows(&l->in[0]), columns = ct_columns(&l->in[0]);

    for (int64_t i = 0; i < rows * columns; i++) {
        int64_t to = attrs->transposed ? i % columns * rows + i / columns : i;

        r.out[0][to] = ct_rounded(CT_F32, r.in[0][i] * r.in[1][factor_of(attrs->per, i, columns)]);
    }
    return ct_reference_end(&r, 0);
}

const struct ct_op_type ct_op_float8_quantise = {
    .size = sizeof(struct ct_op_type),
    .name = "float8_quantise",
    .summary = "x times its factors in an 8-bit dtype, or the transpose of that",
    .signature = "x F, scale f -> q F",
    .attrs =
        (const struct ct_option[]){DTYPE(struct ct_float8_quantise),
                                   CT_OPT_ENUM(struct ct_float8_quantise, per, "per", "tensor",
                                               "tensor|row|column",
                                               "What of x has a factor of its own"),
                                   CT_OPT_BOOL(struct ct_float8_quantise, transposed, "transposed",
                                               "false", "Columns of x become rows"),
                                   {0}},
    .attrs_size = sizeof(struct ct_float8_quantise),
    .infer = quantise_infer,
    .factors = whole_factors,
    .reference = quantise_reference,
};

/* ---- products ---- */

static int linear_infer(struct ct_op *op)
{
    const struct ct_float8_linear *attrs = op->attrs;
    const struct ct_value *x = op->in[0], *w = op->in[1];
    struct ct_value *y = op->out[0];
    enum ct_float8_per per = attrs->by_row ? CT_PER_ROW : CT_PER_TENSOR;
    int rc;

    y->dtype = attrs->dtype;
    if (y->dtype != CT_F32 && y->dtype != CT_BF16)
        return ct_fail(CT_EINVAL, "%s is not float32 or bfloat16", ct_dtype_name(y->dtype));
    if (x->ndim < 1 || w->ndim != 2 || x->shape[x->ndim - 1] != w->shape[1])
        return ct_fail(CT_EINVAL, "the rows of x %%%s and w %%%s must be of one length", x->name,
                       w->name);
    y->ndim = x->ndim;
    memcpy(y->shape, x->shape, sizeof(y->shape));
    y->shape[y->ndim - 1] = w->shape[0];
    rc = check_factors(op->in[2], per, ct_shape_count(x->ndim - 1, x->shape), 0);
    return rc < 0 ? rc : check_factors(op->in[3], per, w->shape[0], 0);
}

static int linear_reference(const struct ct_launch *l)
{
    struct ct_reference r = ct_reference_begin(l);
    int64_t m = ct_rows(&l->in[0]), k = ct_columns(&l->in[0]), n = l->in[1].shape[0];
    bool by_row = ((const struct ct_float8_linear *)l->op->attrs)->by_row;

    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++) {
            double sum = 0;

            for (int64_t p = 0; p < k; p++)
                sum += r.in[0][i * k + p] * r.in[1][j * k + p];
            r.out[0][i * n + j] = sum * r.in[2][by_row ? i : 0] * r.in[3][by_row ? j : 0];
        }
    return ct_reference_end(&r, 0);
}

static double linear_flops(const struct ct_op *op, const struct ct_tensor *in,
                           const struct ct_tensor *out)
{
    (void)op;
    return 2.0 * (double)ct_tensor_count(&in[0]) * (double)ct_columns(&out[0]);
}

const struct ct_op_type ct_op_float8_linear = {
    .size = sizeof(struct ct_op_type),
    .name = "float8_linear",
    .summary = "y = x w^T of quantised x and w, times the inverses of their factors",
    .signature = "x F, w F, x_inverse f, w_inverse f -> y F",
    .flags = CT_OP_ANY_DTYPE,
    .attrs = (const struct ct_option[]){CT_OPT_DTYPE(struct ct_float8_linear, dtype, "dtype",
                                                     "bfloat16", "Dtype of the result"),
                                        CT_OPT_BOOL(struct ct_float8_linear, by_row, "by_row",
                                                    "false", "x and w have a factor for each row"),
                                        CT_OPT_BOOL(struct ct_float8_linear, fast_accumulation,
                                                    "fast_accumulation", "false",
                                                    "Allow sums of fewer bits, where that is "
                                                    "faster"),
                                        {0}},
    .attrs_size = sizeof(struct ct_float8_linear),
    .infer = linear_infer,
    .factors = whole_factors,
    .flops = linear_flops,
    .reference = linear_reference,
};
