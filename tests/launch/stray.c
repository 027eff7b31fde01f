/*
 * A plugin for tests: on one rank, the first reduce_scatter becomes all_reduce and slice. Its
 * result is the same, but the rank calls another collective than its peers.
 */
#include <ctitan/lib/ops.h>
#include <ctitan/plugin.h>
#include <ctitan/run.h>

static struct stray {
    int64_t rank;
} config;

static const struct ct_option options[] = {
    CT_OPT_INT(struct stray, rank, "rank", "-1", -1, 1 << 20, "The one that strays; -1: none"),
    {0}};

static int stray(struct ct_graph *graph, struct ct_op *op)
{
    const struct ct_collective_attrs *attrs = op->attrs;
    struct ct_builder b = ct_builder_before(graph, op);
    struct ct_op *reduce = ct_all_reduce(&b, "stray.sum", op->in, 1, attrs->axes, CT_REDUCE_SUM);
    struct ct_value *sum = reduce ? reduce->out[0] : NULL, *shard;

    if (!sum)
        return b.status;
    shard = ct_slice(&b, "stray.shard", sum, attrs->axes, (int)attrs->dim);
    if (!shard)
        return b.status;
    shard->sharding = op->out[0]->sharding;
    sum->sharding = op->in[0]->sharding;
    sum->sharding.unreduced = shard->sharding.unreduced;
    for (size_t i = 0; i < graph->value_count; i++)
        if (graph->values[i]->grad == op->out[0])
            ct_value_set_grad(graph->values[i], shard);
    ct_value_replace(graph, op->out[0], shard);
    ct_graph_remove(graph, op);
    return 0;
}

static int apply(struct ct_graph *graph, struct ct_run *run)
{
    if (run->rank != config.rank)
        return 0;
    ct_for_each_op (op, graph)
        if (op->type == &ct_op_reduce_scatter)
            return stray(graph, op);
    return 0;
}

static const struct ct_transform transform = {.size = sizeof(struct ct_transform),
                                              .name = "stray",
                                              .summary = "one rank calls another collective",
                                              .phase = CT_PHASE_MEMORY,
                                              .apply = apply};

CT_PLUGIN(.name = "stray", .version = "1.0", .summary = "A rank that strays", .options = options,
          .config = &config, .config_size = sizeof(config),
          .offers = CT_OFFERS({CT_TRANSFORM, "stray", &transform}));
