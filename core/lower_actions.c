/*
 * Which ops an action of the schedule runs.
 *
 * F, I, W and B run a stage's ops of these parts; SEND and RECV its transfers. UNSHARD runs what
 * the step would else do before its first microbatch: gathers of a stage's parameters, and what
 * follows from them. REDUCE_GRAD runs what it would else do after the last: reductions of the
 * stage's gradients.
 */
#include <string.h>

#include "lower.h"

static bool is_transfer(const struct ct_op *op)
{
    return !strcmp(op->type->name, "send") || !strcmp(op->type->name, "receive");
}

static bool is(const struct ct_op *op, const char *type)
{
    return !strcmp(op->type->name, type);
}

static bool has_action(const struct ct_action_list *actions, enum ct_action_type type, int stage)
{
    for (size_t i = 0; i < actions->count; i++)
        if (actions->item[i].type == type && actions->item[i].stage == stage)
            return true;
    return false;
}

static const struct ct_lowered_op *maker(const struct ct_lowering *l, const struct ct_value *v)
{
    int32_t order = v ? l->order[v->id] : -1;

    return order < 0 ? NULL : &l->ops[order];
}

static bool is_loaded_for_gather(const struct ct_lowering *l, const struct ct_op *op)
{
    uint32_t id = op->outs ? op->out[0]->id : 0;

    for (uint32_t u = l->users.first[id]; is(op, "load") && u < l->users.first[id + 1]; u++)
        if (is(l->users.op[u], "all_gather"))
            return true;
    return false;
}

/* The stage for which this gathers before the microbatches, loads what is gathered, or works on
   what was; -1: it does not. */
static int unshards(const struct ct_lowering *l, const struct ct_op *op)
{
    if (op->part != CT_PART_PRE)
        return -1;
    for (int i = 0; i < op->ins; i++)
        if (maker(l, op->in[i]) && maker(l, op->in[i])->unshards >= 0)
            return maker(l, op->in[i])->unshards;
    return is(op, "all_gather") || is_loaded_for_gather(l, op) ? op->stage : -1;
}

/* The stage that made this gradient, or what it was reduced from; -1: neither. */
static int stage_of_sum(const struct ct_lowering *l, const struct ct_value *v)
{
    if (!v || !v->producer)
        return -1;
    return ct_part_is_microbatch(v->producer->part) ? v->producer->stage : maker(l, v)->reduces;
}

/* The stage whose gradients this reduces: a collective, or a step on the way to one; -1: none. */
static int reduces(const struct ct_lowering *l, const struct ct_op *op)
{
    bool moves = op->type->flags & (CT_OP_COLLECTIVE | CT_OP_LINEAR | CT_OP_VIEW);
    int stage = op->ins ? stage_of_sum(l, op->in[0]) : -1;

    if (op->part != CT_PART_POST || !moves || is_transfer(op) || is(op, "stage_sum"))
        return -1;
    for (int i = 1; i < op->ins; i++)
        if (stage_of_sum(l, op->in[i]) != stage)
            return -1;
    return stage;
}

void ct_lower_mark_actions(struct ct_lowering *l)
{
    const struct ct_action_list *actions = l->request->actions;

    for (size_t n = 0; n < l->op_count; n++) {
        struct ct_lowered_op *o = &l->ops[n];

        o->unshards = unshards(l, l->op_at[n]);
        if (o->unshards >= 0 && !has_action(actions, CT_ACTION_UNSHARD, o->unshards))
            o->unshards = -1;
        o->reduces = reduces(l, l->op_at[n]);
        if (o->reduces >= 0 && !has_action(actions, CT_ACTION_REDUCE_GRAD, o->reduces))
            o->reduces = -1;
    }
}

bool ct_lower_belongs(const struct ct_lowering *l, size_t n, const struct ct_action *a)
{
    const struct ct_op *op = l->op_at[n];
    bool here = op->stage == a->stage, moves = is_transfer(op);

    switch (a->type) {
    case CT_ACTION_F:
        return here && op->part == CT_PART_F && !moves;
    case CT_ACTION_I:
        return here && op->part == CT_PART_I && !moves;
    case CT_ACTION_W:
        return here && op->part == CT_PART_W;
    case CT_ACTION_B:
        return here && (op->part == CT_PART_I || op->part == CT_PART_W) && !moves;
    case CT_ACTION_SEND_F:
        return here && op->part == CT_PART_F && is(op, "send");
    case CT_ACTION_RECV_F:
        return here && op->part == CT_PART_F && is(op, "receive");
    case CT_ACTION_SEND_B:
        return here && op->part == CT_PART_I && is(op, "send");
    case CT_ACTION_RECV_B:
        return here && op->part == CT_PART_I && is(op, "receive");
    case CT_ACTION_UNSHARD:
        return l->ops[n].unshards == a->stage;
    case CT_ACTION_REDUCE_GRAD:
        return l->ops[n].reduces == a->stage;
    default:
        return false;
    }
}

bool ct_lower_outside(const struct ct_lowering *l, size_t n)
{
    return l->ops[n].unshards < 0 && l->ops[n].reduces < 0;
}
