/*
 * Softmax over the last dimension.
 */
#include <math.h>

#include <ctitan/pointwise.h>

#include "list.h"

void softmax_of(const double *x, int64_t n, double *y)
{
    double largest = -INFINITY, sum = 0;

    for (int64_t i = 0; i < n; i++)
        largest = fmax(largest, x[i]);
    for (int64_t i = 0; i < n; i++)
        sum += y[i] = exp(x[i] - largest);
    for (int64_t i = 0; i < n; i++)
        y[i] /= sum;
}

const struct ct_op_type ct_op_softmax = {
    .size = sizeof(struct ct_op_type),
    .name = "softmax",
    .summary = "e^x over its sum along the last dimension",
    .signature = "x[.K] T -> y[.K] T",
    .inplace = (const int8_t[][2]){{0, 0}, {-1, -1}},
    CT_FORMULA("e = exp(x - row_max(x)); y = e / row_sum(e)"),
    .samples = "real[2,4,6]",
};

struct ct_value *ct_softmax(struct ct_builder *b, const char *name, struct ct_value *x)
{
    return ct_emit_type1(b, &ct_op_softmax, name, &x, 1, NULL);
}
