/*
 * One pipeline rank's part of a step.
 *
 * Until here the graph is that of all stages, so that everybody agrees on shardings. `collect` says
 * what the ranks sum up between them: what the host reads. `localise` then leaves one rank's ops:
 * those of its stages, and those before and after the microbatches that they need. A value that
 * crosses from one stage into a later one is handed on from stage to stage, and gradients likewise
 * the other way; what is needed after the microbatches goes straight to the rank that needs it.
 *
 * Which ranks have a value is a set of coordinates along pp: 64 bits, so at most 64 of them.
 */
#include <stdlib.h>
#include <string.h>

#include <ctitan/error.h>
#include <ctitan/pass.h>
#include <ctitan/run.h>

#include "stage.h"

#define EVERYWHERE UINT64_MAX
#define MOST_RANKS 64

/* ---- collect ---- */

struct sum_attrs {
    const char *axes, *dtype;
};

struct ct_value *ct_stage_sum(struct ct_builder *b, const char *name, struct ct_value *const *terms,
                              int count)
{
    return ct_emit1(b, "stage_sum", name, terms, count,
                    &(struct sum_attrs){"pp", ct_dtype_name(terms[0]->dtype)});
}

static int collect(struct ct_graph *graph, struct ct_run *run)
{
    struct ct_builder b = ct_builder_at_end(graph, CT_PART_POST, "");

    (void)run;
    b.why = "the host reads it, on every rank";
    for (size_t i = 0; graph->stage_rank && i < graph->fetch_count; i++) {
        struct ct_fetch *f = &graph->fetches[i];

        if (f->value->producer && ct_part_is_microbatch(f->value->producer->part))
            f->value = ct_stage_sum(&b, f->value->name, &f->value, 1);
        if (!f->value)
            return b.status;
    }
    return 0;
}

const struct ct_transform ct_pass_collect = {
    .name = "collect",
    .summary = "sums over pipeline stages what the host reads",
    .phase = CT_PHASE_COLLECTIVE,
    .gives = (const char *const[]){"collected", NULL},
    .evaluation = true,
    .apply = collect,
};

/* ---- who has what ---- */

static bool is_microbatch(const struct ct_op *op)
{
    return ct_part_is_microbatch(op->part);
}

static bool is_stage_sum(const struct ct_op *op)
{
    return !strcmp(op->type->name, "stage_sum");
}

static int rank_of(const struct ct_cut *c, const struct ct_op *op)
{
    return c->graph->stage_rank[op->stage];
}

static uint64_t bit(int rank)
{
    return (uint64_t)1 << rank;
}

static int lowest(uint64_t ranks)
{
    return __builtin_ctzll(ranks);
}

static bool persistent(const struct ct_value *v)
{
    return v->role == CT_ROLE_PARAM || v->role == CT_ROLE_STATE;
}

/* Parameters, and what is made of them before the microbatches, are where their users are. */
static void find_holders(struct ct_cut *c)
{
    for (const struct ct_op *op = c->graph->last; op; op = op->prev) {
        uint64_t here = is_microbatch(op) ? bit(rank_of(c, op)) : 0;

        if (op->part == CT_PART_POST || op->part == CT_PART_INIT)
            continue;
        for (int i = 0; op->part == CT_PART_PRE && i < op->outs; i++)
            here |= c->where[op->out[i]->id];
        for (int i = 0; i < op->ins; i++) {
            struct ct_value *v = op->in[i];

            if (v && (persistent(v) || (v->producer && v->producer->part == CT_PART_PRE)))
                c->where[v->id] |= here;
        }
    }
    for (size_t i = 0; i < c->graph->value_count; i++) {
        struct ct_value *v = c->graph->values[i];

        if (v->role == CT_ROLE_INPUT || v->role == CT_ROLE_SCALAR ||
            (v->producer && v->producer->part == CT_PART_PRE))
            c->where[i] = EVERYWHERE;
        else if (v->role == CT_ROLE_PARAM && !c->where[i])
            c->where[i] = bit(0);
    }
}

/* An op after the microbatches runs where all that it needs is; if that is nowhere, where any of it
   is, and the rest is sent there. */
static uint64_t place_after(const struct ct_cut *c, const struct ct_op *op)
{
    uint64_t all = EVERYWHERE, any = 0;

    for (int i = 0; i < op->ins; i++) {
        uint64_t where = op->in[i] ? c->where[op->in[i]->id] : EVERYWHERE;

        if (where == EVERYWHERE || !where)
            continue;
        all &= where;
        any |= where;
    }
    return all || is_stage_sum(op) ? all : any;
}

uint64_t *ct_stage_holders(struct ct_graph *graph, struct ct_arena *arena)
{
    struct ct_cut c = {.graph = graph};

    c.where = ct_arena_array(arena, uint64_t, graph->value_count + 1);
    if (graph->stage_rank)
        find_holders(&c);
    return c.where;
}

static void place_values(struct ct_cut *c)
{
    find_holders(c);
    ct_for_each_op (op, c->graph) {
        uint64_t where = is_microbatch(op) ? bit(rank_of(c, op)) : 0;

        if (op->part == CT_PART_PRE || op->part == CT_PART_INIT)
            continue;
        if (op->part == CT_PART_POST)
            where = is_stage_sum(op) ? EVERYWHERE : place_after(c, op);
        for (int i = 0; i < op->outs; i++)
            c->where[op->out[i]->id] = where;
        for (int i = 0; i < op->ins; i++) /* an optimizer's states are where its parameters are */
            if (op->part == CT_PART_POST && ct_op_mutates(op, i) &&
                op->in[i]->role == CT_ROLE_STATE)
                c->where[op->in[i]->id] = where;
    }
}

bool ct_cut_has(const struct ct_cut *c, const struct ct_value *v, int rank)
{
    return c->where[v->id] & bit(rank);
}

static bool updates(const struct ct_cut *c, const struct ct_op *op, int rank)
{
    for (int i = 0; i < op->ins; i++)
        if (op->in[i] && ct_op_mutates(op, i) && ct_cut_has(c, op->in[i], rank))
            return true;
    return false;
}

bool ct_cut_keeps(const struct ct_cut *c, const struct ct_op *op, int rank)
{
    if (is_microbatch(op))
        return rank_of(c, op) == rank;
    for (int i = 0; i < op->outs; i++)
        if (c->needed[op->out[i]->id])
            return true;
    return updates(c, op, rank);
}

/* Each term of a sum over the stages is given by one rank only. */
bool ct_cut_wants(const struct ct_cut *c, const struct ct_op *op, const struct ct_value *v,
                  int rank)
{
    return !is_stage_sum(op) || lowest(c->where[v->id]) == rank;
}

void ct_cut_find_needed(struct ct_cut *c, int rank)
{
    memset(c->needed, 0, c->graph->value_count);
    for (size_t i = 0; i < c->graph->fetch_count; i++)
        c->needed[c->graph->fetches[i].value->id] = true;
    for (size_t i = 0; i < c->graph->value_count; i++)
        if (c->graph->values[i]->grad && ct_cut_has(c, c->graph->values[i], rank))
            c->needed[c->graph->values[i]->grad->id] = true;
    for (size_t i = 0; i < c->messages; i++)
        if (c->message[i].from == rank)
            c->needed[c->message[i].value->id] = true;
    for (const struct ct_op *op = c->graph->last; op; op = op->prev) {
        if (op->part == CT_PART_INIT || !ct_cut_keeps(c, op, rank))
            continue;
        for (int i = 0; i < op->ins; i++)
            if (op->in[i] && ct_cut_has(c, op->in[i], rank) && ct_cut_wants(c, op, op->in[i], rank))
                c->needed[op->in[i]->id] = true;
    }
}

/* ---- what is left ---- */

static void drop_terms(struct ct_cut *c, struct ct_op *op)
{
    int kept = 0;

    for (int i = 0; i < op->ins; i++)
        if (ct_cut_wants(c, op, op->in[i], c->me))
            op->in[kept++] = op->in[i];
    op->ins = kept;
}

/* Decided before anything is moved: what is added then stays. */
static struct ct_op **find_foreign(struct ct_cut *c, size_t *count)
{
    struct ct_op **foreign = NULL;
    size_t room = 0;

    *count = 0;
    ct_cut_find_needed(c, c->me);
    ct_for_each_op (op, c->graph) {
        if (op->part == CT_PART_INIT ? updates(c, op, c->me) : ct_cut_keeps(c, op, c->me))
            continue;
        foreign = ct_arena_grow(&c->scratch, foreign, &room, *count + 1, sizeof(struct ct_op *));
        foreign[(*count)++] = op;
    }
    return foreign;
}

static int localise_graph(struct ct_cut *c)
{
    size_t count, values = c->graph->value_count;
    struct ct_op **foreign;
    int rc;

    place_values(c);
    ct_cut_find_messages(c);
    foreign = find_foreign(c, &count);
    ct_for_each_op (op, c->graph)
        if (is_stage_sum(op))
            drop_terms(c, op);
    rc = ct_cut_carry(c);
    if (rc == 0)
        rc = ct_cut_exchange(c);
    for (size_t i = 0; i < count; i++)
        ct_graph_remove(c->graph, foreign[i]);
    for (size_t i = 0; i < values; i++)
        if (!ct_cut_has(c, c->graph->values[i], c->me))
            c->graph->values[i]->grad = NULL;
    ct_graph_sweep(c->graph);
    return rc;
}

/* Every parameter, who has it, and in which pieces: for loading and saving. */
static void note_weights(struct ct_graph *graph, struct ct_run *run)
{
    struct ct_arena scratch = {0};
    uint64_t *holders = ct_stage_holders(graph, &scratch);

    run->weight_count = 0;
    run->weights = ct_arena_array(&run->arena, struct ct_weight_place, graph->value_count);
    for (size_t i = 0; i < graph->value_count; i++) {
        const struct ct_value *v = graph->values[i];
        struct ct_weight_place *w = &run->weights[run->weight_count];

        if (v->role != CT_ROLE_PARAM)
            continue;
        *w = (struct ct_weight_place){.name = v->name,
                                      .dtype = v->dtype,
                                      .rank = v->rank,
                                      .sharding = v->sharding,
                                      .holders = graph->stage_rank ? holders[i] : 1};
        memcpy(w->shape, v->shape, sizeof(w->shape));
        run->parameters += ct_shape_count(v->rank, v->shape);
        run->weight_count++;
    }
    ct_arena_finish(&scratch);
}

static int localise(struct ct_graph *graph, struct ct_run *run)
{
    int axis = ct_mesh_find(&graph->mesh, "pp"), rc;
    struct ct_cut c = {.graph = graph};

    if (!run->weights)
        note_weights(graph, run);
    if (!graph->stage_rank)
        return 0;
    c.ranks = (int)graph->mesh.axis[axis].size;
    c.me = (int)ct_mesh_coordinate(&graph->mesh, run->rank, axis);
    if (c.ranks > MOST_RANKS)
        return ct_fail(CT_ECONFIG, "a pipeline of %d ranks: %d is the most", c.ranks, MOST_RANKS);
    c.where = ct_arena_array(&c.scratch, uint64_t, graph->value_count + 1);
    c.needed = ct_arena_array(&c.scratch, bool, graph->value_count + 1);
    rc = localise_graph(&c);
    ct_arena_finish(&c.scratch);
    return rc;
}

const struct ct_transform ct_pass_localise = {
    .name = "localise",
    .summary = "leaves this rank's pipeline stages, and what they send to others",
    .phase = CT_PHASE_COLLECTIVE,
    .needs = (const char *const[]){"collectives", NULL},
    .evaluation = true,
    .apply = localise,
};
