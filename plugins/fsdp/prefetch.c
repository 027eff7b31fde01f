/*
 * When gathers and reductions run.
 *
 * A gather whose parameter the backward needs too is done again there (reshard), but for the last
 * region of the forward, whose backward comes at once. Then gathers move to the gather stream and
 * to the front of the region before their own, so that they run while that one computes; the memory
 * plan sees two regions' parameters alive at a time and no more. Without reshard they move in front
 * of all microbatches. Reductions move to the reduce stream, where they stand: nothing in the
 * backward waits for them.
 */
#include <string.h>

#include <ctitan/device.h>
#include <ctitan/error.h>

#include "fsdp.h"

bool fsdp_is_gather(const struct ct_op *op)
{
    return op->why && !strcmp(op->why, FSDP_GATHER) && !strcmp(op->type->name, "all_gather");
}

static bool backward(const struct ct_op *op)
{
    return op->part == CT_PART_I || op->part == CT_PART_W;
}

static const struct ct_op *last_forward(const struct ct_graph *graph)
{
    const struct ct_op *last = NULL;

    ct_for_each_op (op, graph)
        if (op->part == CT_PART_F)
            last = op;
    return last;
}

/* ---- reshard ---- */

static void move_before(struct ct_graph *graph, struct ct_op *op, struct ct_op *before)
{
    if (op == before)
        return;
    ct_graph_remove(graph, op);
    ct_graph_insert(graph, op, before);
}

/* The same gather in front of the first backward op that needs it. */
static int clone_for_backward(struct ct_graph *graph, struct ct_op *gather)
{
    struct ct_value *again = NULL;

    for (struct ct_op *op = gather->next; op; op = op->next)
        for (int i = 0; backward(op) && i < op->ins; i++) {
            if (op->in[i] != gather->out[0])
                continue;
            if (!again) {
                struct ct_builder b = ct_builder_before(graph, op);

                b.part = CT_PART_I;
                b.region = gather->region;
                b.why = FSDP_GATHER;
                again = ct_emit1(&b, gather->type->name,
                                 ct_arena_printf(graph->arena, "%s.again", gather->out[0]->name),
                                 gather->in, 1, gather->attrs);
                if (!again)
                    return b.status;
                again->sharding = gather->out[0]->sharding;
            }
            op->in[i] = again;
        }
    return 0;
}

/* What is not resharded is gathered once, before the microbatches. */
static void gather_once(struct ct_graph *graph)
{
    struct ct_op *first = graph->first;

    while (first && (!ct_part_is_microbatch(first->part) || fsdp_is_gather(first)))
        first = first->next;
    ct_for_each_op_safe (op, graph) {
        if (!fsdp_is_gather(op) || op->part != CT_PART_F)
            continue;
        op->part = CT_PART_PRE;
        move_before(graph, op, first);
    }
}

static int reshard(struct ct_graph *graph)
{
    const struct ct_op *last = last_forward(graph);
    bool keep_last = !strcmp(fsdp_config.reshard_after_forward, "default");

    if (!fsdp_reshards(graph))
        gather_once(graph);
    if (!fsdp_reshards(graph) || !last)
        return 0;
    ct_for_each_op_safe (op, graph) {
        int rc = fsdp_is_gather(op) && op->part == CT_PART_F &&
                         !(keep_last && !strcmp(op->region, last->region))
                     ? clone_for_backward(graph, op)
                     : 0;

        if (rc < 0)
            return rc;
    }
    ct_graph_sweep(graph); /* of gathers that only the backward needs, the first */
    return 0;
}

/* ---- prefetch ---- */

static bool same_pass(const struct ct_op *a, const struct ct_op *b)
{
    return backward(a) == backward(b) && ct_part_is_microbatch(b->part) && a->stage == b->stage;
}

/* The first op of the region that runs before the one in which gather stands. */
static struct ct_op *region_before(struct ct_op *gather)
{
    struct ct_op *op = gather, *first = NULL;
    const char *region;

    while (op && same_pass(gather, op) && op->region == gather->region)
        op = op->prev;
    if (!op || !same_pass(gather, op))
        return NULL;
    for (region = op->region; op && same_pass(gather, op) && op->region == region; op = op->prev)
        if (!fsdp_is_gather(op))
            first = op;
    return first;
}

static void hoist(struct ct_graph *graph)
{
    ct_for_each_op_safe (op, graph) {
        struct ct_op *before;

        if (!fsdp_is_gather(op) || !ct_part_is_microbatch(op->part))
            continue;
        before = region_before(op);
        op->stream = CT_STREAM_GATHER;
        if (before && !(op->in[0]->producer && ct_part_is_microbatch(op->in[0]->producer->part)))
            move_before(graph, op, before);
    }
}

/* A sum over the microbatches: a gradient, as it arrives behind them. */
static bool reduces_sum(const struct ct_op *op)
{
    return op->part == CT_PART_POST && op->ins == 1 && op->in[0]->rank > 0 && op->in[0]->producer &&
           op->in[0]->producer->part != CT_PART_PRE && !(op->type->flags & CT_OP_EFFECT);
}

static void reduce_aside(struct ct_graph *graph)
{
    ct_for_each_op (op, graph)
        if (op->type->flags & CT_OP_COLLECTIVE && (op->part == CT_PART_W || reduces_sum(op)))
            op->stream = CT_STREAM_REDUCE;
}

int fsdp_prefetch(struct ct_graph *graph, struct ct_run *run)
{
    int rc = reshard(graph);

    (void)run;
    if (rc < 0 || !fsdp_config.prefetch)
        return rc;
    hoist(graph);
    reduce_aside(graph);
    return 0;
}
