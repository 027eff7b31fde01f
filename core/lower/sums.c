/*
 * Sums. A value that is made in a microbatch and used after the last one represents its sum over
 * the microbatches. The terms of an `add` that nothing else uses are made in the sum's memory: the
 * op that runs first overwrites it, and the others, which are known at expansion, add to it.
 */
#include <ctitan/core_ops.h>

#include "lower/lower.h"

void ct_lower_find_sums(struct ct_lowering *l)
{
    const struct ct_graph *g = l->graph;

    l->summed = ct_arena_array(&l->scratch, bool, g->value_count + 1);
    for (size_t i = 0; i < g->fetch_count; i++) {
        const struct ct_value *v = g->fetches[i].value;

        l->summed[v->id] = v->producer && ct_part_is_microbatch(v->producer->section->part);
    }
    for (size_t n = l->op_count; n-- > 0;) {
        const struct ct_op *op = l->op_at[n];

        for (int i = 0; i < op->ins; i++) {
            const struct ct_value *v = op->in[i];

            if (!v || !v->producer || !ct_part_is_microbatch(v->producer->section->part))
                continue;
            if (op->section->part == CT_PART_POST ||
                (op->type->flags & CT_OP_VIEW && l->summed[op->out[0]->id]))
                l->summed[v->id] = true;
        }
    }
}

/* Can the op that makes v add it to what is there? */
static bool can_add(struct ct_lowering *l, const struct ct_value *v)
{
    struct ct_prepare request = {0};
    const struct ct_kernel *kernel;

    for (int i = 0; i < v->producer->outs && i < 32; i++)
        request.accumulate |= (v->producer->out[i] == v) * (1u << i);
    kernel = request.accumulate ? ct_lower_find_kernel(l, v->producer, &request) : NULL;
    return kernel && kernel->flags & CT_KERNEL_ACCUMULATES;
}

static uint32_t sum_of(const struct ct_lowering *l, uint32_t id)
{
    while (l->sum[id] != id)
        id = l->sum[id];
    return id;
}

/* May v, which is added to `other`, be made in their sum? A call writes there once. */
static bool may_be_term(struct ct_lowering *l, const struct ct_value *v,
                        const struct ct_value *other)
{
    const struct ct_op *op = v->producer;

    if (!op || !ct_part_is_microbatch(op->section->part) || !ct_value_only_user(v) ||
        v->opaque_bytes || v->space != CT_SPACE_DEVICE ||
        op->type->flags & (CT_OP_VIEW | CT_OP_COLLECTIVE | CT_OP_SPACES))
        return false;
    for (int i = 0; i < op->outs; i++)
        if (sum_of(l, op->out[i]->id) == sum_of(l, other->id))
            return false;
    return l->ops[l->order[v->id]].in_place || can_add(l, v);
}

static bool is_sum_in_place(struct ct_lowering *l, const struct ct_op *op)
{
    if (op->type != &ct_op_add || !ct_part_is_microbatch(op->section->part))
        return false;
    return may_be_term(l, op->in[0], op->in[1]) && may_be_term(l, op->in[1], op->in[0]) &&
           !(op->in[0]->producer->type == op->type && op->in[1]->producer->type == op->type);
}

void ct_lower_find_terms(struct ct_lowering *l)
{
    l->sum = ct_arena_array(&l->scratch, uint32_t, l->graph->value_count + 1);
    for (uint32_t id = 0; id < l->graph->value_count; id++)
        l->sum[id] = id;
    for (size_t n = 0; n < l->op_count; n++) {
        const struct ct_op *op = l->op_at[n];

        l->ops[n].in_place = is_sum_in_place(l, op);
        for (int i = 0; l->ops[n].in_place && i < op->ins; i++)
            l->sum[op->in[i]->id] = op->out[0]->id;
    }
    for (uint32_t id = 0; id < l->graph->value_count; id++) {
        l->sum[id] = sum_of(l, id);
        l->summed[id] |= l->summed[l->sum[id]];
    }
}
