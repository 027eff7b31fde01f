/*
 * Transfers of values between two ranks of an axis, and one rank's contribution to a sum.
 */
#include <ctitan/core_ops.h>

#include "groups.h"

/* ---- send and receive: in a pair's group, the sender is first ---- */

static struct ct_collective *head_new(struct ct_prepare *p)
{
    struct ct_collective *c = ct_arena_new(p->arena, struct ct_collective);

    c->dtype = (p->ins && p->present[0] ? p->in : p->out)[0].dtype;
    p->state = c;
    return c;
}

/* A transfer between the op's `from` and `to` ranks along the axis. */
static int prepare_transfer(struct ct_prepare *p)
{
    const struct ct_transfer *attrs = p->op->attrs;
    struct ct_collective *c = head_new(p);
    int rc = p->communicator ? ct_communicator_pair(p->communicator, p->mesh, p->rank, attrs->axes,
                                                    attrs->from, attrs->to, &c->group)
                             : 0;

    p->group = c->group;
    return rc;
}

static int transfer(const struct ct_launch *l, const struct ct_transport *by, struct ct_call call)
{
    const struct ct_tensor *t = l->ins ? l->in : l->out;
    const struct ct_collective *c = l->state;

    call.group = c->group;
    call.dtype = c->dtype;
    call.count = (size_t)ct_tensor_count(t);
    call.tag = (int)((const struct ct_transfer *)l->op->attrs)->tag;
    return ct_transport_call(l, by, &call);
}

static int run_send(const struct ct_launch *l, const struct ct_transport *by)
{
    return transfer(l, by, (struct ct_call){.kind = CT_CALL_SEND, .in = l->in[0].data, .to = 1});
}

static int run_receive(const struct ct_launch *l, const struct ct_transport *by)
{
    return transfer(l, by,
                    (struct ct_call){.kind = CT_CALL_RECEIVE, .out = l->out[0].data, .from = 0});
}

/* ---- this rank's own term of a sum, if any; nothing is sent ---- */

static int prepare_contribution(struct ct_prepare *p)
{
    head_new(p);
    return 0;
}

static int run_contribution(const struct ct_launch *l, const struct ct_transport *by)
{
    const struct ct_tensor *y = &l->out[0];
    size_t bytes = (size_t)ct_tensor_count(y) * ct_dtype_size(y->dtype);

    (void)by;
    return l->ins && l->in[0].data
               ? ct_launch_copy(l, y->data, bytes, l->in[0].data, bytes, bytes, 1)
               : ct_launch_clear(l, y->data, bytes);
}

const struct ct_collective_way ct_ways_transfer[] = {
    {&ct_collective_send, prepare_transfer, run_send},
    {&ct_collective_receive, prepare_transfer, run_receive},
    {&ct_collective_contribution, prepare_contribution, run_contribution},
    {NULL, NULL, NULL}};
