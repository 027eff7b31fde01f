/*
 * Sequence-parallel inputs, gathered again for the backward (Korthikanti et al. 2022).
 *
 * A linear layer gathers an input that is split along the sequence, and the gradient of its weights
 * needs the whole input again. If kept, this activation would not shrink with the degree. So only
 * the shard is kept. It is gathered again on a stream of its own, overlapping the product before
 * the one that needs it.
 */
#include <string.h>

#include <ctitan/core_ops.h>
#include <ctitan/device/device.h>
#include <ctitan/error.h>

#include "tp.h"

static bool backward(const struct ct_op *op)
{
    return op->section->part == CT_PART_I || op->section->part == CT_PART_W;
}

static bool gathers_sequence(const struct ct_op *op, int axis)
{
    const struct ct_collective_attrs *attrs = op->attrs;

    return op->section->part == CT_PART_F && op->type == &ct_op_all_gather &&
           attrs->axes == (ct_axes)1 << axis && attrs->dim == 1 && op->in[0]->ndim == 3;
}

/* In front of the op before user, if that is of the same backward; else in front of user. */
static struct ct_op *place(struct ct_op *user)
{
    struct ct_op *before = user->prev;

    return before && backward(before) && before->region == user->region ? before : user;
}

static struct ct_value *gather_again(struct ct_graph *graph, const struct ct_op *gather,
                                     struct ct_op *user)
{
    struct ct_builder b = ct_builder_before(graph, place(user));
    struct ct_op *again;

    b.section = user->section;
    b.region = user->region;
    b.why = "tp: the shard is kept for the backward, not the whole";
    again = ct_op_clone(&b, gather, NULL, "again");
    if (!again)
        return NULL;
    again->stream = ct_stream("gather", CT_STREAM_KEEPS);
    return again->out[0];
}

/* Let input i of an op of the backward take the value that is gathered again. */
static int take_again(struct ct_graph *graph, struct ct_op *op, int i, struct ct_value **again)
{
    if (!*again)
        *again = gather_again(graph, op->in[i]->producer, op);
    if (!*again)
        return CT_EINVAL;
    if (op->section->part < (*again)->producer->section->part) /* W may run after all of I */
        (*again)->producer->section = op->section;
    ct_op_set_input(op, i, *again);
    return 0;
}

int tp_regather(struct ct_graph *graph, struct ct_run *run)
{
    size_t count = graph->value_count;
    struct ct_arena scratch = {0};
    struct ct_value **again; /* by id of a value gathered in the forward */
    int rc = 0;

    (void)run;
    if (tp_axis(graph) < 0 || !tp_config.regather)
        return 0;
    again = ct_arena_array(&scratch, struct ct_value *, count);
    ct_for_each_op (op, graph)
        for (int i = 0; rc == 0 && backward(op) && i < op->ins; i++) {
            const struct ct_value *v = op->in[i];

            if (v && v->id < count && v->producer && gathers_sequence(v->producer, tp_axis(graph)))
                rc = take_again(graph, op, i, &again[v->id]);
        }
    ct_arena_finish(&scratch);
    return rc;
}
