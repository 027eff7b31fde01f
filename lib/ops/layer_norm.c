/*
 * Layer norm (Ba et al. 2016). Besides the operands, the gradient needs the row statistics mean and
 * rstd, 1 over the standard deviation.
 */
#include <math.h>

#include "list.h"

static void statistics(const double *x, int64_t n, double eps, double *mean, double *rstd)
{
    double square = 0;

    *mean = 0;
    for (int64_t k = 0; k < n; k++)
        *mean += x[k] / (double)n;
    for (int64_t k = 0; k < n; k++)
        square += (x[k] - *mean) * (x[k] - *mean);
    *rstd = 1 / sqrt(square / (double)n + eps);
}

static int layer_norm_reference(const struct ct_launch *l)
{
    struct ct_reference r = ct_reference_begin(l);
    int64_t n = ct_columns(&l->in[0]);
    double eps = ((const struct ct_layer_norm *)l->op->attrs)->eps;
    const double *w = r.in[1], *bias = l->ins > 2 ? r.in[2] : NULL;

    for (int64_t i = 0; i < ct_rows(&l->in[0]); i++) {
        const double *x = r.in[0] + i * n;

        statistics(x, n, eps, &r.out[1][i], &r.out[2][i]);
        for (int64_t k = 0; k < n; k++)
            r.out[0][i * n + k] = (x[k] - r.out[1][i]) * r.out[2][i] * w[k] + (bias ? bias[k] : 0);
    }
    return ct_reference_end(&r, 0);
}

static int layer_norm_vjp(struct ct_vjp *v)
{
    struct ct_op *op = v->op;
    bool bias = op->ins > 2 && op->in[2];

    if (!v->dout[0])
        return 0;
    return ct_emit_gradients(
        v, &ct_op_layer_norm_grad,
        (struct ct_value *[]){v->dout[0], op->in[0], op->in[1], op->out[1], op->out[2]}, 5, NULL,
        (int[]){0, 1, 2}, bias ? 3 : 2);
}

const struct ct_op_type ct_op_layer_norm = {
    .size = sizeof(struct ct_op_type),
    .name = "layer_norm",
    .summary = "y = (x - mean of x) w / standard deviation of x, plus a bias",
    .signature = "x[.K] T, w[K] T, ?bias[K] T -> y[.K] T, mean[.] W, rstd[.] W",
    .attrs = (const struct ct_option[]){CT_OPT_FLOAT(struct ct_layer_norm, eps, "eps", "1e-05", 0,
                                                     1, "Added to the variance"),
                                        {0}},
    .attrs_size = sizeof(struct ct_layer_norm),
    .vjp = layer_norm_vjp,
    .reference = layer_norm_reference,
    .pointwise = "mean = row_mean(x); c = x - mean; rstd = 1 / sqrt(row_mean(c * c) + eps);"
                 "y = c * rstd * w + bias",
    .samples = "eps=0.01: real[2,4,6] real[6] real[6];"
               " eps=0.01: real[2,4,6] real[6]",
};

/* One row: x' = (x - mean) rstd, g = dy w; dx = rstd (g - mean of g - x' mean of g x'). */
static void gradient_row(const struct ct_reference *r, int64_t i, int64_t n)
{
    const double *dy = r->in[0] + i * n, *x = r->in[1] + i * n, *w = r->in[2];
    double mean = r->in[3][i], rstd = r->in[4][i], of_g = 0, of_gx = 0;

    for (int64_t k = 0; k < n; k++) {
        double whitened = (x[k] - mean) * rstd;

        of_g += dy[k] * w[k] / (double)n;
        of_gx += dy[k] * w[k] * whitened / (double)n;
        r->out[1][k] += dy[k] * whitened;
        r->out[2][k] += dy[k];
    }
    for (int64_t k = 0; k < n; k++)
        r->out[0][i * n + k] = rstd * (dy[k] * w[k] - of_g - (x[k] - mean) * rstd * of_gx);
}

static int layer_norm_grad_reference(const struct ct_launch *l)
{
    struct ct_reference r = ct_reference_begin(l);

    for (int64_t i = 0; i < ct_rows(&l->in[0]); i++)
        gradient_row(&r, i, ct_columns(&l->in[0]));
    return ct_reference_end(&r, 0);
}

const struct ct_op_type ct_op_layer_norm_grad = {
    .size = sizeof(struct ct_op_type),
    .name = "layer_norm_grad",
    .summary = "gradient of layer_norm",
    .signature = "dy[.K] T, x[.K] T, w[K] T, mean[.] W, rstd[.] W -> dx[.K] T, dw[K] T, dbias[K] T",
    .flags = CT_OP_ANY_DTYPE,
    .reference = layer_norm_grad_reference,
    .pointwise = "g = dy * w; z = (x - mean) * rstd;"
                 "dw = column_sum(dy * z); dbias = column_sum(dy);"
                 "dx = rstd * (g - row_mean(g) - z * row_mean(g * z))",
    .samples = "real[2,4,6] real[2,4,6] real[6] statistic[2,4] statistic[2,4]",
};

struct ct_value *ct_layer_norm(struct ct_builder *b, const char *name, struct ct_value *x,
                               struct ct_value *w, struct ct_value *bias, double eps)
{
    return ct_emit_type1(b, &ct_op_layer_norm, name, (struct ct_value *[]){x, w, bias},
                         bias ? 3 : 2, &(struct ct_layer_norm){eps});
}
