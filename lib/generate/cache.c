/*
 * The transform for caches: each op along sequences says how it computes them in parts.
 */
#include <ctitan/config.h>
#include <ctitan/error.h>
#include <ctitan/input.h>
#include <ctitan/lib/ops.h>
#include <ctitan/rule.h>
#include <ctitan/run.h>

#include "cache.h"

enum ct_generating ct_generating;

static int check_op(const struct ct_op *op)
{
    struct ct_arena arena = {0};
    struct ct_rule rule;
    bool depends = false;
    int rc = ct_rule_apply(op, &arena, &rule);

    for (int f = 0; rc == 0 && f < rule.count; f++)
        depends |= rule.factor[f].position;
    ct_arena_finish(&arena);
    return rc < 0 || !depends
               ? rc
               : ct_fail(CT_ECONFIG, "%s depends on positions and has no `cache`: use --no-cache",
                         op->type->name);
}

static int change_op(struct ct_graph *graph, struct ct_cache cache, struct ct_op *op)
{
    const struct ct_op_type *type = ct_op_type_whole(op->type);
    struct ct_builder b = ct_builder_before(graph, op);

    if (!type->cache)
        return check_op(op);
    b.why = "cache of earlier tokens";
    cache.b = &b;
    cache.op = op;
    return type->cache(&cache);
}

/* An input beside the tokens, which is split as they are. */
static int add_input(struct ct_graph *graph, const char *name, struct ct_value **input)
{
    const struct ct_value *tokens = ct_graph_find_input(graph, "tokens");
    int rc = ct_graph_input(graph, name, tokens->shape, input);

    if (rc == 0)
        (*input)->sharding = tokens->sharding;
    return rc;
}

/* The states of the second graph lie as those of the first do. */
static void place_states(struct ct_graph *graph, const struct ct_run *run)
{
    for (size_t i = 0; i < run->state_count; i++) {
        struct ct_value *v = ct_graph_find(graph, run->states[i].name);

        if (!v || v->role != CT_ROLE_STATE)
            continue;
        v->sharding = run->states[i].sharding;
        v->marks &= ~ct_mark(CT_MARK_UNPLACED);
    }
}

/* Each rank computes the logits of whole sequences. */
static int check_mesh(const struct ct_graph *graph)
{
    const struct ct_value *tokens = ct_graph_find_input(graph, "tokens");

    if (graph->partition_axis >= 0)
        return ct_fail(CT_ECONFIG,
                       "axis %s splits the model's layers, which rules out generating: set its "
                       "degree to 1",
                       graph->mesh.axis[graph->partition_axis].name);
    if (tokens->sharding.count[1])
        return ct_fail(CT_ECONFIG,
                       "axis %s splits sequences, which rules out generating: set its degree to 1",
                       graph->mesh.axis[tokens->sharding.axis[1][0]].name);
    return 0;
}

static int add_caches(struct ct_graph *graph, struct ct_run *run)
{
    struct ct_cache cache = {.context = ct_config.training.seq_len};
    int rc = 0;

    if (!ct_generating)
        return 0;
    rc = check_mesh(graph);
    if (rc < 0 || ct_generating == CT_GENERATING_WHOLE)
        return rc;
    rc = ct_check_sequences(graph, "with a cache they are computed in parts; use --no-cache");
    if (rc == 0)
        rc = add_input(graph, "positions", &cache.positions);
    if (rc == 0)
        rc = add_input(graph, "slots", &cache.slots);
    ct_for_each_op_safe (op, graph)
        if (rc == 0 && op->section->part == CT_PART_F)
            rc = change_op(graph, cache, op);
    place_states(graph, run);
    return rc;
}

const struct ct_transform ct_cache = {
    .size = sizeof(struct ct_transform),
    .name = "cache",
    .summary = "what ops keep of past tokens is in states",
    .phase = CT_PHASE_JOIN,
    .evaluation = true,
    .apply = add_caches,
};
