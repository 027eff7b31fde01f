/*
 * Float8 products with factors (Micikevicius et al. 2022): x is multiplied by a factor that makes
 * its largest element the dtype's largest, rounded, and the product is multiplied by the factors'
 * inverses. A factor belongs to the whole tensor, or to each row or column; rows are all dimensions
 * but the last. Factors are made in float64 and kept in float32, as torchao does.
 */
#include <math.h>
#include <string.h>

#include <ctitan/rule.h>

#include "standard.h"

#define SMALLEST 1e-12 /* largest elements below it are taken for it */

/* Factors come from all of a tensor, row or column, and a transpose changes what is a row: nothing
   is cut. (Factors of dimensions here are those of sharding rules.) */
static int whole_factors(const struct ct_op *op, struct ct_arena *arena, struct ct_rule *rule)
{
    int n = op->ins + op->outs;

    rule->factor = ct_arena_array(arena, struct ct_factor, n * CT_MAX_RANK);
    for (int i = 0; i < n; i++) {
        const struct ct_value *v = i < op->ins ? op->in[i] : op->out[i - op->ins];

        rule->operand[i].rank = v->rank;
        for (int d = 0; d < v->rank; d++) {
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

struct scale {
    const char *dtype;
    const char *per;
    bool power_of_two;
};

static int float8_of(const struct ct_op *op, enum ct_dtype *dtype)
{
    int rc = ct_dtype_parse(ct_op_string(op, "dtype"), dtype);

    if (rc < 0)
        return rc;
    if (*dtype != CT_E4M3 && *dtype != CT_E5M2)
        return ct_fail(CT_EINVAL, "%s is no 8-bit floating-point dtype", ct_dtype_name(*dtype));
    return 0;
}

static int scale_infer(struct ct_op *op)
{
    const struct ct_value *x = op->in[0];
    const char *per = ct_op_string(op, "per");
    enum ct_dtype dtype;
    int rc = float8_of(op, &dtype);

    if (rc < 0)
        return rc;
    if (x->rank < 1)
        return ct_fail(CT_EINVAL, "x %%%s is a scalar", x->name);
    for (int i = 0; i < 2; i++) {
        struct ct_value *y = op->out[i];

        y->rank = !strcmp(per, "tensor") ? 0 : 1;
        y->shape[0] =
            !strcmp(per, "row") ? ct_shape_count(x->rank - 1, x->shape) : x->shape[x->rank - 1];
    }
    return 0;
}

/* The factor of element i of a tensor with so many columns. */
static int64_t factor_of(const char *per, int64_t i, int64_t columns)
{
    return !strcmp(per, "tensor") ? 0 : !strcmp(per, "row") ? i / columns : i % columns;
}

static int scale_reference(const struct ct_launch *l)
{
    struct ct_reference r = ct_reference_begin(l);
    const char *per = ct_op_string(l->op, "per");
    enum ct_dtype dtype = CT_E4M3;
    int rc = float8_of(l->op, &dtype);
    double most = dtype == CT_E4M3 ? 448 : 57344;

    for (int64_t i = 0; i < ct_tensor_count(&l->in[0]); i++) {
        double *amax = &r.out[0][factor_of(per, i, ct_columns(&l->in[0]))];

        *amax = fmax(*amax, fabs(r.in[0][i]));
    }
    for (int64_t i = 0; i < ct_tensor_count(&l->out[0]); i++) {
        double factor = most / fmax(r.out[0][i], SMALLEST);

        if (ct_op_bool(l->op, "power_of_two"))
            factor = exp2(floor(log2(factor)));
        r.out[0][i] = ct_rounded(CT_F32, factor);
        r.out[1][i] = ct_rounded(CT_F32, 1 / r.out[0][i]);
    }
    return ct_reference_end(&r, rc);
}

#define DTYPE(T)                                                                                   \
    CT_OPT_STRING(T, dtype, "dtype", "float8_e4m3", "8-bit dtype: float8_e4m3 or float8_e5m2")

const struct ct_op_type ct_op_float8_scale = {
    .name = "float8_scale",
    .summary = "factors that make the largest elements of x the largest of a dtype; their inverses",
    .operands = "x F -> scale f, inverse f",
    .outputs = "inverse",
    .attrs = (const struct ct_option[]){DTYPE(struct scale),
                                        CT_OPT_CHOICE(struct scale, per, "per", "tensor",
                                                      "tensor|row|column",
                                                      "What has a factor of its own"),
                                        CT_OPT_BOOL(struct scale, power_of_two, "power_of_two",
                                                    "false", "Round factors down to powers of two"),
                                        {0}},
    .attrs_size = sizeof(struct scale),
    .infer = scale_infer,
    .factors = whole_factors,
    .reference = scale_reference,
};

/* ---- quantising ---- */

struct quantise {
    const char *dtype;
    const char *per;
    bool transposed;
};

static int check_factors(const struct ct_value *factors, const char *per, int64_t rows,
                         int64_t columns)
{
    int64_t wanted = !strcmp(per, "row") ? rows : columns;

    if (!strcmp(per, "tensor"))
        return factors->rank == 0 ? 0
                                  : ct_fail(CT_EINVAL, "%%%s must be one factor", factors->name);
    if (factors->rank == 1 && factors->shape[0] == wanted)
        return 0;
    return ct_fail(CT_EINVAL, "%%%s must be %lld factors, one for each %s", factors->name,
                   (long long)wanted, per);
}

static int quantise_infer(struct ct_op *op)
{
    const struct ct_value *x = op->in[0];
    struct ct_value *q = op->out[0];
    int64_t rows, columns;
    int rc = float8_of(op, &q->dtype);

    if (rc < 0)
        return rc;
    if (x->rank < 1)
        return ct_fail(CT_EINVAL, "x %%%s is a scalar", x->name);
    rows = ct_shape_count(x->rank - 1, x->shape);
    columns = x->shape[x->rank - 1];
    q->rank = x->rank;
    memcpy(q->shape, x->shape, sizeof(q->shape));
    if (ct_op_bool(op, "transposed")) {
        q->rank = 2;
        q->shape[0] = columns;
        q->shape[1] = rows;
    }
    return check_factors(op->in[1], ct_op_string(op, "per"), rows, columns);
}

static int quantise_reference(const struct ct_launch *l)
{
    struct ct_reference r = ct_reference_begin(l);
    const char *per = ct_op_string(l->op, "per");
    bool transposed = ct_op_bool(l->op, "transposed");
    int64_t rows = ct_rows(&l->in[0]), columns = ct_columns(&l->in[0]);

    for (int64_t i = 0; i < rows * columns; i++) {
        int64_t to = transposed ? i % columns * rows + i / columns : i;

        r.out[0][to] = ct_rounded(CT_F32, r.in[0][i] * r.in[1][factor_of(per, i, columns)]);
    }
    return ct_reference_end(&r, 0);
}

const struct ct_op_type ct_op_float8_quantise = {
    .name = "float8_quantise",
    .summary = "x times its factors in an 8-bit dtype, or the transpose of that",
    .operands = "x F, scale f -> q F",
    .attrs = (const struct ct_option[]){DTYPE(struct quantise),
                                        CT_OPT_CHOICE(struct quantise, per, "per", "tensor",
                                                      "tensor|row|column",
                                                      "What of x has a factor of its own"),
                                        CT_OPT_BOOL(struct quantise, transposed, "transposed",
                                                    "false", "Columns of x become rows"),
                                        {0}},
    .attrs_size = sizeof(struct quantise),
    .infer = quantise_infer,
    .factors = whole_factors,
    .reference = quantise_reference,
};

/* ---- products ---- */

struct product {
    const char *dtype;
    bool by_row, fast_accumulation;
};

static int linear_infer(struct ct_op *op)
{
    const struct ct_value *x = op->in[0], *w = op->in[1];
    struct ct_value *y = op->out[0];
    const char *per = ct_op_bool(op, "by_row") ? "row" : "tensor";
    int rc = ct_dtype_parse(ct_op_string(op, "dtype"), &y->dtype);

    if (rc < 0)
        return rc;
    if (y->dtype != CT_F32 && y->dtype != CT_BF16)
        return ct_fail(CT_EINVAL, "%s is not float32 or bfloat16", ct_dtype_name(y->dtype));
    if (x->rank < 1 || w->rank != 2 || x->shape[x->rank - 1] != w->shape[1])
        return ct_fail(CT_EINVAL, "the rows of x %%%s and w %%%s must be of one length", x->name,
                       w->name);
    y->rank = x->rank;
    memcpy(y->shape, x->shape, sizeof(y->shape));
    y->shape[y->rank - 1] = w->shape[0];
    rc = check_factors(op->in[2], per, ct_shape_count(x->rank - 1, x->shape), 0);
    return rc < 0 ? rc : check_factors(op->in[3], per, w->shape[0], 0);
}

static int linear_reference(const struct ct_launch *l)
{
    struct ct_reference r = ct_reference_begin(l);
    int64_t m = ct_rows(&l->in[0]), k = ct_columns(&l->in[0]), n = l->in[1].shape[0];
    bool by_row = ct_op_bool(l->op, "by_row");

    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++) {
            double sum = 0;

            for (int64_t p = 0; p < k; p++)
                sum += r.in[0][i * k + p] * r.in[1][j * k + p];
            r.out[0][i * n + j] = sum * r.in[2][by_row ? i : 0] * r.in[3][by_row ? j : 0];
        }
    return ct_reference_end(&r, 0);
}

static double linear_flops(const struct ct_tensor *in, const struct ct_tensor *out, int ins,
                           int outs)
{
    (void)ins;
    (void)outs;
    return 2.0 * (double)ct_tensor_count(&in[0]) * (double)ct_columns(&out[0]);
}

const struct ct_op_type ct_op_float8_linear = {
    .name = "float8_linear",
    .summary = "y = x w^T of quantised x and w, times the inverses of their factors",
    .operands = "x F, w F, x_inverse f, w_inverse f -> y F",
    .flags = CT_OP_ANY_DTYPE,
    .attrs =
        (const struct ct_option[]){
            CT_OPT_STRING(struct product, dtype, "dtype", "bfloat16", "Dtype of the result"),
            CT_OPT_BOOL(struct product, by_row, "by_row", "false",
                        "x and w have a factor for each row"),
            CT_OPT_BOOL(struct product, fast_accumulation, "fast_accumulation", "false",
                        "Allow sums of fewer bits, where that is "
                        "faster"),
            {0}},
    .attrs_size = sizeof(struct product),
    .infer = linear_infer,
    .factors = whole_factors,
    .flops = linear_flops,
    .reference = linear_reference,
};
