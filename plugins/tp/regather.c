/*
 * Sequence-parallel inputs, gathered again for the backward (Korthikanti et al. 2022).
 *
 * A linear layer whose input is cut along the sequence gathers it; the gradient of its weights
 * needs it whole once more. Kept, it would be an activation that does not fall with the degree. So
 * the piece is kept, and gathered again on a stream of its own, beside the product in front of the
 * one that needs it.
 */
#include <string.h>

#include <ctitan/device.h>
#include <ctitan/error.h>

#include "tp.h"

static bool backward(const struct ct_op *op)
{
    return op->part == CT_PART_I || op->part == CT_PART_W;
}

static bool gathers_sequence(const struct ct_op *op)
{
    return op->part == CT_PART_F && !strcmp(op->type->name, "all_gather") &&
           !strcmp(ct_op_string(op, "axes"), "tp") && ct_op_int(op, "dim") == 1 &&
           op->in[0]->rank == 3;
}

static bool uses(const struct ct_op *op, const struct ct_value *v)
{
    for (int i = 0; i < op->ins; i++)
        if (op->in[i] == v)
            return true;
    return false;
}

/* In front of the op before the one that needs it, if that is one of the same backward. */
static struct ct_op *place(struct ct_op *user)
{
    struct ct_op *before = user->prev;

    return before && backward(before) && before->region == user->region ? before : user;
}

static struct ct_value *gather_again(struct ct_graph *graph, const struct ct_op *gather,
                                     struct ct_op *user)
{
    struct ct_builder b = ct_builder_before(graph, place(user));
    struct ct_value *again;

    b.part = user->part;
    b.region = user->region;
    b.why = "tp: the piece is kept for the backward, not the whole";
    again =
        ct_emit1(&b, "all_gather", ct_arena_printf(graph->arena, "%s.again", gather->out[0]->name),
                 gather->in, 1, gather->attrs);
    if (!again)
        return NULL;
    again->sharding = gather->out[0]->sharding;
    again->producer->stream = CT_STREAM_GATHER;
    return again;
}

static int regather(struct ct_graph *graph, struct ct_op *gather)
{
    struct ct_value *whole = gather->out[0], *again = NULL;

    for (struct ct_op *op = gather->next; op; op = op->next) {
        if (!backward(op) || !uses(op, whole))
            continue;
        if (!again)
            again = gather_again(graph, gather, op);
        if (!again)
            return CT_EINVAL;
        if (op->part < again->producer->part) /* W may be run after all of I */
            again->producer->part = op->part;
        for (int i = 0; i < op->ins; i++)
            if (op->in[i] == whole)
                op->in[i] = again;
    }
    return 0;
}

int tp_regather(struct ct_graph *graph, struct ct_run *run)
{
    int rc = 0;

    (void)run;
    if (tp_axis(graph) < 0 || !tp_config.regather)
        return 0;
    ct_for_each_op (op, graph) {
        rc = gathers_sequence(op) ? regather(graph, op) : 0;
        if (rc < 0)
            break;
    }
    return rc;
}
