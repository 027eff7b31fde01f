/*
 * Parameters and optimizer states in the device's host memory (ZeRO-Offload): pinned memory for a
 * GPU, a file for a CPU.
 *
 * Offloaded values are marked. An op that needs one gets a copy that is loaded before it, and
 * updates are stored after it. The optimizer works region by region, so that only two regions'
 * states are on the device at a time. A parameter used in another dtype is cast once a step, and
 * the cast copy is offloaded as well, so that microbatches load only that.
 *
 * A copy is loaded anew for the forward and for the backward of each region, one region ahead, on a
 * stream of its own. The load overlaps the previous region, and the copy's memory is freed after
 * its own region. Gathers of fsdp run one region ahead already, so their inputs are loaded two
 * regions ahead.
 */
#include <ctitan/device/device.h>
#include <ctitan/error.h>
#include <ctitan/lib/ops.h>
#include <ctitan/pass.h>
#include <ctitan/plugin.h>
#include <ctitan/train.h>

struct config {
    bool parameters, optimizer;
};

static struct config config;

static const struct ct_option options[] = {
    CT_OPT_BOOL(struct config, parameters, "parameters", "true", "Offload parameters"),
    CT_OPT_BOOL(struct config, optimizer, "optimizer", "true", "Offload the optimizer's states"),
    {0}};

#define WHY "offload: it lies in the device's host memory"

/* A copy of an offloaded value, and the use that it was loaded for. */
struct loaded {
    struct ct_value *copy; /* NULL: none yet */
    const struct ct_op *user;
    const struct ct_op *stored; /* last op that stores another one; NULL: none */
};

/* The current position while the ops of one part are visited. */
struct section {
    int group;
    const char *region;       /* of the last compute op */
    struct ct_op *run, *last; /* first op of that region; first of the region before; NULL: none */
};

struct offloading {
    struct ct_graph *graph;
    struct ct_arena scratch;
    struct loaded *loaded;   /* by value id */
    const char *last_region; /* last region of the forward */
    struct section section[CT_PARTS];
};

/* Unlike the optimizer's, the states of a cache of keys and values change in the forward. */
static bool changes_in_microbatch(const struct ct_value *v)
{
    ct_for_each_use (use, v)
        if (ct_part_is_microbatch(use->op->section->part) && ct_op_mutates(use->op, use->index))
            return true;
    return false;
}

static bool is_chosen(const struct ct_value *v)
{
    return (v->role == CT_ROLE_PARAM && config.parameters) ||
           (v->role == CT_ROLE_STATE && config.optimizer && !changes_in_microbatch(v));
}

static bool moves(const struct ct_op *op)
{
    return op->type->flags & CT_OP_SPACES;
}

/* ---- copies in another dtype ---- */

/* True for values computed before the microbatches from one parameter, shard by shard. */
static bool is_working_copy(const struct ct_graph *graph, const struct ct_op *op)
{
    if (op->section->part != CT_PART_PRE || op->ins != 1 || op->outs != 1 ||
        op->in[0]->space != CT_SPACE_HOST || op->type->flags & (CT_OP_COLLECTIVE | CT_OP_VIEW))
        return false;
    ct_for_each_use (use, op->out[0])
        if (ct_part_is_microbatch(use->op->section->part) || graph->partition_axis >= 0)
            return true;
    return false;
}

static int offload_copy(struct ct_graph *graph, struct ct_op *op)
{
    struct ct_builder b = ct_builder_after(graph, op);
    struct ct_value *copy = op->out[0], *away;

    b.why = WHY;
    away = ct_offload(&b, ct_arena_printf(graph->arena, "%s.offloaded", copy->name), copy);
    if (!away)
        return b.status;
    away->sharding = copy->sharding;
    away->producer->stream = ct_stream("copy_out", CT_STREAM_KEEPS);
    ct_value_replace(graph, copy, away);
    ct_op_set_input(away->producer, 0, copy);
    return 0;
}

static int offload_copies(struct ct_graph *graph)
{
    int rc = 0;

    ct_for_each_op_safe (op, graph)
        if (rc == 0 && is_working_copy(graph, op))
            rc = offload_copy(graph, op);
    return rc;
}

/* ---- loads and stores ---- */

static bool computes(const struct ct_op *op)
{
    return op->stream == CT_STREAM_COMPUTE && !moves(op);
}

static bool needs_load(const struct ct_op *op)
{
    for (int i = 0; !moves(op) && i < op->ins; i++)
        if (op->in[i] && op->in[i]->space == CT_SPACE_HOST)
            return true;
    return false;
}

/* Regions follow each other in microbatches. Elsewhere the steps are ops that need a load. */
static void walk_to(struct offloading *o, struct ct_op *op)
{
    struct section *s = &o->section[op->section->part];
    bool micro = ct_part_is_microbatch(op->section->part);

    if (op->section->group != s->group)
        *s = (struct section){.group = op->section->group};
    if (micro ? !computes(op) || s->region == op->region : !needs_load(op))
        return;
    s->region = op->region;
    s->last = s->run;
    s->run = op;
}

/* The op before which a copy for op is loaded; op itself if it cannot be earlier. */
static struct ct_op *load_point(const struct offloading *o, struct ct_op *op,
                                const struct ct_value *v)
{
    const struct section *s = &o->section[op->section->part];
    struct ct_op *ahead = computes(op) ? s->last : s->run;

    if (op->section->part == CT_PART_INIT ||
        (v->producer && v->producer->section->part == op->section->part))
        return op;
    return ahead ? ahead : op;
}

/* The last region's backward directly follows its forward, so both use one copy. */
static bool same_use(const struct offloading *o, const struct ct_op *a, const struct ct_op *b)
{
    bool turn = a->section->part == CT_PART_F && b->section->part == CT_PART_I &&
                a->region == o->last_region && o->graph->partition_axis < 0;

    return a->region == b->region && a->section->group == b->section->group &&
           (a->section->part == b->section->part || turn);
}

/* Did an op of this part update it? Then no load may come earlier. */
static bool was_stored(const struct loaded *l, const struct ct_op *op)
{
    return l->stored && l->stored->section->part == op->section->part;
}

static struct ct_value *load(struct offloading *o, struct ct_op *op, struct ct_value *v)
{
    struct loaded *l = &o->loaded[v->id];
    struct ct_builder b;

    if (l->copy && same_use(o, l->user, op))
        return l->copy;
    b = ct_builder_before(o->graph, was_stored(l, op) ? op : load_point(o, op, v));
    b.section = op->section;
    b.region = op->region;
    b.why = WHY;
    l->user = op;
    l->copy = ct_load(&b, ct_arena_printf(o->graph->arena, "%s.here", v->name), v);
    if (!l->copy)
        return NULL;
    l->copy->sharding = v->sharding;
    if (op->section->part != CT_PART_INIT)
        l->copy->producer->stream = ct_stream("copy_in", 0);
    return l->copy;
}

static int store(struct offloading *o, struct ct_op *op, struct ct_value *v, struct ct_value *copy)
{
    struct ct_builder b = ct_builder_after(o->graph, op);
    struct ct_op *stored;

    b.why = WHY;
    stored = ct_store(&b, v, copy);
    if (stored && op->section->part != CT_PART_INIT)
        stored->stream = ct_stream("copy_out", CT_STREAM_KEEPS);
    o->loaded[v->id].copy = NULL;
    o->loaded[v->id].stored = stored;
    return b.status;
}

static int serve(struct offloading *o, struct ct_op *op)
{
    for (int i = 0; i < op->ins; i++) {
        struct ct_value *v = op->in[i], *copy;
        int rc = 0;

        if (!v || v->space != CT_SPACE_HOST)
            continue;
        copy = load(o, op, v);
        if (!copy)
            return CT_EINVAL;
        if (ct_op_mutates(op, i))
            rc = store(o, op, v, copy);
        if (rc < 0)
            return rc;
        ct_op_set_input(op, i, copy);
    }
    return 0;
}

static int move(struct offloading *o)
{
    o->loaded = ct_arena_array(&o->scratch, struct loaded, o->graph->value_count + 1);
    ct_for_each_op (op, o->graph)
        if (op->section->part == CT_PART_F && computes(op))
            o->last_region = op->region;
    ct_for_each_op_safe (op, o->graph) {
        int rc;

        walk_to(o, op);
        rc = needs_load(op) ? serve(o, op) : 0;
        if (rc < 0)
            return rc;
    }
    return 0;
}

static int offload(struct ct_graph *graph, struct ct_run *run)
{
    struct offloading o = {.graph = graph};
    int rc;

    (void)run;
    for (size_t i = 0; i < graph->value_count; i++)
        if (is_chosen(graph->values[i]))
            graph->values[i]->space = CT_SPACE_HOST;
    rc = offload_copies(graph);
    if (rc == 0)
        rc = move(&o);
    ct_arena_finish(&o.scratch);
    return rc;
}

static const struct ct_transform transform = {
    .size = sizeof(struct ct_transform),
    .name = "offload",
    .summary = "keeps parameters and optimizer states in the device's host memory",
    .phase = CT_PHASE_OVERLAP,
    .after = (const char *const[]){"prefetched", "bucketed", NULL},
    .evaluation = true,
    .apply = offload,
};

/* ---- the optimizer ---- */

static int by_region(struct ct_graph *graph, struct ct_run *run)
{
    (void)run;
    if (!config.parameters && !config.optimizer)
        return ct_fail(CT_ECONFIG, "[offload] parameters and optimizer are both false: set one of "
                                   "them, or remove offload from [plugins] load");
    for (size_t i = 0; i < graph->value_count; i++)
        if (graph->values[i]->role == CT_ROLE_PARAM)
            graph->values[i]->marks |= ct_mark(CT_UPDATE_BY_REGION);
    return 0;
}

static const struct ct_transform update = {
    .size = sizeof(struct ct_transform),
    .name = "offload.update",
    .summary = "makes the optimizer work region by region",
    .phase = CT_PHASE_DIFFERENTIATE, /* then all parameters are there */
    .apply = by_region,
};

CT_PLUGIN(.name = "offload", .version = "1.0",
          .summary = "Parameters and optimizer states in host memory (ZeRO-Offload)",
          .options = options, .config = &config, .config_size = sizeof(config),
          .offers = CT_OFFERS({CT_TRANSFORM, "offload.update", &update},
                              {CT_TRANSFORM, "offload", &transform}));
