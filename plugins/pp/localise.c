/*
 * One pipeline rank's part of a step.
 *
 * Up to here the graph holds all stages, so that all ranks agree on shardings. pp_collect turns
 * values that the host reads into sums over the ranks. pp_localise then keeps one rank's ops: those
 * of its stages, and the ops before and after the microbatches that they need. A value used by a
 * later stage is passed on from stage to stage; gradients are passed in the other direction. After
 * the microbatches, values go directly to the rank that needs them.
 */
#include <stdlib.h>
#include <string.h>

#include <ctitan/error.h>
#include <ctitan/lib/ops.h>

#include "pp.h"

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

static bool persistent(const struct ct_value *v)
{
    return v->role == CT_ROLE_PARAM || v->role == CT_ROLE_STATE;
}

/* Where an op before or in the microbatches runs. */
static void find_place(const struct pp_local *c, const struct ct_op *op, uint64_t *here)
{
    pp_ranks_clear(c, here);
    if (is_microbatch(op))
        pp_ranks_add(here, rank_of(c, op));
    for (int i = 0; op->section->part == CT_PART_PRE && i < op->outs; i++)
        pp_ranks_join(c, here, pp_where(c, op->out[i]));
}

static bool made_before(const struct ct_value *v)
{
    return v->producer && v->producer->section->part == CT_PART_PRE;
}

/* Parameters, and values computed from them before the microbatches, are where they are used. */
static void find_holders(struct pp_local *c)
{
    for (const struct ct_op *op = c->graph->last; op; op = op->prev) {
        if (op->section->part == CT_PART_POST || op->section->part == CT_PART_INIT)
            continue;
        find_place(c, op, c->set[0]);
        for (int i = 0; i < op->ins; i++)
            if (op->in[i] && (persistent(op->in[i]) || made_before(op->in[i])))
                pp_ranks_join(c, pp_where(c, op->in[i]), c->set[0]);
    }
    for (size_t i = 0; i < c->graph->value_count; i++) {
        struct ct_value *v = c->graph->values[i];

        if (v->role == CT_ROLE_INPUT || v->role == CT_ROLE_SCALAR || made_before(v))
            pp_ranks_fill(c, pp_where(c, v));
        else if (v->role == CT_ROLE_PARAM && pp_ranks_next(c, pp_where(c, v), 0) < 0)
            pp_ranks_add(pp_where(c, v), 0);
    }
}

/* The ranks of a parameter that op updates; NULL: it updates none. */
static const uint64_t *place_of_updated(const struct pp_local *c, const struct ct_op *op)
{
    for (int i = 0; i < op->ins; i++)
        if (op->in[i] && op->in[i]->role == CT_ROLE_PARAM && ct_op_mutates(op, i))
            return pp_where(c, op->in[i]);
    return NULL;
}

/* An op after the microbatches runs where a parameter is that it updates; another one where all of
   its inputs are. If there is no such rank, it runs where any input is. Inputs that are elsewhere
   are sent there. */
static const uint64_t *place_after(const struct pp_local *c, const struct ct_op *op)
{
    const uint64_t *updated = place_of_updated(c, op);
    uint64_t *all = c->set[0], *any = c->set[1];

    if (updated)
        return updated;

    pp_ranks_fill(c, all);
    pp_ranks_clear(c, any);
    for (int i = 0; i < op->ins; i++) {
        const uint64_t *where = op->in[i] ? pp_where(c, op->in[i]) : NULL;

        if (!where || pp_ranks_full(c, where) || pp_ranks_next(c, where, 0) < 0)
            continue;
        pp_ranks_limit(c, all, where);
        pp_ranks_join(c, any, where);
    }
    return pp_ranks_next(c, all, 0) >= 0 ? all : any;
}

static void make_sets(struct pp_local *c)
{
    size_t values = c->graph->value_count + 1, words;

    c->words = (c->stages.ranks + 63) / 64;
    words = (size_t)c->words;
    c->where = ct_arena_array(&c->scratch, uint64_t, values * words);
    c->needed = ct_arena_array(&c->scratch, uint64_t, values * words);
    for (size_t i = 0; i < CT_COUNT(c->set); i++)
        c->set[i] = ct_arena_array(&c->scratch, uint64_t, words);
}

void pp_mark_holders(struct ct_graph *graph, const struct pp_stages *stages)
{
    struct pp_local c = {.graph = graph, .stages = *stages};

    make_sets(&c);
    find_holders(&c);
    for (size_t i = 0; i < graph->value_count; i++) {
        struct ct_value *v = graph->values[i];

        if (v->role == CT_ROLE_PARAM)
            v->holders = (struct ct_ranks){
                ct_arena_copy(graph->arena, pp_where(&c, v), sizeof(uint64_t) * (size_t)c.words),
                c.words};
    }
    ct_arena_finish(&c.scratch);
}

static const uint64_t *place_of(struct pp_local *c, const struct ct_op *op)
{
    if (op->section->part == CT_PART_POST && !is_sum(op))
        return place_after(c, op);
    if (op->section->part == CT_PART_POST)
        pp_ranks_fill(c, c->set[0]);
    else
        find_place(c, op, c->set[0]);
    return c->set[0];
}

static void place_values(struct pp_local *c)
{
    find_holders(c);
    ct_for_each_op (op, c->graph) {
        const uint64_t *where;

        if (op->section->part == CT_PART_PRE || op->section->part == CT_PART_INIT)
            continue;
        where = place_of(c, op);
        for (int i = 0; i < op->outs; i++)
            pp_ranks_copy(c, pp_where(c, op->out[i]), where);
        for (int i = 0; i < op->ins; i++) /* states are where their parameters are */
            if (op->section->part == CT_PART_POST && ct_op_mutates(op, i) &&
                op->in[i]->role == CT_ROLE_STATE)
                pp_ranks_copy(c, pp_where(c, op->in[i]), where);
    }
}

/* Ranks that have a value which op updates in place. */
static void updaters(const struct pp_local *c, const struct ct_op *op, uint64_t *ranks)
{
    pp_ranks_clear(c, ranks);
    for (int i = 0; i < op->ins; i++)
        if (op->in[i] && ct_op_mutates(op, i))
            pp_ranks_join(c, ranks, pp_where(c, op->in[i]));
}

void pp_keepers(const struct pp_local *c, const struct ct_op *op, uint64_t *ranks)
{
    if (is_microbatch(op)) {
        pp_ranks_clear(c, ranks);
        pp_ranks_add(ranks, rank_of(c, op));
        return;
    }
    updaters(c, op, ranks);
    for (int i = 0; i < op->outs; i++)
        pp_ranks_join(c, ranks, pp_needed(c, op->out[i]));
}

/* Only one rank contributes each value that is summed over the ranks. */
void pp_limit_to_wanters(const struct pp_local *c, const struct ct_op *op, const struct ct_value *v,
                         uint64_t *ranks)
{
    int first = is_sum(op) ? pp_ranks_next(c, pp_where(c, v), 0) : -1;
    bool wanted = first >= 0 && pp_ranks_have(ranks, first);

    if (!is_sum(op))
        return;
    pp_ranks_clear(c, ranks);
    if (wanted)
        pp_ranks_add(ranks, first);
}

/* Marks the inputs of an op as needed on the ranks that keep it. */
static void need_inputs(struct pp_local *c, const struct ct_op *op)
{
    uint64_t *keepers = c->set[0], *ranks = c->set[1];

    pp_keepers(c, op, keepers);
    if (pp_ranks_next(c, keepers, 0) < 0)
        return;
    for (int i = 0; i < op->ins; i++) {
        if (!op->in[i])
            continue;
        pp_ranks_copy(c, ranks, keepers);
        pp_ranks_limit(c, ranks, pp_where(c, op->in[i]));
        pp_limit_to_wanters(c, op, op->in[i], ranks);
        pp_ranks_join(c, pp_needed(c, op->in[i]), ranks);
    }
}

void pp_find_needed(struct pp_local *c)
{
    memset(c->needed, 0, sizeof(*c->needed) * c->graph->value_count * (size_t)c->words);
    for (size_t i = 0; i < c->graph->fetch_count; i++)
        pp_ranks_fill(c, pp_needed(c, c->graph->fetches[i].value));
    for (size_t i = 0; i < c->graph->value_count; i++) {
        const struct ct_value *v = c->graph->values[i];

        if (v->grad)
            pp_ranks_join(c, pp_needed(c, v->grad), pp_where(c, v));
    }
    for (size_t i = 0; i < c->messages; i++)
        pp_ranks_add(pp_needed(c, c->message[i].value), c->message[i].from);
    for (const struct ct_op *op = c->graph->last; op; op = op->prev)
        if (op->section->part != CT_PART_INIT)
            need_inputs(c, op);
}

/* ---- removing the other ranks' ops ---- */

static void drop_foreign_terms(struct pp_local *c)
{
    ct_for_each_op (op, c->graph)
        if (is_sum(op) && pp_ranks_next(c, pp_where(c, op->in[0]), 0) != c->me)
            ct_op_set_input(op, 0, NULL);
}

/* Called before transfers are inserted, so that the new ops stay. */
static struct ct_op **find_foreign(struct pp_local *c, size_t *count)
{
    struct ct_op **foreign = NULL;
    size_t room = 0;

    *count = 0;
    ct_for_each_op (op, c->graph) {
        if (op->section->part == CT_PART_INIT)
            updaters(c, op, c->set[0]);
        else
            pp_keepers(c, op, c->set[0]);
        if (pp_ranks_have(c->set[0], c->me))
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
        if (!pp_ranks_have(pp_where(c, c->graph->values[i]), c->me))
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
    if (rc == 0) {
        make_sets(&c);
        rc = localise_graph(&c);
    }
    ct_arena_finish(&c.scratch);
    return rc;
}
