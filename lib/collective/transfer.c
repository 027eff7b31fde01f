/*
 * Values that some ranks along an axis have and others need: sent and received, or summed over all
 * ranks of the axis.
 *
 * `from` and `to` are coordinates along the axis; the other coordinates are equal.
 */
#include <string.h>

#include <ctitan/core_ops.h>
#include <ctitan/device/device.h>

static void set_output(struct ct_op *op, enum ct_dtype dtype, const struct ct_shape *shape)
{
    op->out[0]->dtype = dtype;
    op->out[0]->ndim = shape->ndim;
    memcpy(op->out[0]->shape, shape->size, sizeof(shape->size));
}

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
    .collective = &ct_collective_send,
    .summary = "a value that another rank receives",
    .signature = "x[.] A ->",
    .flags = CT_OP_COLLECTIVE | CT_OP_EFFECT | CT_OP_RENDEZVOUS,
    TRANSFER(),
};

const struct ct_op_type ct_op_receive = {
    .size = sizeof(struct ct_op_type),
    .name = "receive",
    .collective = &ct_collective_receive,
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
        op->stream = CT_STREAM_SEND;
    return b->status;
}

struct ct_value *ct_receive(struct ct_builder *b, const char *name, const struct ct_value *origin,
                            int from, int to)
{
    struct ct_transfer attrs = transfer_of(b->graph, origin, from, to);
    struct ct_value *v = ct_emit_type1(b, &ct_op_receive, name, NULL, 0, &attrs);

    if (v) {
        v->sharding = origin->sharding;
        v->producer->stream = CT_STREAM_RECEIVE;
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

const struct ct_op_type ct_op_contribution = {
    .size = sizeof(struct ct_op_type),
    .name = "contribution",
    .collective = &ct_collective_contribution,
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
