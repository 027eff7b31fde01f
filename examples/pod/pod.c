/*
 * A mesh axis: data parallelism over groups of machines that are close to each other.
 *
 * The axis is outside all others except pp, so the ranks of a group are neighbours. The plugin only
 * states that sequences are split over the axis. Parameters are whole in every group, so their
 * gradients are unreduced over "pod", and the core adds the all-reduces. fsdp stores shards of
 * parameters over all axes that split the batch, including this one.
 */
#include <ctitan/error.h>
#include <ctitan/graph.h>
#include <ctitan/model.h>
#include <ctitan/pass.h>
#include <ctitan/plugin.h>

static struct config {
    int64_t degree;
} config;

static const struct ct_option options[] = {
    CT_OPT_INT(struct config, degree, "degree", "1", 1, 4096, "Number of groups"), {0}};

static int64_t degree(void)
{
    return config.degree;
}

static const struct ct_axis_ops axis = {
    .size = sizeof(struct ct_axis_ops), .place = 150, .splits_batch = true, .degree = degree};

static int apply(struct ct_graph *graph, struct ct_run *run)
{
    int number = ct_mesh_find(&graph->mesh, "pod");

    (void)run;
    for (size_t i = 0; number >= 0 && i < graph->value_count; i++)
        if (graph->values[i]->role == CT_ROLE_INPUT)
            ct_sharding_split(&graph->values[i]->sharding, 0, number);
    return 0;
}

static const struct ct_transform batch = {.size = sizeof(struct ct_transform),
                                          .name = "pod.batch",
                                          .summary = "the batch is split over groups",
                                          .phase = CT_PHASE_SHARD,
                                          .gives = CT_NAMES("batch"),
                                          .evaluation = true,
                                          .apply = apply};

CT_PLUGIN(.name = "pod", .version = "1.0", .summary = "Data parallelism over groups of machines",
          .options = options, .config = &config, .config_size = sizeof(config),
          .offers = CT_OFFERS({CT_AXIS, "pod", &axis}, {CT_TRANSFORM, "pod.batch", &batch}));
