/*
 * One pipeline rank's part of a step.
 *
 * Up to here the graph holds all stages, so that all ranks agree on shardings. pp_collect turns
 * values that the host reads into sums over the ranks. pp_localise then keeps one rank's ops: those
 * of its stages, and the ops before and after the microbatches that they need. A value used by a
 * later stage is passed on from stage to stage; gradients are passed in the other direction. After
 * the microbatches, values go directly to the rank that needs them.
 *
 * The set of ranks that have a value is a 64-bit set of coordinates along pp, so there can be at
 * most 64.
 */
#include <stdlib.h>
#include <string.h>

#include <ctitan/error.h>
#include <ctitan/lib/ops.h>

#include "pp.h"

#define EVERYWHERE UINT64_MAX
#define MOST_RANKS 64

/* ---- what the host reads ---- */

int pp_collect(struct ct_graph *graph, struct ct_run *run)
{
    struct ct_builder b = ct_builder_at_end(graph, CT_PART_POST, "");

    (void)run;
    b.why = "the host reads it, on every rank";
    for (size_t i = 0; graph->partition_axis >= 0 && i < graph->fetch_count; i++) {
        struct ct_fetch *f = &graph->fetches[i];
        struct ct_value *given = f->value;

        if (f->value->producer && ct_part_is_microbatch(f->value->producer->section->part))
            given = ct_contribution(&b, f->value->name, f->value);
        if (!given)
            return b.status;
        if (given != f->value)
            ct_graph_set_fetch(graph, i, given);
    }
    return 0;
}

/* ---- which ranks have a value ---- */

static bool is_microbatch(const struct ct_op *op)
{
    return ct_part_is_microbatch(op->section->part);
}

static bool is_sum(const struct ct_op *op)
{
    return op->type == &ct_op_contribution;
}

static int rank_of(const struct pp_local *c, const struct ct_op *op)
{
    return c->stages.rank_of[op->section->group];
}

static uint64_t bit(int rank)
{
    return (uint64_t)1 << rank;
}

static bool persistent(const struct ct_value *v)
{
    return v->role == CT_ROLE_PARAM || v->role == CT_ROLE_STATE;
}

/* Parameters, and values computed from them before the microbatches, are where they are used. */
static void find_holders(struct pp_local *c)
{
    for (const struct ct_op *op = c->graph->last; op; op = op->prev) {
        uint64_t here = is_microbatch(op) ? bit(rank_of(c, op)) : 0;

        if (op->section->part == CT_PART_POST || op->section->part == CT_PART_INIT)
            continue;
        for (int i = 0; op->section->part == CT_PART_PRE && i < op->outs; i++)
            here |= c->where[op->out[i]->id];
        for (int i = 0; i < op->ins; i++) {
            struct ct_value *v = op->in[i];

            if (v && (persistent(v) || (v->producer && v->producer->section->part == CT_PART_PRE)))
                c->where[v->id] |= here;
        }
    }
    for (size_t i = 0; i < c->graph->value_count; i++) {
        struct ct_value *v = c->graph->values[i];

        if (v->role == CT_ROLE_INPUT || v->role == CT_ROLE_SCALAR ||
            (v->producer && v->producer->section->part == CT_PART_PRE))
            c->where[i] = EVERYWHERE;
        else if (v->role == CT_ROLE_PARAM && !c->where[i])
            c->where[i] = bit(0);
    }
}

/* An op after the microbatches runs where all of its inputs are. If there is no such rank, it runs
   where any input is, and the others are sent there. */
static uint64_t place_after(const struct pp_local *c, const struct ct_op *op)
{
    uint64_t all = EVERYWHERE, any = 0;

    for (int i = 0; i < op->ins; i++) {
        uint64_t where = op->in[i] ? c->where[op->in[i]->id] : EVERYWHERE;

        if (where == EVERYWHERE || !where)
            continue;
        all &= where;
        any |= where;
    }
    return all || is_sum(op) ? all : any;
}

void pp_mark_holders(struct ct_graph *graph, const struct pp_stages *stages)
{
    struct pp_local c = {.graph = graph, .stages = *stages};

    c.where = ct_arena_array(&c.scratch, uint64_t, graph->value_count + 1);
    find_holders(&c);
    for (size_t i = 0; i < graph->value_count; i++)
        if (graph->values[i]->role == CT_ROLE_PARAM)
            graph->values[i]->holders = c.where[i];
    ct_arena_finish(&c.scratch);
}

static void place_values(struct pp_local *c)
{
    find_holders(c);
    ct_for_each_op (op, c->graph) {
        uint64_t where = is_microbatch(op) ? bit(rank_of(c, op)) : 0;

        if (op->section->part == CT_PART_PRE || op->section->part == CT_PART_INIT)
            continue;
        if (op->section->part == CT_PART_POST)
            where = is_sum(op) ? EVERYWHERE : place_after(c, op);
        for (int i = 0; i < op->outs; i++)
            c->where[op->out[i]->id] = where;
        for (int i = 0; i < op->ins; i++) /* states are where their parameters are */
            if (op->section->part == CT_PART_POST && ct_op_mutates(op, i) &&
                op->in[i]->role == CT_ROLE_STATE)
                c->where[op->in[i]->id] = where;
    }
}

/* Ranks that have a value which op updates in place. */
static uint64_t updaters(const struct pp_local *c, const struct ct_op *op)
{
    uint64_t ranks = 0;

    for (int i = 0; i < op->ins; i++)
        if (op->in[i] && ct_op_mutates(op, i))
            ranks |= c->where[op->in[i]->id];
    return ranks;
}

uint64_t pp_keepers(const struct pp_local *c, const struct ct_op *op)
{
    uint64_t ranks;

    if (is_microbatch(op))
        return bit(rank_of(c, op));
    ranks = updaters(c, op);
    for (int i = 0; i < op->outs; i++)
        ranks |= c->needed[op->out[i]->id];
    return ranks;
}

/* Only one rank contributes each value that is summed over the ranks. */
uint64_t pp_wanters(const struct pp_local *c, const struct ct_op *op, const struct ct_value *v)
{
    return is_sum(op) ? c->where[v->id] & -c->where[v->id] : EVERYWHERE;
}

void pp_find_needed(struct pp_local *c)
{
    memset(c->needed, 0, sizeof(*c->needed) * c->graph->value_count);
    for (size_t i = 0; i < c->graph->fetch_count; i++)
        c->needed[c->graph->fetches[i].value->id] = EVERYWHERE;
    for (size_t i = 0; i < c->graph->value_count; i++)
        if (c->graph->values[i]->grad)
            c->needed[c->graph->values[i]->grad->id] |= c->where[i];
    for (size_t i = 0; i < c->messages; i++)
        c->needed[c->message[i].value->id] |= bit(c->message[i].from);
    for (const struct ct_op *op = c->graph->last; op; op = op->prev) {
        uint64_t keepers = op->section->part == CT_PART_INIT ? 0 : pp_keepers(c, op);

        for (int i = 0; keepers && i < op->ins; i++)
            if (op->in[i])
                c->needed[op->in[i]->id] |=
                    keepers & c->where[op->in[i]->id] & pp_wanters(c, op, op->in[i]);
    }
}

/* ---- removing the other ranks' ops ---- */

static void drop_foreign_terms(struct pp_local *c)
{
    ct_for_each_op (op, c->graph)
        if (is_sum(op) && !(pp_wanters(c, op, op->in[0]) & bit(c->me)))
            ct_op_set_input(op, 0, NULL);
}

/* Called before transfers are inserted, so that the new ops stay. */
static struct ct_op **find_foreign(struct pp_local *c, size_t *count)
{
    struct ct_op **foreign = NULL;
    size_t room = 0;

    *count = 0;
    ct_for_each_op (op, c->graph) {
        uint64_t keepers = op->section->part == CT_PART_INIT ? updaters(c, op) : pp_keepers(c, op);

        if (keepers & bit(c->me))
            continue;
        foreign = ct_arena_grow(&c->scratch, foreign, &room, *count + 1, sizeof(struct ct_op *));
        foreign[(*count)++] = op;
    }
    return foreign;
}

static int localise_graph(struct pp_local *c)
{
    size_t count, values = c->graph->value_count;
    struct ct_op **foreign;
    int rc;

    place_values(c);
    pp_find_messages(c);
    foreign = find_foreign(c, &count);
    drop_foreign_terms(c);
    rc = pp_forward_values(c);
    if (rc == 0)
        rc = pp_exchange(c);
    for (size_t i = 0; i < count; i++)
        ct_graph_remove(c->graph, foreign[i]);
    for (size_t i = 0; i < values; i++)
        if (!(c->where[i] & bit(c->me)))
            ct_value_set_grad(c->graph->values[i], NULL);
    ct_graph_sweep(c->graph);
    return rc;
}

int pp_localise(struct ct_graph *graph, struct ct_run *run)
{
    struct pp_local c = {.graph = graph};
    int rc;

    if (graph->partition_axis < 0)
        return 0;
    rc = pp_stages_of(graph, &c.scratch, &c.stages);
    c.me = (int)ct_mesh_coordinate(&graph->mesh, run->rank, graph->partition_axis);
    if (rc == 0 && c.stages.ranks > MOST_RANKS)
        rc = ct_fail(CT_ECONFIG, "a pipeline of %d ranks: %d is the most", c.stages.ranks,
                     MOST_RANKS);
    if (rc == 0) {
        c.where = ct_arena_array(&c.scratch, uint64_t, graph->value_count + 1);
        c.needed = ct_arena_array(&c.scratch, uint64_t, graph->value_count + 1);
        rc = localise_graph(&c);
    }
    ct_arena_finish(&c.scratch);
    return rc;
}
