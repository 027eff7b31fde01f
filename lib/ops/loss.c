/*
 * Token cross entropy, summed: -log softmax(logits)[label] over the tokens whose label is not
 * masked.
 *
 * When joined with the last linear layer, the logits need not exist as a whole. The joined gradient
 * op also computes the loss, so in a graph with a backward it replaces the forward op.
 */
#include <math.h>

#include <ctitan/lib/ops.h>

#include "list.h"

/* 1: token i counts; 0: it is masked; CT_EINVAL. */
static int counts(const double *labels, int64_t i, int64_t vocabulary)
{
    int rc;

    if (labels[i] == CT_MASKED)
        return 0;
    rc = ct_checked_index(labels, i, vocabulary, "label");
    return rc < 0 ? rc : 1;
}

/* ---- on logits ---- */

static int cross_entropy_reference(const struct ct_launch *l)
{
    struct ct_reference r = ct_reference_begin(l);
    int64_t v = ct_columns(&l->in[0]);
    int rc = 0;

    for (int64_t i = 0; rc >= 0 && i < ct_rows(&l->in[0]); i++) {
        const double *logits = r.in[0] + i * v;

        r.out[1][i] = ct_log_sum_exp(logits, v);
        rc = counts(r.in[1], i, v);
        if (rc > 0)
            *r.out[0] += r.out[1][i] - logits[(int64_t)r.in[1][i]];
    }
    return ct_reference_end(&r, rc < 0 ? rc : 0);
}

static int cross_entropy_vjp(struct ct_vjp *v)
{
    if (!v->dout[0])
        return 0;
    return ct_emit_gradients(
        v, &ct_op_cross_entropy_grad,
        (struct ct_value *[]){v->dout[0], v->op->in[0], v->op->in[1], v->op->out[1]}, 4, NULL,
        (int[]){0}, 1);
}

const struct ct_op_type ct_op_cross_entropy = {
    .size = sizeof(struct ct_op_type),
    .name = "cross_entropy",
    .summary = "sum of token cross entropies of logits",
    .signature = "logits[.V] T, labels[.] i -> loss[] W, lse[.] W",
    .vjp = cross_entropy_vjp,
    .reference = cross_entropy_reference,
    .samples = "real[2,4,6] label[2,4]",
};

static int cross_entropy_grad_reference(const struct ct_launch *l)
{
    struct ct_reference r = ct_reference_begin(l);
    int64_t v = ct_columns(&l->in[1]);
    int rc = 0;

    for (int64_t i = 0; rc >= 0 && i < ct_rows(&l->in[1]); i++) {
        double *d = r.out[0] + i * v;

        rc = counts(r.in[2], i, v);
        for (int64_t k = 0; rc > 0 && k < v; k++)
            d[k] = *r.in[0] * exp(r.in[1][i * v + k] - r.in[3][i]);
        if (rc > 0)
            d[(int64_t)r.in[2][i]] -= *r.in[0];
    }
    return ct_reference_end(&r, rc < 0 ? rc : 0);
}

const struct ct_op_type ct_op_cross_entropy_grad = {
    .size = sizeof(struct ct_op_type),
    .name = "cross_entropy_grad",
    .summary = "gradient of cross_entropy",
    .signature = "dloss[] F, logits[.V] T, labels[.] i, lse[.] W -> dlogits[.V] T",
    .inplace = (const int8_t[][2]){{0, 1}, {-1, -1}},
    .reference = cross_entropy_grad_reference,
    .samples = "positive[] real[2,4,6] label[2,4] statistic[2,4]",
};

struct ct_value *ct_cross_entropy(struct ct_builder *b, const char *name, struct ct_value *logits,
                                  struct ct_value *labels)
{
    return ct_emit_type1(b, &ct_op_cross_entropy, name, (struct ct_value *[]){logits, labels}, 2,
                         NULL);
}

/* ---- with the linear layer before it ---- */

static void logits_of(const double *x, const double *w, int64_t k, int64_t v, double *logits)
{
    for (int64_t n = 0; n < v; n++) {
        logits[n] = 0;
        for (int64_t i = 0; i < k; i++)
            logits[n] += x[i] * w[n * k + i];
    }
}

static int linear_cross_entropy_reference(const struct ct_launch *l)
{
    struct ct_reference r = ct_reference_begin(l);
    int64_t k = ct_columns(&l->in[0]), v = l->in[1].shape[0];
    double *logits = ct_arena_array(&r.arena, double, v);
    int rc = 0;

    for (int64_t i = 0; rc >= 0 && i < ct_rows(&l->in[0]); i++) {
        rc = counts(r.in[2], i, v);
        if (rc <= 0)
            continue;
        logits_of(r.in[0] + i * k, r.in[1], k, v, logits);
        *r.out[0] += ct_log_sum_exp(logits, v) - logits[(int64_t)r.in[2][i]];
    }
    return ct_reference_end(&r, rc < 0 ? rc : 0);
}

static double linear_cross_entropy_flops(const struct ct_op *op, const struct ct_tensor *in,
                                         const struct ct_tensor *out)
{
    (void)op;
    (void)out;
    return 2.0 * (double)ct_tensor_count(&in[0]) * (double)in[1].shape[0];
}

static bool used_by_an_op(const struct ct_graph *graph, const struct ct_value *value)
{
    ct_for_each_op (op, graph)
        for (int i = 0; i < op->ins; i++)
            if (op->in[i] == value)
                return true;
    return false;
}

static int linear_cross_entropy_vjp(struct ct_vjp *v)
{
    struct ct_op *op = v->op, *grad;

    if (!v->wanted[0] && !v->wanted[1])
        return 0;
    grad =
        ct_emit_type(v->b, &ct_op_linear_cross_entropy_grad, ct_gradient_name(v, 0),
                     (struct ct_value *[]){v->dout[0], op->in[0], op->in[1], op->in[2]}, 4, NULL);
    if (!grad)
        return v->b->status;
    ct_value_rename(v->b->graph, grad->out[1], ct_gradient_name(v, 1));
    v->din[0] = grad->out[0];
    v->din[1] = grad->out[1];
    if (!used_by_an_op(v->b->graph, op->out[0]))
        ct_value_replace(v->b->graph, op->out[0], grad->out[2]);
    return 0;
}

const struct ct_op_type ct_op_linear_cross_entropy = {
    .size = sizeof(struct ct_op_type),
    .name = "linear_cross_entropy",
    .summary = "sum of token cross entropies of the logits x w^T",
    .signature = "x[.K] T, w[VK] T, labels[.] i -> loss[] W",
    .vjp = linear_cross_entropy_vjp,
    .flops = linear_cross_entropy_flops,
    .reference = linear_cross_entropy_reference,
    .samples = "@inner_roundings=1: real[2,4,4] real[6,4] label[2,4]",
};

/* One token: d becomes the gradient of its logits, which is propagated to x and w (dw NULL: to x
   only). */
static double token_gradients(const double *x, const double *w, int64_t k, int64_t v, int64_t label,
                              double dloss, double *d, double *dx, double *dw)
{
    double lse, loss;

    logits_of(x, w, k, v, d);
    lse = ct_log_sum_exp(d, v);
    loss = lse - d[label];
    for (int64_t n = 0; n < v; n++) {
        d[n] = dloss * (exp(d[n] - lse) - (n == label));
        for (int64_t i = 0; i < k; i++) {
            dx[i] += d[n] * w[n * k + i];
            if (dw)
                dw[n * k + i] += d[n] * x[i];
        }
    }
    return loss;
}

static int linear_cross_entropy_grad_reference(const struct ct_launch *l)
{
    struct ct_reference r = ct_reference_begin(l);
    int64_t k = ct_columns(&l->in[1]), v = l->in[2].shape[0];
    double *d = ct_arena_array(&r.arena, double, v), *dw = l->outs > 2 ? r.out[1] : NULL;
    int rc = 0;

    for (int64_t i = 0; rc >= 0 && i < ct_rows(&l->in[1]); i++) {
        rc = counts(r.in[3], i, v);
        if (rc > 0)
            *r.out[l->outs - 1] +=
                token_gradients(r.in[1] + i * k, r.in[2], k, v, (int64_t)r.in[3][i], *r.in[0], d,
                                r.out[0] + i * k, dw);
    }
    return ct_reference_end(&r, rc < 0 ? rc : 0);
}

static double linear_cross_entropy_grad_flops(const struct ct_op *op, const struct ct_tensor *in,
                                              const struct ct_tensor *out)
{
    return 3 * linear_cross_entropy_flops(op, in + 1, out);
}

const struct ct_op_type ct_op_linear_cross_entropy_grad = {
    .size = sizeof(struct ct_op_type),
    .name = "linear_cross_entropy_grad",
    .summary = "gradient of linear_cross_entropy, and its loss",
    .signature = "dloss[] F, x[.K] T, w[VK] T, labels[.] i -> dx[.K] T, dw[VK] T, loss[] W",
    .flags = CT_OP_ANY_DTYPE,
    .flops = linear_cross_entropy_grad_flops,
    .reference = linear_cross_entropy_grad_reference,
    .samples = "@inner_roundings=1 @inner_roundings=1: positive[] real[2,4,4] real[6,4] label[2,4]",
};

static double linear_cross_entropy_dx_flops(const struct ct_op *op, const struct ct_tensor *in,
                                            const struct ct_tensor *out)
{
    return 2 * linear_cross_entropy_flops(op, in + 1, out);
}

const struct ct_op_type ct_op_linear_cross_entropy_dx = {
    .size = sizeof(struct ct_op_type),
    .name = "linear_cross_entropy_dx",
    .summary = "linear_cross_entropy_grad without the gradient of w",
    .signature = "dloss[] F, x[.K] T, w[VK] T, labels[.] i -> dx[.K] T, loss[] W",
    .flags = CT_OP_ANY_DTYPE,
    .flops = linear_cross_entropy_dx_flops,
    .reference = linear_cross_entropy_grad_reference,
    .samples = "@inner_roundings=1 @inner_roundings=1: positive[] real[2,4,4] real[6,4] label[2,4]",
};

struct ct_value *ct_linear_cross_entropy(struct ct_builder *b, const char *name, struct ct_value *x,
                                         struct ct_value *w, struct ct_value *labels)
{
    return ct_emit_type1(b, &ct_op_linear_cross_entropy, name, (struct ct_value *[]){x, w, labels},
                         3, NULL);
}

/* ---- gradients that nobody needs ---- */

static int leave_out_weight(struct ct_graph *graph, struct ct_op *op)
{
    struct ct_builder b = ct_builder_before(graph, op);
    struct ct_op *dx =
        ct_emit_type(&b, &ct_op_linear_cross_entropy_dx, NULL, op->in, op->ins, NULL);

    if (!dx)
        return b.status;
    dx->why = "nothing needs the gradient of w";
    dx->marks = op->marks;
    ct_op_set_output(dx, 0, op->out[0]);
    ct_op_set_output(dx, 1, op->out[2]);
    ct_graph_remove(graph, op);
    return 0;
}

int ct_sweep_gradients(struct ct_graph *graph)
{
    int rc = 0;

    ct_graph_sweep(graph);
    ct_for_each_op_safe (op, graph) {
        const struct ct_value *dw =
            op->type == &ct_op_linear_cross_entropy_grad ? op->out[1] : NULL;

        if (rc == 0 && dw && !dw->use_count && !dw->fetch_count && !dw->grad_of)
            rc = leave_out_weight(graph, op);
    }
    ct_graph_sweep(graph);
    return rc;
}
