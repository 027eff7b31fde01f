/*
 * Rows times a number each, and ones.
 */
#include <ctitan/pointwise.h>

#include "list.h"

const struct ct_op_type ct_op_scale_rows = {
    .size = sizeof(struct ct_op_type),
    .name = "scale_rows",
    .summary = "rows of x times a number each",
    .signature = "x[.N] T, w[.] W -> y[.N] T",
    CT_FORMULA("y = x * w"),
    .samples = "real[2,4,6] statistic[2,4]",
};

static int ones_reference(const struct ct_launch *l)
{
    struct ct_reference r = ct_reference_begin(l);

    for (int64_t i = 0; i < ct_tensor_count(&l->out[0]); i++)
        r.out[0][i] = 1;
    return ct_reference_end(&r, 0);
}

/* Zeros: x has no part in the result. */
static int ones_vjp(struct ct_vjp *v)
{
    return ct_emit_gradients(v, &ct_op_scale, v->dout, 1, &(struct ct_scale){0}, (int[]){0}, 1);
}

const struct ct_op_type ct_op_ones = {
    .size = sizeof(struct ct_op_type),
    .name = "ones",
    .summary = "ones, in the shape and dtype of x",
    .signature = "x[.] T -> y[.] T",
    .vjp = ones_vjp,
    .reference = ones_reference,
    .samples = "statistic[2,4,1]",
};

struct ct_value *ct_scale_rows(struct ct_builder *b, const char *name, struct ct_value *x,
                               struct ct_value *w)
{
    return ct_emit_type1(b, &ct_op_scale_rows, name, (struct ct_value *[]){x, w}, 2, NULL);
}

struct ct_value *ct_ones(struct ct_builder *b, const char *name, struct ct_value *x)
{
    return ct_emit_type1(b, &ct_op_ones, name, &x, 1, NULL);
}
