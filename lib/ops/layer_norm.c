/*
 * Layer norm (Ba et al. 2016). Besides the operands, the gradient needs the row statistics mean and
 * rstd, 1 over the standard deviation.
 */
#include <ctitan/pointwise.h>

#include "list.h"

const struct ct_op_type ct_op_layer_norm = {
    .size = sizeof(struct ct_op_type),
    .name = "layer_norm",
    .summary = "y = (x - mean of x) w / standard deviation of x, plus a bias",
    .signature = "x[.K] T, w[K] T, ?bias[K] T -> y[.K] T, mean[.] W, rstd[.] W",
    .attrs = (const struct ct_option[]){CT_OPT_FLOAT(struct ct_layer_norm, eps, "eps", "1e-05", 0,
                                                     1, "Added to the variance"),
                                        {0}},
    .attrs_size = sizeof(struct ct_layer_norm),
    CT_FORMULA("mean = row_mean(x); c = x - mean; rstd = 1 / sqrt(row_mean(c * c) + eps);"
               "y = c * rstd * w + bias"),
    .samples = "eps=0.01: real[2,4,6] real[6] real[6];"
               " eps=0.01: real[2,4,6] real[6]",
};

struct ct_value *ct_layer_norm(struct ct_builder *b, const char *name, struct ct_value *x,
                               struct ct_value *w, struct ct_value *bias, double eps)
{
    return ct_emit_type1(b, &ct_op_layer_norm, name, (struct ct_value *[]){x, w, bias},
                         bias ? 3 : 2, &(struct ct_layer_norm){eps});
}
