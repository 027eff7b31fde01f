/*
 * A bias: the same row added to every row of x.
 */
#include <ctitan/pointwise.h>

#include "list.h"

const struct ct_op_type ct_op_bias = {
    .size = sizeof(struct ct_op_type),
    .name = "bias",
    .summary = "x plus one row",
    .signature = "x[.n] T, row[n] T -> y[.n] T",
    .inplace = (const int8_t[][2]){{0, 0}, {-1, -1}},
    CT_FORMULA("y = x + row"),
    .samples = "real[2,4,6] real[6];"
               " real[6] real[6]",
};

struct ct_value *ct_bias(struct ct_builder *b, const char *name, struct ct_value *x,
                         struct ct_value *row)
{
    return ct_emit_type1(b, &ct_op_bias, name, (struct ct_value *[]){x, row}, 2, NULL);
}
