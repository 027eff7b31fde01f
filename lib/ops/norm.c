/*
 * Root mean square norm (Zhang and Sennrich 2019), alone and after a residual addition.
 */
#include <ctitan/lib/norm.h>
#include <ctitan/pointwise.h>

#include "list.h"

#define EPS CT_OPT_FLOAT(struct ct_rms_norm, eps, "eps", "1e-05", 0, 1, "Added to the mean square")
#define OFFSET(T) CT_OPT_FLOAT(T, offset, "offset", "0", -1e6, 1e6, "Added to the weight")

const struct ct_option ct_rms_norm_attrs[] = {EPS, OFFSET(struct ct_rms_norm), {0}};
static const struct ct_option plain_attrs[] = {EPS, {0}};
const struct ct_option ct_rms_norm_grad_attrs[] = {OFFSET(struct ct_rms_norm_grad), {0}};

static double offset_of(const struct ct_op *op)
{
    return ((const struct ct_rms_norm *)op->attrs)->offset;
}

static int rms_norm_vjp(struct ct_vjp *v)
{
    struct ct_op *op = v->op;

    if (!v->dout[0])
        return 0;
    return ct_emit_gradients(
        v, &ct_op_rms_norm_grad,
        (struct ct_value *[]){v->dout[0], op->in[0], op->in[1], op->out[1], NULL}, 5,
        &(struct ct_rms_norm_grad){offset_of(op)}, (int[]){0, 1}, 2);
}

const struct ct_op_type ct_op_rms_norm = {
    .size = sizeof(struct ct_op_type),
    .name = "rms_norm",
    .summary = "y = x w / root of the mean square of x",
    .signature = "x[.K] T, w[K] T -> y[.K] T, rstd[.] W",
    .attrs = ct_rms_norm_attrs,
    .attrs_size = sizeof(struct ct_rms_norm),
    .vjp = rms_norm_vjp,
    .reference = ct_pointwise_reference,
    .pointwise = "rstd = 1 / sqrt(row_mean(x * x) + eps); y = x * rstd * (offset + w)",
    .samples = "eps=0.01: real[2,4,6] real[6];"
               " eps=0.01 offset=1: real[2,4,6] real[6]",
};

static int rms_norm_plain_vjp(struct ct_vjp *v)
{
    if (!v->dout[0])
        return 0;
    return ct_emit_gradients(v, &ct_op_rms_norm_plain_grad,
                             (struct ct_value *[]){v->dout[0], v->op->in[0], v->op->out[1]}, 3,
                             NULL, (int[]){0}, 1);
}

const struct ct_op_type ct_op_rms_norm_plain = {
    .size = sizeof(struct ct_op_type),
    .name = "rms_norm_plain",
    .summary = "y = x / root of the mean square of x",
    .signature = "x[.K] T -> y[.K] T, rstd[.] W",
    .attrs = plain_attrs,
    .attrs_size = sizeof(struct ct_rms_norm),
    .vjp = rms_norm_plain_vjp,
    .reference = ct_pointwise_reference,
    .pointwise = "rstd = 1 / sqrt(row_mean(x * x) + eps); y = x * rstd",
    .samples = "eps=0.01: real[2,4,6]",
};

const struct ct_op_type ct_op_rms_norm_plain_grad = {
    .size = sizeof(struct ct_op_type),
    .name = "rms_norm_plain_grad",
    .summary = "gradient of rms_norm_plain",
    .signature = "dy[.K] T, x[.K] T, rstd[.] W -> dx[.K] T",
    .flags = CT_OP_ANY_DTYPE,
    .reference = ct_pointwise_reference,
    .pointwise = "z = x * rstd; dx = rstd * (dy - z * row_mean(dy * z))",
    .samples = "real[2,4,6] real[2,4,6] statistic[2,4]",
};

/* The gradient of the sum itself is added to that of the norm. */
static int add_rms_norm_vjp(struct ct_vjp *v)
{
    struct ct_value *dy = v->dout[0], *dsum = v->dout[1], *dx = dsum;
    struct ct_op *op = v->op;

    if (dy && (v->wanted[0] || v->wanted[1] || v->wanted[2])) {
        struct ct_op *grad =
            ct_emit_type(v->b, &ct_op_rms_norm_grad, ct_gradient_name(v, 0),
                         (struct ct_value *[]){dy, op->out[1], op->in[2], op->out[2], dsum}, 5,
                         &(struct ct_rms_norm_grad){offset_of(op)});

        if (!grad)
            return v->b->status;
        ct_value_rename(v->b->graph, grad->out[1], ct_gradient_name(v, 2));
        v->din[2] = grad->out[1];
        dx = grad->out[0];
    }
    v->din[0] = v->din[1] = dx;
    return 0;
}

static int add_rms_norm_apart(struct ct_builder *b, const struct ct_op *op, struct ct_value **out)
{
    struct ct_op *norm;

    out[1] = ct_add(b, NULL, op->in[0], op->in[1]);
    norm = ct_emit_type(b, &ct_op_rms_norm, NULL, (struct ct_value *[]){out[1], op->in[2]}, 2,
                        op->attrs);
    out[0] = norm ? norm->out[0] : NULL;
    out[2] = norm ? norm->out[1] : NULL;
    return b->status;
}

const struct ct_op_type ct_op_add_rms_norm = {
    .size = sizeof(struct ct_op_type),
    .name = "add_rms_norm",
    .summary = "sum = x + r, and the norm of the sum",
    .signature = "x[.K] T, r[.K] T, w[K] T -> y[.K] T, sum[.K] T, rstd[.] W",
    .attrs = ct_rms_norm_attrs,
    .attrs_size = sizeof(struct ct_rms_norm),
    .vjp = add_rms_norm_vjp,
    .reference = ct_pointwise_reference,
    .apart = add_rms_norm_apart,
    .pointwise = "sum = x + r; "
                 "rstd = 1 / sqrt(row_mean(sum * sum) + eps); y = sum * rstd * (offset + w)",
    .samples = "@gradients=3 eps=0.01: real[2,4,6] real[2,4,6] real[6]",
};

const struct ct_op_type ct_op_rms_norm_grad = {
    .size = sizeof(struct ct_op_type),
    .name = "rms_norm_grad",
    .summary = "gradient of rms_norm, plus the gradient of its input from other users",
    .signature = "dy[.K] T, x[.K] T, w[K] T, rstd[.] W, ?dres[.K] T -> dx[.K] T, dw[K] T",
    .flags = CT_OP_ANY_DTYPE,
    .attrs = ct_rms_norm_grad_attrs,
    .attrs_size = sizeof(struct ct_rms_norm_grad),
    .reference = ct_pointwise_reference,
    .pointwise = "g = dy * (offset + w); z = x * rstd; dw = column_sum(dy * z);"
                 "dx = rstd * (g - z * row_mean(g * z)) + dres",
    .samples = "real[2,4,6] real[2,4,6] real[6] statistic[2,4] real[2,4,6];"
               " real[2,4,6] real[2,4,6] real[6] statistic[2,4] -;"
               " offset=1: real[2,4,6] real[2,4,6] real[6] statistic[2,4] -",
};

struct ct_value *ct_rms_norm_offset(struct ct_builder *b, const char *name, struct ct_value *x,
                                    struct ct_value *w, double eps, double offset)
{
    return ct_emit_type1(b, &ct_op_rms_norm, name, (struct ct_value *[]){x, w}, 2,
                         &(struct ct_rms_norm){eps, offset});
}

struct ct_value *ct_rms_norm(struct ct_builder *b, const char *name, struct ct_value *x,
                             struct ct_value *w, double eps)
{
    return ct_rms_norm_offset(b, name, x, w, eps, 0);
}

struct ct_value *ct_rms_norm_plain(struct ct_builder *b, const char *name, struct ct_value *x,
                                   double eps)
{
    return ct_emit_type1(b, &ct_op_rms_norm_plain, name, &x, 1, &(struct ct_rms_norm){eps});
}

struct ct_value *ct_add_rms_norm(struct ct_builder *b, const char *name, struct ct_value *x,
                                 struct ct_value *r, struct ct_value *w, double eps,
                                 struct ct_value **sum)
{
    struct ct_op *op = ct_emit_type(b, &ct_op_add_rms_norm, name, (struct ct_value *[]){x, r, w}, 3,
                                    &(struct ct_rms_norm){eps});

    *sum = op ? op->out[1] : NULL;
    return op ? op->out[0] : NULL;
}
