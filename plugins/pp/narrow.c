/*
 * Narrow cuts.
 *
 * Models fuse a residual addition with the norm that follows it. Where the norm is the first thing
 * in a stage, both summands would cross the cut; so the fused op is taken apart, and the sum is
 * made in the stage before.
 */
#include <string.h>

#include "pp.h"

static bool comes_from_before(const struct ct_op *op, int input)
{
    const struct ct_value *v = op->in[input];

    return v->producer && v->producer->part == CT_PART_F && v->producer->stage < op->stage;
}

static int take_apart(struct ct_graph *graph, struct ct_op *op)
{
    const struct ct_op *maker = op->in[1]->producer;
    struct ct_builder b = ct_builder_before(graph, op);
    struct ct_value *sum, *in[2];
    struct ct_op *norm;

    b.stage = maker->stage;
    b.region = maker->region;
    sum = ct_emit1(&b, "add", ct_arena_printf(graph->arena, "%s.cut", op->out[0]->name), op->in, 2,
                   NULL);
    b.stage = op->stage;
    b.region = op->region;
    in[0] = sum;
    in[1] = op->in[2];
    norm = sum ? ct_emit(&b, "rms_norm", op->out[0]->name, in, 2, op->attrs) : NULL;
    if (!norm)
        return b.status;
    ct_graph_replace(graph, op->out[0], norm->out[0]);
    ct_graph_replace(graph, op->out[1], sum);
    ct_graph_replace(graph, op->out[2], norm->out[1]);
    ct_graph_remove(graph, op);
    return 0;
}

int pp_narrow(struct ct_graph *graph)
{
    int rc = 0;

    ct_for_each_op_safe (op, graph) {
        if (rc == 0 && op->part == CT_PART_F && !strcmp(op->type->name, "add_rms_norm") &&
            comes_from_before(op, 0) && comes_from_before(op, 1))
            rc = take_apart(graph, op);
    }
    if (rc == 0)
        ct_graph_sweep(graph);
    return rc;
}
