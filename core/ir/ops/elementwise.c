/*
 * Elementwise ops that the core emits.
 */
#include <ctitan/core_ops.h>
#include <ctitan/op_author.h>
#include <ctitan/pointwise.h>

static int add_vjp(struct ct_vjp *v)
{
    v->din[0] = v->din[1] = v->dout[0];
    return 0;
}

const struct ct_op_type ct_op_add = {
    .size = sizeof(struct ct_op_type),
    .name = "add",
    .summary = "x + y",
    .signature = "x[.] T, y[.] T -> z[.] T",
    .flags = CT_OP_LINEAR,
    .inplace = (const int8_t[][2]){{0, 0}, {0, 1}, {-1, -1}},
    .vjp = add_vjp,
    .reference = ct_pointwise_reference,
    .pointwise = "z = x + y",
    .samples = "real[2,4] real[2,4];"
               " real[] real[]",
};

struct ct_value *ct_add(struct ct_builder *b, const char *name, struct ct_value *x,
                        struct ct_value *y)
{
    return ct_emit_type1(b, &ct_op_add, name, (struct ct_value *[]){x, y}, 2, NULL);
}

/* ---- cast ---- */

static int cast_infer(struct ct_op *op)
{
    const struct ct_cast *cast = op->attrs;

    if (cast->dtype >= CT_DTYPE_COUNT)
        return ct_fail(CT_EINVAL, "no dtype is given");
    if (!ct_dtype_is_float(cast->dtype))
        return ct_fail(CT_EINVAL, "%s is not a floating-point dtype", ct_dtype_name(cast->dtype));
    op->out[0]->dtype = cast->dtype;
    return 0;
}

static int cast_vjp(struct ct_vjp *v)
{
    struct ct_cast back = {v->op->in[0]->dtype};

    return ct_emit_gradients(v, &ct_op_cast, &v->dout[0], 1, &back, (int[]){0}, 1);
}

const struct ct_op_type ct_op_cast = {
    .size = sizeof(struct ct_op_type),
    .name = "cast",
    .summary = "the same numbers in another floating-point dtype",
    .signature = "x[.] T -> y[.] T",
    .flags = CT_OP_LINEAR,
    .attrs =
        (const struct ct_option[]){
            CT_OPT_DTYPE(struct ct_cast, dtype, "dtype", NULL, "Dtype of the result"), {0}},
    .attrs_size = sizeof(struct ct_cast),
    .infer = cast_infer,
    .vjp = cast_vjp,
    .reference = ct_pointwise_reference,
    .pointwise = "y = x",
    .samples = "@step=0.5 dtype=float32: real[2,4];"
               " dtype=float64: real[2,4]",
};

struct ct_value *ct_cast(struct ct_builder *b, const char *name, struct ct_value *x,
                         enum ct_dtype dtype)
{
    return ct_emit_type1(b, &ct_op_cast, name, &x, 1, &(struct ct_cast){dtype});
}

const struct ct_op_type ct_op_reciprocal = {
    .size = sizeof(struct ct_op_type),
    .name = "reciprocal",
    .summary = "numerator / x",
    .signature = "x[.] T -> y[.] T",
    .attrs = (const struct ct_option[]){CT_OPT_FLOAT(struct ct_reciprocal, numerator, "numerator",
                                                     "1", -1e300, 1e300, "What is divided"),
                                        {0}},
    .attrs_size = sizeof(struct ct_reciprocal),
    .inplace = (const int8_t[][2]){{0, 0}, {-1, -1}},
    .reference = ct_pointwise_reference,
    .pointwise = "y = numerator / x",
    .samples = "positive[2,4]; numerator=0.3: positive[2,4]",
};
