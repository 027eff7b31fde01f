/*
 * Gates: sigmoids in float32, and by how much the states of recurrent mixers forget.
 */
#include <math.h>

#include <ctitan/pointwise.h>

#include "list.h"

double sigmoid_of(double x)
{
    return 1 / (1 + exp(-x));
}

double softplus_of(double x)
{
    return fmax(x, 0) + log1p(exp(-fabs(x)));
}

const struct ct_op_type ct_op_sigmoid = {
    .size = sizeof(struct ct_op_type),
    .name = "sigmoid",
    .summary = "1 / (1 + e^-x), in float32",
    .signature = "x[.] T -> y[.] W",
    CT_FORMULA("y = sigmoid(x)"),
    .samples = "real[2,4,6]",
};

const struct ct_op_type ct_op_decay = {
    .size = sizeof(struct ct_op_type),
    .name = "decay",
    .summary = "-e^a softplus(x + bias), in float32",
    .signature = "x[.h] T, a[h] T, bias[h] T -> y[.h] W",
    CT_FORMULA("s = x + bias; p = s > 0 ? s + log1p(exp(0 - s)) : log1p(exp(s)); "
               "y = 0 - exp(a) * p"),
    .samples = "real[2,4,6] real[6] real[6]; zero[2,4,6] real[6] zero[6]",
};

struct ct_value *ct_sigmoid(struct ct_builder *b, const char *name, struct ct_value *x)
{
    return ct_emit_type1(b, &ct_op_sigmoid, name, &x, 1, NULL);
}

struct ct_value *ct_decay(struct ct_builder *b, const char *name, struct ct_value *x,
                          struct ct_value *a, struct ct_value *bias)
{
    return ct_emit_type1(b, &ct_op_decay, name, (struct ct_value *[]){x, a, bias}, 3, NULL);
}
