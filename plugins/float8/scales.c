/*
 * Fewer all-reduces of largest magnitudes. Propagation reduces each by itself; those along the same
 * axes become one collective, in the place of the first, and what finds the magnitudes moves in
 * front of it:
 *
 *   - those of all weights, in front of the microbatches (torchao's
 *     precompute_float8_dynamic_scale_for_fsdp);
 *   - those of one region's values that are all there at the first, such as the gradients of
 *     queries, keys and values.
 */
#include <string.h>

#include <ctitan/core_ops.h>
#include <ctitan/error.h>

#include "float8.h"

struct maxima {
    struct ct_graph *graph;
    struct ct_op **op; /* all-reduces that are left */
    uint32_t *place;   /* by id: position of the producer */
    size_t count;
};

static bool is_maximum(const struct ct_op *op)
{
    return op->type == &ct_op_all_reduce && op->ins == 1 && op->in[0]->producer &&
           op->in[0]->producer->type == &float8_op_amax;
}

/* Are the operands of what makes v there in front of `before`? */
static bool is_ready(const struct maxima *m, const struct ct_value *v, const struct ct_op *before)
{
    const struct ct_op *from = v->producer;

    for (int i = 0; i < from->ins; i++)
        if (from->in[i]->producer && m->place[from->in[i]->id] >= m->place[before->out[0]->id])
            return false;
    return true;
}

static bool may_join(const struct maxima *m, const struct ct_op *op, const struct ct_op *first)
{
    if (op->section != first->section || ct_op_axes(op, "axes") != ct_op_axes(first, "axes"))
        return false;
    return op == first || op->section->part == CT_PART_PRE ||
           (op->region == first->region && is_ready(m, op->in[0], first));
}

/* Move what makes v in front of `before`. */
static void bring(const struct maxima *m, const struct ct_value *v, struct ct_op *before)
{
    struct ct_op *from = v->producer;

    if (!from || m->place[v->id] < m->place[before->out[0]->id])
        return;
    for (int i = 0; i < from->ins; i++)
        if (from->in[i])
            bring(m, from->in[i], before);
    ct_op_move(m->graph, from, before);
    for (int i = 0; i < from->outs; i++)
        m->place[from->out[i]->id] = m->place[before->out[0]->id] - 1;
}

/* Join the first with all that may. */
static int join(struct maxima *m, struct ct_arena *scratch)
{
    struct ct_op *first = m->op[0], *joined;
    struct ct_op **op = ct_arena_array(scratch, struct ct_op *, m->count);
    struct ct_value **in = ct_arena_array(scratch, struct ct_value *, m->count);
    struct ct_builder b = ct_builder_before(m->graph, first);
    size_t rest = 0;
    int count = 0;

    for (size_t i = 0; i < m->count; i++)
        if (may_join(m, m->op[i], first)) {
            bring(m, m->op[i]->in[0], first);
            in[count] = m->op[i]->in[0];
            op[count++] = m->op[i];
        } else {
            m->op[rest++] = m->op[i];
        }
    m->count = rest;
    if (count < 2)
        return 0;
    if (first->section->part == CT_PART_PRE)
        b.region = "";
    b.why = first->section->part == CT_PART_PRE
                ? "float8: one collective for the scales of all weights"
                : "float8: one collective for scales of the same region";
    joined = ct_emit_type(&b, first->type, NULL, in, count, first->attrs);
    for (int i = 0; joined && i < count; i++) {
        ct_op_set_output(joined, i, op[i]->out[0]);
        ct_graph_remove(m->graph, op[i]);
    }
    return b.status;
}

int float8_join_maxima(struct ct_graph *graph, struct ct_run *run)
{
    struct ct_arena scratch = {0};
    struct maxima m = {.graph = graph};
    uint32_t n = 0;
    int rc = 0;

    (void)run;
    m.op = ct_arena_array(&scratch, struct ct_op *, graph->value_count);
    m.place = ct_arena_array(&scratch, uint32_t, graph->value_count);
    ct_for_each_op (op, graph) {
        n += 2;
        for (int i = 0; i < op->outs; i++)
            m.place[op->out[i]->id] = n;
        if (is_maximum(op))
            m.op[m.count++] = op;
    }
    while (rc == 0 && m.count)
        rc = join(&m, &scratch);
    ct_arena_finish(&scratch);
    return rc;
}
