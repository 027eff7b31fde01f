/*
 * Elementwise ops.
 */
#include <math.h>

#include "standard.h"

/* ---- add ---- */

static int add_reference(const struct ct_launch *l)
{
    struct ct_reference r = ct_reference_begin(l);

    for (int64_t i = 0; i < ct_tensor_count(&l->out[0]); i++)
        r.out[0][i] = r.in[0][i] + r.in[1][i];
    return ct_reference_end(&r, 0);
}

static int add_vjp(struct ct_vjp *v)
{
    v->din[0] = v->din[1] = v->dout[0];
    return 0;
}

const struct ct_op_type ct_op_add = {
    .name = "add",
    .summary = "x + y",
    .operands = "x T, y T -> z T",
    .rule = ".,.->.",
    .flags = CT_OP_LINEAR,
    .inplace = (const int8_t[][2]){{0, 0}, {0, 1}, {-1, -1}},
    .vjp = add_vjp,
    .reference = add_reference,
};

struct ct_value *ct_add(struct ct_builder *b, const char *name, struct ct_value *x,
                        struct ct_value *y)
{
    return ct_emit1(b, "add", name, (struct ct_value *[]){x, y}, 2, NULL);
}

/* ---- swiglu ---- */

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

static int swiglu_reference(const struct ct_launch *l)
{
    struct ct_reference r = ct_reference_begin(l);

    for (int64_t i = 0; i < ct_tensor_count(&l->out[0]); i++)
        r.out[0][i] = r.in[0][i] * sigmoid(r.in[0][i]) * r.in[1][i];
    return ct_reference_end(&r, 0);
}

static int swiglu_vjp(struct ct_vjp *v)
{
    return ct_emit_gradients(v, "swiglu_grad",
                             (struct ct_value *[]){v->dout[0], v->op->in[0], v->op->in[1]}, 3, NULL,
                             (int[]){0, 1}, 2);
}

const struct ct_op_type ct_op_swiglu = {
    .name = "swiglu",
    .summary = "silu(gate) up",
    .operands = "gate T, up T -> y T",
    .rule = ".,.->.",
    .vjp = swiglu_vjp,
    .reference = swiglu_reference,
};

static int swiglu_grad_reference(const struct ct_launch *l)
{
    struct ct_reference r = ct_reference_begin(l);

    for (int64_t i = 0; i < ct_tensor_count(&l->in[0]); i++) {
        double dy = r.in[0][i], gate = r.in[1][i], up = r.in[2][i], s = sigmoid(gate);

        r.out[0][i] = dy * up * s * (1 + gate * (1 - s));
        r.out[1][i] = dy * gate * s;
    }
    return ct_reference_end(&r, 0);
}

const struct ct_op_type ct_op_swiglu_grad = {
    .name = "swiglu_grad",
    .summary = "gradient of swiglu",
    .operands = "dy T, gate T, up T -> dgate T, dup T",
    .rule = ".,.,.->.,.",
    .outputs = "dup",
    .inplace = (const int8_t[][2]){{0, 1}, {1, 2}, {-1, -1}},
    .reference = swiglu_grad_reference,
};

struct ct_value *ct_swiglu(struct ct_builder *b, const char *name, struct ct_value *gate,
                           struct ct_value *up)
{
    return ct_emit1(b, "swiglu", name, (struct ct_value *[]){gate, up}, 2, NULL);
}

/* ---- cast ---- */

struct cast {
    const char *dtype;
};

static int cast_infer(struct ct_op *op)
{
    const char *name = ct_op_string(op, "dtype");
    enum ct_dtype dtype;
    int rc;

    if (!name)
        return ct_fail(CT_EINVAL, "no dtype is given");
    rc = ct_dtype_parse(name, &dtype);
    if (rc < 0)
        return rc;
    if (!ct_dtype_is_float(dtype))
        return ct_fail(CT_EINVAL, "%s is not a floating-point dtype", name);
    op->out[0]->dtype = dtype;
    return 0;
}

static int copy_reference(const struct ct_launch *l)
{
    struct ct_reference r = ct_reference_begin(l);

    for (int64_t i = 0; i < ct_tensor_count(&l->out[0]); i++)
        r.out[0][i] = r.in[0][i];
    return ct_reference_end(&r, 0);
}

static int cast_vjp(struct ct_vjp *v)
{
    struct cast back = {ct_dtype_name(v->op->in[0]->dtype)};

    return ct_emit_gradients(v, "cast", &v->dout[0], 1, &back, (int[]){0}, 1);
}

const struct ct_op_type ct_op_cast = {
    .name = "cast",
    .summary = "the same numbers in another floating-point dtype",
    .operands = "x T -> y T",
    .rule = ".->.",
    .flags = CT_OP_LINEAR,
    .attrs =
        (const struct ct_option[]){
            CT_OPT_STRING(struct cast, dtype, "dtype", NULL, "Dtype of the result"), {0}},
    .attrs_size = sizeof(struct cast),
    .infer = cast_infer,
    .vjp = cast_vjp,
    .reference = copy_reference,
};

struct ct_value *ct_cast(struct ct_builder *b, const char *name, struct ct_value *x,
                         enum ct_dtype dtype)
{
    return ct_emit1(b, "cast", name, &x, 1, &(struct cast){ct_dtype_name(dtype)});
}

/* ---- reciprocal ---- */

static int reciprocal_reference(const struct ct_launch *l)
{
    struct ct_reference r = ct_reference_begin(l);

    for (int64_t i = 0; i < ct_tensor_count(&l->out[0]); i++)
        r.out[0][i] = 1 / r.in[0][i];
    return ct_reference_end(&r, 0);
}

const struct ct_op_type ct_op_reciprocal = {
    .name = "reciprocal",
    .summary = "1 / x",
    .operands = "x T -> y T",
    .rule = ".->.",
    .inplace = (const int8_t[][2]){{0, 0}, {-1, -1}},
    .reference = reciprocal_reference,
};
