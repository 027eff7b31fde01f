/*
 * What crosses the cuts between pipeline stages: sends and receives.
 *
 * In the microbatches a value is handed on from stage to stage, so that ranks only talk to their
 * neighbours, as schedules expect; after them it goes straight to the rank that needs it.
 */
#include <string.h>

#include <ctitan/device.h>
#include <ctitan/error.h>
#include <ctitan/op.h>

#include "stage.h"

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

static void find_pass(struct ct_cut *c, struct direction *d)
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

static void meet(struct ct_cut *c, int from, int to)
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

static struct ct_value *receive(struct ct_cut *c, struct ct_builder *b,
                                const struct ct_value *origin, int from, const char *name)
{
    struct transfer_attrs attrs = attributes(c->graph, origin, from, c->me);
    struct ct_value *v = ct_emit1(b, "receive", name, NULL, 0, &attrs);

    if (v) {
        v->sharding = origin->sharding;
        v->producer->stream = CT_STREAM_RECEIVE;
    }
    return v;
}

static int send(struct ct_cut *c, struct ct_builder *b, const struct ct_value *origin,
                struct ct_value *v, int to)
{
    struct transfer_attrs attrs = attributes(c->graph, origin, c->me, to);
    struct ct_op *op = ct_emit(b, "send", NULL, &v, 1, &attrs);

    if (op)
        op->stream = CT_STREAM_SEND;
    return b->status;
}

static struct ct_builder in_stage(struct ct_cut *c, const struct direction *d, int stage,
                                  bool front)
{
    struct ct_op *at = front ? d->first[stage] : d->last[stage];
    struct ct_builder b = front ? ct_builder_before(c->graph, at) : ct_builder_after(c->graph, at);

    b.part = d->part;
    b.why = d->step > 0 ? "an earlier stage makes it, a later one uses it"
                        : "the gradient of what an earlier stage made";
    return b;
}

static void replace_in_stage(struct ct_cut *c, const struct ct_value *v, int stage,
                             struct ct_value *here)
{
    ct_for_each_op (op, c->graph)
        for (int i = 0; ct_part_is_microbatch(op->part) && op->stage == stage && i < op->ins; i++)
            if (op->in[i] == v)
                op->in[i] = here;
}

/* Hand v on to stage `last`. */
static int carry(struct ct_cut *c, const struct direction *d, struct ct_value *v, int last)
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
static int find_carried(struct ct_cut *c, const struct direction *d, int *farthest)
{
    ct_for_each_op (op, c->graph)
        for (int i = 0; ct_part_is_microbatch(op->part) && i < op->ins; i++) {
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

static int carry_all(struct ct_cut *c, enum ct_part part, int step)
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

int ct_cut_carry(struct ct_cut *c)
{
    int rc = carry_all(c, CT_PART_F, 1);

    return rc == 0 ? carry_all(c, CT_PART_I, -1) : rc;
}

/* ---- after the microbatches ---- */

static bool add_message(struct ct_cut *c, struct ct_value *v, int to, struct ct_op *user)
{
    for (size_t i = 0; i < c->messages; i++)
        if (c->message[i].value == v && c->message[i].to == to)
            return false;
    c->message = ct_arena_grow(&c->scratch, c->message, &c->message_room, c->messages + 1,
                               sizeof(*c->message));
    c->message[c->messages++] = (struct ct_message){v, user, __builtin_ctzll(c->where[v->id]), to};
    return true;
}

/* What a rank needs and does not have comes from one that has it, and so that one needs it, too. */
static bool find_messages_to(struct ct_cut *c, int rank)
{
    bool found = false;

    ct_cut_find_needed(c, rank);
    ct_for_each_op (op, c->graph)
        for (int i = 0; op->part == CT_PART_POST && ct_cut_keeps(c, op, rank) && i < op->ins; i++) {
            struct ct_value *v = op->in[i];

            if (v && ct_cut_wants(c, op, v, rank) && !ct_cut_has(c, v, rank))
                found |= add_message(c, v, rank, op);
        }
    return found;
}

/* All ranks find the same list. */
void ct_cut_find_messages(struct ct_cut *c)
{
    bool found = true;

    while (found) {
        found = false;
        for (int r = 0; r < c->ranks; r++)
            found |= find_messages_to(c, r);
    }
}

static void replace_after(struct ct_cut *c, const struct ct_value *v, struct ct_value *here)
{
    ct_for_each_op (op, c->graph)
        for (int i = 0; op->part == CT_PART_POST && i < op->ins; i++)
            if (op->in[i] == v)
                op->in[i] = here;
}

static struct ct_builder in_front_of_user(struct ct_cut *c, const struct ct_message *m)
{
    struct ct_builder b = ct_builder_before(c->graph, m->user);

    b.part = CT_PART_POST;
    b.why = "several stages have a part of it";
    return b;
}

/* Every message stands in front of the op that wanted it first, on both ranks: in one order. */
int ct_cut_exchange(struct ct_cut *c)
{
    int rc = 0;

    for (size_t i = 0; rc == 0 && i < c->messages; i++) {
        struct ct_message *m = &c->message[i];
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
