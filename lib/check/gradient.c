/*
 * Gradients of an op against central differences, in float64 through the reference kernels: for
 * every set of outputs that a gradient arrives at, and every set of inputs that want one.
 */
#include <math.h>

#include <ctitan/app/verify.h>
#include <ctitan/error.h>

#include "machine.h"

struct job {
    const struct ct_sample *sample;
    struct ct_trial m;
    struct ct_value *dout[CHECK_OPERANDS], *din[CHECK_OPERANDS];
    bool wanted[CHECK_OPERANDS];
};

/* Sum of <dout, out> over the outputs that have a dout. */
static double inner_product(struct job *j)
{
    double sum = 0;

    if (ct_trial_run(&j->m, j->m.op) < 0)
        return NAN;
    for (int k = 0; k < j->m.op->outs; k++) {
        const struct ct_tensor *out = ct_trial_tensor(&j->m, j->m.op->out[k]);

        for (int64_t i = 0; j->dout[k] && i < ct_tensor_count(out); i++)
            sum += ct_tensor_load(out, i) * ct_tensor_load(ct_trial_tensor(&j->m, j->dout[k]), i);
    }
    return sum;
}

static double difference(struct job *j, const struct ct_tensor *x, int64_t i, double step)
{
    double at = ct_tensor_load(x, i), moved, above, below;

    ct_tensor_store(x, i, at + step);
    moved = ct_tensor_load(x, i); /* rounded */
    above = inner_product(j);
    ct_tensor_store(x, i, at - step);
    moved -= ct_tensor_load(x, i);
    below = inner_product(j);
    ct_tensor_store(x, i, at);
    return (above - below) / moved;
}

static int check_shape(const struct job *j, int input)
{
    const struct ct_value *din = j->din[input], *x = j->m.op->in[input];
    bool same = din->ndim == x->ndim && din->dtype == x->dtype;

    for (int d = 0; same && d < x->ndim; d++)
        same = din->shape[d] == x->shape[d];
    return same ? 0
                : ct_fail(CT_EINVAL,
                          "%s(%s): the gradient of input %d has another shape or dtype than it",
                          j->sample->type, j->sample->inputs, input);
}

/* A likely cause of differences that are far from the gradient. */
static const char *hint(const struct job *j, double want)
{
    const struct ct_op *op = j->m.op;

    if (isnan(want))
        return "; the reference gives NaN near these inputs: .samples of the type can name others, "
               "like \"positive[2,3]\"";
    for (int i = 0; i < op->outs; i++)
        if (j->dout[i] && ct_dtype_is_float(op->out[i]->dtype) && op->out[i]->dtype != CT_F64)
            return "; an output is float32 whatever the inputs are, and its rounding disturbs "
                   "differences: give it the dtype W, or .samples a larger step, like "
                   "\"@step=0.01: ..\"";
    return "";
}

static int check_input(struct job *j, int input)
{
    const struct ct_tensor *x = ct_trial_tensor(&j->m, j->m.op->in[input]);
    const struct ct_value *din = j->din[input];
    double step = j->sample->step != 0 ? j->sample->step : 1e-4;
    int rc = din ? check_shape(j, input) : 0;

    for (int64_t i = 0; rc == 0 && i < ct_tensor_count(x); i++) {
        double want = difference(j, x, i, step);
        double got = din ? ct_tensor_load(ct_trial_tensor(&j->m, din), i) : 0;

        if (!(fabs(got - want) <= 1e-6 * (1 + fabs(want))))
            rc = ct_fail(CT_EINVAL,
                         "%s(%s): gradient of input %d, element %lld: %.9g%s; by differences of "
                         "the reference it is %.9g%s",
                         j->sample->type, j->sample->inputs, input, (long long)i, got,
                         din ? "" : " (`vjp` gives none)", want, hint(j, want));
    }
    return rc;
}

/* A gradient that makes the loss again makes the same. */
static int check_loss(struct job *j)
{
    const struct ct_value *loss = ct_graph_fetched(j->m.graph, "loss"), *out = j->m.op->out[0];
    double difference;

    if (!loss)
        return 0;
    difference = ct_tensor_load(ct_trial_tensor(&j->m, loss), 0) -
                 ct_tensor_load(ct_trial_tensor(&j->m, out), 0);
    return fabs(difference) < 1e-12 && loss->dtype == out->dtype
               ? 0
               : ct_fail(CT_EINVAL, "%s(%s): the gradient op computes a different loss, by %g",
                         j->sample->type, j->sample->inputs, difference);
}

static int emit(struct job *j, unsigned outputs, unsigned inputs)
{
    const struct ct_op *op = j->m.op;
    struct ct_builder b;
    int rc;

    if (op->out[0]->ndim == 0)
        ct_graph_fetch(j->m.graph, "loss", op->out[0]);
    for (int i = 0; i < op->outs; i++)
        if (outputs >> i & 1) {
            j->dout[i] = ct_graph_source(j->m.graph, CT_ROLE_INPUT, "dout", op->out[i]->dtype,
                                         op->out[i]->ndim, op->out[i]->shape);
            ct_trial_fill(&j->m, j->dout[i], "positive");
        }
    for (int i = 0; i < op->ins; i++)
        j->wanted[i] = inputs >> i & 1;
    b = ct_builder_at_end(j->m.graph, CT_PART_I, "");
    rc = op->type->vjp(&(struct ct_vjp){&b, j->m.op, j->dout, j->din, j->wanted});
    if (rc == 0)
        rc = b.status;
    if (rc == 0 && !inputs && op->next)
        rc = ct_fail(CT_EINVAL, "`vjp` emits %s, though no input wants a gradient",
                     op->next->type->name);
    if (rc == 0)
        rc = ct_graph_verify(j->m.graph, NULL);
    return rc < 0 ? ct_context(CT_EINVAL, "%s(%s)", j->sample->type, j->sample->inputs) : 0;
}

static bool is_empty(const struct ct_op *op)
{
    return ct_shape_count(op->out[0]->ndim, op->out[0]->shape) == 0;
}

/* Emit the gradient for these sets and compare it. No input of a graph is empty, as the gradient of
   an empty output would be. */
static int check_sets(const struct ct_sample *s, unsigned outputs, unsigned inputs)
{
    struct job j = {.sample = s};
    int rc = ct_trial_create(&j.m, s, CT_F64);

    if (rc == 0 && is_empty(j.m.op)) {
        ct_trial_finish(&j.m);
        return 0;
    }
    if (rc == 0)
        rc = emit(&j, outputs, inputs);
    if (rc == 0)
        rc = ct_trial_run_from(&j.m, j.m.op);
    if (rc == 0)
        rc = check_loss(&j);
    for (int i = 0; rc == 0 && i < j.m.op->ins; i++)
        if (j.wanted[i] && !(j.m.op->type->flags & CT_OP_STRAIGHT_THROUGH))
            rc = check_input(&j, i);
    ct_trial_finish(&j.m);
    return rc;
}

static unsigned real_inputs(const struct ct_sample *s)
{
    const char *p = s->inputs;
    int64_t shape[CT_MAX_DIMS];
    unsigned set = 0;
    char fill[32];

    for (int i = 0, ndim; ct_sample_operand(&p, fill, &ndim, shape); i++)
        set |= (unsigned)fill_has_gradient(fill) << i;
    return set;
}

int check_gradients(const struct ct_sample *s)
{
    unsigned all_outputs = s->gradients ? s->gradients : 1, all_inputs = real_inputs(s);
    int rc = 0, checked = 0;

    if (!ct_op_find(s->type)->vjp || s->joint)
        return 0;
    for (unsigned outputs = 1; outputs <= all_outputs; outputs++)
        for (unsigned inputs = 0; rc == 0 && inputs <= all_inputs; inputs++)
            if (!(outputs & ~all_outputs) && !(inputs & ~all_inputs)) {
                rc = check_sets(s, outputs, inputs);
                checked++;
            }
    return rc < 0 ? rc : checked;
}
