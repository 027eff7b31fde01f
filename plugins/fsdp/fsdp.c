/*
 * Data parallelism, with parameters in shards (FSDP2, ZeRO-3) or whole (DDP), or both (HSDP).
 *
 * All that is said here: the batch is cut over dp_replicate and dp_shard, and a parameter is kept
 * cut along dimension 0 over dp_shard (and cp) but used whole. The gather is written down;
 * reduce-scatter and all-reduce of gradients follow from the factor rules.
 *
 *   shard_degree = 1                      DDP
 *   reshard_after_forward = never         one gather a step: ZeRO-1 with reduce = step, ZeRO-2 with
 *                                         reduce = microbatch
 *   reshard_after_forward = always        gathered for the forward and again for the backward:
 * ZeRO-3
 *
 * What stands in a microbatch has its gradient reduced there; so a gather that is done once a step
 * stands there too, until prefetch.c moves it.
 */
#include <string.h>

#include <ctitan/error.h>
#include <ctitan/model.h>
#include <ctitan/plugin.h>

#include "fsdp.h"

struct fsdp_config fsdp_config;

static const struct ct_option options[] = {
    CT_OPT_INT(struct fsdp_config, shard_degree, "shard_degree", "-1", -1, 1 << 20,
               "Ranks that share one copy of the parameters; -1: all that are left"),
    CT_OPT_INT(struct fsdp_config, replicate_degree, "replicate_degree", "1", 1, 1 << 20,
               "Copies of the parameters"),
    CT_OPT_CHOICE(
        struct fsdp_config, reshard_after_forward, "reshard_after_forward", "default",
        "default|always|never",
        "Free gathered parameters after the forward; default: unless there is a pipeline, "
        "and not those of the last region"),
    CT_OPT_CHOICE(
        struct fsdp_config, reduce, "reduce", "default", "default|microbatch|step",
        "Reduce gradients in every microbatch (they stay sharded) or once a step; default: "
        "once a step if there is a pipeline"),
    CT_OPT_BOOL(struct fsdp_config, prefetch, "prefetch", "true",
                "Gather the next region's parameters while one computes, on a stream of their own"),
    CT_OPT_CHOICE(struct fsdp_config, bucket, "bucket", "unit", "unit|parameter",
                  "Gather and reduce all parameters of a layer in one call, or each by itself"),
    {0}};

bool fsdp_reshards(const struct ct_graph *graph)
{
    if (!strcmp(fsdp_config.reshard_after_forward, "default"))
        return ct_mesh_find(&graph->mesh, "pp") < 0;
    return !strcmp(fsdp_config.reshard_after_forward, "always");
}

static bool reduces_in_microbatch(const struct ct_graph *graph)
{
    if (!strcmp(fsdp_config.reduce, "default"))
        return ct_mesh_find(&graph->mesh, "pp") < 0;
    return !strcmp(fsdp_config.reduce, "microbatch");
}

/* ---- the batch ---- */

static void cut_inputs(struct ct_graph *graph)
{
    static const char *const names[] = {"dp_replicate", "dp_shard"};

    for (size_t i = 0; i < graph->value_count; i++)
        for (size_t n = 0; graph->values[i]->role == CT_ROLE_INPUT && n < CT_COUNT(names); n++) {
            int axis = ct_mesh_find(&graph->mesh, names[n]);

            if (axis >= 0)
                ct_sharding_split(&graph->values[i]->sharding, 0, axis);
        }
}

static int cut_batch(struct ct_graph *graph, struct ct_run *run)
{
    (void)run;
    cut_inputs(graph);
    return 0;
}

static const struct ct_transform batch = {
    .name = "fsdp.batch",
    .summary = "the batch is cut over data-parallel ranks",
    .phase = CT_PHASE_SHARD,
    .gives = (const char *const[]){"batch", NULL},
    .evaluation = true,
    .apply = cut_batch,
};

/* ---- parameters ---- */

struct redistribute {
    const char *to;
    const char *gradient;
};

/* The first forward op of a stage that uses v. */
static struct ct_op *first_user(const struct ct_graph *graph, const struct ct_value *v, int stage)
{
    ct_for_each_op (op, graph)
        for (int i = 0; op->part == CT_PART_F && op->stage == stage && i < op->ins; i++)
            if (op->in[i] == v)
                return op;
    return NULL;
}

static void replace_forward(struct ct_graph *graph, const struct ct_op *gather,
                            const struct ct_value *param, struct ct_value *whole, int stage)
{
    ct_for_each_op (op, graph)
        for (int i = 0; op->part == CT_PART_F && op->stage == stage && op != gather && i < op->ins;
             i++)
            if (op->in[i] == param)
                op->in[i] = whole;
}

static const char *sharding_text(const struct ct_graph *graph, const struct ct_value *param)
{
    char text[256];

    ct_sharding_print(&param->sharding, &graph->mesh, param->rank, text, sizeof(text));
    return ct_arena_strdup(graph->arena, text);
}

/* What a microbatch makes of its gradient: a shard; copies are summed up once a step. */
static const char *gradient_of(const struct ct_graph *graph, const struct ct_value *param)
{
    struct ct_sharding s = param->sharding;
    int copies = ct_mesh_find(&graph->mesh, "dp_replicate");
    char text[256];

    if (copies >= 0)
        s.unreduced |= (ct_axes)1 << copies;
    ct_sharding_print(&s, &graph->mesh, param->rank, text, sizeof(text));
    return ct_arena_strdup(graph->arena, text);
}

/* Gather param where a stage uses it first. */
static int gather(struct ct_graph *graph, struct ct_value *param, struct ct_op *user,
                  const struct redistribute *attrs)
{
    bool once = !fsdp_reshards(graph) && !reduces_in_microbatch(graph);
    struct ct_builder b = ct_builder_before(graph, once ? graph->first : user);
    struct ct_value *whole;

    b.part = once ? CT_PART_PRE : CT_PART_F;
    b.region = user->region;
    b.stage = user->stage;
    b.why = FSDP_GATHER;
    whole = ct_emit1(&b, "redistribute", ct_arena_printf(graph->arena, "%s.whole", param->name),
                     &param, 1, attrs);
    if (whole)
        replace_forward(graph, whole->producer, param, whole, user->stage);
    return b.status;
}

static int shard(struct ct_graph *graph, struct ct_value *param)
{
    static const char *const names[] = {"dp_shard", "cp"};
    struct redistribute attrs = {.to = sharding_text(graph, param), .gradient = ""};
    int rc = 0;

    for (size_t n = 0; n < CT_COUNT(names); n++) {
        int axis = ct_mesh_find(&graph->mesh, names[n]);

        if (axis >= 0)
            ct_sharding_split(&param->sharding, 0, axis);
    }
    if (reduces_in_microbatch(graph))
        attrs.gradient = gradient_of(graph, param);
    for (int s = 0; rc == 0 && s < graph->stages; s++) {
        struct ct_op *user = first_user(graph, param, s);

        if (user)
            rc = gather(graph, param, user, &attrs);
    }
    return rc;
}

static int shard_parameters(struct ct_graph *graph, struct ct_run *run)
{
    size_t count = graph->value_count;
    int rc = 0;

    (void)run;
    if (ct_mesh_find(&graph->mesh, "dp_shard") < 0 && ct_mesh_find(&graph->mesh, "cp") < 0)
        return 0;
    for (size_t i = 0; rc == 0 && i < count; i++)
        if (graph->values[i]->role == CT_ROLE_PARAM)
            rc = shard(graph, graph->values[i]);
    return rc;
}

static const struct ct_transform parameters = {
    .name = "fsdp",
    .summary = "parameters are kept in shards and used whole",
    .phase = CT_PHASE_SHARD,
    .after = (const char *const[]){"placed", NULL},
    .evaluation = true,
    .apply = shard_parameters,
};

static const struct ct_transform prefetch = {
    .name = "fsdp.prefetch",
    .summary = "gathers again for the backward, and one region ahead on their own stream",
    .phase = CT_PHASE_OVERLAP,
    .gives = (const char *const[]){"prefetched", NULL},
    .evaluation = true,
    .apply = fsdp_prefetch,
};

static const struct ct_transform bucket = {
    .name = "fsdp.bucket",
    .summary = "one collective for all parameters of a unit",
    .phase = CT_PHASE_OVERLAP,
    .gives = (const char *const[]){"bucketed", NULL},
    .after = (const char *const[]){"prefetched", NULL},
    .evaluation = true,
    .apply = fsdp_bucket,
};

/* ---- axes ---- */

static void degrees(int64_t *degree)
{
    degree[0] = fsdp_config.replicate_degree;
    degree[1] = fsdp_config.shard_degree;
}

static const struct ct_axes_ops axes = {
    .names = (const char *const[]){"dp_replicate", "dp_shard", NULL},
    .degrees = degrees,
};

CT_PLUGIN(.name = "fsdp", .version = "1.0",
          .summary = "Data parallelism: FSDP2, HSDP, DDP, ZeRO-1, -2 and -3", .options = options,
          .config = &fsdp_config, .config_size = sizeof(fsdp_config),
          .offers = CT_OFFERS({CT_AXES, "fsdp", &axes}, {CT_TRANSFORM, "fsdp.batch", &batch},
                              {CT_TRANSFORM, "fsdp", &parameters},
                              {CT_TRANSFORM, "fsdp.prefetch", &prefetch},
                              {CT_TRANSFORM, "fsdp.bucket", &bucket}));
