/*
 * Optimizers, by reference kernels: each parameter has an op that updates it, a step moves every
 * element of every parameter, and a step whose
 * `clip` is negative, as where gradients are not finite, leaves no trace: neither in parameters,
 * nor in states that the next step uses.
 */
#include <math.h>
#include <string.h>

#include <ctitan/error.h>
#include <ctitan/input.h>
#include <ctitan/train.h>

#include "machine.h"

#define PARAMETERS 3
#define LR 0.125

struct trial {
    struct ct_trial m;
    struct ct_value *param[PARAMETERS], *lr, *step, *clip;
    size_t count;
};

/* A matrix, a vector and another matrix, if the optimizer takes them, with gradients. */
static void add_parameters(struct trial *t, const struct ct_optimizer_ops *ops)
{
    static const struct {
        const char *name, *grad;
        int ndim;
        int64_t shape[2];
    } rows[PARAMETERS] = {{"layers.0.weight", "layers.0.weight.grad", 2, {6, 4}},
                          {"layers.0.norm.weight", "layers.0.norm.weight.grad", 1, {4}},
                          {"layers.1.weight", "layers.1.weight.grad", 2, {4, 8}}};

    for (size_t i = 0; i < PARAMETERS; i++) {
        struct ct_value *param = ct_graph_source(t->m.graph, CT_ROLE_PARAM, rows[i].name, CT_F32,
                                                 rows[i].ndim, rows[i].shape);

        ct_value_set_grad(param, ct_graph_source(t->m.graph, CT_ROLE_INPUT, rows[i].grad, CT_F32,
                                                 rows[i].ndim, rows[i].shape));
        ct_trial_fill(&t->m, param, "real");
        ct_trial_fill(&t->m, param->grad, "real");
        if (!ops->takes || ops->takes(param))
            t->param[t->count++] = param;
    }
}

static int run_part(struct trial *t, enum ct_part part)
{
    int rc = 0;

    ct_for_each_op (op, t->m.graph)
        if (rc == 0 && op->section->part == part)
            rc = ct_trial_run(&t->m, op);
    return rc;
}

static int build(struct trial *t, const struct ct_optimizer_ops *ops)
{
    struct ct_builder b;
    int rc;

    memset(t, 0, sizeof(*t));
    t->m.graph = ct_graph_create(&t->m.arena, "optimizer");
    add_parameters(t, ops);
    rc = ct_graph_input(t->m.graph, "lr", NULL, &t->lr);
    if (rc == 0)
        rc = ct_graph_input(t->m.graph, "step", NULL, &t->step);
    if (rc < 0 || !t->count)
        return rc;
    t->clip = ct_graph_source(t->m.graph, CT_ROLE_INPUT, "clip", CT_F32, 0, NULL);
    b = ct_builder_at_end(t->m.graph, CT_PART_POST, "");
    rc = ops->build(&b, t->param, t->count, t->lr, t->step, t->clip);
    if (rc == 0)
        rc = ct_check_updates(t->param, t->count);
    ct_tensor_store(ct_trial_tensor(&t->m, t->lr), 0, LR);
    ct_tensor_store(ct_trial_tensor(&t->m, t->step), 0, 1);
    return rc == 0 ? run_part(t, CT_PART_INIT) : rc;
}

/* Gradients become infinite; `clip` says that the step must not be applied. */
static int run_skipped(struct trial *t)
{
    int rc;

    for (size_t i = 0; i < t->count; i++)
        ct_tensor_store(ct_trial_tensor(&t->m, t->param[i]->grad), 1, INFINITY);
    ct_tensor_store(ct_trial_tensor(&t->m, t->clip), 0, -1);
    rc = run_part(t, CT_PART_POST);
    for (size_t i = 0; i < t->count; i++)
        ct_trial_fill(&t->m, t->param[i]->grad, "real");
    return rc;
}

static int run_step(struct trial *t)
{
    ct_tensor_store(ct_trial_tensor(&t->m, t->clip), 0, 1);
    return run_part(t, CT_PART_POST);
}

static int compare(struct trial *got, struct trial *want, const char *what)
{
    for (size_t i = 0; i < want->count; i++) {
        const struct ct_tensor *x = ct_trial_tensor(&got->m, got->param[i]),
                               *y = ct_trial_tensor(&want->m, want->param[i]);

        for (int64_t k = 0; k < ct_tensor_count(y); k++)
            if (ct_tensor_load(x, k) != ct_tensor_load(y, k))
                return ct_fail(CT_EINVAL,
                               "%s: element %lld of a parameter of %d dimensions is "
                               "%.9g, not %.9g",
                               what, (long long)k, y->ndim, ct_tensor_load(x, k),
                               ct_tensor_load(y, k));
    }
    return 0;
}

/* Every element with a gradient has moved from where the step found it. */
static int expect_moved(struct trial *t, const struct ct_tensor *before)
{
    for (size_t i = 0; i < t->count; i++) {
        const struct ct_tensor *p = ct_trial_tensor(&t->m, t->param[i]);

        for (int64_t k = 0; k < ct_tensor_count(p); k++)
            if (ct_tensor_load(p, k) == ct_tensor_load(&before[i], k))
                return ct_fail(CT_EINVAL,
                               "a step with the learning rate %g leaves element %lld of %s as it "
                               "is, %.9g, though its gradient is %.9g",
                               LR, (long long)k, t->param[i]->name, ct_tensor_load(p, k),
                               ct_tensor_load(ct_trial_tensor(&t->m, t->param[i]->grad), k));
    }
    return 0;
}

/* A step, which moves every parameter. */
static int run_moving(struct trial *t)
{
    struct ct_tensor before[PARAMETERS];
    int rc;

    for (size_t i = 0; i < t->count; i++) {
        const struct ct_tensor *p = ct_trial_tensor(&t->m, t->param[i]);

        before[i] = *p;
        before[i].data = ct_arena_array(&t->m.arena, float, ct_tensor_count(p));
        memcpy(before[i].data, p->data, (size_t)ct_tensor_count(p) * sizeof(float));
    }
    rc = run_step(t);
    return rc == 0 ? expect_moved(t, before) : rc;
}

int ct_check_optimizer(const struct ct_optimizer_ops *ops)
{
    struct trial skips, plain;
    int rc = build(&plain, ops), count;

    count = (int)plain.count;
    if (rc == 0)
        rc = build(&skips, ops);
    else
        memset(&skips, 0, sizeof(skips));
    if (rc == 0 && count)
        rc = run_skipped(&skips);
    if (rc == 0)
        rc = compare(&skips, &plain,
                     "a step with a negative `clip` (the gradient is not finite), "
                     "which must not be applied");
    if (rc == 0 && count)
        rc = run_moving(&plain);
    if (rc == 0 && count)
        rc = run_step(&skips);
    if (rc == 0)
        rc = compare(&skips, &plain,
                     "the step after one with a negative `clip`, which must leave "
                     "states as they are");
    ct_trial_finish(&skips.m);
    ct_trial_finish(&plain.m);
    return rc < 0 ? rc : count;
}
