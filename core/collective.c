/*
 * Collectives: what pieces lie where, and kernels on devices in host memory, over whichever
 * communicator the recipe loads.
 *
 * The communicator moves flat, equal pieces; a tensor that is cut in its first dimension into equal
 * pieces is just that, and goes without a copy. In all other cases pieces are packed into the
 * workspace, padded to the largest, and unpacked behind the call.
 *
 * all_gather, reduce_scatter and all_reduce may take several values, which a communicator does as
 * one call if it offers that.
 */
#include <assert.h>
#include <string.h>

#include <ctitan/collective.h>
#include <ctitan/error.h>
#include <ctitan/hook.h>

#include "collective.h"

/* Where one rank's piece lies along a dimension. */
struct piece {
    int64_t offset, size;
};

struct layout {
    struct piece *piece;                   /* by rank of the group */
    int64_t outer, inner, length, largest; /* elements before, behind and along the dimension */
};

/* One of several values that are gathered or scattered together. */
struct item {
    struct layout whole;
    bool direct;
    size_t at, bytes; /* in the workspace: this rank's piece, of so many bytes, then all pieces */
};

struct call {
    const struct ct_communicator *communicator;
    struct ct_group *group;
    int64_t ranks;
    int64_t me;    /* position in the group */
    int64_t shift; /* of a permutation */
    enum ct_dtype dtype;
    struct item *items;
    struct layout in, out; /* of the whole that is exchanged */
};

/* ---- preparing ---- */

/* The pieces of dimension dim that the ranks of a group hold under s, relative to where the whole
   `around` of this rank begins. */
static void lay_out(const struct ct_prepare *p, ct_axes axes, const struct ct_value *v,
                    const struct ct_sharding *s, const struct ct_sharding *around, int dim,
                    struct layout *l)
{
    int64_t n = ct_mesh_degree(p->mesh, axes), local[CT_MAX_RANK], offset[CT_MAX_RANK];
    int64_t *ranks = ct_arena_array(p->arena, int64_t, n), begin;

    ct_mesh_group(p->mesh, p->rank, axes, ranks);
    ct_sharding_local(around, p->mesh, p->rank, v->rank, v->shape, local, offset);
    begin = offset[dim];
    l->length = local[dim];
    l->outer = ct_shape_count(dim, local);
    l->inner = ct_shape_count(v->rank - dim - 1, local + dim + 1);
    l->piece = ct_arena_array(p->arena, struct piece, n);
    for (int64_t i = 0; i < n; i++) {
        ct_sharding_local(s, p->mesh, ranks[i], v->rank, v->shape, local, offset);
        l->piece[i] = (struct piece){offset[dim] - begin, local[dim]};
        if (local[dim] > l->largest)
            l->largest = local[dim];
    }
}

/* Equal pieces, one behind the other in the order of the group. */
static bool even(const struct layout *l, int64_t ranks)
{
    for (int64_t i = 0; i < ranks; i++)
        if (l->piece[i].offset != i * l->largest)
            return false;
    return l->outer == 1 && l->largest * ranks == l->length;
}

static struct call *call_new(struct ct_prepare *p, ct_axes *axes, int *rc)
{
    struct call *c = ct_arena_new(p->arena, struct call);
    int64_t *ranks;

    *axes = ct_mesh_axes(p->mesh, ct_op_string(p->op, "axes"));
    c->ranks = ct_mesh_degree(p->mesh, *axes);
    c->dtype = (p->ins ? p->in : p->out)[0].dtype;
    c->communicator = p->communicator;
    ranks = ct_arena_array(p->arena, int64_t, c->ranks);
    ct_mesh_group(p->mesh, p->rank, *axes, ranks);
    while (ranks[c->me] != p->rank)
        c->me++;
    p->state = c;
    *rc = p->communicator ? ct_communicator_group(p->communicator, p->mesh, p->rank, *axes,
                                                  p->op->stream, &c->group)
                          : 0;
    return c;
}

static size_t packed_bytes(const struct call *c, const struct layout *l)
{
    return (size_t)(l->outer * l->largest * l->inner) * ct_dtype_size(c->dtype);
}

/* scatter: the whole comes in; else it goes out. */
static int prepare_items(struct ct_prepare *p, bool scatter)
{
    int dim = (int)ct_op_int(p->op, "dim"), rc;
    ct_axes axes;
    struct call *c = call_new(p, &axes, &rc);

    c->items = ct_arena_array(p->arena, struct item, p->ins);
    for (int i = 0; i < p->ins; i++) {
        const struct ct_value *x = p->op->in[i], *y = p->op->out[i];
        struct item *item = &c->items[i];

        if (scatter)
            lay_out(p, axes, x, &y->sharding, &x->sharding, dim, &item->whole);
        else
            lay_out(p, axes, x, &x->sharding, &y->sharding, dim, &item->whole);
        item->direct = even(&item->whole, c->ranks);
        item->bytes = packed_bytes(c, &item->whole);
        item->at = p->workspace;
        if (!item->direct)
            p->workspace += (item->bytes * (size_t)(c->ranks + 1) + 63) / 64 * 64;
    }
    return rc;
}

static int prepare_gather(struct ct_prepare *p)
{
    return prepare_items(p, false);
}

static int prepare_scatter(struct ct_prepare *p)
{
    return prepare_items(p, true);
}

static int prepare_all_reduce(struct ct_prepare *p)
{
    ct_axes axes;
    int rc;

    call_new(p, &axes, &rc);
    return rc;
}

/* Elements of the largest packet of an exchange: what one rank sends to another, a piece along both
   dimensions. */
static size_t packet_count(const struct call *c, const struct ct_tensor *x, int dim, int to)
{
    int64_t count = c->in.largest * c->out.largest;

    for (int d = 0; d < x->rank; d++)
        if (d != dim && d != to)
            count *= x->shape[d];
    return (size_t)count;
}

/* Dimension `to` is whole before and cut after, `dim` the other way round. */
static int prepare_exchange(struct ct_prepare *p)
{
    const struct ct_value *x = p->op->in[0], *y = p->op->out[0];
    int dim = (int)ct_op_int(p->op, "dim"), to = (int)ct_op_int(p->op, "to"), rc;
    ct_axes axes;
    struct call *c = call_new(p, &axes, &rc);

    lay_out(p, axes, x, &y->sharding, &x->sharding, to, &c->in);
    lay_out(p, axes, x, &x->sharding, &y->sharding, dim, &c->out);
    p->workspace =
        2 * packet_count(c, &p->in[0], dim, to) * (size_t)c->ranks * ct_dtype_size(c->dtype);
    return rc;
}

/* Ranks get what others had: all pieces must be of one size. */
static int prepare_permute(struct ct_prepare *p)
{
    ct_axes axes;
    int rc;
    struct call *c = call_new(p, &axes, &rc);

    for (int i = 0; rc == 0 && i < p->ins; i++) {
        const struct ct_value *v = p->op->in[i];
        int64_t pieces = ct_mesh_degree(p->mesh, ct_sharding_axes(&v->sharding));

        if (ct_tensor_count(&p->in[i]) * pieces != ct_shape_count(v->rank, v->shape))
            rc = ct_fail(CT_EINVAL, "%%%s is not cut evenly: its pieces cannot change places",
                         v->name);
        if (!(ct_sharding_axes(&v->sharding) & axes))
            rc = ct_fail(CT_EINVAL, "%%%s is not cut by %s", v->name, ct_op_string(p->op, "axes"));
    }
    c->shift = (ct_op_int(p->op, "shift") % c->ranks + c->ranks) % c->ranks;
    return rc;
}

static int prepare_slice(struct ct_prepare *p)
{
    const struct ct_value *x = p->op->in[0], *y = p->op->out[0];
    struct call *c = ct_arena_new(p->arena, struct call);
    ct_axes axes = ct_mesh_axes(p->mesh, ct_op_string(p->op, "axes"));
    int64_t *ranks = ct_arena_array(p->arena, int64_t, ct_mesh_degree(p->mesh, axes));

    c->dtype = p->in[0].dtype;
    lay_out(p, axes, x, &y->sharding, &x->sharding, (int)ct_op_int(p->op, "dim"), &c->in);
    ct_mesh_group(p->mesh, p->rank, axes, ranks);
    while (ranks[c->me] != p->rank)
        c->me++;
    p->state = c;
    return 0;
}

/* Between the two ranks that an op's `from` and `to` say. */
static int prepare_transfer(struct ct_prepare *p)
{
    struct call *c = ct_arena_new(p->arena, struct call);

    c->communicator = p->communicator;
    c->dtype = (p->ins ? p->in : p->out)[0].dtype;
    p->state = c;
    if (!p->communicator)
        return 0;
    return ct_communicator_pair(p->communicator, ct_op_int(p->op, "from"), ct_op_int(p->op, "to"),
                                &c->group);
}

/* ---- packing ---- */

/* Piece i of the whole tensor at `whole`, to or from packed memory. */
static int move_piece(const struct ct_launch *launch, const struct ct_transport *by,
                      const struct layout *l, int64_t i, char *whole, char *packed, bool pack)
{
    const struct call *c = launch->state;
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

static struct box box_of(const struct ct_tensor *t, int dim, struct piece along, int to,
                         struct piece across)
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
    const struct call *c = l->state;

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
    const struct call *c = l->state;
    bool together = l->ins > 1 && by->begin && by->begin(l, c->group, true) == 1;
    int rc = 0;

    for (int i = 0; rc == 0 && i < l->ins; i++)
        rc = call(l, by, i);
    return rc == 0 && together ? by->begin(l, c->group, false) : rc;
}

static size_t count_of(const struct call *c, int i)
{
    return c->items[i].bytes / ct_dtype_size(c->dtype);
}

/* This rank's piece in the workspace, and behind it all pieces. */
static char *packed_piece(const struct ct_launch *l, int i)
{
    return (char *)l->workspace + ((const struct call *)l->state)->items[i].at;
}

static char *packed_all(const struct ct_launch *l, int i)
{
    return packed_piece(l, i) + ((const struct call *)l->state)->items[i].bytes;
}

static int call_gather(const struct ct_launch *l, const struct ct_transport *by, int i)
{
    const struct call *c = l->state;
    bool direct = c->items[i].direct;

    return by->all_gather(l, c->group, direct ? l->in[i].data : packed_piece(l, i),
                          direct ? l->out[i].data : packed_all(l, i), count_of(c, i), c->dtype);
}

static int run_gather(const struct ct_launch *l, const struct ct_transport *by)
{
    const struct call *c = l->state;
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
    const struct call *c = l->state;
    bool direct = c->items[i].direct;

    return by->reduce_scatter(l, c->group, direct ? l->in[i].data : packed_all(l, i),
                              direct ? l->out[i].data : packed_piece(l, i), count_of(c, i),
                              c->dtype);
}

static int pack(const struct ct_launch *l, const struct ct_transport *by, int i)
{
    const struct call *c = l->state;
    const struct item *item = &c->items[i];
    int rc = by->clear(l, packed_all(l, i), item->bytes * (size_t)c->ranks);

    for (int64_t k = 0; rc == 0 && k < c->ranks; k++)
        rc = move_piece(l, by, &item->whole, k, l->in[i].data,
                        packed_all(l, i) + (size_t)k * item->bytes, true);
    return rc;
}

static int run_scatter(const struct ct_launch *l, const struct ct_transport *by)
{
    const struct call *c = l->state;
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
    const struct call *c = l->state;

    return by->all_reduce(l, c->group, l->in[i].data, l->out[i].data,
                          (size_t)ct_tensor_count(&l->in[i]), c->dtype);
}

static int run_all_reduce(const struct ct_launch *l, const struct ct_transport *by)
{
    return run_items(l, by, call_all_reduce);
}

static int run_exchange(const struct ct_launch *l, const struct ct_transport *by)
{
    const struct call *c = l->state;
    int dim = (int)ct_op_int(l->op, "dim"), to = (int)ct_op_int(l->op, "to"), rc = 0;
    const struct ct_tensor *x = &l->in[0], *y = &l->out[0];
    size_t count = packet_count(c, x, dim, to);
    size_t bytes = count * ct_dtype_size(c->dtype);
    char *out = l->workspace, *in = out + bytes * (size_t)c->ranks;

    for (int64_t i = 0; rc == 0 && i < c->ranks; i++) {
        struct box box = box_of(x, dim, (struct piece){0, x->shape[dim]}, to, c->in.piece[i]);

        rc = move_box(l, by, x, &box, out + (size_t)i * bytes, true);
    }
    if (rc == 0)
        rc = by->all_to_all(l, c->group, out, in, count, c->dtype);
    for (int64_t i = 0; rc == 0 && i < c->ranks; i++) {
        struct box box = box_of(y, dim, c->out.piece[i], to, (struct piece){0, y->shape[to]});

        rc = move_box(l, by, y, &box, in + (size_t)i * bytes, false);
    }
    return rc;
}

static int run_permute(const struct ct_launch *l, const struct ct_transport *by)
{
    const struct call *c = l->state;
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
    const struct call *c = l->state;

    return move_piece(l, by, &c->in, c->me, l->in[0].data, l->out[0].data, true);
}

/* ---- by op ---- */

static const struct {
    const char *op;
    int (*prepare)(struct ct_prepare *p);
    int (*run)(const struct ct_launch *l, const struct ct_transport *by);
} collectives[] = {
    {"all_gather", prepare_gather, run_gather},
    {"reduce_scatter", prepare_scatter, run_scatter},
    {"all_reduce", prepare_all_reduce, run_all_reduce},
    {"all_to_all", prepare_exchange, run_exchange},
    {"permute", prepare_permute, run_permute},
    {"slice", prepare_slice, run_slice},
};

static size_t collective_of(const struct ct_op *op)
{
    size_t i = 0;

    while (i < CT_COUNT(collectives) && strcmp(collectives[i].op, op->type->name))
        i++;
    return i;
}

int ct_collective_prepare(struct ct_prepare *p)
{
    size_t i = collective_of(p->op);

    assert(i < CT_COUNT(collectives));
    return collectives[i].prepare(p);
}

int ct_collective_run(const struct ct_launch *l, const struct ct_transport *by)
{
    size_t i = collective_of(l->op);
    int rc;

    assert(i < CT_COUNT(collectives));
    if (!(l->op->type->flags & CT_OP_COLLECTIVE))
        return collectives[i].run(l, by);
    rc = begin(l);
    if (rc == 0)
        rc = collectives[i].run(l, by);
    return end(l, rc);
}

/* ---- in host memory ---- */

static const struct ct_comm_ops *ops_of(const struct ct_launch *l)
{
    return ((const struct call *)l->state)->communicator->ops;
}

static int host_copy(const struct ct_launch *l, void *to, size_t to_stride, const void *from,
                     size_t from_stride, size_t bytes, int64_t count)
{
    (void)l;
    for (int64_t i = 0; i < count; i++)
        memcpy((char *)to + (size_t)i * to_stride, (const char *)from + (size_t)i * from_stride,
               bytes);
    return 0;
}

static int host_clear(const struct ct_launch *l, void *at, size_t bytes)
{
    (void)l;
    memset(at, 0, bytes);
    return 0;
}

static int host_all_gather(const struct ct_launch *l, struct ct_group *group, const void *in,
                           void *out, size_t count, enum ct_dtype dtype)
{
    return ops_of(l)->all_gather(group, in, out, count, dtype);
}

static int host_reduce_scatter(const struct ct_launch *l, struct ct_group *group, const void *in,
                               void *out, size_t count, enum ct_dtype dtype)
{
    return ops_of(l)->reduce_scatter(group, in, out, count, dtype, CT_REDUCE_SUM);
}

static int host_all_reduce(const struct ct_launch *l, struct ct_group *group, const void *in,
                           void *out, size_t count, enum ct_dtype dtype)
{
    return ops_of(l)->all_reduce(group, in, out, count, dtype, CT_REDUCE_SUM);
}

static int host_all_to_all(const struct ct_launch *l, struct ct_group *group, const void *in,
                           void *out, size_t count, enum ct_dtype dtype)
{
    return ops_of(l)->all_to_all(group, in, out, count, dtype);
}

static int host_exchange(const struct ct_launch *l, struct ct_group *group, const void *out, int to,
                         void *in, int from, size_t bytes, int tag)
{
    return ops_of(l)->exchange(group, out, bytes, to, in, bytes, from, tag);
}

/* 1: calls up to the end are one. */
static int host_together(const struct ct_launch *l, struct ct_group *group, bool begins)
{
    const struct ct_comm_ops *ops = ops_of(l);
    int rc;

    if (!ops->begin)
        return 0;
    rc = begins ? ops->begin(group) : ops->end(group);
    return rc == 0 && begins ? 1 : rc;
}

static const struct ct_transport host_transport = {
    .begin = host_together,
    .copy = host_copy,
    .clear = host_clear,
    .all_gather = host_all_gather,
    .reduce_scatter = host_reduce_scatter,
    .all_reduce = host_all_reduce,
    .all_to_all = host_all_to_all,
    .exchange = host_exchange,
};

static size_t tensor_bytes(const struct ct_tensor *t)
{
    return (size_t)ct_tensor_count(t) * ct_dtype_size(t->dtype);
}

/* In the group of a pair, the sender is first. */
static int run_send(const struct ct_launch *l)
{
    const struct call *c = l->state;
    int rc = begin(l);

    if (rc == 0)
        rc = ops_of(l)->send(c->group, l->in[0].data, tensor_bytes(&l->in[0]), 1,
                             (int)ct_op_int(l->op, "tag"));
    return end(l, rc);
}

static int run_receive(const struct ct_launch *l)
{
    const struct call *c = l->state;
    int rc = begin(l);

    if (rc == 0)
        rc = ops_of(l)->receive(c->group, l->out[0].data, tensor_bytes(&l->out[0]), 0,
                                (int)ct_op_int(l->op, "tag"));
    return end(l, rc);
}

static int run_stage_sum(const struct ct_launch *l)
{
    const struct call *c = l->state;
    double sum = 0;
    int rc = begin(l);

    for (int i = 0; i < l->ins; i++)
        sum += ct_tensor_load(&l->in[i], 0);
    ct_tensor_store(&l->out[0], 0, sum);
    if (rc == 0)
        rc = ops_of(l)->all_reduce(c->group, l->out[0].data, l->out[0].data, 1, c->dtype,
                                   CT_REDUCE_SUM);
    return end(l, rc);
}

static int run_on_host(const struct ct_launch *l)
{
    return ct_collective_run(l, &host_transport);
}

const struct ct_kernel ct_collective_kernels[] = {
    {"all_gather", "host", 0, NULL, ct_collective_prepare, run_on_host},
    {"reduce_scatter", "host", 0, NULL, ct_collective_prepare, run_on_host},
    {"all_reduce", "host", 0, NULL, ct_collective_prepare, run_on_host},
    {"all_to_all", "host", 0, NULL, ct_collective_prepare, run_on_host},
    {"permute", "host", 0, NULL, ct_collective_prepare, run_on_host},
    {"slice", "host", 0, NULL, ct_collective_prepare, run_on_host},
    {"send", "host", 0, NULL, prepare_transfer, run_send},
    {"receive", "host", 0, NULL, prepare_transfer, run_receive},
    {"stage_sum", "host", 0, NULL, prepare_all_reduce, run_stage_sum},
    {0},
};
