/*
 * Expert parallelism: the experts of a mixture are split over `ep`, an axis that also splits the
 * batch.
 *
 * Outside of mixtures, ranks along ep are data-parallel: parameters are replicated, or sharded by
 * fsdp. In a mixture every rank has some experts. Tokens go to the ranks of the experts that they
 * choose, by all-to-all with counts that are known while training only, in buffers of static size;
 * none is dropped (expand.c). Gradients go the same way, and those of experts need no sum over ep.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include <ctitan/error.h>
#include <ctitan/lib/ops.h>
#include <ctitan/log.h>
#include <ctitan/model.h>
#include <ctitan/pass.h>
#include <ctitan/plugin.h>

#include "ep.h"

struct ep_config ep_config;

static const struct ct_option options[] = {
    CT_OPT_INT(struct ep_config, degree, "degree", "1", 1, 1 << 16,
               "Ranks that share the experts of each mixture"),
    CT_OPT_FLOAT(
        struct ep_config, buffer, "buffer", "1.5", 0.01, INFINITY,
        "Buffer for tokens sent in one round, as a multiple of what balanced experts need"),
    CT_OPT_ENUM(
        struct ep_config, dispatch, "dispatch", "none", "none|float8",
        "Rows of tokens and of gradients on their way to experts: as they are, or in 8 bits "
        "with a factor for each 128 numbers"),
    {0}};

static int64_t degree(void)
{
    return ep_config.degree;
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
    .summary = "splits the batch over expert-parallel ranks, too",
    .phase = CT_PHASE_SHARD,
    .gives = CT_NAMES("batch"),
    .evaluation = true,
    .apply = split_batch,
    .required = true,
};

/* Mixtures of two forward passes share their weights. */
static int split_weight(struct ct_value *weight, int ep)
{
    int64_t experts = weight->shape[0];

    if (ct_sharding_axes(&weight->sharding) >> ep & 1)
        return 0;
    if (experts < ep_config.degree)
        return ct_fail(CT_ECONFIG,
                       "[ep] degree = %lld leaves ranks without one of the %lld experts of %s",
                       (long long)ep_config.degree, (long long)experts, weight->name);
    ct_sharding_split(&weight->sharding, 0, ep);
    return 0;
}

/* The mixture and its weights, which are its last inputs, are split. */
static int split_mixture(struct ct_graph *graph, struct ct_op *op, int ep)
{
    struct ct_value *in[EP_INPUTS];
    int rc = 0;

    memcpy(in, op->in, (size_t)op->ins * sizeof(*in));
    for (int i = EP_GATE; rc == 0 && i < op->ins; i++)
        rc = split_weight(op->in[i], ep);
    if (rc == 0)
        ct_op_become(graph, op, &ep_experts, in, op->ins, op->attrs);
    return rc;
}

static int split_experts(struct ct_graph *graph, struct ct_run *run)
{
    int ep = ct_mesh_find(&graph->mesh, "ep"), rc = 0;
    bool found = false;

    (void)run;
    if (ep < 0)
        return 0;
    ct_for_each_op (op, graph)
        if (op->type == &ct_op_experts && rc == 0) {
            rc = split_mixture(graph, op, ep);
            found = true;
        }
    return rc == 0 && !found
               ? ct_fail(CT_ECONFIG, "[ep] degree = %lld, but the model has no experts",
                         (long long)ep_config.degree)
               : rc;
}

static const struct ct_transform experts = {
    .size = sizeof(struct ct_transform),
    .name = "ep",
    .summary = "splits the experts of each mixture over ranks",
    .phase = CT_PHASE_SHARD,
    .gives = CT_NAMES("placed"),
    .evaluation = true,
    .apply = split_experts,
    .required = true,
};

static const struct ct_transform rows = {
    .size = sizeof(struct ct_transform),
    .name = "ep.rows",
    .summary = "expands mixtures into all-to-alls of tokens, with the experts in between",
    .phase = CT_PHASE_COLLECTIVE,
    .needs = CT_NAMES("collectives"),
    .gives = CT_NAMES("rows"),
    .evaluation = true,
    .apply = ep_expand,
    .required = true,
};

/* ---- what was sent ---- */

static int report(const struct ct_event_data *data, void *context)
{
    const struct ep_traffic *t = &ep_traffic;

    char of_gathering[80] = "";

    (void)context;
    if (t->gathered > 0) /* counted on CPUs only */
        snprintf(of_gathering, sizeof(of_gathering),
                 ", %.1f %% of what gathering all tokens would send", 100 * t->sent / t->gathered);
    if (data->run->rank == 0 && t->buffers > 0)
        ct_info("ep: rank 0 sent %.3g MB for mixtures: %.1f %% of its buffers%s", t->sent / 1e6,
                100 * t->sent / t->buffers, of_gathering);
    return 0;
}

static const struct ct_hook hook = {
    .size = sizeof(struct ct_hook), .events = 1u << CT_EVENT_RUN_END, .call = report};

CT_PLUGIN(.name = "ep", .version = "1.0", .summary = "Expert parallelism", .options = options,
          .config = &ep_config, .config_size = sizeof(ep_config),
          .offers = CT_OFFERS(
              {CT_AXIS, "ep", &axis}, {CT_TRANSFORM, "ep.batch", &batch},
              {CT_TRANSFORM, "ep", &experts}, {CT_TRANSFORM, "ep.rows", &rows},
              {CT_OP, "ep.experts", &ep_experts}, {CT_OP, "ep.experts_dx", &ep_experts_dx},
              {CT_OP, "ep.experts_dw", &ep_experts_dw}, {CT_OP, "ep.route", &ep_route},
              {CT_OP, "ep.pack", &ep_pack}, {CT_OP, "ep.exchange", &ep_exchange},
              {CT_OP, "ep.sum", &ep_sum}, {CT_OP, "ep.quantise", &ep_quantise},
              {CT_OP, "ep.dequantise", &ep_dequantise}, {CT_KERNELS, "cpu", ep_kernels},
              {CT_KERNELS, "cpu", ep_dispatch_kernels}, {CT_HOOK, "ep", &hook}));
