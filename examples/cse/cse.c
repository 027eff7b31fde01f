/*
 * A transform: common subexpressions are computed once. Where two ops have the same type, the same
 * attributes and the same inputs, what uses the second one's outputs uses the first one's.
 *
 * Ops of different sections or regions are left alone: their results may be needed at different
 * times, or on different ranks.
 */
#include <string.h>

#include <ctitan/graph.h>
#include <ctitan/log.h>
#include <ctitan/op.h>
#include <ctitan/pass.h>
#include <ctitan/plugin.h>

/* Not what communicates, has an effect, or updates something in place. */
static bool is_pure(const struct ct_op *op)
{
    return !(op->type->flags & (CT_OP_COLLECTIVE | CT_OP_EFFECT | CT_OP_RENDEZVOUS)) &&
           !strchr(op->type->signature, '!') && op->section->part == CT_PART_F && op->ins &&
           op->in[0];
}

static bool is_same(const struct ct_op *a, const struct ct_op *b)
{
    if (a->type != b->type || a->section != b->section || a->region != b->region ||
        a->marks != b->marks || a->ins != b->ins || a->outs != b->outs)
        return false;
    for (int i = 0; i < a->outs; i++)
        if (a->out[i]->dtype != b->out[i]->dtype ||
            !ct_sharding_equal(&a->out[i]->sharding, &b->out[i]->sharding))
            return false;
    return !memcmp(a->in, b->in, (size_t)a->ins * sizeof(*a->in)) &&
           (!a->attrs || !memcmp(a->attrs, b->attrs, a->type->attrs_size));
}

/* An op before `op`, by `seen`, that computes the same. It has the same first input. */
static const struct ct_op *find_same(const struct ct_op *op, const bool *seen)
{
    ct_for_each_use (use, op->in[0])
        if (use->op->outs && seen[use->op->out[0]->id] && is_same(use->op, op))
            return use->op;
    return NULL;
}

static int apply(struct ct_graph *graph, struct ct_run *run)
{
    struct ct_arena scratch = {0};
    bool *seen = ct_arena_array(&scratch, bool, graph->value_count); /* by id of its first output */
    int count = 0;

    (void)run;
    ct_for_each_op_safe (op, graph) {
        const struct ct_op *first = is_pure(op) ? find_same(op, seen) : NULL;

        for (int i = 0; first && i < op->outs; i++)
            ct_value_replace(graph, op->out[i], first->out[i]);
        if (first)
            ct_graph_remove(graph, op);
        else if (op->outs)
            seen[op->out[0]->id] = true;
        count += first != NULL;
    }
    ct_info("cse: %d ops of %s are replaced by equal ones", count, graph->name);
    ct_arena_finish(&scratch);
    return 0;
}

/* Before differentiation, so that the backward has nothing twice either. */
static const struct ct_transform transform = {.size = sizeof(struct ct_transform),
                                              .name = "cse",
                                              .summary = "common subexpressions are computed once",
                                              .phase = CT_PHASE_JOIN,
                                              .evaluation = true,
                                              .apply = apply};

CT_PLUGIN(.name = "cse", .version = "1.0", .summary = "Transform: common subexpressions once",
          .offers = CT_OFFERS({CT_TRANSFORM, "cse", &transform}));
