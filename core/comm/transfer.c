/*
 * Values that some ranks along an axis have and others need: sent and received, or summed over all
 * ranks of the axis.
 *
 * `from` and `to` are coordinates along the axis; the other coordinates are equal.
 */
#include <string.h>

#include <ctitan/core_ops.h>
#include <ctitan/op_author.h>

#include "comm/groups.h"

static void set_output(struct ct_op *op, enum ct_dtype dtype, const struct ct_shape *shape)
{
    op->out[0]->dtype = dtype;
    op->out[0]->ndim = shape->ndim;
    memcpy(op->out[0]->shape, shape->size, sizeof(shape->size));
}

/* ---- from one rank to another: in a pair's group, the sender is first ---- */

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

static double sent_whole(double in, double out, double ranks)
{
    (void)out, (void)ranks;
    return in;
}

static const struct ct_collective_ops sends = CT_COLLECTIVE(prepare_transfer, run_send, sent_whole);
static const struct ct_collective_ops receives = CT_COLLECTIVE(prepare_transfer, run_receive);

static int receive_infer(struct ct_op *op)
{
    const struct ct_transfer *attrs = op->attrs;

    set_output(op, attrs->dtype, &attrs->shape);
    return 0;
}

#define TRANSFER(...)                                                                              \
    .attrs =                                                                                       \
        (const struct ct_option[]){                                                                \
            CT_OPT_AXES(struct ct_transfer, axes, "axes", "The axis along which ranks count"),     \
            CT_OPT_INT(struct ct_transfer, from, "from", "0", 0, 1 << 20, "The rank that has it"), \
            CT_OPT_INT(struct ct_transfer, to, "to", "0", 0, 1 << 20, "The rank that gets it"),    \
            CT_OPT_INT(struct ct_transfer, tag, "tag", "0", 0, 1 << 30, "The same on both sides"), \
            __VA_ARGS__{0}},                                                                       \
    .attrs_size = sizeof(struct ct_transfer)

const struct ct_op_type ct_op_send = {
    .size = sizeof(struct ct_op_type),
    .name = "send",
    .collective = &sends,
    .summary = "a value that another rank receives",
    .signature = "x[.] A ->",
    .flags = CT_OP_COLLECTIVE | CT_OP_EFFECT | CT_OP_RENDEZVOUS,
    TRANSFER(),
};

const struct ct_op_type ct_op_receive = {
    .size = sizeof(struct ct_op_type),
    .name = "receive",
    .collective = &receives,
    .summary = "a value that another rank sends",
    .signature = "-> y A",
    .flags = CT_OP_COLLECTIVE | CT_OP_RENDEZVOUS,
    .infer = receive_infer,
    TRANSFER(CT_OPT_DTYPE(struct ct_transfer, dtype, "dtype", "float32", "What it is made of"),
             CT_OPT_SHAPE(struct ct_transfer, shape, "shape", "", "Sizes, with commas between"), ),
};

/* The attributes of a transfer of v. Its tag is the value's id, the same in all ranks' graphs. */
static struct ct_transfer transfer_of(const struct ct_graph *graph, const struct ct_value *v,
                                      int from, int to)
{
    return (struct ct_transfer){.axes = (ct_axes)1 << graph->partition_axis,
                                .dtype = v->dtype,
                                .shape = ct_shape_of(v->ndim, v->shape),
                                .from = from,
                                .to = to,
                                .tag = v->id};
}

int ct_send(struct ct_builder *b, const struct ct_value *origin, struct ct_value *value, int from,
            int to)
{
    struct ct_transfer attrs = transfer_of(b->graph, origin, from, to);
    struct ct_op *op = ct_emit_type(b, &ct_op_send, NULL, &value, 1, &attrs);

    if (op)
        op->stream = ct_stream("send", 0);
    return b->status;
}

struct ct_value *ct_receive(struct ct_builder *b, const char *name, const struct ct_value *origin,
                            int from, int to)
{
    struct ct_transfer attrs = transfer_of(b->graph, origin, from, to);
    struct ct_value *v = ct_emit_type1(b, &ct_op_receive, name, NULL, 0, &attrs);

    if (v) {
        v->sharding = origin->sharding;
        v->producer->stream = ct_stream("receive", 0);
    }
    return v;
}

/* ---- sums over ranks that have different values ---- */

static int contribution_infer(struct ct_op *op)
{
    const struct ct_contribution *attrs = op->attrs;
    const struct ct_value *x = op->ins ? op->in[0] : NULL;
    struct ct_shape shape = x ? ct_shape_of(x->ndim, x->shape) : attrs->shape;

    set_output(op, x ? x->dtype : attrs->dtype, &shape);
    return 0;
}

/* A signature cannot say that ranks have different terms. */
static int contribution_place(const struct ct_op *op, const struct ct_mesh *mesh,
                              struct ct_sharding *in, struct ct_sharding *out)
{
    (void)mesh, (void)in;
    out[0].unreduced |= ((const struct ct_contribution *)op->attrs)->axes;
    return 0;
}

static int prepare_contribution(struct ct_prepare *p)
{
    head_new(p);
    return 0;
}

/* This rank's own term, if any; nothing is sent. */
static int run_contribution(const struct ct_launch *l, const struct ct_transport *by)
{
    const struct ct_tensor *y = &l->out[0];
    size_t bytes = (size_t)ct_tensor_count(y) * ct_dtype_size(y->dtype);

    (void)by;
    return l->ins && l->in[0].data
               ? ct_launch_copy(l, y->data, bytes, l->in[0].data, bytes, bytes, 1)
               : ct_launch_clear(l, y->data, bytes);
}

static const struct ct_collective_ops contributes =
    CT_COLLECTIVE(prepare_contribution, run_contribution);

const struct ct_op_type ct_op_contribution = {
    .size = sizeof(struct ct_op_type),
    .name = "contribution",
    .collective = &contributes,
    .summary = "x on one of the ranks that have it, zeros on all others: a pending sum over axes",
    .signature = "?x A -> y A",
    .attrs =
        (const struct ct_option[]){
            CT_OPT_AXES(struct ct_contribution, axes, "axes", "The axis over which it is summed"),
            CT_OPT_DTYPE(struct ct_contribution, dtype, "dtype", "float32", "What it is made of"),
            CT_OPT_SHAPE(struct ct_contribution, shape, "shape", "", "Sizes, with commas between"),
            {0}},
    .attrs_size = sizeof(struct ct_contribution),
    .infer = contribution_infer,
    .place = contribution_place,
};

struct ct_value *ct_contribution(struct ct_builder *b, const char *name, struct ct_value *x)
{
    struct ct_transfer t;

    if (!x)
        return NULL;
    t = transfer_of(b->graph, x, 0, 0);
    return ct_emit_type1(b, &ct_op_contribution, name, &x, 1,
                         &(struct ct_contribution){t.axes, t.dtype, t.shape});
}
