/*
 * Data parallelism with sharded parameters (FSDP2, ZeRO-3), replicated ones (DDP), or both (HSDP).
 *
 * This file states only two things. The batch is split over dp_replicate and dp_shard. A parameter
 * is stored split along one dimension, mostly 0, over dp_shard (and other axes that split the data)
 * but used whole. It inserts the gathers; reduce-scatter and all-reduce of gradients follow from
 * the factor rules.
 *
 *   shard_degree = 1                      DDP
 *   reshard_after_forward = never         one gather a step: ZeRO-1 with reduce = step, ZeRO-2 with
 *                                         reduce = microbatch
 *   reshard_after_forward = always        ZeRO-3: gathered for the forward, again for the backward
 *
 * The gradient of a gather in a microbatch is reduced in the microbatch. With reduce = microbatch,
 * a gather that runs once a step is therefore placed there too, until prefetch.c moves it.
 */
#include <ctitan/core_ops.h>
#include <ctitan/error.h>
#include <ctitan/model.h>
#include <ctitan/plugin.h>

#include "fsdp.h"

struct fsdp_config fsdp_config;

static const struct ct_option options[] = {
    CT_OPT_INT(struct fsdp_config, shard_degree, "shard_degree", "-1", -1, 1 << 20,
               "Ranks that share one copy of the parameters; -1: all remaining ranks"),
    CT_OPT_INT(struct fsdp_config, replicate_degree, "replicate_degree", "1", 1, 1 << 20,
               "Copies of the parameters"),
    CT_OPT_ENUM(struct fsdp_config, reshard_after_forward, "reshard_after_forward", "default",
                "default|always|never",
                "Whether gathered parameters are freed after the forward; default: only without "
                "a pipeline, and not in the last region"),
    CT_OPT_ENUM(struct fsdp_config, reduce, "reduce", "default", "default|microbatch|step",
                "When gradients are reduced: in every microbatch, so that they stay sharded, or "
                "once a step; default: once a step with a pipeline, else in every microbatch"),
    CT_OPT_ENUM(struct fsdp_config, reduce_dtype, "reduce_dtype", "float32", "float32|bfloat16",
                "Dtype in which float32 gradients are sent and summed over ranks that have other "
                "data; over microbatches they are summed in float32"),
    CT_OPT_BOOL(
        struct fsdp_config, prefetch, "prefetch", "true",
        "Gather the next region's parameters while the current one computes, on a separate stream"),
    CT_OPT_ENUM(struct fsdp_config, bucket, "bucket", "unit", "unit|parameter",
                "unit: gather and reduce all parameters of a layer in one call; parameter: each "
                "in its own call"),
    {0}};

bool fsdp_reshards(const struct ct_graph *graph)
{
    if (fsdp_config.reshard_after_forward == FSDP_RESHARD_DEFAULT)
        return graph->partition_axis < 0;
    return fsdp_config.reshard_after_forward == FSDP_RESHARD_ALWAYS;
}

static bool reduces_in_microbatch(const struct ct_graph *graph)
{
    if (fsdp_config.reduce == FSDP_REDUCE_DEFAULT)
        return graph->partition_axis < 0;
    return fsdp_config.reduce == FSDP_REDUCE_MICROBATCH;
}

/* ---- the batch ---- */

static void split_inputs(struct ct_graph *graph)
{
    static const char *const names[] = {"dp_replicate", "dp_shard"};

    for (size_t i = 0; i < graph->value_count; i++)
        for (size_t n = 0; graph->values[i]->role == CT_ROLE_INPUT && n < CT_COUNT(names); n++) {
            int axis = ct_mesh_find(&graph->mesh, names[n]);

            if (axis >= 0)
                ct_sharding_split(&graph->values[i]->sharding, 0, axis);
        }
}

static int split_batch(struct ct_graph *graph, struct ct_run *run)
{
    (void)run;
    split_inputs(graph);
    return 0;
}

static const struct ct_transform batch = {
    .size = sizeof(struct ct_transform),
    .name = "fsdp.batch",
    .summary = "splits the batch over data-parallel ranks",
    .phase = CT_PHASE_SHARD,
    .gives = (const char *const[]){"batch", NULL},
    .evaluation = true,
    .apply = split_batch,
};

/* ---- parameters ---- */

/* Whether two ops of a section use a parameter that is gathered for both. */
static bool share_gather(const struct ct_graph *graph, const struct ct_op *a, const struct ct_op *b)
{
    return !fsdp_reshards(graph) || !((a->marks ^ b->marks) & ct_mark(CT_REFERENCE));
}

static void replace_forward(const struct ct_graph *graph, const struct ct_op *gather,
                            const struct ct_value *param, struct ct_value *whole,
                            const struct ct_op *user)
{
    ct_for_each_use_safe (use, param)
        if (use->op->section == user->section && use->op != gather &&
            share_gather(graph, use->op, user))
            ct_op_set_input(use->op, use->index, whole);
}

/* Sharding of the gradient after a microbatch: a shard. Replicas are summed once a step. */
static struct ct_sharding gradient_of(const struct ct_graph *graph, const struct ct_value *param)
{
    struct ct_sharding s = param->sharding;
    int copies = ct_mesh_find(&graph->mesh, "dp_replicate");

    if (copies >= 0)
        s.unreduced |= (ct_axes)1 << copies;
    return s;
}

const struct ct_section *fsdp_unshard_section(struct ct_graph *graph, int group)
{
    char name[32];

    if (group < 0)
        return ct_graph_section(graph, CT_PART_PRE, group);
    snprintf(name, sizeof(name), "%dUNSHARD", group);
    return ct_graph_section_named(graph, name, CT_PART_PRE, group);
}

/* Gather param at its first use in a section of the forward. */
static int gather(struct ct_graph *graph, struct ct_value *param, struct ct_op *user,
                  const struct ct_sharding *to, const struct ct_sharding *gradient)
{
    bool once = !fsdp_reshards(graph) && !reduces_in_microbatch(graph);
    struct ct_builder b = once ? ct_pre_builder(graph) : ct_builder_before(graph, user);
    struct ct_value *whole;

    b.section = once ? fsdp_unshard_section(graph, user->section->group) : user->section;
    b.region = user->region;
    b.why = "fsdp: a parameter is used whole and kept in shards";
    b.marks = ct_mark(FSDP_GATHER);
    if (fsdp_reshards(graph))
        b.marks |= user->marks & ct_mark(CT_REFERENCE);
    whole = ct_redistribute(&b, ct_arena_printf(graph->arena, "%s.whole", param->name), param, to,
                            gradient);
    if (whole)
        replace_forward(graph, whole->producer, param, whole, user);
    return b.status;
}

/* Parameters are sharded over dp_shard and over other axes that split the data, such as cp, because
   all ranks along these have the same parameters, unless a transform has split them already. */
static ct_axes shard_axes(const struct ct_graph *graph)
{
    int copies = ct_mesh_find(&graph->mesh, "dp_replicate");
    ct_axes axes = 0;

    for (size_t i = 0; i < graph->value_count; i++)
        if (graph->values[i]->role == CT_ROLE_INPUT)
            axes |= ct_sharding_axes(&graph->values[i]->sharding);
    return copies < 0 ? axes : axes & ~((ct_axes)1 << copies);
}

/* The first op of each forward section that uses a parameter, or of each pass there, where
   parameters are gathered for each. */
struct first_user {
    struct ct_op *op;
    struct first_user *next; /* the next section, created later */
};

static void note_user(const struct ct_graph *graph, struct first_user **list, struct ct_op *op,
                      struct ct_arena *scratch)
{
    struct first_user *user;

    while (*list && (*list)->op->section->id < op->section->id)
        list = &(*list)->next;
    for (; *list && (*list)->op->section == op->section; list = &(*list)->next)
        if (share_gather(graph, (*list)->op, op))
            return;
    user = ct_arena_new(scratch, struct first_user);
    *user = (struct first_user){op, *list};
    *list = user;
}

/* Returns an array indexed by parameter id. */
static struct first_user **find_users(const struct ct_graph *graph, struct ct_arena *scratch)
{
    struct first_user **users = ct_arena_array(scratch, struct first_user *, graph->value_count);

    ct_for_each_op (op, graph)
        for (int i = 0; op->section->part == CT_PART_F && i < op->ins; i++)
            if (op->in[i] && op->in[i]->role == CT_ROLE_PARAM)
                note_user(graph, &users[op->in[i]->id], op, scratch);
    return users;
}

/* The sharding of a parameter with further axes on a dimension. */
static struct ct_sharding split(const struct ct_graph *graph, const struct ct_value *param, int dim,
                                ct_axes axes)
{
    struct ct_sharding s = param->sharding;

    for (int axis = 0; axis < graph->mesh.count; axis++)
        if (axes & ~ct_sharding_axes(&param->sharding) & (ct_axes)1 << axis)
            ct_sharding_split(&s, dim, axis);
    return s;
}

/* Elements of the largest shard, which is that of rank 0. */
static int64_t largest(const struct ct_graph *graph, const struct ct_value *param,
                       const struct ct_sharding *s)
{
    int64_t local[CT_MAX_DIMS];

    ct_sharding_local(s, &graph->mesh, 0, param->ndim, param->shape, local, NULL);
    return ct_shape_count(param->ndim, local);
}

/* Dimension 0, unless another one but the last has smaller shards: experts may be fewer than the
   ranks, or no multiple of them, and are then split within. */
static struct ct_sharding sharded(const struct ct_graph *graph, const struct ct_value *param,
                                  ct_axes axes)
{
    struct ct_sharding best = split(graph, param, 0, axes);

    for (int dim = 1; dim < param->ndim - 1; dim++) {
        struct ct_sharding s = split(graph, param, dim, axes);

        if (largest(graph, param, &s) < largest(graph, param, &best))
            best = s;
    }
    return best;
}

static int shard(struct ct_graph *graph, struct ct_value *param, ct_axes axes,
                 const struct first_user *users)
{
    struct ct_sharding to = param->sharding, gradient;
    int rc = 0;

    param->sharding = sharded(graph, param, axes);
    gradient = gradient_of(graph, param);
    for (; rc == 0 && users; users = users->next)
        rc = gather(graph, param, users->op, &to, reduces_in_microbatch(graph) ? &gradient : NULL);
    return rc;
}

static int shard_parameters(struct ct_graph *graph, struct ct_run *run)
{
    ct_axes axes = shard_axes(graph);
    size_t count = graph->value_count;
    struct ct_arena scratch = {0};
    struct first_user **users;
    int rc = 0;

    (void)run;
    if (!axes)
        return 0;
    users = find_users(graph, &scratch);
    for (size_t i = 0; rc == 0 && i < count; i++)
        if (graph->values[i]->role == CT_ROLE_PARAM)
            rc = shard(graph, graph->values[i], axes, users[i]);
    ct_arena_finish(&scratch);
    return rc;
}

static const struct ct_transform parameters = {
    .size = sizeof(struct ct_transform),
    .name = "fsdp",
    .summary = "keeps parameters in shards, and gathers them for use",
    .phase = CT_PHASE_SHARD,
    .gives = CT_NAMES("sharded"),
    .after = CT_NAMES("placed", "batch", "sequence"),
    .evaluation = true,
    .apply = shard_parameters,
};

static const struct ct_transform prefetch = {
    .size = sizeof(struct ct_transform),
    .name = "fsdp.prefetch",
    .summary = "gathers parameters again for the backward, and one region ahead",
    .phase = CT_PHASE_OVERLAP,
    .gives = (const char *const[]){"prefetched", NULL},
    .evaluation = true,
    .apply = fsdp_prefetch,
};

static const struct ct_transform bucket = {
    .size = sizeof(struct ct_transform),
    .name = "fsdp.bucket",
    .summary = "joins the collectives of all parameters of a unit",
    .phase = CT_PHASE_OVERLAP,
    .gives = (const char *const[]){"bucketed", NULL},
    .after = (const char *const[]){"prefetched", NULL},
    .evaluation = true,
    .apply = fsdp_bucket,
};

static const struct ct_transform reduce_dtype = {
    .size = sizeof(struct ct_transform),
    .name = "fsdp.reduce_dtype",
    .summary = "sums gradients over ranks in bfloat16, if asked for",
    .phase = CT_PHASE_OVERLAP,
    .after = (const char *const[]){"bucketed", NULL},
    .apply = fsdp_reduce_dtype,
};

/* ---- axes ---- */

static int64_t replicate_degree(void)
{
    return fsdp_config.replicate_degree;
}

static int64_t shard_degree(void)
{
    return fsdp_config.shard_degree;
}

static const struct ct_axis_ops replicate = {
    .size = sizeof(struct ct_axis_ops),
    .place = 200,
    .splits_batch = true,
    .degree = replicate_degree,
};

static const struct ct_axis_ops shards = {
    .size = sizeof(struct ct_axis_ops),
    .place = 300,
    .splits_batch = true,
    .fills = true,
    .degree = shard_degree,
};

CT_PLUGIN(.name = "fsdp", .version = "1.0",
          .summary = "Data parallelism: FSDP2, HSDP, DDP, ZeRO-1, -2 and -3", .options = options,
          .config = &fsdp_config, .config_size = sizeof(fsdp_config),
          .offers = CT_OFFERS({CT_AXIS, "dp_replicate", &replicate}, {CT_AXIS, "dp_shard", &shards},
                              {CT_TRANSFORM, "fsdp.batch", &batch},
                              {CT_TRANSFORM, "fsdp", &parameters},
                              {CT_TRANSFORM, "fsdp.prefetch", &prefetch},
                              {CT_TRANSFORM, "fsdp.bucket", &bucket},
                              {CT_TRANSFORM, "fsdp.reduce_dtype", &reduce_dtype}));
