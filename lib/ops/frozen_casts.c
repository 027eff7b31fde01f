/*
 * Casts of parameters that no step changes. Where a step would begin with such a cast, its result
 * becomes a state, which the init part makes from the parameter.
 */
#include <string.h>

#include <ctitan/core_ops.h>
#include <ctitan/error.h>
#include <ctitan/plugin.h>

#include "list.h"

static int cast_into_reference(const struct ct_launch *l)
{
    for (int64_t i = 0; i < ct_tensor_count(&l->in[0]); i++)
        ct_tensor_store(&l->in[0], i, ct_tensor_load(&l->in[1], i));
    return 0;
}

const struct ct_op_type ct_op_cast_into = {
    .size = sizeof(struct ct_op_type),
    .name = "cast_into",
    .summary = "copy = p, in its dtype",
    .signature = "!copy[.] F, p[.] F",
    .reference = cast_into_reference,
    .samples = "real[4,6] real[4,6]",
};

bool ct_device_runs(const struct ct_op_type *type, unsigned flags)
{
    const struct ct_offer *device = ct_offer_at(CT_DEVICE, 0);
    const struct ct_kernel *kernel;

    for (size_t i = 0; device && (kernel = ct_kernel_at(device->name, i)); i++)
        if (!strcmp(kernel->op, type->name) && (kernel->flags & flags) == flags)
            return true;
    return false;
}

struct ct_value *ct_cast_once(struct ct_builder *init, struct ct_value *cast, const char *name)
{
    struct ct_op *op = cast->producer;
    struct ct_value *p = op->in[0], *copy;

    copy = ct_graph_source(init->graph, CT_ROLE_STATE, name, cast->dtype, p->ndim, p->shape);
    copy->sharding = p->sharding;
    copy->holders = p->holders;
    copy->dtype_fixed = true;
    ct_value_replace(init->graph, cast, copy);
    if (init->before == op)
        init->before = op->next;
    ct_graph_remove(init->graph, op);
    ct_emit_type(init, &ct_op_cast_into, NULL, (struct ct_value *[]){copy, p}, 2, NULL);
    return copy;
}

bool ct_is_parameter_cast(const struct ct_value *v)
{
    const struct ct_op *op = v->producer;

    return op && op->type == &ct_op_cast && op->section->part == CT_PART_PRE &&
           op->in[0]->role == CT_ROLE_PARAM && op->in[0]->dtype == CT_F32 && v->dtype == CT_BF16 &&
           ct_sharding_equal(&v->sharding, &op->in[0]->sharding);
}

struct ct_op *ct_updater(const struct ct_value *param)
{
    ct_for_each_use (use, param)
        if (use->op->section->part != CT_PART_INIT && ct_op_mutates(use->op, use->index))
            return use->op;
    return NULL;
}

static bool is_kept(const struct ct_value *v)
{
    return v && ct_is_parameter_cast(v) && v->producer->in[0]->space == CT_SPACE_DEVICE &&
           !ct_updater(v->producer->in[0]);
}

/* In the order of their use: the weights of one product then lie one after the other. */
static int keep_casts(struct ct_graph *graph, struct ct_run *run)
{
    struct ct_builder init = ct_init_builder(graph);

    (void)run;
    init.why = "of a parameter that no step changes";
    if (!ct_device_runs(&ct_op_cast_into, 0))
        return 0;
    ct_for_each_op_safe (op, graph)
        for (int i = 0; i < op->ins; i++)
            if (is_kept(op->in[i]))
                ct_cast_once(&init, op->in[i],
                             ct_arena_printf(graph->arena, "kept.%s", op->in[i]->name));
    return init.status;
}

const struct ct_transform ct_keep_casts = {
    .size = sizeof(struct ct_transform),
    .name = "keep_casts",
    .summary = "casts parameters that no step changes once, not in each step",
    .phase = CT_PHASE_FUSE,
    .after = (const char *const[]){"preferred", NULL},
    .apply = keep_casts,
};
