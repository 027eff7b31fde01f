/*
 * Reordered sequences: which dimensions run along sequences, and which ops cannot be reordered.
 *
 * A dimension of an input may run along sequences (ct_input_sequence), and so does every dimension
 * derived from one.
 * Two kinds of ops would silently be wrong. The first needs whole sequences: it sees them in the
 * order in which they are fed, so its signature must declare that it knows positions ("@"). The
 * second combines a sequence dimension with one that is not along a sequence, such as the rows of a
 * parameter, which stay in order.
 */
#include <ctitan/error.h>
#include <ctitan/input.h>
#include <ctitan/rule.h>

#include "list.h"

void ct_launch_order(const struct ct_launch *l, const struct ct_value *v, int dim, int64_t *at)
{
    int64_t tokens = v->shape[dim];

    for (int64_t i = 0; i < tokens; i++)
        at[l->graph ? ct_graph_position(l->graph, tokens, i) : i] = i;
}

struct trace {
    struct ct_arena arena;
    const struct ct_graph *graph;
    const char *because;
    uint8_t *dims; /* by value; bit d is set if dimension d runs along sequences */
};

/* An op, its rule, and for each factor whether it runs along sequences. */
struct step {
    const struct ct_op *op;
    struct ct_rule rule;
    bool *along;
};

static int refuse(const struct trace *t, const struct ct_op *op, const struct ct_value *v,
                  const char *what)
{
    return ct_fail(CT_ECONFIG, "%s%s%s %s (%%%s), but %s", op->type->name, op->outs ? " %" : "",
                   op->outs ? op->out[0]->name : "", what, v->name, t->because);
}

static bool runs_along(const struct trace *t, const struct ct_value *v, int dim)
{
    return t->dims[v->id] >> dim & 1;
}

/* Whether the tie divides sequences into segments, each of which is in order. */
static bool in_chunks(const struct trace *t, const struct ct_rule *rule)
{
    return t->graph->chunks && rule->factor[rule->tie[1]].size % t->graph->chunks == 0;
}

/* The number of a sequence's segment runs along it, and its tokens do. */
static void mark_tie(struct step *s)
{
    const int *tie = s->rule.tie;

    if (tie[0] >= 0)
        s->along[tie[0]] = s->along[tie[1]] = s->along[tie[0]] || s->along[tie[1]];
}

static int mark_factors(const struct trace *t, struct step *s)
{
    const struct ct_op *op = s->op;

    for (int i = 0; i < op->ins; i++)
        for (int d = 0; op->in[i] && d < op->in[i]->ndim; d++) {
            if (!runs_along(t, op->in[i], d))
                continue;
            if (s->rule.operand[i].ndim < 0)
                return refuse(t, op, op->in[i], "takes whole tensors");
            s->along[s->rule.operand[i].factor[d]] = true;
        }
    for (int f = 0; f < s->rule.count; f++) /* without inputs: the positions themselves */
        s->along[f] |= s->rule.factor[f].position && s->rule.factor[f].operand >= op->ins;
    mark_tie(s);
    return 0;
}

static int check_factors(const struct trace *t, const struct step *s)
{
    const struct ct_rule *rule = &s->rule;

    for (int f = 0; f < rule->count; f++) {
        const struct ct_factor *factor = &rule->factor[f];
        const struct ct_op *op = s->op;

        if (!s->along[f] || factor->operand >= op->ins)
            continue;
        if ((f == rule->tie[0] || f == rule->tie[1]) && !in_chunks(t, rule))
            return refuse(t, op, op->in[factor->operand], "splits or merges sequences");
        if (factor->kind == CT_FACTOR_WHOLE && !factor->position &&
            !ct_op_type_whole(op->type)->recurrence)
            return refuse(t, op, op->in[factor->operand],
                          "takes whole sequences without positions (\"@\" in its signature)");
    }
    return 0;
}

static int check_inputs(const struct trace *t, const struct step *s)
{
    for (int i = 0; i < s->op->ins; i++)
        for (int d = 0; s->op->in[i] && d < s->rule.operand[i].ndim; d++)
            if (s->along[s->rule.operand[i].factor[d]] && !runs_along(t, s->op->in[i], d))
                return refuse(t, s->op, s->op->in[i],
                              "combines sequences with operands that do not run along them");
    return 0;
}

static int trace_op(struct trace *t, const struct ct_op *op)
{
    struct step s = {.op = op};
    int rc = ct_rule_apply(op, &t->arena, &s.rule);

    if (rc < 0)
        return rc;
    s.along = ct_arena_array(&t->arena, bool, s.rule.count + 1);
    rc = mark_factors(t, &s);
    if (rc == 0)
        rc = check_factors(t, &s);
    if (rc == 0)
        rc = check_inputs(t, &s);
    for (int i = 0; rc == 0 && i < op->outs; i++) {
        const struct ct_rule_operand *out = &s.rule.operand[op->ins + i];

        for (int d = 0; d < out->ndim; d++)
            t->dims[op->out[i]->id] |= (uint8_t)(s.along[out->factor[d]] << d);
    }
    return rc;
}

int ct_check_sequences(const struct ct_graph *graph, const char *because)
{
    struct trace t = {.graph = graph, .because = because};
    int rc = 0;

    t.dims = ct_arena_array(&t.arena, uint8_t, graph->value_count);
    for (size_t i = 0; i < graph->value_count; i++)
        if (ct_input_sequence(graph->values[i]) > 0)
            t.dims[graph->values[i]->id] = (uint8_t)(1u << ct_input_sequence(graph->values[i]));
    ct_for_each_op (op, graph)
        if (rc == 0 && ct_part_is_microbatch(op->section->part))
            rc = trace_op(&t, op);
    ct_arena_finish(&t.arena);
    return rc;
}
