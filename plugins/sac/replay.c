/*
 * Recomputation: values that the backward needs and that are not kept are recomputed, from kept
 * values, in front of the first op that needs them.
 *
 * An op is repeated in I if an op of I needs it, else in W. An op that another transform recomputed
 * on a stream of its own runs one op ahead.
 *
 * A value that is kept in host memory is copied there after the op that makes it, and loaded one
 * region before the first op that needs it; both copies run on streams of their own.
 */
#include <string.h>

#include <ctitan/device/device.h>
#include <ctitan/error.h>
#include <ctitan/lib/ops.h>

#include "sac.h"

/* The current position among the ops of I or W. */
struct position {
    int group;
    const char *region;
    struct ct_op *first, *before; /* first op of the region, and of the one before; NULL: none */
};

struct replay {
    struct sac *s;
    bool *needed;            /* by value id of the forward: to be recomputed or loaded */
    struct ct_value **again; /* by value id of the forward, once recomputed or loaded */
    struct ct_op *user;      /* the current user */
    struct position position[CT_PARTS];
};

static bool is_loaded(const struct replay *r, const struct ct_value *v)
{
    return r->s->away[v->id] && r->s->root[v->id] == v;
}

static void need(struct replay *r, const struct ct_value *v)
{
    if ((r->s->kept[v->id] && !r->s->away[v->id]) || r->needed[v->id])
        return;
    r->needed[v->id] = true;
    if (is_loaded(r, v))
        return;
    for (int i = 0; i < v->producer->ins; i++)
        if (v->producer->in[i])
            need(r, v->producer->in[i]);
}

static void find_needed(struct replay *r)
{
    ct_for_each_op (op, r->s->graph)
        for (int i = 0; sac_is_backward(op) && i < op->ins; i++)
            if (op->in[i] && op->in[i]->id < r->s->count)
                need(r, r->s->forward->values[op->in[i]->id]);
}

/* Adjacent outputs live as long as the longest-lived one. If only some are kept, each is made by
   itself. */
static bool lies_with_others(const struct replay *r, const struct ct_op *op)
{
    struct ct_value **values = NULL;
    int again = 0;

    if (op->section->part != CT_PART_F || !op->type->apart || !ct_op_join(op, &values) ||
        values != op->out)
        return false;
    for (int i = 0; i < op->outs; i++)
        again += r->needed[op->out[i]->id];
    return again && again < op->outs;
}

static int part_outputs(const struct replay *r)
{
    int rc = 0;

    ct_for_each_op_safe (op, r->s->graph)
        if (rc == 0 && lies_with_others(r, op))
            rc = sac_take_apart(r->s->graph, op);
    return rc;
}

/* The op to clone for v: the whole joined op if all of its outputs are needed. */
static const struct ct_op *model(const struct replay *r, const struct ct_value *v)
{
    const struct sac *s = r->s;
    const struct ct_op *joined = v->id < s->count ? s->graph->values[v->id]->producer : NULL;

    for (int i = 0; joined && i < joined->outs; i++)
        if (!r->needed[joined->out[i]->id] || s->away[joined->out[i]->id])
            return v->producer;
    return joined ? joined : v->producer;
}

/* W may run after all of I, so values that I needs too are recomputed in I. */
static void hasten(const struct replay *r, struct ct_op *op)
{
    if (op->section->part <= r->user->section->part || !(op->marks & ct_mark("sac.recompute")))
        return;
    op->section = r->user->section;
    for (int i = 0; i < op->ins; i++)
        if (op->in[i] && op->in[i]->producer)
            hasten(r, op->in[i]->producer);
}

static bool makes(const struct ct_op *op, struct ct_value *const *in, int ins)
{
    for (int i = 0; i < ins; i++)
        if (in[i] && in[i]->producer == op)
            return true;
    return false;
}

/* In front of the user, or one op earlier to overlap another op of the same backward. */
static struct ct_op *place(const struct replay *r, int stream, struct ct_value *const *in, int ins)
{
    struct ct_op *before = r->user->prev;
    bool ahead = stream != CT_STREAM_COMPUTE && before && sac_is_backward(before) &&
                 before->region == r->user->region;

    return ahead && !makes(before, in, ins) ? before : r->user;
}

static const char *reason(const struct replay *r, const struct ct_op *op)
{
    const struct sac *s = r->s;
    size_t bytes = 0;

    for (int i = 0; i < op->outs; i++)
        bytes += ct_value_bytes(s->forward, s->forward->values[op->out[i]->id], s->rank);
    if (op->type->flags & CT_OP_VIEW)
        return NULL;
    return ct_arena_printf(s->graph->arena, "sac: recomputed, %zu bytes and %.4g FLOPs", bytes,
                           ct_op_flops(s->forward, op, s->rank));
}

/* ---- host memory ---- */

static void move_to(struct replay *r, struct ct_op *op)
{
    struct position *p = &r->position[op->section->part];

    if (p->group != op->section->group || !p->first)
        *p = (struct position){.group = op->section->group};
    else if (p->region == op->region)
        return;
    p->before = p->first;
    p->first = op;
    p->region = op->region;
}

static struct ct_value *copy_away(struct replay *r, struct ct_value *v)
{
    struct ct_builder b = ct_builder_after(r->s->graph, v->producer);
    struct ct_value *away;

    b.why = ct_arena_printf(r->s->graph->arena, "sac: kept in host memory, %zu bytes",
                            ct_value_bytes(r->s->graph, v, r->s->rank));
    away = ct_offload(&b, ct_arena_printf(r->s->graph->arena, "%s.away", v->name), v);
    if (!away)
        return NULL;
    away->sharding = v->sharding;
    away->producer->stream = ct_stream("copy_out", CT_STREAM_KEEPS);
    return away;
}

static struct ct_value *load(struct replay *r, const struct ct_value *of)
{
    struct ct_value *v = r->s->graph->values[of->id], *away = copy_away(r, v), *here;
    const struct position *p = &r->position[r->user->section->part];
    struct ct_builder b = ct_builder_before(r->s->graph, p->before ? p->before : p->first);

    b.section = r->user->section;
    b.why = "sac: it was kept in host memory";
    b.marks = ct_mark("sac.recompute");
    here = away ? ct_load(&b, ct_arena_printf(r->s->graph->arena, "%s.here", v->name), away) : NULL;
    if (!here)
        return NULL;
    here->sharding = v->sharding;
    here->producer->stream = ct_stream("copy_in", 0);
    return r->again[of->id] = here;
}

/* ---- recomputation ---- */

static struct ct_value *make_again(struct replay *r, const struct ct_value *v);

static struct ct_value *take(struct replay *r, struct ct_value *v)
{
    if (!v)
        return NULL;
    return r->needed[v->id] ? make_again(r, r->s->forward->values[v->id])
                            : r->s->graph->values[v->id];
}

static struct ct_value *make_again(struct replay *r, const struct ct_value *v)
{
    struct sac *s = r->s;
    const struct ct_op *op = model(r, v);
    int stream = v->id < s->count ? s->stream[v->id] : CT_STREAM_COMPUTE;
    struct ct_value **in;
    struct ct_builder b;
    struct ct_op *clone;

    if (r->again[v->id]) {
        hasten(r, r->again[v->id]->producer);
        return r->again[v->id];
    }
    if (is_loaded(r, v))
        return load(r, v);
    in = ct_arena_array(&s->scratch, struct ct_value *, op->ins);
    for (int i = 0; i < op->ins; i++) {
        in[i] = take(r, op->in[i]);
        if (op->in[i] && !in[i])
            return NULL;
    }
    b = ct_builder_before(s->graph, place(r, stream, in, op->ins));
    b.section = r->user->section;
    b.region = r->user->region;
    b.why = reason(r, op);
    b.marks = ct_mark("sac.recompute");
    clone = ct_op_clone(&b, op, in, "again");
    if (!clone)
        return NULL;
    if (stream != CT_STREAM_COMPUTE)
        clone->stream = stream;
    for (int i = 0; i < op->outs; i++)
        r->again[op->out[i]->id] = clone->out[i];
    return r->again[v->id];
}

static int serve(struct replay *r, struct ct_op *op)
{
    r->user = op;
    move_to(r, op);
    for (int i = 0; i < op->ins; i++) {
        struct ct_value *v = op->in[i], *again;

        if (!v || v->id >= r->s->count || !r->needed[v->id])
            continue;
        again = make_again(r, r->s->forward->values[v->id]);
        if (!again)
            return CT_EINVAL;
        ct_op_set_input(op, i, again);
    }
    return 0;
}

/* ---- output for people ---- */

static void mark_kept(const struct sac *s)
{
    ct_for_each_op (op, s->graph)
        for (int i = 0; sac_is_backward(op) && i < op->ins; i++) {
            const struct ct_value *v = op->in[i];

            if (v && v->id < s->count && s->layer_of[v->id] >= 0 && s->kept[v->id] &&
                v->space == CT_SPACE_DEVICE)
                s->graph->values[s->root[v->id]->id]->marks |= ct_mark("sac.save");
        }
}

static void explain_kept(const struct sac *s)
{
    ct_for_each_op (op, s->graph) {
        bool leaves = false;
        size_t bytes = 0;

        for (int i = 0; op->section->part == CT_PART_F && i < op->outs; i++)
            if (op->out[i]->marks & ct_mark("sac.save")) {
                leaves |= sac_leaves(s, s->forward->values[op->out[i]->id]);
                bytes += ct_value_bytes(s->graph, op->out[i], s->rank);
            }
        if (bytes)
            op->why = ct_arena_printf(
                s->graph->arena, "%s%ssac: kept, %zu bytes%s, %.4g FLOPs are not repeated",
                op->why ? op->why : "", op->why ? "; " : "", bytes,
                leaves ? " that leave the layer" : "", ct_op_flops(s->graph, op, s->rank));
    }
}

int sac_replay(struct sac *s)
{
    struct replay r = {.s = s};
    int rc = 0;

    r.needed = ct_arena_array(&s->scratch, bool, s->forward->value_count + 1);
    r.again = ct_arena_array(&s->scratch, struct ct_value *, s->forward->value_count + 1);
    find_needed(&r);
    rc = part_outputs(&r);
    ct_for_each_op (op, s->graph)
        if (rc == 0 && sac_is_backward(op))
            rc = serve(&r, op);
    if (rc < 0)
        return rc;
    mark_kept(s);
    explain_kept(s);
    ct_graph_sweep(s->graph);
    return 0;
}
