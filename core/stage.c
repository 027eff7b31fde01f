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

/* A value that one rank has after the microbatches and another needs. */
struct message {
    struct ct_value *value;
    struct ct_op *user; /* that wants it first */
    int from, to;
};

struct cut {
    struct ct_graph *graph;
    struct ct_arena scratch;
    int ranks, me;
    uint64_t *where; /* by value id: the ranks that have it */
    bool *needed;    /* by value id: on the rank that is looked at */
    struct message *message;
    size_t messages, message_room;
};

static bool is_microbatch(const struct ct_op *op)
{
    return ct_part_is_microbatch(op->part);
}

static bool is_stage_sum(const struct ct_op *op)
{
    return !strcmp(op->type->name, "stage_sum");
}

static int rank_of(const struct cut *c, const struct ct_op *op)
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
static void find_holders(struct cut *c)
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
static uint64_t place_after(const struct cut *c, const struct ct_op *op)
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
    struct cut c = {.graph = graph};

    c.where = ct_arena_array(arena, uint64_t, graph->value_count + 1);
    if (graph->stage_rank)
        find_holders(&c);
    return c.where;
}

static void place_values(struct cut *c)
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

static bool has(const struct cut *c, const struct ct_value *v, int rank)
{
    return c->where[v->id] & bit(rank);
}

static bool updates(const struct cut *c, const struct ct_op *op, int rank)
{
    for (int i = 0; i < op->ins; i++)
        if (op->in[i] && ct_op_mutates(op, i) && has(c, op->in[i], rank))
            return true;
    return false;
}

static bool stays(const struct cut *c, const struct ct_op *op, int rank)
{
    if (is_microbatch(op))
        return rank_of(c, op) == rank;
    for (int i = 0; i < op->outs; i++)
        if (c->needed[op->out[i]->id])
            return true;
    return updates(c, op, rank);
}

/* Does a rank give this term of a sum over the stages? */
static bool gives_term(const struct cut *c, const struct ct_value *v, int rank)
{
    return lowest(c->where[v->id]) == rank;
}

static void find_needed(struct cut *c, int rank)
{
    memset(c->needed, 0, c->graph->value_count);
    for (size_t i = 0; i < c->graph->fetch_count; i++)
        c->needed[c->graph->fetches[i].value->id] = true;
    for (size_t i = 0; i < c->messages; i++)
        if (c->message[i].from == rank)
            c->needed[c->message[i].value->id] = true;
    for (const struct ct_op *op = c->graph->last; op; op = op->prev) {
        if (op->part == CT_PART_INIT || !stays(c, op, rank))
            continue;
        for (int i = 0; i < op->ins; i++)
            if (op->in[i] && has(c, op->in[i], rank) &&
                (!is_stage_sum(op) || gives_term(c, op->in[i], rank)))
                c->needed[op->in[i]->id] = true;
    }
}

/* ---- from stage to stage ---- */

/* The ops of one direction: forward values go up, gradients down. */
struct direction {
    enum ct_part part;
    int step;                     /* +1: to later stages */
    struct ct_op **first, **last; /* by stage: of the pass; NULL: none here */
};

static bool of_pass(const struct direction *d, const struct ct_op *op)
{
    return d->part == CT_PART_F ? op->part == CT_PART_F
                                : op->part == CT_PART_I || op->part == CT_PART_W;
}

static void find_pass(struct cut *c, struct direction *d)
{
    d->first = ct_arena_array(&c->scratch, struct ct_op *, c->graph->stages);
    d->last = ct_arena_array(&c->scratch, struct ct_op *, c->graph->stages);
    ct_for_each_op (op, c->graph) {
        if (!of_pass(d, op))
            continue;
        if (!d->first[op->stage])
            d->first[op->stage] = op;
        d->last[op->stage] = op;
    }
}

struct transfer_attrs {
    const char *axes, *dtype, *shape;
    int64_t from, to, tag;
};

static struct transfer_attrs attributes(struct ct_graph *graph, const struct ct_value *v, int from,
                                        int to)
{
    const char *shape = "";

    for (int d = 0; d < v->rank; d++)
        shape =
            ct_arena_printf(graph->arena, "%s%s%lld", shape, d ? "," : "", (long long)v->shape[d]);
    return (struct transfer_attrs){"pp", ct_dtype_name(v->dtype), shape, from, to, v->id};
}

static void meet(struct cut *c, int from, int to)
{
    struct ct_graph *g = c->graph;
    size_t room = g->peer_count, at = 0;

    while (at < g->peer_count &&
           (g->peers[at].from < from || (g->peers[at].from == from && g->peers[at].to < to)))
        at++;
    if (at < g->peer_count && g->peers[at].from == from && g->peers[at].to == to)
        return;
    g->peers = ct_arena_grow(g->arena, g->peers, &room, g->peer_count + 1, sizeof(*g->peers));
    memmove(&g->peers[at + 1], &g->peers[at], sizeof(*g->peers) * (g->peer_count++ - at));
    g->peers[at] = (struct ct_peers){from, to};
}

static struct ct_value *receive(struct cut *c, struct ct_builder *b, const struct ct_value *origin,
                                int from, const char *name)
{
    struct transfer_attrs attrs = attributes(c->graph, origin, from, c->me);
    struct ct_value *v = ct_emit1(b, "receive", name, NULL, 0, &attrs);

    if (v) {
        v->sharding = origin->sharding;
        v->producer->stream = CT_STREAM_RECEIVE;
    }
    return v;
}

static int send(struct cut *c, struct ct_builder *b, const struct ct_value *origin,
                struct ct_value *v, int to)
{
    struct transfer_attrs attrs = attributes(c->graph, origin, c->me, to);
    struct ct_op *op = ct_emit(b, "send", NULL, &v, 1, &attrs);

    if (op)
        op->stream = CT_STREAM_SEND;
    return b->status;
}

static struct ct_builder in_stage(struct cut *c, const struct direction *d, int stage, bool front)
{
    struct ct_op *at = front ? d->first[stage] : d->last[stage];
    struct ct_builder b = front ? ct_builder_before(c->graph, at) : ct_builder_after(c->graph, at);

    b.part = d->part;
    b.why = d->step > 0 ? "an earlier stage makes it, a later one uses it"
                        : "the gradient of what an earlier stage made";
    return b;
}

static void replace_in_stage(struct cut *c, const struct ct_value *v, int stage,
                             struct ct_value *here)
{
    ct_for_each_op (op, c->graph)
        for (int i = 0; is_microbatch(op) && op->stage == stage && i < op->ins; i++)
            if (op->in[i] == v)
                op->in[i] = here;
}

/* Hand v on to stage `last`. */
static int carry(struct cut *c, const struct direction *d, struct ct_value *v, int last)
{
    const int *rank = c->graph->stage_rank;
    struct ct_value *here = v;
    int rc = 0;

    for (int s = v->producer->stage; rc == 0 && s != last; s += d->step) {
        int from = rank[s], to = rank[s + d->step];
        struct ct_builder b;

        if (from != to)
            meet(c, from, to);
        if (from == c->me && to != c->me) {
            b = in_stage(c, d, s, false);
            rc = send(c, &b, v, here, to);
            d->last[s] = d->last[s]->next;
        }
        if (to != c->me)
            continue;
        if (from != c->me) {
            b = in_stage(c, d, s + d->step, true);
            here = receive(c, &b, v, from,
                           ct_arena_printf(c->graph->arena, "%s.stage%d", v->name, s + d->step));
            if (!here)
                return b.status;
        }
        if (here != v)
            replace_in_stage(c, v, s + d->step, here);
    }
    return rc;
}

/* By value: the stage that is farthest away from the one that made it; -1: it stays. */
static int find_carried(struct cut *c, const struct direction *d, int *farthest)
{
    ct_for_each_op (op, c->graph)
        for (int i = 0; is_microbatch(op) && i < op->ins; i++) {
            const struct ct_value *v = op->in[i];
            const struct ct_op *maker = v ? v->producer : NULL;
            int way = maker ? (op->stage - maker->stage) * d->step : 0;

            if (!maker || op->stage == maker->stage || !of_pass(d, maker))
                continue;
            if (way < 0 || maker->part != d->part)
                return ct_fail(
                    CT_EINVAL,
                    "%%%s is made in stage %d, part %s, and used by %s in stage %d: values "
                    "of part F go to later stages, those of part I to earlier ones",
                    v->name, maker->stage, ct_part_name(maker->part), op->type->name, op->stage);
            if (farthest[v->id] < 0 || (op->stage - farthest[v->id]) * d->step > 0)
                farthest[v->id] = op->stage;
        }
    return 0;
}

static int carry_all(struct cut *c, enum ct_part part, int step)
{
    struct direction d = {.part = part, .step = step};
    size_t count = c->graph->value_count;
    int *farthest = ct_arena_array(&c->scratch, int, count + 1), rc;

    memset(farthest, -1, sizeof(*farthest) * count);
    find_pass(c, &d);
    rc = find_carried(c, &d, farthest);
    for (size_t i = 0; rc == 0 && i < count; i++)
        if (farthest[i] >= 0)
            rc = carry(c, &d, c->graph->values[i], farthest[i]);
    return rc;
}

/* ---- after the microbatches ---- */

static bool add_message(struct cut *c, struct ct_value *v, int to, struct ct_op *user)
{
    for (size_t i = 0; i < c->messages; i++)
        if (c->message[i].value == v && c->message[i].to == to)
            return false;
    c->message = ct_arena_grow(&c->scratch, c->message, &c->message_room, c->messages + 1,
                               sizeof(*c->message));
    c->message[c->messages++] = (struct message){v, user, lowest(c->where[v->id]), to};
    return true;
}

/* What a rank needs and does not have comes from one that has it, and so that one needs it, too. */
static bool find_messages_to(struct cut *c, int rank)
{
    bool found = false;

    find_needed(c, rank);
    ct_for_each_op (op, c->graph)
        for (int i = 0; op->part == CT_PART_POST && stays(c, op, rank) && i < op->ins; i++) {
            struct ct_value *v = op->in[i];

            if (v && (!is_stage_sum(op) || gives_term(c, v, rank)) && !has(c, v, rank))
                found |= add_message(c, v, rank, op);
        }
    return found;
}

/* All ranks find the same list. */
static void find_messages(struct cut *c)
{
    bool found = true;

    while (found) {
        found = false;
        for (int r = 0; r < c->ranks; r++)
            found |= find_messages_to(c, r);
    }
}

static void replace_after(struct cut *c, const struct ct_value *v, struct ct_value *here)
{
    ct_for_each_op (op, c->graph)
        for (int i = 0; op->part == CT_PART_POST && i < op->ins; i++)
            if (op->in[i] == v)
                op->in[i] = here;
}

static struct ct_builder in_front_of_user(struct cut *c, const struct message *m)
{
    struct ct_builder b = ct_builder_before(c->graph, m->user);

    b.part = CT_PART_POST;
    b.why = "several stages have a part of it";
    return b;
}

/* Every message stands in front of the op that wanted it first, on both ranks: in one order. */
static int exchange(struct cut *c)
{
    int rc = 0;

    for (size_t i = 0; rc == 0 && i < c->messages; i++) {
        struct message *m = &c->message[i];
        struct ct_builder b = in_front_of_user(c, m);
        struct ct_value *here;

        meet(c, m->from, m->to);
        if (m->from == c->me)
            rc = send(c, &b, m->value, m->value, m->to);
        if (m->to != c->me)
            continue;
        here = receive(c, &b, m->value, m->from,
                       ct_arena_printf(c->graph->arena, "%s.from%d", m->value->name, m->from));
        if (!here)
            return b.status;
        replace_after(c, m->value, here);
    }
    return rc;
}

/* ---- what is left ---- */

static void drop_terms(struct cut *c, struct ct_op *op)
{
    int kept = 0;

    for (int i = 0; i < op->ins; i++)
        if (gives_term(c, op->in[i], c->me))
            op->in[kept++] = op->in[i];
    op->ins = kept;
}

/* Decided before anything is moved: what is added then stays. */
static struct ct_op **find_foreign(struct cut *c, size_t *count)
{
    struct ct_op **foreign = NULL;
    size_t room = 0;

    *count = 0;
    find_needed(c, c->me);
    ct_for_each_op (op, c->graph) {
        if (op->part == CT_PART_INIT ? updates(c, op, c->me) : stays(c, op, c->me))
            continue;
        foreign = ct_arena_grow(&c->scratch, foreign, &room, *count + 1, sizeof(struct ct_op *));
        foreign[(*count)++] = op;
    }
    return foreign;
}

static int localise_graph(struct cut *c)
{
    size_t count, values = c->graph->value_count;
    struct ct_op **foreign;
    int rc;

    place_values(c);
    find_messages(c);
    foreign = find_foreign(c, &count);
    ct_for_each_op (op, c->graph)
        if (is_stage_sum(op))
            drop_terms(c, op);
    rc = carry_all(c, CT_PART_F, 1);
    if (rc == 0)
        rc = carry_all(c, CT_PART_I, -1);
    if (rc == 0)
        rc = exchange(c);
    for (size_t i = 0; i < count; i++)
        ct_graph_remove(c->graph, foreign[i]);
    for (size_t i = 0; i < values; i++)
        if (!has(c, c->graph->values[i], c->me))
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
    struct cut c = {.graph = graph};

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
