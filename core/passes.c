/*
 * The core's own transforms: precision, differentiate, update.
 */
#include <string.h>

#include <ctitan/error.h>
#include <ctitan/pass.h>
#include <ctitan/run.h>

/* ---- precision ---- */

/* The forward computes with copies of the parameters in [training] mixed_precision_param; infer
   then carries the dtype through the activations. */
static int precision(struct ct_graph *graph, struct ct_run *run)
{
    struct ct_builder b = ct_builder_before(graph, graph->first);
    size_t count = graph->value_count;
    enum ct_dtype dtype;
    int rc = ct_dtype_parse(ct_config.training.mixed_precision_param, &dtype);

    (void)run;
    if (rc < 0)
        return rc;
    b.part = CT_PART_PRE;
    b.region = "";
    b.why = "the forward computes in [training] mixed_precision_param";
    for (size_t i = 0; i < count; i++) {
        struct ct_value *param = graph->values[i], *copy;

        if (param->role != CT_ROLE_PARAM || param->dtype == dtype)
            continue;
        copy =
            ct_cast(&b, ct_arena_printf(graph->arena, "%s.%s", param->name, ct_dtype_name(dtype)),
                    param, dtype);
        if (!copy)
            break;
        copy->sharding = param->sharding;
        ct_for_each_op (op, graph)
            for (int k = 0; op->part <= CT_PART_F && k < op->ins; k++)
                if (op->in[k] == param && op != copy->producer && !ct_op_mutates(op, k))
                    op->in[k] = copy;
    }
    return b.status < 0 ? b.status : ct_graph_infer(graph);
}

const struct ct_transform ct_pass_precision = {
    .name = "precision",
    .summary = "casts parameters to the dtype that the forward computes in",
    .phase = CT_PHASE_PRECISION,
    .evaluation = true,
    .apply = precision,
};

/* ---- differentiate ---- */

static int differentiate(struct ct_graph *graph, struct ct_run *run)
{
    (void)run;
    return ct_differentiate(graph);
}

const struct ct_transform ct_pass_differentiate = {
    .name = "differentiate",
    .summary = "appends the backward",
    .phase = CT_PHASE_DIFFERENTIATE,
    .gives = (const char *const[]){"gradients", NULL},
    .apply = differentiate,
};

/* ---- update ---- */

struct clip_attrs {
    double max_norm;
};

struct redistribute_attrs {
    const char *to;
    const char *gradient;
};

/* A gradient as its parameter lies: what the optimizer needs, and what its norm is taken of. */
static struct ct_value *like_parameter(struct ct_builder *b, const struct ct_value *param)
{
    struct redistribute_attrs attrs = {.gradient = ""};
    struct ct_value *grad = param->grad;
    char text[256];

    if (b->graph->mesh.count == 0)
        return grad;
    ct_sharding_print(&param->sharding, &b->graph->mesh, param->rank, text, sizeof(text));
    attrs.to = ct_arena_strdup(b->graph->arena, text);
    return ct_emit1(b, "redistribute", grad->name, &grad, 1, &attrs);
}

/* Squares are summed apart for each way in which parameters are sharded: each sum is then pending
   over its own axes, and every element counts once. */
static struct ct_op *emit_norm(struct ct_builder *b, struct ct_value *const *params, size_t count)
{
    struct ct_arena *arena = b->graph->arena;
    struct ct_value **group = ct_arena_array(arena, struct ct_value *, count);
    struct ct_value **sums = ct_arena_array(arena, struct ct_value *, count);
    bool *done = ct_arena_array(arena, bool, count);
    int sum_count = 0;

    for (size_t i = 0; i < count; i++) {
        ct_axes axes = ct_sharding_axes(&params[i]->sharding);
        int n = 0;

        if (done[i])
            continue;
        for (size_t k = i; k < count; k++)
            if (!done[k] && ct_sharding_axes(&params[k]->sharding) == axes) {
                group[n++] = params[k]->grad = like_parameter(b, params[k]);
                done[k] = true;
            }
        sums[sum_count++] = ct_emit1(b, "squared_norm", "grad_norm.squared", group, n, NULL);
    }
    return ct_emit(b, "clip_coefficient", "grad_norm", sums, sum_count,
                   &(struct clip_attrs){ct_config.training.max_norm});
}

static int update(struct ct_graph *graph, struct ct_run *run)
{
    struct ct_builder b = ct_builder_at_end(graph, CT_PART_POST, "");
    struct ct_value **params = ct_arena_array(graph->arena, struct ct_value *, graph->value_count);
    struct ct_value *lr, *step;
    struct ct_op *clip;
    size_t n = 0;

    for (size_t i = 0; i < graph->value_count; i++)
        if (graph->values[i]->role == CT_ROLE_PARAM && graph->values[i]->grad)
            params[n++] = graph->values[i];
    if (n == 0)
        return ct_fail(CT_ECONFIG, "no parameter has a gradient: there is nothing to train");
    lr = ct_graph_source(graph, CT_ROLE_SCALAR, "lr", CT_F64, 0, NULL);
    step = ct_graph_source(graph, CT_ROLE_SCALAR, "step", CT_F64, 0, NULL);
    clip = emit_norm(&b, params, n);
    if (!clip)
        return b.status;
    ct_graph_fetch(graph, "grad_norm", clip->out[0]);
    return run->optimizer->build(&b, params, n, lr, step, clip->out[1]);
}

const struct ct_transform ct_pass_update = {
    .name = "update",
    .summary = "gradient norm, clipping and the optimizer",
    .phase = CT_PHASE_UPDATE,
    .needs = (const char *const[]){"gradients", NULL},
    .apply = update,
};
