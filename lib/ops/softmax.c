/*
 * Softmax over the last dimension.
 */
#include <math.h>

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

static int softmax_reference(const struct ct_launch *l)
{
    struct ct_reference r = ct_reference_begin(l);
    int64_t n = ct_columns(&l->in[0]);

    for (int64_t row = 0; row < ct_rows(&l->in[0]); row++)
        softmax_of(r.in[0] + row * n, n, r.out[0] + row * n);
    return ct_reference_end(&r, 0);
}

static int softmax_vjp(struct ct_vjp *v)
{
    return ct_emit_gradients(v, &ct_op_softmax_grad,
                             (struct ct_value *[]){v->dout[0], v->op->out[0]}, 2, NULL, (int[]){0},
                             1);
}

const struct ct_op_type ct_op_softmax = {
    .size = sizeof(struct ct_op_type),
    .name = "softmax",
    .summary = "e^x over its sum along the last dimension",
    .signature = "x[.K] T -> y[.K] T",
    .inplace = (const int8_t[][2]){{0, 0}, {-1, -1}},
    .vjp = softmax_vjp,
    .reference = softmax_reference,
    .pointwise = "e = exp(x - row_max(x)); y = e / row_sum(e)",
    .samples = "real[2,4,6]",
};

static int softmax_grad_reference(const struct ct_launch *l)
{
    struct ct_reference r = ct_reference_begin(l);
    int64_t n = ct_columns(&l->in[0]);

    for (int64_t row = 0; row < ct_rows(&l->in[0]); row++) {
        const double *dy = r.in[0] + row * n, *y = r.in[1] + row * n;
        double mean = 0;

        for (int64_t i = 0; i < n; i++)
            mean += dy[i] * y[i];
        for (int64_t i = 0; i < n; i++)
            r.out[0][row * n + i] = y[i] * (dy[i] - mean);
    }
    return ct_reference_end(&r, 0);
}

const struct ct_op_type ct_op_softmax_grad = {
    .size = sizeof(struct ct_op_type),
    .name = "softmax_grad",
    .summary = "gradient of softmax",
    .signature = "dy[.K] T, y[.K] T -> dx[.K] T",
    .inplace = (const int8_t[][2]){{0, 0}, {0, 1}, {-1, -1}},
    .reference = softmax_grad_reference,
    .pointwise = "dx = y * (dy - row_sum(dy * y))",
    .samples = "real[2,4,6] positive[2,4,6]",
};

struct ct_value *ct_softmax(struct ct_builder *b, const char *name, struct ct_value *x)
{
    return ct_emit_type1(b, &ct_op_softmax, name, &x, 1, NULL);
}
