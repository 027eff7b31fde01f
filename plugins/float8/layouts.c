/*
 * Op types: transposed codes. Kernels of products that sum along the rows of both operands read an
 * operand that is summed over along its rows from its transpose, and a cast that writes it, alone
 * or beside the straight codes, reads the numbers once. Ops that find the largest magnitudes, or
 * scales, of rows and of columns read them once, too.
 */
#include <math.h>
#include <string.h>

#include <ctitan/error.h>
#include <ctitan/op_author.h>
#include <ctitan/rule.h>

#include "float8.h"

/* ---- largest magnitudes ---- */

/* The first half of the outputs is of rows. */
static int lines_infer(struct ct_op *op)
{
    const struct ct_value *x = op->in[0];

    if (x->ndim < 2)
        return ct_fail(CT_EINVAL, "%%%s has no rows", x->name);
    for (int i = 0; i < op->outs; i++) {
        op->out[i]->ndim = x->ndim;
        for (int d = 0; d < x->ndim; d++)
            op->out[i]->shape[d] = (d + 1 < x->ndim) == (i < op->outs / 2) ? x->shape[d] : 1;
    }
    return 0;
}

/* Both arrays are zeros before. */
static void find_maxima_of_lines(const struct ct_reference *r, double *of_rows, double *of_columns)
{
    const struct ct_tensor *x = &r->launch->in[0];
    int64_t columns = ct_columns(x);

    for (int64_t i = 0; i < ct_tensor_count(x); i++) {
        double size = fabs(r->in[0][i]), *row = &of_rows[i / columns],
               *column = &of_columns[i % columns];

        *row = fmax(*row, size);
        *column = fmax(*column, size);
    }
}

static int maxima_reference(const struct ct_launch *l)
{
    struct ct_reference r = ct_reference_begin(l);

    find_maxima_of_lines(&r, r.out[0], r.out[1]);
    return ct_reference_end(&r, 0);
}

const struct ct_op_type float8_op_amax_both = {
    .size = sizeof(struct ct_op_type),
    .name = "float8_amax_both",
    .summary = "largest magnitudes of the rows and of the columns of x",
    .signature = "x F -> rows f, columns f",
    .samples = "real[2,4,6]; real[4,6]",
    .infer = lines_infer,
    .factors = float8_maxima_factors,
    .reference = maxima_reference,
};

/* Scales do not follow from those of parts, and each element is one of a row and of a column. */
static int line_scales_factors(const struct ct_op *op, struct ct_arena *arena, struct ct_rule *rule)
{
    int rc = float8_maxima_factors(op, arena, rule);

    for (int i = 0; i < rule->count; i++)
        rule->factor[i].kind = CT_FACTOR_WHOLE;
    return rc;
}

static int line_scales_reference(const struct ct_launch *l)
{
    struct ct_reference r = ct_reference_begin(l);
    double *rows = ct_arena_array(&r.arena, double, ct_rows(&l->in[0]));
    double *columns = ct_arena_array(&r.arena, double, ct_columns(&l->in[0]));

    find_maxima_of_lines(&r, rows, columns);
    float8_put_scales(&r, l->op->attrs, rows, 0);
    float8_put_scales(&r, l->op->attrs, columns, 2);
    return ct_reference_end(&r, 0);
}

const struct ct_op_type float8_op_line_scales = {
    .size = sizeof(struct ct_op_type),
    .name = "float8_line_scales",
    .summary = "scales by the largest magnitudes of the rows and of the columns of x, and their "
               "inverses",
    .signature = "x F -> rows f, rows_inverse f, columns f, columns_inverse f",
    .samples = "real[2,4,6]; rule=power_of_two: real[4,6]",
    .attrs = float8_scale_attrs,
    .attrs_size = sizeof(struct float8_scale),
    .infer = lines_infer,
    .factors = line_scales_factors,
    .reference = line_scales_reference,
};

/* ---- transposing codes ---- */

static int transpose_infer(struct ct_op *op)
{
    const struct ct_value *q = op->in[0];
    struct ct_value *to = op->out[0];

    if (q->ndim < 2)
        return ct_fail(CT_EINVAL, "%%%s has no rows", q->name);
    to->dtype = q->dtype;
    to->ndim = q->ndim;
    memcpy(to->shape, q->shape, sizeof(q->shape));
    float8_transpose_shape(to->ndim, to->shape);
    return 0;
}

static void put_transposed(struct ct_reference *r, int output, const double *x)
{
    const struct ct_tensor *of = &r->launch->in[0];
    const double *from = float8_transposed(&r->arena, x, ct_rows(of), ct_columns(of));

    memcpy(r->out[output], from, sizeof(*from) * (size_t)ct_tensor_count(of));
}

static int transpose_reference(const struct ct_launch *l)
{
    struct ct_reference r = ct_reference_begin(l);

    put_transposed(&r, 0, r.in[0]);
    return ct_reference_end(&r, 0);
}

const struct ct_op_type float8_op_transpose = {
    .size = sizeof(struct ct_op_type),
    .name = "float8_transpose",
    .summary = "codes, with the last dimension first",
    .signature = "q F -> transposed F",
    .samples = "real[2,4,6]; real[4,6]",
    .infer = transpose_infer,
    .factors = float8_layout_factors,
    .reference = transpose_reference,
};

/* ---- casts ---- */

static int transposed_infer(struct ct_op *op)
{
    return float8_infer_codes(op, 0, true);
}

static int transposed_reference(const struct ct_launch *l)
{
    struct ct_reference r = ct_reference_begin(l);

    put_transposed(&r, 0, float8_quantised(&r, 1));
    return ct_reference_end(&r, 0);
}

const struct ct_op_type float8_op_quantise_transposed = {
    .size = sizeof(struct ct_op_type),
    .name = "float8_quantise_transposed",
    .summary = "x times the scales of a grid over it, in an 8-bit dtype, transposed",
    .signature = "x F, scale f -> transposed F",
    .samples = "real[2,4,6] factor[1,1,6]; dtype=float8_e5m2: real[4,6] factor[1,1]",
    .attrs = float8_quantise_attrs,
    .attrs_size = sizeof(struct float8_quantise),
    .infer = transposed_infer,
    .factors = float8_layout_factors,
    .reference = transposed_reference,
};

static int both_infer(struct ct_op *op)
{
    int rc = float8_infer_codes(op, 0, false);

    return rc < 0 ? rc : float8_infer_codes(op, 1, true);
}

static int both_reference(const struct ct_launch *l)
{
    struct ct_reference r = ct_reference_begin(l);
    double *q = float8_quantised(&r, 1);

    memcpy(r.out[0], q, sizeof(*q) * (size_t)ct_tensor_count(&l->in[0]));
    put_transposed(&r, 1, l->ins > 2 && r.in[2] ? float8_quantised(&r, 2) : q);
    return ct_reference_end(&r, 0);
}

const struct ct_op_type float8_op_quantise_both = {
    .size = sizeof(struct ct_op_type),
    .name = "float8_quantise_both",
    .summary = "x times the scales of a grid over it, in an 8-bit dtype, straight and transposed",
    .signature = "x F, scale f, ?transposed_scale f -> q F, transposed F",
    .samples = "real[2,4,6] factor[1,1,1];"
               "dtype=float8_e5m2: real[2,4,6] factor[2,4,1] factor[1,1,6]",
    .attrs = float8_quantise_attrs,
    .attrs_size = sizeof(struct float8_quantise),
    .infer = both_infer,
    .factors = float8_layout_factors,
    .reference = both_reference,
};
