/*
 * A plugin for tests: on one rank, the first reduce_scatter becomes all_reduce and slice. Its
 * result is the same, but the rank calls another collective than its peers.
 */
#include <string.h>

#include <ctitan/plugin.h>
#include <ctitan/run.h>

static struct stray {
    int64_t rank;
} config;

static const struct ct_option options[] = {
    CT_OPT_INT(struct stray, rank, "rank", "-1", -1, 1 << 20, "The one that strays; -1: none"),
    {0}};

struct moved {
    const char *axes;
    int64_t dim, to;
};

static int stray(struct ct_graph *graph, struct ct_op *op)
{
    struct moved attrs = {ct_op_string(op, "axes"), ct_op_int(op, "dim"), 0};
    struct ct_builder b = ct_builder_before(graph, op);
    struct ct_value *sum = ct_emit1(&b, "all_reduce", "stray.sum", op->in, 1, &attrs), *piece;

    if (!sum)
        return b.status;
    piece = ct_emit1(&b, "slice", "stray.piece", &sum, 1, &attrs);
    if (!piece)
        return b.status;
    piece->sharding = op->out[0]->sharding;
    sum->sharding = op->in[0]->sharding;
    sum->sharding.unreduced = piece->sharding.unreduced;
    for (size_t i = 0; i < graph->value_count; i++)
        if (graph->values[i]->grad == op->out[0])
            graph->values[i]->grad = piece;
    ct_graph_replace(graph, op->out[0], piece);
    ct_graph_remove(graph, op);
    return 0;
}

static int apply(struct ct_graph *graph, struct ct_run *run)
{
    if (run->rank != config.rank)
        return 0;
    ct_for_each_op (op, graph)
        if (!strcmp(op->type->name, "reduce_scatter"))
            return stray(graph, op);
    return 0;
}

static const struct ct_transform transform = {.name = "stray",
                                              .summary = "one rank calls another collective",
                                              .phase = CT_PHASE_MEMORY,
                                              .apply = apply};

CT_PLUGIN(.name = "stray", .version = "1.0", .summary = "A rank that strays", .options = options,
          .config = &config, .config_size = sizeof(config),
          .offers = CT_OFFERS({CT_TRANSFORM, "stray", &transform}));
