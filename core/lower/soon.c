/*
 * Ops of post that run among the microbatches. The instruction that makes the last term of a sum is
 * known from the order; the marked ops that take the sum follow it.
 */
#include "lower/lower.h"

/* Whether v is complete before all microbatches have run, or when the last has. */
static bool completes(const struct ct_lowering *l, const struct ct_value *v)
{
    if (!v->producer)
        return false;
    return ct_part_is_microbatch(v->producer->section->part) || l->ops[l->order[v->id]].soon;
}

/* The number of inputs to wait for; 0: the op runs in its place. */
static uint32_t inputs_to_await(const struct ct_lowering *l, const struct ct_op *op)
{
    uint32_t count = 0;

    if (op->section->part != CT_PART_POST || l->listed[op->section->id] || !op->outs ||
        !(op->marks & ct_mark(CT_SOON) || op->type->flags & CT_OP_VIEW))
        return 0;
    for (int i = 0; i < op->ins; i++) {
        if (!op->in[i])
            continue;
        if (ct_op_mutates(op, i) || !completes(l, op->in[i]))
            return 0;
        count++;
    }
    return count;
}

void ct_lower_find_soon(struct ct_lowering *l)
{
    for (size_t n = 0; n < l->op_count; n++) {
        l->ops[n].awaited = inputs_to_await(l, l->op_at[n]);
        l->ops[n].soon = l->ops[n].awaited > 0;
    }
}

void ct_lower_count_terms(struct ct_lowering *l)
{
    l->missing = ct_arena_array(&l->scratch, uint32_t, l->graph->value_count + 1);
    for (size_t n = 0; n < l->op_count; n++) {
        const struct ct_op *op = l->op_at[n];
        uint32_t runs = l->ops[n].soon ? 1 : l->runs[op->section->id];

        for (int i = 0; i < op->outs; i++)
            l->missing[l->sum[op->out[i]->id]] += runs;
    }
}

/* One of the inputs of each marked op that takes v is complete. */
static int emit_users(struct ct_expansion *x, const struct ct_value *v, int item)
{
    int rc = 0;

    ct_for_each_use (use, v) {
        size_t n = use->op->outs ? (size_t)x->l->order[use->op->out[0]->id] : 0;

        if (rc == 0 && use->op->outs && x->l->ops[n].soon && --x->l->ops[n].awaited == 0)
            rc = ct_lower_emit(x, n, item, -1);
    }
    return rc;
}

int ct_lower_emit_soon(struct ct_expansion *x, size_t n, int item)
{
    const struct ct_op *op = x->l->op_at[n];
    int rc = 0;

    if (!ct_part_is_microbatch(op->section->part) && !x->l->ops[n].soon)
        return 0;
    for (int i = 0; rc == 0 && i < op->outs; i++) {
        uint32_t sum = x->l->sum[op->out[i]->id];

        if (--x->l->missing[sum] == 0)
            rc = emit_users(x, x->l->graph->values[sum], item);
    }
    return rc;
}
