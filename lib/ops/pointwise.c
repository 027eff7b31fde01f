/*
 * Pointwise ops of models: each is its formula.
 */
#include <ctitan/pointwise.h>

#include "list.h"

static int mul_vjp(struct ct_vjp *v)
{
    for (int i = 0; i < 2; i++)
        if (v->wanted[i])
            v->din[i] = ct_mul(v->b, ct_gradient_name(v, i), v->dout[0], v->op->in[1 - i]);
    return v->b->status;
}

const struct ct_op_type ct_op_mul = {
    .size = sizeof(struct ct_op_type),
    .name = "mul",
    .summary = "x y, elementwise",
    .signature = "x[.] T, y[.] T -> z[.] T",
    .inplace = (const int8_t[][2]){{0, 0}, {0, 1}, {-1, -1}},
    .vjp = mul_vjp,
    .reference = ct_pointwise_reference,
    .pointwise = "z = x * y",
    .samples = "real[2,4,6] real[2,4,6]",
};

struct ct_value *ct_mul(struct ct_builder *b, const char *name, struct ct_value *x,
                        struct ct_value *y)
{
    return ct_emit_type1(b, &ct_op_mul, name, (struct ct_value *[]){x, y}, 2, NULL);
}

static int scale_vjp(struct ct_vjp *v)
{
    return ct_emit_gradients(v, &ct_op_scale, v->dout, 1, v->op->attrs, (int[]){0}, 1);
}

const struct ct_op_type ct_op_scale = {
    .size = sizeof(struct ct_op_type),
    .name = "scale",
    .summary = "x times a constant",
    .signature = "x[.] T -> y[.] T",
    .flags = CT_OP_LINEAR,
    .attrs = (const struct ct_option[]){CT_OPT_FLOAT(struct ct_scale, factor, "factor", "1", -1e300,
                                                     1e300, "The constant"),
                                        {0}},
    .attrs_size = sizeof(struct ct_scale),
    .inplace = (const int8_t[][2]){{0, 0}, {-1, -1}},
    .vjp = scale_vjp,
    .reference = ct_pointwise_reference,
    .pointwise = "y = factor * x",
    .samples = "factor=-3: real[2,4]",
};

struct ct_value *ct_scale(struct ct_builder *b, const char *name, struct ct_value *x, double factor)
{
    return ct_emit_type1(b, &ct_op_scale, name, &x, 1, &(struct ct_scale){factor});
}

const struct ct_op_type ct_op_silu = {
    .size = sizeof(struct ct_op_type),
    .name = "silu",
    .summary = "x / (1 + e^-x)",
    .signature = "x[.] T -> y[.] T",
    .inplace = (const int8_t[][2]){{0, 0}, {-1, -1}},
    CT_FORMULA("y = x * sigmoid(x)"),
    .samples = "real[2,4,6]",
};

struct ct_value *ct_silu(struct ct_builder *b, const char *name, struct ct_value *x)
{
    return ct_emit_type1(b, &ct_op_silu, name, &x, 1, NULL);
}

/* ---- gelu ---- */

static const struct ct_option gelu_attrs[] = {
    CT_OPT_ENUM(struct ct_gelu, approximate, "approximate", "none", "none|tanh",
                "none: x Phi(x); tanh: x (1 + tanh(root of 2/pi (x + 0.044715 x^3))) / 2"),
    {0}};

const struct ct_op_type ct_op_gelu = {
    .size = sizeof(struct ct_op_type),
    .name = "gelu",
    .summary = "x Phi(x), where Phi is the normal distribution function",
    .signature = "x[.] T -> y[.] T",
    .attrs = gelu_attrs,
    .attrs_size = sizeof(struct ct_gelu),
    .inplace = (const int8_t[][2]){{0, 0}, {-1, -1}},
    CT_FORMULA("s = sigmoid(x * (1.5957691216057308 + 0.07135481627260025 * x * x));"
               "e = erf(0.70710678118654752440 * x);"
               "y = approximate ? x * s : 0.5 * x * (1 + e)"),
    .samples = "real[2,4,6];"
               " approximate=tanh: real[2,4,6]",
};

struct ct_value *ct_gelu(struct ct_builder *b, const char *name, struct ct_value *x,
                         bool approximate)
{
    return ct_emit_type1(b, &ct_op_gelu, name, &x, 1,
                         &(struct ct_gelu){approximate ? CT_GELU_TANH : CT_GELU_EXACT});
}

const struct ct_op_type ct_op_swiglu = {
    .size = sizeof(struct ct_op_type),
    .name = "swiglu",
    .summary = "silu(gate) up",
    .signature = "gate[.] T, up[.] T -> y[.] T",
    CT_FORMULA("y = gate * sigmoid(gate) * up"),
    .samples = "real[2,4,6] real[2,4,6]",
};

struct ct_value *ct_swiglu(struct ct_builder *b, const char *name, struct ct_value *gate,
                           struct ct_value *up)
{
    return ct_emit_type1(b, &ct_op_swiglu, name, (struct ct_value *[]){gate, up}, 2, NULL);
}
