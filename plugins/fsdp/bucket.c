/*
 * Collectives of one unit as one.
 *
 * A unit is a region of the model: the embedding, a layer, the head. The gathers of its parameters,
 * and the reductions of their gradients, that are alike (op, axes, dtype, part, stream) become one
 * op of several values. Gathers in a microbatch stand where the first of them stood, as parameters
 * are there already; all else where the last did, and none joins once a result is needed.
 */
#include <string.h>

#include <ctitan/device.h>
#include <ctitan/error.h>

#include "fsdp.h"

#define MOST 32 /* outputs of an op that may add up over microbatches */

struct bucket {
    struct ct_op *op[MOST]; /* in the graph's order */
    int count;
};

struct buckets {
    struct ct_graph *graph;
    struct ct_arena scratch;
    struct bucket *item;
    size_t count, room;
    bool *reduces;  /* by value id: made by a reduction of a gradient */
    size_t *bucket; /* by value id: 1 + that of its producer, while it may grow */
    size_t ids;
};

/* The op that says which unit a collective is of: behind the microbatches, what made the gradient.
 */
static const struct ct_op *origin(const struct ct_op *op)
{
    while (op->part == CT_PART_POST && op->in[0]->producer)
        op = op->in[0]->producer;
    return op;
}

static bool same_unit(const struct ct_op *a, const struct ct_op *b)
{
    return a->stage == b->stage && !strcmp(a->region, b->region);
}

static bool alike(const struct ct_op *a, const struct ct_op *b)
{
    bool dim = strcmp(a->type->name, "all_reduce") != 0;

    return a->type == b->type && a->part == b->part && same_unit(origin(a), origin(b)) &&
           a->stream == b->stream && a->in[0]->dtype == b->in[0]->dtype &&
           !strcmp(ct_op_string(a, "axes"), ct_op_string(b, "axes")) &&
           (!dim || ct_op_int(a, "dim") == ct_op_int(b, "dim"));
}

/* One op with the values of all, where the first or the last of them stood. */
static int merge(struct ct_graph *graph, const struct bucket *bucket, bool at_last)
{
    struct ct_op *first, *op;
    struct ct_value *in[MOST];
    struct ct_builder b;

    if (bucket->count < 2)
        return 0;
    first = bucket->op[0];
    b = ct_builder_before(graph, at_last ? bucket->op[bucket->count - 1] : first);
    for (int i = 0; i < bucket->count; i++)
        in[i] = bucket->op[i]->in[0];
    b.part = first->part;
    b.region = first->region;
    b.stage = first->stage;
    b.why = first->why;
    op = ct_emit(&b, first->type->name, NULL, in, bucket->count, first->attrs);
    if (!op)
        return b.status;
    op->stream = first->stream;
    for (int i = 0; i < bucket->count; i++) {
        op->out[i] = bucket->op[i]->out[0];
        op->out[i]->producer = op;
        ct_graph_remove(graph, bucket->op[i]);
    }
    return 0;
}

/* The last bucket for ops like this one, if it may grow; else a new one. */
static struct bucket *bucket_for(struct buckets *all, const struct ct_op *op)
{
    for (size_t i = all->count; i-- > 0;)
        if (all->item[i].count && all->item[i].count < MOST && alike(all->item[i].op[0], op))
            return &all->item[i];
    all->item =
        ct_arena_grow(&all->scratch, all->item, &all->room, all->count + 1, sizeof(*all->item));
    all->item[all->count].count = 0;
    return &all->item[all->count++];
}

static void add(struct buckets *all, struct ct_op *op)
{
    struct bucket *bucket = bucket_for(all, op);

    bucket->op[bucket->count++] = op;
    all->bucket[op->out[0]->id] = (size_t)(bucket - all->item) + 1;
}

/* ---- gathers in a microbatch ---- */

static bool is_ready(const struct ct_value *v)
{
    return !v->producer || v->producer->part <= CT_PART_PRE;
}

static int merge_ahead(struct buckets *all)
{
    int rc = 0;

    ct_for_each_op (op, all->graph)
        if (fsdp_is_gather(op) && ct_part_is_microbatch(op->part) && is_ready(op->in[0]))
            add(all, op);
    for (size_t i = 0; i < all->count && rc == 0; i++)
        rc = merge(all->graph, &all->item[i], false);
    all->count = 0;
    return rc;
}

/* ---- reductions, and gathers that are done once a step ---- */

static bool is_reduction(const struct ct_op *op)
{
    return op && op->ins == 1 &&
           (!strcmp(op->type->name, "reduce_scatter") || !strcmp(op->type->name, "all_reduce"));
}

static void mark_reductions(struct buckets *all)
{
    const struct ct_graph *graph = all->graph;

    for (size_t i = 0; i < graph->value_count; i++)
        for (const struct ct_value *v = graph->values[i]->grad; v && is_reduction(v->producer);
             v = v->producer->in[0])
            all->reduces[v->id] = true;
}

/* Buckets whose results op needs are full. */
static int close_for(struct buckets *all, const struct ct_op *op)
{
    int rc = 0;

    for (int i = 0; i < op->ins && rc == 0; i++) {
        const struct ct_value *v = op->in[i];
        size_t n = v && v->id < all->ids ? all->bucket[v->id] : 0;

        if (n && all->item[n - 1].count) {
            rc = merge(all->graph, &all->item[n - 1], true);
            all->item[n - 1].count = 0;
        }
    }
    return rc;
}

static bool may_wait(const struct buckets *all, const struct ct_op *op)
{
    if (fsdp_is_gather(op))
        return op->part == CT_PART_PRE;
    return is_reduction(op) && op->out[0]->id < all->ids && all->reduces[op->out[0]->id];
}

static int merge_behind(struct buckets *all)
{
    int rc = 0;

    mark_reductions(all);
    ct_for_each_op_safe (op, all->graph) {
        rc = close_for(all, op);
        if (rc < 0)
            return rc;
        if (may_wait(all, op))
            add(all, op);
    }
    for (size_t i = 0; i < all->count && rc == 0; i++)
        rc = merge(all->graph, &all->item[i], true);
    return rc;
}

int fsdp_bucket(struct ct_graph *graph, struct ct_run *run)
{
    struct buckets all = {.graph = graph, .ids = graph->value_count};
    int rc;

    (void)run;
    if (strcmp(fsdp_config.bucket, "unit") != 0)
        return 0;
    all.reduces = ct_arena_array(&all.scratch, bool, all.ids);
    all.bucket = ct_arena_array(&all.scratch, size_t, all.ids);
    rc = merge_ahead(&all);
    memset(all.bucket, 0, sizeof(*all.bucket) * all.ids);
    if (rc == 0)
        rc = merge_behind(&all);
    ct_arena_finish(&all.scratch);
    return rc;
}
