/*
 * When gathers and reductions run.
 *
 * A gather whose parameter the backward needs too is repeated there (reshard). The exception is the
 * last region of the forward, whose backward follows at once. Gathers then move to the gather
 * stream and to the front of the preceding region, so that they overlap its computation. At most
 * two regions' parameters are alive at a time. Without reshard, gathers move in front of all
 * microbatches. Reductions move to the reduce stream. Those in a microbatch keep their position,
 * because nothing in the backward waits for them. Those that run once a step run as soon as the
 * last microbatch has added to the gradient. Sums over replicas have a stream of their own: they
 * cross a slower link, and reductions into shards must not wait behind them.
 */
#include <string.h>

#include <ctitan/core_ops.h>
#include <ctitan/device/device.h>
#include <ctitan/error.h>

#include "fsdp.h"

bool fsdp_is_gather(const struct ct_op *op)
{
    return op->marks & ct_mark(FSDP_GATHER) && op->type == &ct_op_all_gather;
}

bool fsdp_reduces(const struct ct_op *op)
{
    return op->type == &ct_op_reduce_scatter || op->type == &ct_op_all_reduce;
}

static bool backward(const struct ct_op *op)
{
    return op->section->part == CT_PART_I || op->section->part == CT_PART_W;
}

static const struct ct_op *last_forward(const struct ct_graph *graph)
{
    const struct ct_op *last = NULL;

    ct_for_each_op (op, graph)
        if (op->section->part == CT_PART_F)
            last = op;
    return last;
}

/* ---- reshard ---- */

/* Gathers that are repeated for the backward. */
struct again {
    const struct ct_op *last;   /* last op of the forward */
    struct ct_value **gathered; /* by id of a gather's output: the backward's replacement */
    size_t count;
};

static bool is_dropped(const struct again *a, const struct ct_value *v)
{
    bool keep_last = fsdp_config.reshard_after_forward == FSDP_RESHARD_DEFAULT;
    const struct ct_op *op = v ? v->producer : NULL;

    return op && v->id < a->count && op->section->part == CT_PART_F && fsdp_is_gather(op) &&
           !(keep_last && !strcmp(op->region, a->last->region));
}

/* Clone the gather in front of op, the first op of the backward that needs it. */
static int gather_again(struct ct_graph *graph, struct again *a, struct ct_op *op, int input)
{
    const struct ct_op *gather = op->in[input]->producer;
    struct ct_value **v = &a->gathered[op->in[input]->id];
    struct ct_builder b = ct_builder_before(graph, op);

    ct_builder_set_part(&b, CT_PART_I);
    b.region = gather->region;
    if (!*v) {
        struct ct_op *clone = ct_op_clone(&b, gather, NULL, "again");

        *v = clone ? clone->out[0] : NULL;
    }
    if (*v)
        ct_op_set_input(op, input, *v);
    return b.status;
}

/* Gathers that are not repeated run once, before the microbatches. */
static void gather_once(struct ct_graph *graph)
{
    struct ct_op *first = graph->first;

    while (first && (!ct_part_is_microbatch(first->section->part) || fsdp_is_gather(first)))
        first = first->next;
    ct_for_each_op_safe (op, graph) {
        if (!fsdp_is_gather(op) || op->section->part != CT_PART_F)
            continue;
        op->section = fsdp_unshard_section(graph, op->section->group);
        ct_op_move(graph, op, first);
    }
}

static int reshard(struct ct_graph *graph)
{
    const struct ct_op *last = last_forward(graph);
    struct ct_arena scratch = {0};
    struct again a = {.count = graph->value_count};
    int rc = 0;

    if (!fsdp_reshards(graph))
        gather_once(graph);
    if (!fsdp_reshards(graph) || !last)
        return 0;
    a.last = last;
    a.gathered = ct_arena_array(&scratch, struct ct_value *, a.count);
    ct_for_each_op (op, graph)
        for (int i = 0; rc == 0 && backward(op) && i < op->ins; i++)
            if (is_dropped(&a, op->in[i]))
                rc = gather_again(graph, &a, op, i);
    ct_arena_finish(&scratch);
    if (rc < 0)
        return rc;
    ct_graph_sweep(graph); /* removes original gathers that only the backward needed */
    return 0;
}

/* ---- prefetch ---- */

/* Consecutive ops of one pass and one region. */
struct stretch {
    const struct ct_op *any;
    struct ct_op *first; /* first op that is not a gather; NULL: none yet */
};

static bool same_pass(const struct ct_op *a, const struct ct_op *b)
{
    return backward(a) == backward(b) && ct_part_is_microbatch(a->section->part) &&
           ct_part_is_microbatch(b->section->part) && a->section->group == b->section->group;
}

/* Advance to op. `here` is the stretch that ends with op, and `before` the previous one. */
static void walk_to(struct stretch *before, struct stretch *here, struct ct_op *op)
{
    bool same = here->any && same_pass(here->any, op);

    if (!same || here->any->region != op->region) {
        *before = same ? *here : (struct stretch){NULL, NULL};
        here->first = NULL;
    }
    here->any = op;
    if (!here->first && !fsdp_is_gather(op))
        here->first = op;
}

static void hoist(struct ct_graph *graph)
{
    struct stretch before = {NULL, NULL}, here = {NULL, NULL};

    ct_for_each_op_safe (op, graph) {
        walk_to(&before, &here, op);
        if (!fsdp_is_gather(op) || !ct_part_is_microbatch(op->section->part))
            continue;
        op->stream = ct_stream("gather", CT_STREAM_KEEPS);
        if (before.first &&
            !(op->in[0]->producer && ct_part_is_microbatch(op->in[0]->producer->section->part)))
            ct_op_move(graph, op, before.first);
    }
}

/* True for sums over the microbatches: gradients, which are complete only after them. */
static bool reduces_sum(const struct ct_op *op)
{
    return op->section->part == CT_PART_POST && op->ins == 1 && op->in[0]->ndim > 0 &&
           op->in[0]->producer && op->in[0]->producer->section->part != CT_PART_PRE &&
           !(op->type->flags & CT_OP_EFFECT);
}

static void reduce_aside(struct ct_graph *graph)
{
    int copies = ct_mesh_find(&graph->mesh, "dp_replicate");
    ct_axes replicas = copies < 0 ? 0 : (ct_axes)1 << copies;

    ct_for_each_op (op, graph) {
        if (!(op->type->flags & CT_OP_COLLECTIVE) ||
            (op->section->part != CT_PART_W && !reduces_sum(op)))
            continue;
        op->stream = ct_stream(ct_op_axes(op, "axes") & replicas ? "replicas" : "reduce", 0);
        if (op->section->part == CT_PART_POST && fsdp_reduces(op))
            op->marks |= ct_mark(CT_SOON);
    }
}

/* ---- sections of a group, for orders that name them ---- */

/* Move other ops on gathered parameters before the microbatches to the section of the gather. */
static void follow_gathers(struct ct_graph *graph)
{
    ct_for_each_op (op, graph)
        for (int i = 0; op->section->part == CT_PART_PRE && i < op->ins; i++) {
            const struct ct_op *maker = op->in[i] ? op->in[i]->producer : NULL;

            if (maker && maker->section->part == CT_PART_PRE && maker->section->group >= 0)
                op->section = maker->section;
        }
}

/* The group whose gradient v is or is reduced from, or CT_NO_GROUP. */
static int group_of_sum(const struct ct_value *v)
{
    const struct ct_op *maker = v ? v->producer : NULL;

    return maker && maker->section->part != CT_PART_PRE ? maker->section->group : CT_NO_GROUP;
}

/* Put reductions of a group's gradients, and the ops that lead to them, in "1REDUCE_GRAD". */
static void name_reductions(struct ct_graph *graph)
{
    ct_for_each_op (op, graph) {
        bool moves = op->type->flags & (CT_OP_COLLECTIVE | CT_OP_LINEAR | CT_OP_VIEW);
        int group = op->ins ? group_of_sum(op->in[0]) : CT_NO_GROUP;
        char name[32];

        if (op->section->part != CT_PART_POST || !moves || op->type->flags & CT_OP_RENDEZVOUS)
            continue;
        for (int i = 1; i < op->ins; i++)
            if (group_of_sum(op->in[i]) != group)
                group = CT_NO_GROUP;
        snprintf(name, sizeof(name), "%dREDUCE_GRAD", group);
        if (group >= 0)
            op->section = ct_graph_section_named(graph, name, CT_PART_POST, group);
    }
}

int fsdp_prefetch(struct ct_graph *graph, struct ct_run *run)
{
    int rc = reshard(graph);

    (void)run;
    follow_gathers(graph);
    name_reductions(graph);
    if (rc < 0 || !fsdp_config.prefetch)
        return rc;
    hoist(graph);
    reduce_aside(graph);
    return 0;
}
