/*
 * A bias: the same row added to every row of x.
 */
#include "list.h"

static int bias_reference(const struct ct_launch *l)
{
    struct ct_reference r = ct_reference_begin(l);
    int64_t n = ct_columns(&l->in[0]);

    for (int64_t i = 0; i < ct_tensor_count(&l->in[0]); i++)
        r.out[0][i] = r.in[0][i] + r.in[1][i % n];
    return ct_reference_end(&r, 0);
}

static int bias_vjp(struct ct_vjp *v)
{
    v->din[0] = v->dout[0];
    return ct_emit_gradients(v, &ct_op_bias_grad, v->dout, 1, NULL, (int[]){1}, 1);
}

const struct ct_op_type ct_op_bias = {
    .size = sizeof(struct ct_op_type),
    .name = "bias",
    .summary = "x plus one row",
    .signature = "x[.n] T, row[n] T -> y[.n] T",
    .inplace = (const int8_t[][2]){{0, 0}, {-1, -1}},
    .vjp = bias_vjp,
    .reference = bias_reference,
    .pointwise = "y = x + row",
    .samples = "real[2,4,6] real[6];"
               " real[6] real[6]",
};

static int bias_grad_reference(const struct ct_launch *l)
{
    struct ct_reference r = ct_reference_begin(l);
    int64_t n = ct_columns(&l->in[0]);

    for (int64_t i = 0; i < ct_tensor_count(&l->in[0]); i++)
        r.out[0][i % n] += r.in[0][i];
    return ct_reference_end(&r, 0);
}

const struct ct_op_type ct_op_bias_grad = {
    .size = sizeof(struct ct_op_type),
    .name = "bias_grad",
    .summary = "gradient of bias: the sum of all rows",
    .signature = "dy[.n] T -> drow[n] T",
    .flags = CT_OP_LINEAR | CT_OP_ANY_DTYPE,
    .reference = bias_grad_reference,
    .pointwise = "drow = column_sum(dy)",
    .samples = "real[2,4,6]",
};

struct ct_value *ct_bias(struct ct_builder *b, const char *name, struct ct_value *x,
                         struct ct_value *row)
{
    return ct_emit_type1(b, &ct_op_bias, name, (struct ct_value *[]){x, row}, 2, NULL);
}
