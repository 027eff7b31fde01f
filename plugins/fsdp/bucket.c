/*
 * Merge the collectives of one unit.
 *
 * A unit is a region of the model: the embedding, a layer, the head. Gathers of its parameters that
 * are alike (op, axes, dtype, part, stream) become one op of several values, and so do reductions
 * of their gradients. In a microbatch, merged gathers take the place of the first one, because
 * parameters already exist there. All other merged ops take the place of the last one. Nothing
 * joins a bucket once one of its results is needed, except by a reduction that waits in a bucket
 * itself: a gradient of a weight that tp does not split is reduced over dp_shard, then over tp.
 */
#include <string.h>

#include <ctitan/core_ops.h>
#include <ctitan/device/device.h>
#include <ctitan/error.h>

#include "fsdp.h"

#define MOST 32 /* outputs of an op that may accumulate over microbatches */

struct bucket {
    struct ct_op *op[MOST]; /* in graph order */
    int count;              /* 0: merged */
    size_t older;           /* 1 + index of the previous bucket in the slot; 0: none */
    size_t last; /* number of its last op in the graph; merged: of the op that it stands behind */
    struct ct_op *merged;
};

struct buckets {
    struct ct_graph *graph;
    struct ct_arena scratch;
    struct bucket *item;
    size_t count, room;
    bool *reduces;  /* by value id: output of a gradient reduction */
    size_t *bucket; /* by value id: 1 + bucket of its producer, while the bucket is open */
    size_t ids;
    size_t *newest; /* by slot of a unit's region: 1 + the newest bucket there */
    size_t slots;   /* a power of two */
};

/* The op that tells which unit a collective belongs to. After the microbatches that is the op that
   produced the gradient, or the receive that delivered it from another stage. */
static const struct ct_op *origin(const struct ct_op *op)
{
    while (op->section->part == CT_PART_POST && op->ins > 0 && op->in[0]->producer)
        op = op->in[0]->producer;
    return op;
}

static bool same_unit(const struct ct_op *a, const struct ct_op *b)
{
    return a->section->group == b->section->group && !strcmp(a->region, b->region);
}

static bool alike(const struct ct_op *a, const struct ct_op *b)
{
    const struct ct_collective_attrs *x = a->attrs, *y = b->attrs;

    return a->type == b->type && a->section == b->section && same_unit(origin(a), origin(b)) &&
           a->stream == b->stream && !((a->marks ^ b->marks) & ct_mark(CT_REFERENCE)) &&
           a->in[0]->dtype == b->in[0]->dtype && x->axes == y->axes && x->dim == y->dim &&
           x->reduction == y->reduction;
}

/* Create one op with the values of all, at the position of the first or the last one. */
static int merge(struct ct_graph *graph, struct bucket *bucket, bool at_last)
{
    struct ct_op *first = bucket->op[0], *op;
    struct ct_value *in[MOST];
    struct ct_builder b;

    bucket->merged = first;
    if (bucket->count < 2)
        return 0;
    b = ct_builder_before(graph, at_last ? bucket->op[bucket->count - 1] : first);
    for (int i = 0; i < bucket->count; i++)
        in[i] = bucket->op[i]->in[0];
    b.section = first->section;
    b.region = first->region;
    b.why = first->why;
    b.marks = first->marks;
    op = ct_emit_type(&b, first->type, NULL, in, bucket->count, first->attrs);
    if (!op)
        return b.status;
    op->stream = first->stream;
    for (int i = 0; i < bucket->count; i++) {
        ct_op_set_output(op, i, bucket->op[i]->out[0]);
        ct_graph_remove(graph, bucket->op[i]);
    }
    bucket->merged = op;
    return 0;
}

/* Region names are unique strings, so the address identifies a region. */
static size_t slot_of(const struct buckets *all, const struct ct_op *op)
{
    uint64_t hash = (uint64_t)(uintptr_t)origin(op)->region * UINT64_C(0x9e3779b97f4a7c15);

    return (size_t)(hash >> 32) & (all->slots - 1);
}

/* The newest bucket for ops like this one if it is still open, else a new one. */
static struct bucket *bucket_for(struct buckets *all, const struct ct_op *op)
{
    size_t *newest = &all->newest[slot_of(all, op)];

    for (size_t i = *newest; i > 0; i = all->item[i - 1].older) {
        struct bucket *b = &all->item[i - 1];

        if (b->count && b->count < MOST && alike(b->op[0], op))
            return b;
    }
    all->item =
        ct_arena_grow(&all->scratch, all->item, &all->room, all->count + 1, sizeof(*all->item));
    all->item[all->count] = (struct bucket){.older = *newest};
    *newest = ++all->count;
    return &all->item[all->count - 1];
}

static void add(struct buckets *all, struct bucket *bucket, struct ct_op *op, size_t number)
{
    bucket->op[bucket->count++] = op;
    bucket->last = number;
    all->bucket[op->out[0]->id] = (size_t)(bucket - all->item) + 1;
}

/* ---- gathers in a microbatch ---- */

static bool is_ready(const struct ct_value *v)
{
    return !v->producer || v->producer->section->part <= CT_PART_PRE;
}

static int merge_ahead(struct buckets *all)
{
    int rc = 0;

    ct_for_each_op (op, all->graph)
        if (fsdp_is_gather(op) && ct_part_is_microbatch(op->section->part) && is_ready(op->in[0]))
            add(all, bucket_for(all, op), op, 0);
    for (size_t i = 0; i < all->count && rc == 0; i++)
        rc = merge(all->graph, &all->item[i], false);
    all->count = 0;
    memset(all->newest, 0, sizeof(*all->newest) * all->slots);
    return rc;
}

/* ---- reductions, and gathers that run once a step ---- */

static bool is_reduction(const struct ct_op *op)
{
    return op && op->ins == 1 && fsdp_reduces(op);
}

static void mark_reductions(struct buckets *all)
{
    const struct ct_graph *graph = all->graph;

    for (size_t i = 0; i < graph->value_count; i++)
        for (const struct ct_value *v = graph->values[i]->grad; v && is_reduction(v->producer);
             v = v->producer->in[0])
            all->reduces[v->id] = true;
}

/* The bucket of a value's producer, open or merged; NULL: it has none. */
static struct bucket *bucket_of(const struct buckets *all, const struct ct_value *v)
{
    size_t n = v && v->id < all->ids ? all->bucket[v->id] : 0;

    return n ? &all->item[n - 1] : NULL;
}

/* Merge a bucket, behind those that its ops need. */
static int close_bucket(struct buckets *all, struct bucket *b)
{
    struct bucket *latest = NULL;
    int rc = 0, count = b->count;

    for (int i = 0; i < count && rc == 0; i++) {
        struct bucket *needed = bucket_of(all, b->op[i]->in[0]);

        rc = needed ? close_bucket(all, needed) : 0;
        if (needed && needed->last > b->last && (!latest || needed->last > latest->last))
            latest = needed;
    }
    if (rc == 0 && count)
        rc = merge(all->graph, b, true);
    b->count = 0;
    if (rc == 0 && latest) {
        ct_op_move(all->graph, b->merged, latest->merged->next);
        b->last = latest->last;
    }
    return rc;
}

/* Close the buckets whose results op needs. */
static int close_for(struct buckets *all, const struct ct_op *op)
{
    int rc = 0;

    for (int i = 0; i < op->ins && rc == 0; i++) {
        struct bucket *b = bucket_of(all, op->in[i]);

        rc = b ? close_bucket(all, b) : 0;
    }
    return rc;
}

/* Does an open bucket need the results of another one, itself or through others? */
static bool needs(const struct buckets *all, const struct bucket *b, const struct bucket *other)
{
    for (int i = 0; i < b->count; i++) {
        const struct bucket *in = bucket_of(all, b->op[i]->in[0]);

        if (in && (in == other || needs(all, in, other)))
            return true;
    }
    return false;
}

static bool may_wait(const struct buckets *all, const struct ct_op *op)
{
    if (fsdp_is_gather(op))
        return op->section->part == CT_PART_PRE;
    return is_reduction(op) && op->out[0]->id < all->ids && all->reduces[op->out[0]->id];
}

/* No bucket may need itself: then what it needs is merged first, and it with that. */
static int add_behind(struct buckets *all, struct ct_op *op, size_t number)
{
    struct bucket *mine = bucket_for(all, op), *in = bucket_of(all, op->in[0]);
    int rc = 0;

    if (in && (in == mine || needs(all, in, mine))) {
        rc = close_bucket(all, in);
        mine = bucket_for(all, op);
    }
    add(all, mine, op, number);
    return rc;
}

static int merge_behind(struct buckets *all)
{
    size_t number = 0;
    int rc = 0;

    mark_reductions(all);
    ct_for_each_op_safe (op, all->graph) {
        rc = may_wait(all, op) ? add_behind(all, op, ++number) : close_for(all, op);
        if (rc < 0)
            return rc;
    }
    for (size_t i = 0; i < all->count && rc == 0; i++)
        rc = close_bucket(all, &all->item[i]);
    return rc;
}

int fsdp_bucket(struct ct_graph *graph, struct ct_run *run)
{
    struct buckets all = {.graph = graph, .ids = graph->value_count};
    int rc;

    (void)run;
    if (fsdp_config.bucket != FSDP_BUCKET_UNIT)
        return 0;
    all.reduces = ct_arena_array(&all.scratch, bool, all.ids);
    all.bucket = ct_arena_array(&all.scratch, size_t, all.ids);
    for (all.slots = 64; all.slots * 16 < all.ids;)
        all.slots *= 2;
    all.newest = ct_arena_array(&all.scratch, size_t, all.slots);
    rc = merge_ahead(&all);
    memset(all.bucket, 0, sizeof(*all.bucket) * all.ids);
    if (rc == 0)
        rc = merge_behind(&all);
    ct_arena_finish(&all.scratch);
    return rc;
}
