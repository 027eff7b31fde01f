/*
 * Ops whose tokens see earlier ones through a state alone, on sequences that are split. The shard
 * of a rank is a segment of the sequence, or two. What each segment does to a state is computed by
 * its own rank; the fold of all segments needs them whole, so propagation gathers them, and gives
 * each rank the states of its segments. The gradient goes the other way through the same ops. That
 * is two passes over a rank's tokens, and bytes for a state of each segment, whatever its length.
 */
#include <string.h>

#include <ctitan/error.h>
#include <ctitan/lib/ops.h>
#include <ctitan/rule.h>

#include "cp.h"

/* The ends of the documents that an op has already asked for, in its group of sections. */
struct ends {
    const struct ct_value *documents;
    int group;
    struct ct_value *value;
    struct ends *next;
};

struct pass {
    struct ct_graph *graph;
    struct ct_arena scratch;
    int64_t segments;
    struct ends *ends;
};

/* Whether the operand runs along the op's sequences, in dimension 1. */
static bool runs_along(const struct ct_rule *rule, int operand)
{
    const struct ct_rule_operand *o = &rule->operand[operand];

    return o->ndim > 1 && o->factor[1] == rule->operand[0].factor[1];
}

/* [b, t, ..] as [b, segments, t / segments, ..] */
static struct ct_value *in_segments(struct ct_builder *b, struct ct_value *v, int64_t segments)
{
    int64_t shape[CT_MAX_DIMS] = {v->shape[0], segments, v->shape[1] / segments};

    for (int d = 2; d < v->ndim; d++)
        shape[d + 1] = v->shape[d];
    return ct_view(b, ct_arena_printf(b->graph->arena, "%s.segments", v->name), v, v->ndim + 1,
                   shape);
}

/* Put the op's output together again for its users. */
static void join(struct ct_builder *b, struct ct_value *v, int ndim, const int64_t *shape)
{
    struct ct_graph *graph = b->graph;
    const char *name = v->name;
    struct ct_value *whole;

    ct_value_rename(graph, v, ct_arena_printf(graph->arena, "%s.segments", name));
    whole = ct_view(b, name, v, ndim, shape);
    if (whole)
        ct_value_replace(graph, v, whole);
}

static struct ct_value *ends_of(struct pass *p, struct ct_builder *b, struct ct_value *documents,
                                int group)
{
    struct ends *e = p->ends;

    if (!documents)
        return NULL;
    while (e && (e->documents != documents || e->group != group))
        e = e->next;
    if (e)
        return e->value;
    e = ct_arena_new(&p->scratch, struct ends);
    *e = (struct ends){
        documents, group,
        ct_document_ends(b, ct_arena_printf(p->graph->arena, "%s.ends", documents->name),
                         in_segments(b, documents, p->segments)),
        p->ends};
    p->ends = e;
    return e->value;
}

static int check(const struct pass *p, const struct ct_op *op, const struct ct_recurrence *how)
{
    int64_t tokens = op->in[0]->shape[1], least = how->least ? how->least(op) : 1;

    if (tokens / p->segments >= least)
        return 0;
    return ct_fail(CT_ECONFIG,
                   "[cp] degree = %lld splits sequences of %lld tokens into %lld segments of %lld; "
                   "%s of %%%s needs at least %lld tokens in a segment",
                   (long long)cp_config.degree, (long long)tokens, (long long)p->segments,
                   (long long)(tokens / p->segments), op->type->name, op->out[0]->name,
                   (long long)least);
}

/* The op works on segments, each with its state. */
static int pass(struct pass *p, struct ct_op *op, const struct ct_recurrence *how)
{
    struct ct_builder b = ct_builder_before(p->graph, op), after = ct_builder_after(p->graph, op);
    struct ct_value **in = ct_arena_array(&p->scratch, struct ct_value *, how->state + 1);
    struct ct_value *documents = ct_op_input(op, how->documents), *keeps = NULL, *gain = NULL;
    const struct ct_value *whole = op->out[0];
    int64_t shape[CT_MAX_DIMS];
    int ndim = whole->ndim, rc = check(p, op, how);
    struct ct_rule rule;

    if (rc == 0)
        rc = ct_rule_apply(op, &p->scratch, &rule);
    if (rc < 0)
        return rc;
    b.why = after.why = "cp: states pass from one segment of a sequence to the next";
    memcpy(shape, whole->shape, sizeof(shape));
    for (int i = 0; i < op->ins; i++)
        in[i] =
            op->in[i] && runs_along(&rule, i) ? in_segments(&b, op->in[i], p->segments) : op->in[i];
    if (b.status < 0)
        return b.status;
    ct_op_set_inputs(p->graph, op, in, how->state);
    rc = ct_op_infer(op);
    if (rc == 0)
        rc = how->carry(&b, ct_arena_printf(p->graph->arena, "%s.carry", whole->name), op, &keeps,
                        &gain);
    if (rc == 0 && gain)
        in[how->state] =
            ct_fold_states(&b, ct_arena_printf(p->graph->arena, "%s.before", whole->name), keeps,
                           gain, ends_of(p, &b, documents, op->section->group));
    if (rc < 0 || b.status < 0)
        return rc < 0 ? rc : b.status;
    ct_op_set_inputs(p->graph, op, in, how->state + 1);
    join(&after, op->out[0], ndim, shape);
    return after.status;
}

int cp_pass_states(struct ct_graph *graph, int64_t segments)
{
    struct pass p = {.graph = graph, .segments = segments};
    int rc = 0;

    ct_for_each_op_safe (op, graph) {
        const struct ct_recurrence *how = ct_op_type_whole(op->type)->recurrence;

        if (how && rc == 0)
            rc = pass(&p, op, how);
    }
    ct_arena_finish(&p.scratch);
    return rc;
}
