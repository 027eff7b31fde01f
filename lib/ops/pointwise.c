/*
 * Pointwise ops of models. Each gradient needs only the inputs of its op.
 */
#include <math.h>

#include "list.h"

/* ---- mul ---- */

static int mul_reference(const struct ct_launch *l)
{
    struct ct_reference r = ct_reference_begin(l);

    for (int64_t i = 0; i < ct_tensor_count(&l->out[0]); i++)
        r.out[0][i] = r.in[0][i] * r.in[1][i];
    return ct_reference_end(&r, 0);
}

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
    .reference = mul_reference,
    .pointwise = "z = x * y",
    .samples = "real[2,4,6] real[2,4,6]",
};

struct ct_value *ct_mul(struct ct_builder *b, const char *name, struct ct_value *x,
                        struct ct_value *y)
{
    return ct_emit_type1(b, &ct_op_mul, name, (struct ct_value *[]){x, y}, 2, NULL);
}

/* ---- scale ---- */

static int scale_reference(const struct ct_launch *l)
{
    struct ct_reference r = ct_reference_begin(l);
    double factor = ((const struct ct_scale *)l->op->attrs)->factor;

    for (int64_t i = 0; i < ct_tensor_count(&l->out[0]); i++)
        r.out[0][i] = factor * r.in[0][i];
    return ct_reference_end(&r, 0);
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
    .reference = scale_reference,
    .pointwise = "y = factor * x",
    .samples = "factor=-3: real[2,4]",
};

struct ct_value *ct_scale(struct ct_builder *b, const char *name, struct ct_value *x, double factor)
{
    return ct_emit_type1(b, &ct_op_scale, name, &x, 1, &(struct ct_scale){factor});
}

/* ---- activations ---- */

/* f(x), or dy f'(x) */
static int activate(const struct ct_launch *l, double (*f)(double))
{
    struct ct_reference r = ct_reference_begin(l);

    for (int64_t i = 0; i < ct_tensor_count(&l->out[0]); i++)
        r.out[0][i] = l->ins == 1 ? f(r.in[0][i]) : r.in[0][i] * f(r.in[1][i]);
    return ct_reference_end(&r, 0);
}

static int activation_vjp(struct ct_vjp *v, const struct ct_op_type *gradient)
{
    return ct_emit_gradients(v, gradient, (struct ct_value *[]){v->dout[0], v->op->in[0]}, 2,
                             v->op->attrs, (int[]){0}, 1);
}

/* ---- silu ---- */

static double silu(double x)
{
    return x * sigmoid_of(x);
}

static double silu_slope(double x)
{
    double s = sigmoid_of(x);

    return s * (1 + x * (1 - s));
}

static int silu_reference(const struct ct_launch *l)
{
    return activate(l, silu);
}

static int silu_vjp(struct ct_vjp *v)
{
    return activation_vjp(v, &ct_op_silu_grad);
}

const struct ct_op_type ct_op_silu = {
    .size = sizeof(struct ct_op_type),
    .name = "silu",
    .summary = "x / (1 + e^-x)",
    .signature = "x[.] T -> y[.] T",
    .inplace = (const int8_t[][2]){{0, 0}, {-1, -1}},
    .vjp = silu_vjp,
    .reference = silu_reference,
    .pointwise = "y = x * sigmoid(x)",
    .samples = "real[2,4,6]",
};

static int silu_grad_reference(const struct ct_launch *l)
{
    return activate(l, silu_slope);
}

const struct ct_op_type ct_op_silu_grad = {
    .size = sizeof(struct ct_op_type),
    .name = "silu_grad",
    .summary = "gradient of silu",
    .signature = "dy[.] T, x[.] T -> dx[.] T",
    .inplace = (const int8_t[][2]){{0, 0}, {0, 1}, {-1, -1}},
    .reference = silu_grad_reference,
    .pointwise = "s = sigmoid(x); dx = dy * (s * (1 + x * (1 - s)))",
    .samples = "real[2,4,6] real[2,4,6]",
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

#define ROOT_2_OVER_PI 0.79788456080286535588
#define ROOT_1_OVER_2 0.70710678118654752440

static double gelu(double x)
{
    return 0.5 * x * (1 + erf(ROOT_1_OVER_2 * x));
}

static double gelu_slope(double x)
{
    return 0.5 * (1 + erf(ROOT_1_OVER_2 * x)) + 0.5 * ROOT_2_OVER_PI * x * exp(-0.5 * x * x);
}

static double gelu_tanh(double x)
{
    return 0.5 * x * (1 + tanh(ROOT_2_OVER_PI * (x + 0.044715 * x * x * x)));
}

static double gelu_tanh_slope(double x)
{
    double t = tanh(ROOT_2_OVER_PI * (x + 0.044715 * x * x * x));

    return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * ROOT_2_OVER_PI * (1 + 3 * 0.044715 * x * x);
}

static bool approximates(const struct ct_op *op)
{
    return ((const struct ct_gelu *)op->attrs)->approximate == CT_GELU_TANH;
}

static int gelu_reference(const struct ct_launch *l)
{
    return activate(l, approximates(l->op) ? gelu_tanh : gelu);
}

static int gelu_vjp(struct ct_vjp *v)
{
    return activation_vjp(v, &ct_op_gelu_grad);
}

const struct ct_op_type ct_op_gelu = {
    .size = sizeof(struct ct_op_type),
    .name = "gelu",
    .summary = "x Phi(x), where Phi is the normal distribution function",
    .signature = "x[.] T -> y[.] T",
    .attrs = gelu_attrs,
    .attrs_size = sizeof(struct ct_gelu),
    .inplace = (const int8_t[][2]){{0, 0}, {-1, -1}},
    .vjp = gelu_vjp,
    .reference = gelu_reference,
    .pointwise = "s = sigmoid(x * (1.5957691216057308 + 0.07135481627260025 * x * x));"
                 "e = erf(0.70710678118654752440 * x);"
                 "y = approximate ? x * s : 0.5 * x * (1 + e)",
    .samples = "real[2,4,6];"
               " approximate=tanh: real[2,4,6]",
};

static int gelu_grad_reference(const struct ct_launch *l)
{
    return activate(l, approximates(l->op) ? gelu_tanh_slope : gelu_slope);
}

const struct ct_op_type ct_op_gelu_grad = {
    .size = sizeof(struct ct_op_type),
    .name = "gelu_grad",
    .summary = "gradient of gelu",
    .signature = "dy[.] T, x[.] T -> dx[.] T",
    .attrs = gelu_attrs,
    .attrs_size = sizeof(struct ct_gelu),
    .inplace = (const int8_t[][2]){{0, 0}, {0, 1}, {-1, -1}},
    .reference = gelu_grad_reference,
    .pointwise = "s = sigmoid(x * (1.5957691216057308 + 0.07135481627260025 * x * x));"
                 "t = s + x * s * (1 - s) * (1.5957691216057308 + 0.21406444881780076 * x * x);"
                 "e = erf(0.70710678118654752440 * x);"
                 "n = 0.39894228040143267794 * exp(-0.5 * x * x);"
                 "dx = dy * (approximate ? t : 0.5 * (1 + e) + x * n)",
    .samples = "real[2,4,6] real[2,4,6];"
               " approximate=tanh: real[2,4,6] real[2,4,6]",
};

struct ct_value *ct_gelu(struct ct_builder *b, const char *name, struct ct_value *x,
                         bool approximate)
{
    return ct_emit_type1(b, &ct_op_gelu, name, &x, 1,
                         &(struct ct_gelu){approximate ? CT_GELU_TANH : CT_GELU_EXACT});
}

/* ---- swiglu ---- */

static int swiglu_reference(const struct ct_launch *l)
{
    struct ct_reference r = ct_reference_begin(l);

    for (int64_t i = 0; i < ct_tensor_count(&l->out[0]); i++)
        r.out[0][i] = silu(r.in[0][i]) * r.in[1][i];
    return ct_reference_end(&r, 0);
}

static int swiglu_vjp(struct ct_vjp *v)
{
    return ct_emit_gradients(v, &ct_op_swiglu_grad,
                             (struct ct_value *[]){v->dout[0], v->op->in[0], v->op->in[1]}, 3, NULL,
                             (int[]){0, 1}, 2);
}

const struct ct_op_type ct_op_swiglu = {
    .size = sizeof(struct ct_op_type),
    .name = "swiglu",
    .summary = "silu(gate) up",
    .signature = "gate[.] T, up[.] T -> y[.] T",
    .vjp = swiglu_vjp,
    .reference = swiglu_reference,
    .pointwise = "y = gate * sigmoid(gate) * up",
    .samples = "real[2,4,6] real[2,4,6]",
};

static int swiglu_grad_reference(const struct ct_launch *l)
{
    struct ct_reference r = ct_reference_begin(l);

    for (int64_t i = 0; i < ct_tensor_count(&l->in[0]); i++) {
        double dy = r.in[0][i], gate = r.in[1][i], up = r.in[2][i];

        r.out[0][i] = dy * up * silu_slope(gate);
        r.out[1][i] = dy * silu(gate);
    }
    return ct_reference_end(&r, 0);
}

const struct ct_op_type ct_op_swiglu_grad = {
    .size = sizeof(struct ct_op_type),
    .name = "swiglu_grad",
    .summary = "gradient of swiglu",
    .signature = "dy[.] T, gate[.] T, up[.] T -> dgate[.] T, dup[.] T",
    .inplace = (const int8_t[][2]){{0, 1}, {1, 2}, {-1, -1}},
    .reference = swiglu_grad_reference,
    .pointwise = "s = sigmoid(gate);"
                 "dgate = dy * up * (s * (1 + gate * (1 - s)));"
                 "dup = dy * (gate * s)",
    .samples = "real[2,4,6] real[2,4,6] real[2,4,6]",
};

struct ct_value *ct_swiglu(struct ct_builder *b, const char *name, struct ct_value *gate,
                           struct ct_value *up)
{
    return ct_emit_type1(b, &ct_op_swiglu, name, (struct ct_value *[]){gate, up}, 2, NULL);
}
