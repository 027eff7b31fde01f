/*
 * Selects the parameters that are trained, their dtype, and what the backward recomputes.
 */
#include <ctitan/core_ops.h>
#include <ctitan/error.h>
#include <ctitan/lib/ops.h>

#include "lora.h"

int lora_freeze(struct ct_graph *graph, struct ct_run *run)
{
    ct_marks adapter = ct_mark(LORA_ADAPTER);

    (void)run;
    for (size_t i = 0; i < graph->value_count; i++)
        if (graph->values[i]->role == CT_ROLE_PARAM && !(graph->values[i]->marks & adapter))
            ct_value_set_grad(graph->values[i], NULL);
    return ct_sweep_gradients(graph);
}

/* The cast of a parameter that all ops but those of init use; NULL: they use itself. */
static struct ct_op *cast_of(const struct ct_value *param)
{
    ct_for_each_use (use, param)
        if (use->op->type == &ct_op_cast && use->op->section->part == CT_PART_PRE)
            return use->op;
    return NULL;
}

static int widen(struct ct_graph *graph, struct ct_value *param)
{
    struct ct_builder b = ct_pre_builder(graph);
    enum ct_dtype dtype = param->dtype;
    struct ct_op *cast = cast_of(param);
    struct ct_value *copy;

    param->dtype = CT_F32;
    if (cast && cast->out[0]->dtype == CT_F32) {
        ct_value_replace(graph, cast->out[0], param);
        ct_graph_remove(graph, cast);
    }
    if (cast)
        return 0;
    b.why = "lora: adapters are float32, and computed with in the dtype of their weights";
    copy = ct_cast(&b, ct_arena_printf(graph->arena, "%s.%s", param->name, ct_dtype_name(dtype)),
                   param, dtype);
    if (!copy)
        return b.status;
    copy->sharding = param->sharding;
    ct_for_each_use_safe (use, param)
        if (use->op->section->part != CT_PART_INIT && use->op != copy->producer)
            ct_op_set_input(use->op, use->index, copy);
    return 0;
}

int lora_widen(struct ct_graph *graph, struct ct_run *run)
{
    size_t count = graph->value_count;
    int rc = 0;

    (void)run;
    for (size_t i = 0; rc == 0 && i < count; i++) {
        struct ct_value *v = graph->values[i];

        if (v->marks & ct_mark(LORA_ADAPTER) && v->role == CT_ROLE_PARAM &&
            ct_dtype_size(v->dtype) < ct_dtype_size(CT_F32))
            rc = widen(graph, v);
    }
    return rc < 0 ? rc : ct_graph_infer(graph);
}

int lora_again(struct ct_graph *graph, struct ct_run *run)
{
    int rc = 0;

    (void)run;
    ct_for_each_op_safe (op, graph)
        if (rc == 0 && op->type == &lora_op_merge && op->section->part == CT_PART_F)
            rc = ct_compute_again(graph, op, "lora: stacked weights are merged again");
    return rc;
}
