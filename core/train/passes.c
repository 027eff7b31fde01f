/*
 * The transforms of every training: precision before the backward, update after it.
 */
#include <string.h>

#include <ctitan/core_ops.h>
#include <ctitan/error.h>
#include <ctitan/input.h>
#include <ctitan/pass.h>
#include <ctitan/plugin.h>
#include <ctitan/run.h>
#include <ctitan/train.h>

/* ---- precision ---- */

/* The forward uses copies of the parameters in [training] mixed_precision_param; infer then
   propagates the dtype through the activations. */
static int precision(struct ct_graph *graph, struct ct_run *run)
{
    struct ct_builder b = ct_pre_builder(graph);
    size_t count = graph->value_count;
    enum ct_dtype dtype = ct_config.training.mixed_precision_param;

    (void)run;
    b.why = "the forward pass computes in [training] mixed_precision_param";
    for (size_t i = 0; i < count; i++) {
        struct ct_value *param = graph->values[i], *copy;

        if (param->role != CT_ROLE_PARAM || param->dtype == dtype || param->dtype_fixed)
            continue;
        copy =
            ct_cast(&b, ct_arena_printf(graph->arena, "%s.%s", param->name, ct_dtype_name(dtype)),
                    param, dtype);
        if (!copy)
            break;
        copy->sharding = param->sharding;
        ct_for_each_use_safe (use, param)
            if (use->op->section->part <= CT_PART_F && use->op->section->part != CT_PART_INIT &&
                use->op != copy->producer && !ct_op_mutates(use->op, use->index))
                ct_op_set_input(use->op, use->index, copy);
    }
    return b.status < 0 ? b.status : ct_graph_infer(graph);
}

const struct ct_transform ct_pass_precision = {
    .size = sizeof(struct ct_transform),
    .name = "precision",
    .summary = "casts parameters to the dtype that the forward pass computes in",
    .phase = CT_PHASE_PRECISION,
    .gives = (const char *const[]){"precision", NULL},
    .evaluation = true,
    .apply = precision,
};

/* ---- update ---- */

/* The gradient in its parameter's sharding, as the optimizer and the norm need it. */
static struct ct_value *like_parameter(struct ct_builder *b, struct ct_value *param)
{
    struct ct_value *grad;

    if (b->graph->mesh.count == 0)
        return param->grad;
    grad = ct_redistribute(b, param->grad->name, param->grad, &param->sharding, NULL);
    ct_value_set_grad(param, grad);
    return grad;
}

/* The first of the optimizers that takes a parameter. */
static const struct ct_optimizer_ops *optimizer_of(const struct ct_run *run,
                                                   const struct ct_value *param)
{
    const struct ct_offer *offer;

    for (size_t i = 0; (offer = ct_offer_at(CT_OPTIMIZER, i)); i++) {
        const struct ct_optimizer_ops *ops = offer->ops;

        if (ops->takes && ops->takes(param))
            return ops;
    }
    return run->optimizer;
}

/* Parameters held by the same ranks. */
struct owned {
    struct ct_value **param;
    size_t count;
};

/* Squares are summed separately for each set of sharding axes, so that each sum is pending over its
   own axes and counts every element once. */
static int emit_squares(struct ct_builder *b, const struct ct_run *run, const struct owned *o,
                        struct ct_value **sums)
{
    struct ct_arena *arena = b->graph->arena;
    struct ct_value **group = ct_arena_array(arena, struct ct_value *, o->count);
    bool *done = ct_arena_array(arena, bool, o->count);
    int sum_count = 0;

    for (size_t i = 0; i < o->count; i++) {
        ct_axes axes = ct_sharding_axes(&o->param[i]->sharding);
        int n = 0;

        if (done[i])
            continue;
        for (size_t k = i; k < o->count; k++)
            if (!done[k] && ct_sharding_axes(&o->param[k]->sharding) == axes) {
                struct ct_value *grad = like_parameter(b, o->param[k]);

                if (!optimizer_of(run, o->param[k])->no_norm)
                    group[n++] = grad;
                done[k] = true;
            }
        if (n == 0)
            continue;
        sums[sum_count++] = ct_squared_norm(b, "grad_norm.squared", group, n);
    }
    return sum_count;
}

/* In a partitioned graph each sum is on some ranks only; add them up over all. */
static int add_up(struct ct_builder *b, struct ct_value **sums, int count)
{
    struct ct_value *sum = NULL;

    if (b->graph->partition_axis < 0)
        return count;
    for (int i = 0; i < count; i++) {
        struct ct_value *term = ct_contribution(b, sums[i] ? sums[i]->name : NULL, sums[i]);

        sum = sum ? ct_add(b, "grad_norm.squared", sum, term) : term;
    }
    sums[0] = sum;
    return 1;
}

static struct ct_op *emit_norm(struct ct_builder *b, const struct ct_run *run,
                               const struct owned *owned, size_t groups)
{
    struct ct_value **sums =
        ct_arena_array(b->graph->arena, struct ct_value *, b->graph->value_count);
    int count = 0;

    for (size_t i = 0; i < groups; i++)
        count += emit_squares(b, run, &owned[i], sums + count);
    count = add_up(b, sums, count);
    return ct_clip_coefficient(b, "grad_norm", sums, count, ct_config.training.max_norm);
}

/* Whether some parameter's gradient counts in the norm. */
static bool has_norm(const struct ct_run *run, const struct owned *owned, size_t groups)
{
    for (size_t g = 0; g < groups; g++)
        for (size_t i = 0; i < owned[g].count; i++)
            if (!optimizer_of(run, owned[g].param[i])->no_norm)
                return true;
    return false;
}

/* The parameters updated by one optimizer op must be on the same ranks. */
static size_t group_by_holders(struct ct_graph *graph, struct owned *owned)
{
    size_t groups = 0, g;

    for (size_t i = 0; i < graph->value_count; i++) {
        struct ct_value *v = graph->values[i];

        if (v->role != CT_ROLE_PARAM || !v->grad)
            continue;
        for (g = 0; g < groups && !ct_ranks_equal(&owned[g].param[0]->holders, &v->holders); g++)
            ;
        if (g == groups)
            owned[groups++] = (struct owned){
                ct_arena_array(graph->arena, struct ct_value *, graph->value_count), 0};
        owned[g].param[owned[g].count++] = v;
    }
    return groups;
}

/* By value id: the region of the forward op that first uses the value. */
static const char **regions(const struct ct_graph *graph, struct ct_arena *arena)
{
    const char **region = ct_arena_array(arena, const char *, graph->value_count + 1);

    for (const struct ct_op *op = graph->last; op; op = op->prev)
        for (int i = 0; op->section->part <= CT_PART_F && i < op->ins; i++)
            if (op->in[i] && op->section->part == CT_PART_F)
                region[op->in[i]->id] = op->region;
            else if (op->in[i] && op->section->part == CT_PART_PRE && op->outs)
                region[op->in[i]->id] = region[op->out[0]->id];
    return region;
}

static bool is_updated(const struct ct_value *param)
{
    ct_for_each_use (use, param)
        if (use->op->section->part == CT_PART_POST && ct_op_mutates(use->op, use->index))
            return true;
    return false;
}

int ct_check_updates(struct ct_value *const *params, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (!is_updated(params[i]))
            return ct_fail(CT_EINVAL,
                           "the optimizer updates no parameter %s: its `build` must add an op that "
                           "has each of the parameters it is given as an input with '!'",
                           params[i]->name);
    return 0;
}

static bool by_region(const struct ct_value *param)
{
    return param->marks & ct_mark(CT_UPDATE_BY_REGION);
}

/* One op of each optimizer for all its parameters, and one for those of each region that are to be
   by region. States are where the parameters are. */
static int optimize(struct ct_builder *b, struct ct_run *run, const struct owned *owned,
                    struct ct_value *lr, struct ct_value *step, struct ct_value *clip)
{
    struct ct_arena scratch = {0};
    struct ct_value **group = ct_arena_array(&scratch, struct ct_value *, owned->count);
    bool *done = ct_arena_array(&scratch, bool, owned->count);
    const char **region = regions(b->graph, &scratch);
    size_t first = b->graph->value_count;
    int rc = 0;

    for (size_t i = 0; rc == 0 && i < owned->count; i++) {
        const struct ct_optimizer_ops *optimizer = optimizer_of(run, owned->param[i]);
        size_t n = 0;

        if (done[i])
            continue;
        for (size_t k = i; k < owned->count; k++)
            if (!done[k] && optimizer_of(run, owned->param[k]) == optimizer &&
                by_region(owned->param[k]) == by_region(owned->param[i]) &&
                (!by_region(owned->param[i]) ||
                 region[owned->param[k]->id] == region[owned->param[i]->id])) {
                group[n++] = owned->param[k];
                done[k] = true;
            }
        rc = optimizer->build(b, group, n, lr, step, clip);
        if (rc == 0)
            rc = ct_check_updates(group, n);
    }
    for (; first < b->graph->value_count; first++)
        if (b->graph->values[first]->role == CT_ROLE_STATE)
            b->graph->values[first]->holders = owned->param[0]->holders;
    ct_arena_finish(&scratch);
    return rc;
}

/* A reference pass has the weights that the run began with, so none of them is trained. */
static int check_reference(const struct ct_graph *graph)
{
    struct ct_arena scratch = {0};
    /* By value: the parameter that is trained and from which alone it is computed. */
    const struct ct_value **trained =
        ct_arena_array(&scratch, const struct ct_value *, graph->value_count);
    int rc = 0;

    for (size_t i = 0; i < graph->value_count; i++)
        if (graph->values[i]->role == CT_ROLE_PARAM && graph->values[i]->grad)
            trained[i] = graph->values[i];
    ct_for_each_op (op, graph) {
        const struct ct_value *first = op->ins && op->in[0] ? trained[op->in[0]->id] : NULL;

        for (int i = 0; rc == 0 && op->marks & ct_mark(CT_REFERENCE) && i < op->ins; i++)
            if (op->in[i] && trained[op->in[i]->id])
                rc = ct_fail(CT_ECONFIG,
                             "the objective compares with the weights that the run began with, but "
                             "%s is trained: train adapters beside them, or let the objective "
                             "have a second set of weights",
                             trained[op->in[i]->id]->name);
        for (int i = 0; op->ins == 1 && op->section->part < CT_PART_I && i < op->outs; i++)
            trained[op->out[i]->id] = first;
    }
    ct_arena_finish(&scratch);
    return rc;
}

/* A copy of weights that are not trained would never differ from them. */
static int check_copies(const struct ct_graph *graph)
{
    const struct ct_weight_set *copy = NULL;

    for (size_t i = 0; i < graph->value_count; i++) {
        const struct ct_value *v = graph->values[i], *own;

        if (!v->set || (v->set->folder && *v->set->folder))
            continue;
        own = ct_graph_find(graph, ct_value_model_name(v));
        if (own && own->grad)
            return 0;
        copy = v->set;
    }
    if (!copy)
        return 0;
    return ct_fail(
        CT_ECONFIG,
        "%s is not set, so the weights \"%s\" are a copy of those that training begins "
        "with, and these are not trained: use these in a reference pass, without a copy, or "
        "name a folder of other weights",
        copy->option, copy->name);
}

static int update(struct ct_graph *graph, struct ct_run *run)
{
    struct ct_builder b = ct_builder_at_end(graph, CT_PART_POST, "");
    struct owned *owned = ct_arena_array(graph->arena, struct owned, graph->value_count);
    size_t groups = group_by_holders(graph, owned);
    struct ct_value *lr, *step;
    struct ct_op *clip;
    int rc = 0;

    if (!has_norm(run, owned, groups))
        return ct_fail(CT_ECONFIG, "no parameter has a gradient of the loss: there is nothing to "
                                   "train");
    rc = check_reference(graph);
    if (rc == 0)
        rc = check_copies(graph);
    if (rc == 0)
        rc = ct_graph_input(graph, "lr", NULL, &lr);
    if (rc == 0)
        rc = ct_graph_input(graph, "step", NULL, &step);
    if (rc < 0)
        return rc;
    clip = emit_norm(&b, run, owned, groups);
    if (!clip)
        return b.status;
    ct_graph_fetch(graph, "grad_norm", clip->out[0]);
    for (size_t i = 0; rc == 0 && i < groups; i++)
        rc = optimize(&b, run, &owned[i], lr, step, clip->out[1]);
    return rc;
}

const struct ct_transform ct_pass_update = {
    .size = sizeof(struct ct_transform),
    .name = "update",
    .summary = "adds the gradient norm, clipping and the optimizer",
    .phase = CT_PHASE_UPDATE,
    .needs = (const char *const[]){"gradients", NULL},
    .gives = (const char *const[]){"updated", NULL},
    .apply = update,
    .required = true,
};
