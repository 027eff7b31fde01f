/*
 * Op types: transposed codes. Kernels of products that sum along the rows of both operands read an
 * operand that is summed over along its rows from its transpose, and a cast that writes it, alone
 * or beside the straight codes, reads the numbers once. The op that finds the largest magnitudes of
 * rows and of columns reads them once, too.
 */
#include <math.h>
#include <string.h>

#include <ctitan/error.h>
#include <ctitan/op_author.h>

#include "float8.h"

/* ---- largest magnitudes ---- */

static int maxima_infer(struct ct_op *op)
{
    const struct ct_value *x = op->in[0];

    if (x->ndim < 2)
        return ct_fail(CT_EINVAL, "%%%s has no rows", x->name);
    for (int i = 0; i < 2; i++) {
        op->out[i]->ndim = x->ndim;
        for (int d = 0; d < x->ndim; d++)
            op->out[i]->shape[d] = (d + 1 < x->ndim) == (i == 0) ? x->shape[d] : 1;
    }
    return 0;
}

static int maxima_reference(const struct ct_launch *l)
{
    struct ct_reference r = ct_reference_begin(l);
    int64_t columns = ct_columns(&l->in[0]);

    for (int64_t i = 0; i < ct_tensor_count(&l->in[0]); i++) {
        double size = fabs(r.in[0][i]), *row = &r.out[0][i / columns],
               *column = &r.out[1][i % columns];

        *row = fmax(*row, size);
        *column = fmax(*column, size);
    }
    return ct_reference_end(&r, 0);
}

const struct ct_op_type float8_op_amax_both = {
    .size = sizeof(struct ct_op_type),
    .name = "float8_amax_both",
    .summary = "largest magnitudes of the rows and of the columns of x",
    .signature = "x F -> rows f, columns f",
    .samples = "real[2,4,6]; real[4,6]",
    .infer = maxima_infer,
    .factors = float8_maxima_factors,
    .reference = maxima_reference,
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
