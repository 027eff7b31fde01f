/*
 * Collectives on any device, over any communicator: pieces are packed where they do not lie as they
 * travel (collective_layout.c), a transport moves them, and they are unpacked.
 *
 * all_gather, reduce_scatter and all_reduce may take several values, which a communicator does as
 * one call if it offers that.
 */
#include <assert.h>
#include <string.h>

#include <ctitan/collective.h>
#include <ctitan/error.h>
#include <ctitan/hook.h>
#include <ctitan/program.h>

#include "collective_layout.h"

/* ---- packing ---- */

/* Piece i of the whole tensor at `whole`, to or from packed memory. */
static int move_piece(const struct ct_launch *launch, const struct ct_transport *by,
                      const struct ct_layout *l, int64_t i, char *whole, char *packed, bool pack)
{
    const struct ct_collective *c = launch->state;
    size_t unit = (size_t)l->inner * ct_dtype_size(c->dtype);
    char *piece = whole + (size_t)l->piece[i].offset * unit;
    size_t bytes = (size_t)l->piece[i].size * unit, stride = (size_t)l->length * unit;

    if (bytes == 0)
        return 0;
    if (pack)
        return by->copy(launch, packed, bytes, piece, stride, bytes, l->outer);
    return by->copy(launch, piece, stride, packed, bytes, bytes, l->outer);
}

/* A box of a tensor: [0, shape) from `offset` on. */
struct box {
    int64_t shape[CT_MAX_RANK], offset;
};

static struct box box_of(const struct ct_tensor *t, int dim, struct ct_piece along, int to,
                         struct ct_piece across)
{
    struct box box;

    memcpy(box.shape, t->shape, sizeof(box.shape));
    box.shape[dim] = along.size;
    box.shape[to] = across.size;
    box.offset = along.offset * t->stride[dim] + across.offset * t->stride[to];
    return box;
}

/* Dimensions from the one returned on are one run of *elements in memory. */
static int run_of(const struct ct_tensor *t, const struct box *box, int64_t *elements)
{
    int d = t->rank;

    for (*elements = 1; d > 0 && (t->stride[d - 1] == *elements || box->shape[d - 1] == 1); d--)
        *elements *= box->shape[d - 1];
    return d;
}

/* Elements of a box, between a tensor and packed memory: rows of runs, one copy for each index of
   the dimensions in front. */
static int move_box(const struct ct_launch *l, const struct ct_transport *by,
                    const struct ct_tensor *t, const struct box *box, char *packed, bool pack)
{
    size_t item = ct_dtype_size(t->dtype), bytes;
    int64_t index[CT_MAX_RANK] = {0}, elements, rows = 1;
    int last = run_of(t, box, &elements) - 1, rc = 0, d;
    size_t stride = last >= 0 ? (size_t)t->stride[last] * item : 0;

    if (ct_shape_count(t->rank, box->shape) == 0)
        return 0;
    rows = last >= 0 ? box->shape[last] : 1;
    bytes = (size_t)elements * item;
    do {
        int64_t offset = box->offset;
        char *at;

        for (d = 0; d < last; d++)
            offset += index[d] * t->stride[d];
        at = (char *)t->data + (size_t)offset * item;
        rc = pack ? by->copy(l, packed, bytes, at, stride ? stride : bytes, bytes, rows)
                  : by->copy(l, at, stride ? stride : bytes, packed, bytes, bytes, rows);
        packed += bytes * (size_t)rows;
        for (d = last - 1; d >= 0 && ++index[d] == box->shape[d]; d--)
            index[d] = 0;
    } while (rc == 0 && d >= 0);
    return rc;
}

/* ---- running ---- */

static int fire(const struct ct_launch *l, enum ct_event event)
{
    struct ct_instruction instruction;

    if (!ct_hook_wanted(event))
        return 0;
    memset(&instruction, 0, sizeof(instruction));
    instruction.op = l->op;
    instruction.stream = (int16_t)l->op->stream;
    instruction.launch = *l;
    return ct_hook_fire(&(struct ct_event_data){.event = event, .instruction = &instruction});
}

static int begin(const struct ct_launch *l)
{
    const struct ct_collective *c = l->state;

    if (!c->group)
        return ct_fail(CT_EINVAL, "%s: no communicator is open", l->op->type->name);
    return fire(l, CT_EVENT_COLLECTIVE_STARTED);
}

static int end(const struct ct_launch *l, int rc)
{
    return rc < 0 ? rc : fire(l, CT_EVENT_COLLECTIVE_FINISHED);
}

static int flat_copy(const struct ct_launch *l, const struct ct_transport *by, void *to,
                     const struct ct_tensor *from)
{
    size_t bytes = (size_t)ct_tensor_count(from) * ct_dtype_size(from->dtype);

    return bytes ? by->copy(l, to, bytes, from->data, bytes, bytes, 1) : 0;
}

/* Call for each value, all as one where the transport can. */
static int run_items(const struct ct_launch *l, const struct ct_transport *by,
                     int (*call)(const struct ct_launch *l, const struct ct_transport *by, int i))
{
    const struct ct_collective *c = l->state;
    bool together = l->ins > 1 && by->begin && by->begin(l, c->group, true) == 1;
    int rc = 0;

    for (int i = 0; rc == 0 && i < l->ins; i++)
        rc = call(l, by, i);
    return rc == 0 && together ? by->begin(l, c->group, false) : rc;
}

static size_t count_of(const struct ct_collective *c, int i)
{
    return c->items[i].bytes / ct_dtype_size(c->dtype);
}

/* This rank's piece in the workspace, and behind it all pieces. */
static char *packed_piece(const struct ct_launch *l, int i)
{
    return (char *)l->workspace + ((const struct ct_collective *)l->state)->items[i].at;
}

static char *packed_all(const struct ct_launch *l, int i)
{
    return packed_piece(l, i) + ((const struct ct_collective *)l->state)->items[i].bytes;
}

static int call_gather(const struct ct_launch *l, const struct ct_transport *by, int i)
{
    const struct ct_collective *c = l->state;
    bool direct = c->items[i].direct;

    return by->all_gather(l, c->group, direct ? l->in[i].data : packed_piece(l, i),
                          direct ? l->out[i].data : packed_all(l, i), count_of(c, i), c->dtype);
}

static int run_gather(const struct ct_launch *l, const struct ct_transport *by)
{
    const struct ct_collective *c = l->state;
    int rc = 0;

    for (int i = 0; rc == 0 && i < l->ins; i++)
        if (!c->items[i].direct)
            rc = flat_copy(l, by, packed_piece(l, i), &l->in[i]);
    if (rc == 0)
        rc = run_items(l, by, call_gather);
    for (int i = 0; i < l->ins; i++)
        for (int64_t k = 0; rc == 0 && !c->items[i].direct && k < c->ranks; k++)
            rc = move_piece(l, by, &c->items[i].whole, k, l->out[i].data,
                            packed_all(l, i) + (size_t)k * c->items[i].bytes, false);
    return rc;
}

static int call_scatter(const struct ct_launch *l, const struct ct_transport *by, int i)
{
    const struct ct_collective *c = l->state;
    bool direct = c->items[i].direct;

    return by->reduce_scatter(l, c->group, direct ? l->in[i].data : packed_all(l, i),
                              direct ? l->out[i].data : packed_piece(l, i), count_of(c, i),
                              c->dtype);
}

static int pack(const struct ct_launch *l, const struct ct_transport *by, int i)
{
    const struct ct_collective *c = l->state;
    const struct ct_layout_item *item = &c->items[i];
    int rc = by->clear(l, packed_all(l, i), item->bytes * (size_t)c->ranks);

    for (int64_t k = 0; rc == 0 && k < c->ranks; k++)
        rc = move_piece(l, by, &item->whole, k, l->in[i].data,
                        packed_all(l, i) + (size_t)k * item->bytes, true);
    return rc;
}

static int run_scatter(const struct ct_launch *l, const struct ct_transport *by)
{
    const struct ct_collective *c = l->state;
    int rc = 0;

    for (int i = 0; rc == 0 && i < l->ins; i++)
        if (!c->items[i].direct)
            rc = pack(l, by, i);
    if (rc == 0)
        rc = run_items(l, by, call_scatter);
    for (int i = 0; rc == 0 && i < l->ins; i++) {
        struct ct_tensor out = l->out[i];

        out.data = packed_piece(l, i);
        if (!c->items[i].direct)
            rc = flat_copy(l, by, l->out[i].data, &out);
    }
    return rc;
}

static int call_all_reduce(const struct ct_launch *l, const struct ct_transport *by, int i)
{
    const struct ct_collective *c = l->state;

    return by->all_reduce(l, c->group, l->in[i].data, l->out[i].data,
                          (size_t)ct_tensor_count(&l->in[i]), c->dtype);
}

static int run_all_reduce(const struct ct_launch *l, const struct ct_transport *by)
{
    return run_items(l, by, call_all_reduce);
}

static int run_exchange(const struct ct_launch *l, const struct ct_transport *by)
{
    const struct ct_collective *c = l->state;
    int dim = (int)ct_op_int(l->op, "dim"), to = (int)ct_op_int(l->op, "to"), rc = 0;
    const struct ct_tensor *x = &l->in[0], *y = &l->out[0];
    size_t count = ct_collective_packet(c, x, dim, to);
    size_t bytes = count * ct_dtype_size(c->dtype);
    char *out = l->workspace, *in = out + bytes * (size_t)c->ranks;

    for (int64_t i = 0; rc == 0 && i < c->ranks; i++) {
        struct box box = box_of(x, dim, (struct ct_piece){0, x->shape[dim]}, to, c->in.piece[i]);

        rc = move_box(l, by, x, &box, out + (size_t)i * bytes, true);
    }
    if (rc == 0)
        rc = by->all_to_all(l, c->group, out, in, count, c->dtype);
    for (int64_t i = 0; rc == 0 && i < c->ranks; i++) {
        struct box box = box_of(y, dim, c->out.piece[i], to, (struct ct_piece){0, y->shape[to]});

        rc = move_box(l, by, y, &box, in + (size_t)i * bytes, false);
    }
    return rc;
}

static int run_permute(const struct ct_launch *l, const struct ct_transport *by)
{
    const struct ct_collective *c = l->state;
    int to = (int)((c->me + c->shift) % c->ranks);
    int from = (int)((c->me + c->ranks - c->shift) % c->ranks);
    int rc = 0;

    for (int i = 0; rc == 0 && i < l->ins; i++)
        rc = by->exchange(l, c->group, l->in[i].data, to, l->out[i].data, from,
                          (size_t)ct_tensor_count(&l->in[i]) * ct_dtype_size(c->dtype), i);
    return rc;
}

static int run_slice(const struct ct_launch *l, const struct ct_transport *by)
{
    const struct ct_collective *c = l->state;

    return move_piece(l, by, &c->in, c->me, l->in[0].data, l->out[0].data, true);
}

static size_t bytes_of(const struct ct_tensor *t)
{
    return (size_t)ct_tensor_count(t) * ct_dtype_size(t->dtype);
}

/* In the group of a pair, the sender is first. */
static int run_send(const struct ct_launch *l, const struct ct_transport *by)
{
    const struct ct_collective *c = l->state;

    return by->send(l, c->group, l->in[0].data, bytes_of(&l->in[0]), 1,
                    (int)ct_op_int(l->op, "tag"));
}

static int run_receive(const struct ct_launch *l, const struct ct_transport *by)
{
    const struct ct_collective *c = l->state;

    return by->receive(l, c->group, l->out[0].data, bytes_of(&l->out[0]), 0,
                       (int)ct_op_int(l->op, "tag"));
}

/* out[0] += in[i] */
static int add_term(const struct ct_launch *l, int i)
{
    const struct ct_add *add = ((const struct ct_collective *)l->state)->add;
    struct ct_tensor pair[2] = {l->out[0], l->in[i]};
    struct ct_launch sum = *l;

    sum.op = &add->op;
    sum.state = add->state;
    sum.in = pair;
    sum.ins = 2;
    return add->kernel->run(&sum);
}

static int add_terms(const struct ct_launch *l, const struct ct_transport *by)
{
    int rc;

    if (by->sum)
        return by->sum(l, l->in, l->ins, &l->out[0]);
    rc = l->ins ? flat_copy(l, by, l->out[0].data, &l->in[0])
                : by->clear(l, l->out[0].data, bytes_of(&l->out[0]));
    for (int i = 1; rc == 0 && i < l->ins; i++)
        rc = add_term(l, i);
    return rc;
}

static int run_stage_sum(const struct ct_launch *l, const struct ct_transport *by)
{
    const struct ct_collective *c = l->state;
    int rc = add_terms(l, by);

    return rc < 0 ? rc : by->all_reduce(l, c->group, l->out[0].data, l->out[0].data, 1, c->dtype);
}

/* ---- by op ---- */

static const struct {
    const char *op;
    int (*run)(const struct ct_launch *l, const struct ct_transport *by);
} collectives[] = {
    {"all_gather", run_gather},   {"reduce_scatter", run_scatter}, {"all_reduce", run_all_reduce},
    {"all_to_all", run_exchange}, {"permute", run_permute},        {"slice", run_slice},
    {"send", run_send},           {"receive", run_receive},        {"stage_sum", run_stage_sum},
};

int ct_collective_run(const struct ct_launch *l, const struct ct_transport *by)
{
    size_t i = 0;
    int rc;

    while (i < CT_COUNT(collectives) && strcmp(collectives[i].op, l->op->type->name))
        i++;
    assert(i < CT_COUNT(collectives));
    if (!(l->op->type->flags & CT_OP_COLLECTIVE))
        return collectives[i].run(l, by);
    rc = begin(l);
    if (rc == 0)
        rc = collectives[i].run(l, by);
    return end(l, rc);
}
