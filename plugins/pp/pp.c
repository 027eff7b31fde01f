/*
 * Pipeline parallelism: the model's regions become stages, placed on the ranks along pp.
 *
 * partition.c moves every op to the section of its stage. After differentiation and propagation,
 * localise.c keeps one rank's ops, and transfer.c inserts its sends and receives. order.c
 * determines the order of a rank's work, from the schedule's own plugin, which [pp] schedule brings
 * in, or from a table of actions in a file.
 */
#include <string.h>

#include <ctitan/error.h>
#include <ctitan/plugin.h>

#include "pp.h"

struct pp_config pp_config;

static const struct ct_option options[] = {
    CT_OPT_INT(struct pp_config, degree, "degree", "1", 1, INT32_MAX, "Ranks of the pipeline"),
    CT_OPT_STRING(struct pp_config, schedule, "schedule", "1f1b",
                  "The schedule, whose plugin is loaded for it: `ctitan plugins` lists them"),
    CT_OPT_STRING(struct pp_config, schedule_csv, "schedule_csv", "",
                  "CSV file with the actions of every rank, in torch's format, used instead of the "
                  "schedule's; stages are placed as in schedule"),
    CT_OPT_INT(struct pp_config, microbatch_size, "microbatch_size", "1", 1, 1 << 20,
               "Sequences of a data-parallel rank in one microbatch"),
    CT_OPT_INT(struct pp_config, layers_per_stage, "layers_per_stage", "0", 0, 1 << 20,
               "Layers of a stage; embedding and head count as one each; 0: as many stages as the "
               "schedule has, of equal cost"),
    CT_OPT_STRING(struct pp_config, split_points, "split_points", "",
                  "Regions that begin a new stage: layers.2, layers.4, head; empty: balanced"),
    {0}};

/* ---- stages ---- */

/* Stages per rank if the recipe does not say: one, or two in schedules that loop. */
static int stages_per_rank(const struct ct_schedule_ops *ops)
{
    int usual = ops->stages_per_rank_max == 1 ? 1 : 2;

    if (usual < ops->stages_per_rank_min)
        usual = ops->stages_per_rank_min;
    return usual;
}

static int check_stages(const struct ct_schedule_ops *ops, int stages, int ranks)
{
    int each = stages / ranks;

    if (stages % ranks || each < ops->stages_per_rank_min ||
        (ops->stages_per_rank_max && each > ops->stages_per_rank_max))
        return ct_fail(CT_ECONFIG,
                       "%d stages on %d ranks: schedule %s takes %d%s a rank, as many on each; "
                       "change [pp] layers_per_stage or split_points",
                       stages, ranks, pp_config.schedule, ops->stages_per_rank_min,
                       ops->stages_per_rank_max == ops->stages_per_rank_min ? "" : " or more");
    return 0;
}

int pp_stages_of(const struct ct_graph *graph, struct ct_arena *arena, struct pp_stages *stages)
{
    const struct ct_schedule_ops *ops;
    int rc = pp_find_schedule(&ops);

    if (rc < 0)
        return rc;
    *stages = (struct pp_stages){.ranks = (int)graph->mesh.axis[graph->partition_axis].size};
    for (size_t i = 0; i < graph->section_count; i++)
        if (graph->sections[i]->part == CT_PART_F && graph->sections[i]->group >= stages->count)
            stages->count = graph->sections[i]->group + 1;
    stages->rank_of = ct_arena_array(arena, int, stages->count);
    for (int s = 0; s < stages->count; s++)
        stages->rank_of[s] =
            (ops->placement ? ops->placement : ct_schedule_looped)(s, stages->ranks, stages->count);
    return 0;
}

static int partition_graph(struct ct_graph *graph, const struct ct_schedule_ops *ops, int ranks)
{
    int stages = pp_count_stages(graph), rc;
    struct pp_stages placed;

    if (!stages)
        stages = ranks * stages_per_rank(ops);
    rc = check_stages(ops, stages, ranks);
    if (rc == 0)
        rc = pp_partition(graph, stages);
    if (rc == 0)
        rc = pp_stages_of(graph, graph->arena, &placed);
    if (rc == 0)
        pp_mark_holders(graph, &placed);
    return rc;
}

static int apply_partition(struct ct_graph *graph, struct ct_run *run)
{
    int axis = ct_mesh_find(&graph->mesh, "pp"), rc = pp_check_points(graph);
    const struct ct_schedule_ops *ops;

    (void)run;
    if (rc < 0 || axis < 0)
        return rc;
    rc = pp_find_schedule(&ops);
    if (rc < 0)
        return rc;
    graph->partition_axis = axis;
    return partition_graph(graph, ops, (int)graph->mesh.axis[axis].size);
}

static const struct ct_transform partition = {
    .size = sizeof(struct ct_transform),
    .name = "pp",
    .summary = "puts every op into the section of its stage",
    .phase = CT_PHASE_PARTITION,
    .gives = (const char *const[]){"stages", NULL},
    .evaluation = true,
    .apply = apply_partition,
};

static const struct ct_transform collect = {
    .size = sizeof(struct ct_transform),
    .name = "pp.collect",
    .summary = "makes values that the host reads sums over the ranks of the pipeline",
    .phase = CT_PHASE_COLLECTIVE,
    .gives = (const char *const[]){"collected", NULL},
    .evaluation = true,
    .apply = pp_collect,
    .required = true,
};

static const struct ct_transform localise = {
    .size = sizeof(struct ct_transform),
    .name = "pp.localise",
    .summary = "keeps only this rank's stages, and what they send and receive",
    .phase = CT_PHASE_COLLECTIVE,
    .needs = (const char *const[]){"collectives", NULL},
    .after = (const char *const[]){"listed", NULL},
    .evaluation = true,
    .apply = pp_localise,
    .by_rank = true,
    .required = true,
};

/* ---- axis ---- */

static int64_t degree(void)
{
    return pp_config.degree;
}

static const struct ct_axis_ops axis = {
    .size = sizeof(struct ct_axis_ops),
    .place = 100,
    .degree = degree,
};

CT_PLUGIN(.name = "pp", .version = "1.0",
          .summary = "Pipeline parallelism: stages on ranks, by a schedule", .options = options,
          .config = &pp_config, .config_size = sizeof(pp_config), .brings = "schedule",
          .brings_kind = CT_SCHEDULE,
          .offers = CT_OFFERS({CT_AXIS, "pp", &axis}, {CT_TRANSFORM, "pp", &partition},
                              {CT_TRANSFORM, "pp.collect", &collect},
                              {CT_TRANSFORM, "pp.localise", &localise},
                              {CT_ORDER, "pp", &pp_order}));
