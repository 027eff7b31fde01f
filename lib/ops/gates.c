/*
 * Gates: sigmoids in float32, and by how much the states of recurrent mixers forget.
 */
#include <math.h>

#include "list.h"

double sigmoid_of(double x)
{
    return 1 / (1 + exp(-x));
}

double softplus_of(double x)
{
    return fmax(x, 0) + log1p(exp(-fabs(x)));
}

static int sigmoid_reference(const struct ct_launch *l)
{
    struct ct_reference r = ct_reference_begin(l);

    for (int64_t i = 0; i < ct_tensor_count(&l->in[0]); i++)
        r.out[0][i] = sigmoid_of(r.in[0][i]);
    return ct_reference_end(&r, 0);
}

static int sigmoid_grad_reference(const struct ct_launch *l)
{
    struct ct_reference r = ct_reference_begin(l);

    for (int64_t i = 0; i < ct_tensor_count(&l->in[0]); i++)
        r.out[0][i] = r.in[0][i] * r.in[1][i] * (1 - r.in[1][i]);
    return ct_reference_end(&r, 0);
}

static int decay_reference(const struct ct_launch *l)
{
    struct ct_reference r = ct_reference_begin(l);
    int64_t n = ct_columns(&l->in[0]);

    for (int64_t i = 0; i < ct_tensor_count(&l->in[0]); i++)
        r.out[0][i] = -exp(r.in[1][i % n]) * softplus_of(r.in[0][i] + r.in[2][i % n]);
    return ct_reference_end(&r, 0);
}

static int decay_grad_reference(const struct ct_launch *l)
{
    struct ct_reference r = ct_reference_begin(l);
    int64_t n = ct_columns(&l->in[0]);

    for (int64_t i = 0; i < ct_tensor_count(&l->in[0]); i++) {
        double e = -exp(r.in[2][i % n]) * r.in[0][i], s = r.in[1][i] + r.in[3][i % n];

        r.out[0][i] = e * sigmoid_of(s);
        r.out[1][i % n] += e * softplus_of(s);
        r.out[2][i % n] += e * sigmoid_of(s);
    }
    return ct_reference_end(&r, 0);
}

static int sigmoid_vjp(struct ct_vjp *v)
{
    return ct_emit_gradients(v, &ct_op_sigmoid_grad,
                             (struct ct_value *[]){v->dout[0], v->op->out[0], v->op->in[0]}, 3,
                             NULL, (int[]){0}, 1);
}

const struct ct_op_type ct_op_sigmoid = {
    .size = sizeof(struct ct_op_type),
    .name = "sigmoid",
    .summary = "1 / (1 + e^-x), in float32",
    .signature = "x[.] T -> y[.] W",
    .vjp = sigmoid_vjp,
    .reference = sigmoid_reference,
    .pointwise = "y = sigmoid(x)",
    .samples = "real[2,4,6]",
};

const struct ct_op_type ct_op_sigmoid_grad = {
    .size = sizeof(struct ct_op_type),
    .name = "sigmoid_grad",
    .summary = "gradient of sigmoid, in the dtype of x",
    .signature = "dy[.] W, y[.] W, x[.] T -> dx[.] T",
    .reference = sigmoid_grad_reference,
    .pointwise = "dx = dy * y * (1 - y)",
    .samples = "statistic[2,4,6] statistic[2,4,6] real[2,4,6]",
};

static int decay_vjp(struct ct_vjp *v)
{
    struct ct_value **in = v->op->in;

    return ct_emit_gradients(v, &ct_op_decay_grad,
                             (struct ct_value *[]){v->dout[0], in[0], in[1], in[2]}, 4, NULL,
                             (int[]){0, 1, 2}, 3);
}

#define SOFTPLUS "s = x + bias; p = max(s, 0) + log(1 + exp(0 - abs(s))); "

const struct ct_op_type ct_op_decay = {
    .size = sizeof(struct ct_op_type),
    .name = "decay",
    .summary = "-e^a softplus(x + bias), in float32",
    .signature = "x[.h] T, a[h] T, bias[h] T -> y[.h] W",
    .vjp = decay_vjp,
    .reference = decay_reference,
    .pointwise = SOFTPLUS "y = 0 - exp(a) * p",
    .samples = "real[2,4,6] real[6] real[6]",
};

const struct ct_op_type ct_op_decay_grad = {
    .size = sizeof(struct ct_op_type),
    .name = "decay_grad",
    .summary = "gradient of decay",
    .signature = "dy[.h] W, x[.h] T, a[h] T, bias[h] T -> dx[.h] T, da[h] T, dbias[h] T",
    .flags = CT_OP_ANY_DTYPE,
    .reference = decay_grad_reference,
    .pointwise = SOFTPLUS "e = 0 - exp(a) * dy; g = e * sigmoid(s); dx = g; "
                          "da = column_sum(e * p); dbias = column_sum(g)",
    .samples = "statistic[2,4,6] real[2,4,6] real[6] real[6]",
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
