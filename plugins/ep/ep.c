/*
 * Expert parallelism: the experts of a mixture are split over `ep`, an axis that also splits the
 * batch.
 *
 * The plugin states only that. Outside of mixtures, ranks along ep are data-parallel: parameters
 * are replicated, or sharded by fsdp. In a mixture, every rank has some experts, and propagation
 * finds what follows: the group's tokens, with their choices, are gathered, each rank adds what its
 * experts contribute, and the sums are scattered to the ranks of the tokens. Gradients go the same
 * way back, and those of experts need no sum over ep. All sizes are static, whatever tokens choose,
 * and no token is dropped.
 */
#include <ctitan/error.h>
#include <ctitan/lib/ops.h>
#include <ctitan/model.h>
#include <ctitan/pass.h>
#include <ctitan/plugin.h>

static struct config {
    int64_t degree;
} config;

static const struct ct_option options[] = {
    CT_OPT_INT(struct config, degree, "degree", "1", 1, 1 << 16,
               "Ranks that share the experts of each mixture"),
    {0}};

static int64_t degree(void)
{
    return config.degree;
}

static const struct ct_axis_ops axis = {
    .size = sizeof(struct ct_axis_ops), .place = 350, .splits_batch = true, .degree = degree};

static int split_batch(struct ct_graph *graph, struct ct_run *run)
{
    int ep = ct_mesh_find(&graph->mesh, "ep");

    (void)run;
    for (size_t i = 0; ep >= 0 && i < graph->value_count; i++)
        if (graph->values[i]->role == CT_ROLE_INPUT)
            ct_sharding_split(&graph->values[i]->sharding, 0, ep);
    return 0;
}

static const struct ct_transform batch = {
    .size = sizeof(struct ct_transform),
    .name = "ep.batch",
    .summary = "the batch is split over expert-parallel ranks, too",
    .phase = CT_PHASE_SHARD,
    .gives = CT_NAMES("batch"),
    .evaluation = true,
    .apply = split_batch,
};

static int split_weight(struct ct_value *weight, int ep)
{
    int64_t experts = weight->shape[0], each = (experts + config.degree - 1) / config.degree;

    if (each * (config.degree - 1) >= experts)
        return ct_fail(CT_ECONFIG,
                       "[ep] degree = %lld leaves ranks without one of the %lld experts of %s",
                       (long long)config.degree, (long long)experts, weight->name);
    ct_sharding_split(&weight->sharding, 0, ep);
    return 0;
}

static int split_experts(struct ct_graph *graph, struct ct_run *run)
{
    int ep = ct_mesh_find(&graph->mesh, "ep"), rc = 0;
    bool found = false;

    (void)run;
    if (ep < 0)
        return 0;
    ct_for_each_op (op, graph)
        for (int i = 3; op->type == &ct_op_experts && rc == 0 && i < op->ins; i++) {
            rc = split_weight(op->in[i], ep);
            found = true;
        }
    return rc == 0 && !found
               ? ct_fail(CT_ECONFIG, "[ep] degree = %lld, but the model has no experts",
                         (long long)config.degree)
               : rc;
}

static const struct ct_transform experts = {
    .size = sizeof(struct ct_transform),
    .name = "ep",
    .summary = "the experts of each mixture are split over ranks",
    .phase = CT_PHASE_SHARD,
    .gives = CT_NAMES("placed"),
    .evaluation = true,
    .apply = split_experts,
};

CT_PLUGIN(.name = "ep", .version = "1.0", .summary = "Expert parallelism", .options = options,
          .config = &config, .config_size = sizeof(config),
          .offers = CT_OFFERS({CT_AXIS, "ep", &axis}, {CT_TRANSFORM, "ep.batch", &batch},
                              {CT_TRANSFORM, "ep", &experts}));
