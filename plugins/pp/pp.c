/*
 * Pipeline parallelism: the model is cut into stages, which lie on the ranks along pp.
 *
 * Here the cuts are made, and the schedule is chosen. What crosses a cut is found by the core
 * (`localise`); what a rank does when comes from the schedule's own plugin, which [pp] schedule
 * brings in, or from a table of actions in a file.
 */
#include <string.h>

#include <ctitan/error.h>
#include <ctitan/plugin.h>
#include <ctitan/schedule.h>

#include "pp.h"

struct pp_config pp_config;

static const struct ct_option options[] = {
    CT_OPT_INT(struct pp_config, degree, "degree", "1", 1, 64, "Ranks of the pipeline"),
    CT_OPT_STRING(struct pp_config, schedule, "schedule", "1f1b",
                  "The schedule: the plugin of that name is loaded"),
    CT_OPT_STRING(
        struct pp_config, schedule_csv, "schedule_csv", "",
        "File with the actions of every rank, in torch's format, instead of those that the "
        "schedule would make; its placement of stages is kept"),
    CT_OPT_INT(struct pp_config, microbatch_size, "microbatch_size", "1", 1, 1 << 20,
               "Sequences of a data-parallel rank in one microbatch"),
    CT_OPT_INT(
        struct pp_config, layers_per_stage, "layers_per_stage", "0", 0, 1 << 20,
        "Layers of a stage, where embedding and head count as one each; 0: as many stages as "
        "the schedule takes, of equal cost"),
    CT_OPT_STRING(
        struct pp_config, split_points, "split_points", "",
        "Regions with which a new stage begins: layers.2, layers.4, head; empty: balanced"),
    {0}};

static int find_schedule(const struct ct_schedule_ops **ops)
{
    const struct ct_offer *offer;
    int rc = ct_offer_find(CT_SCHEDULE, pp_config.schedule, &offer);

    *ops = rc < 0 ? NULL : offer->ops;
    return rc < 0 ? ct_context(rc, "[pp] schedule = %s", pp_config.schedule) : 0;
}

/* ---- stages ---- */

/* Stages of a rank where the recipe does not say: one, or two in schedules that loop. */
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
                       "%d stages on %d ranks: schedule %s takes %d%s a rank; change [pp] "
                       "layers_per_stage or split_points",
                       stages, ranks, pp_config.schedule, ops->stages_per_rank_min,
                       ops->stages_per_rank_max == ops->stages_per_rank_min ? "" : " or more");
    return 0;
}

static void place_stages(struct ct_graph *graph, const struct ct_schedule_ops *ops, int ranks)
{
    int *rank = ct_arena_array(graph->arena, int, graph->stages);

    for (int s = 0; s < graph->stages; s++)
        rank[s] = (ops->placement ? ops->placement : ct_schedule_looped)(s, ranks, graph->stages);
    graph->stage_rank = rank;
}

static int cut(struct ct_graph *graph, struct ct_run *run)
{
    const struct ct_schedule_ops *ops;
    int ranks, stages, rc;

    (void)run;
    if (ct_mesh_find(&graph->mesh, "pp") < 0)
        return 0;
    ranks = (int)graph->mesh.axis[ct_mesh_find(&graph->mesh, "pp")].size;
    rc = find_schedule(&ops);
    if (rc < 0)
        return rc;
    stages = pp_count_stages(graph);
    if (!stages)
        stages = ranks * stages_per_rank(ops);
    rc = check_stages(ops, stages, ranks);
    if (rc == 0)
        rc = pp_partition(graph, stages);
    if (rc < 0)
        return rc;
    place_stages(graph, ops, ranks);
    return pp_narrow(graph);
}

static const struct ct_transform partition = {
    .name = "pp",
    .summary = "cuts the model into the stages of a pipeline",
    .phase = CT_PHASE_PARTITION,
    .gives = (const char *const[]){"stages", NULL},
    .evaluation = true,
    .apply = cut,
};

/* ---- schedule ---- */

static int64_t microbatch_size(void)
{
    return pp_config.microbatch_size;
}

/* The file's ranks must be those of the placement: a stage's parameters are there. */
static int check_placement(const struct ct_graph *graph, const struct ct_schedule *schedule)
{
    for (int s = 0; s < graph->stages; s++)
        if (schedule->rank_of[s] != graph->stage_rank[s])
            return ct_fail(CT_ECONFIG,
                           "stage %d is in row %d, but [pp] schedule = %s has it on "
                           "rank %d",
                           s, schedule->rank_of[s], pp_config.schedule, graph->stage_rank[s]);
    return 0;
}

static int read_schedule(const struct ct_graph *graph, const struct ct_schedule_request *request,
                         struct ct_schedule **schedule)
{
    int rc = ct_schedule_read_csv(request->arena, pp_config.schedule_csv, request->ranks,
                                  request->stages, request->microbatches, schedule);

    if (rc == 0)
        rc = check_placement(graph, *schedule);
    return rc < 0 ? ct_context(rc, "[pp] schedule_csv = %s", pp_config.schedule_csv) : 0;
}

static int make_schedule(const struct ct_graph *graph, int microbatches, struct ct_arena *arena,
                         struct ct_schedule **schedule)
{
    struct ct_schedule_request request = {
        .ranks = (int)graph->mesh.axis[ct_mesh_find(&graph->mesh, "pp")].size,
        .stages = graph->stages,
        .microbatches = microbatches,
        .arena = arena};
    const struct ct_schedule_ops *ops;
    int rc = find_schedule(&ops);

    if (rc < 0)
        return rc;
    return *pp_config.schedule_csv
               ? read_schedule(graph, &request, schedule)
               : ct_schedule_generate(ops, pp_config.schedule, &request, schedule);
}

static const struct ct_pipeline_ops pipeline = {
    .microbatch_size = microbatch_size,
    .schedule = make_schedule,
};

/* ---- axis ---- */

static void degrees(int64_t *degree)
{
    degree[0] = pp_config.degree;
}

static const struct ct_axes_ops axes = {
    .names = (const char *const[]){"pp", NULL},
    .degrees = degrees,
};

CT_PLUGIN(.name = "pp", .version = "1.0",
          .summary = "Pipeline parallelism: stages on ranks, by a schedule", .options = options,
          .config = &pp_config, .config_size = sizeof(pp_config), .brings = "schedule",
          .offers = CT_OFFERS({CT_AXES, "pp", &axes}, {CT_TRANSFORM, "pp", &partition},
                              {CT_PIPELINE, "pp", &pipeline}));
