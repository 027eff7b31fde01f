/*
 * The standard collectives. Shards that are not laid out for transport (layout.c) are
 * packed, moved by a transport, and unpacked.
 *
 * all_gather, reduce_scatter and all_reduce may take several values. They are then one call, if the
 * communicator supports that.
 */
#include <string.h>

#include <ctitan/error.h>

#include "comm/groups.h"
#include "comm/layout.h"

/* ---- packing ---- */

/* Copy shard i of the whole tensor at `whole` to or from packed memory. */
static int move_shard(const struct ct_launch *launch, const struct ct_layout *l, int64_t i,
                      char *whole, char *packed, bool pack)
{
    struct ct_shard at = ct_layout_shard(l, i);
    char *shard = whole + (size_t)at.offset * l->inner;
    size_t bytes = (size_t)at.size * l->inner, stride = (size_t)l->length * l->inner;

    if (bytes == 0)
        return 0;
    if (pack)
        return ct_launch_copy(launch, packed, bytes, shard, stride, bytes, l->outer);
    return ct_launch_copy(launch, shard, stride, packed, bytes, bytes, l->outer);
}

/* A box of a tensor: `shape` elements from `offset`. */
struct box {
    int64_t shape[CT_MAX_DIMS], offset;
};

static struct box box_of(const struct ct_tensor *t, int dim, struct ct_shard along, int to,
                         struct ct_shard across)
{
    struct box box;

    memcpy(box.shape, t->shape, sizeof(box.shape));
    box.shape[dim] = along.size;
    box.shape[to] = across.size;
    box.offset = along.offset * t->stride[dim] + across.offset * t->stride[to];
    return box;
}

/* Dimensions from the returned one on form one run of *elements in memory. */
static int run_of(const struct ct_tensor *t, const struct box *box, int64_t *elements)
{
    int d = t->ndim;

    for (*elements = 1; d > 0 && (t->stride[d - 1] == *elements || box->shape[d - 1] == 1); d--)
        *elements *= box->shape[d - 1];
    return d;
}

/* Copy a box between a tensor and packed memory: one run per index of the leading dimensions. */
static int move_box(const struct ct_launch *l, const struct ct_tensor *t, const struct box *box,
                    char *packed, bool pack)
{
    size_t item = ct_dtype_size(t->dtype), bytes;
    int64_t index[CT_MAX_DIMS] = {0}, elements, rows = 1;
    int last = run_of(t, box, &elements) - 1, rc = 0, d;
    size_t stride = last >= 0 ? (size_t)t->stride[last] * item : 0;

    if (ct_shape_count(t->ndim, box->shape) == 0)
        return 0;
    rows = last >= 0 ? box->shape[last] : 1;
    bytes = (size_t)elements * item;
    do {
        int64_t offset = box->offset;
        char *at;

        for (d = 0; d < last; d++)
            offset += index[d] * t->stride[d];
        at = (char *)t->data + (size_t)offset * item;
        rc = pack ? ct_launch_copy(l, packed, bytes, at, stride ? stride : bytes, bytes, rows)
                  : ct_launch_copy(l, at, stride ? stride : bytes, packed, bytes, bytes, rows);
        packed += bytes * (size_t)rows;
        for (d = last - 1; d >= 0 && ++index[d] == box->shape[d]; d--)
            index[d] = 0;
    } while (rc == 0 && d >= 0);
    return rc;
}

/* ---- running ---- */

static int flat_copy(const struct ct_launch *l, void *to, const struct ct_tensor *from)
{
    size_t bytes = ct_tensor_bytes(from);

    return bytes ? ct_launch_copy(l, to, bytes, from->data, bytes, bytes, 1) : 0;
}

/* The call for this launch, without its buffers. */
static struct ct_call call_of(const struct ct_launch *l, enum ct_call_kind kind)
{
    const struct ct_moved *m = l->state;

    return (struct ct_call){.kind = kind, .group = m->head.group, .dtype = m->head.dtype};
}

/* End the calls; an earlier failure takes precedence. */
static int end_together(const struct ct_launch *l, const struct ct_transport *by, int rc)
{
    const struct ct_moved *m = l->state;
    struct ct_error_kept first = ct_error_keep();
    int ended = by->end(l, m->head.group);

    return rc < 0 ? ct_error_restore(rc, &first) : ended;
}

/* One call for each value, batched where the transport can. */
static int run_items(const struct ct_launch *l, const struct ct_transport *by,
                     struct ct_call (*item)(const struct ct_launch *l, int i))
{
    const struct ct_moved *m = l->state;
    int together = l->ins > 1 && by->begin ? by->begin(l, m->head.group) : 0, rc = 0;

    if (together < 0)
        return together;
    for (int i = 0; rc == 0 && i < l->ins; i++) {
        struct ct_call call = item(l, i);

        rc = ct_transport_call(l, by, &call);
    }
    return together ? end_together(l, by, rc) : rc;
}

/* This rank's shard in the workspace; all shards follow it. */
static char *packed_shard(const struct ct_launch *l, int i)
{
    return (char *)l->workspace + ((const struct ct_moved *)l->state)->items[i].at;
}

static char *packed_all(const struct ct_launch *l, int i)
{
    return packed_shard(l, i) + ((const struct ct_moved *)l->state)->items[i].bytes;
}

static struct ct_call gather_item(const struct ct_launch *l, int i)
{
    const struct ct_layout_item *item = &((const struct ct_moved *)l->state)->items[i];
    struct ct_call call = call_of(l, CT_CALL_ALL_GATHER);

    call.in = item->direct ? l->in[i].data : packed_shard(l, i);
    call.out = item->direct ? l->out[i].data : packed_all(l, i);
    call.count = item->bytes / ct_dtype_size(call.dtype);
    return call;
}

static int run_gather(const struct ct_launch *l, const struct ct_transport *by)
{
    const struct ct_moved *m = l->state;
    int rc = 0;

    for (int i = 0; rc == 0 && i < l->ins; i++)
        if (!m->items[i].direct)
            rc = flat_copy(l, packed_shard(l, i), &l->in[i]);
    if (rc == 0)
        rc = run_items(l, by, gather_item);
    for (int i = 0; i < l->ins; i++)
        for (int64_t k = 0; rc == 0 && !m->items[i].direct && k < m->head.ranks; k++)
            rc = move_shard(l, &m->items[i].whole, k, l->out[i].data,
                            packed_all(l, i) + (size_t)k * m->items[i].bytes, false);
    return rc;
}

static struct ct_call scatter_item(const struct ct_launch *l, int i)
{
    const struct ct_layout_item *item = &((const struct ct_moved *)l->state)->items[i];
    struct ct_call call = call_of(l, CT_CALL_REDUCE_SCATTER);

    call.reduction = ((const struct ct_collective_attrs *)l->op->attrs)->reduction;
    call.in = item->direct ? l->in[i].data : packed_all(l, i);
    call.out = item->direct ? l->out[i].data : packed_shard(l, i);
    call.count = item->bytes / ct_dtype_size(call.dtype);
    return call;
}

static int pack(const struct ct_launch *l, int i)
{
    const struct ct_moved *m = l->state;
    const struct ct_layout_item *item = &m->items[i];
    int rc = ct_launch_clear(l, packed_all(l, i), item->bytes * (size_t)m->head.ranks);

    for (int64_t k = 0; rc == 0 && k < m->head.ranks; k++)
        rc = move_shard(l, &item->whole, k, l->in[i].data,
                        packed_all(l, i) + (size_t)k * item->bytes, true);
    return rc;
}

static int run_scatter(const struct ct_launch *l, const struct ct_transport *by)
{
    const struct ct_moved *m = l->state;
    int rc = 0;

    for (int i = 0; rc == 0 && i < l->ins; i++)
        if (!m->items[i].direct)
            rc = pack(l, i);
    if (rc == 0)
        rc = run_items(l, by, scatter_item);
    for (int i = 0; rc == 0 && i < l->ins; i++) {
        struct ct_tensor out = l->out[i];

        if (m->items[i].direct)
            continue;
        out.data = packed_shard(l, i);
        rc = flat_copy(l, l->out[i].data, &out);
    }
    return rc;
}

static struct ct_call all_reduce_item(const struct ct_launch *l, int i)
{
    struct ct_call call = call_of(l, CT_CALL_ALL_REDUCE);

    call.reduction = ((const struct ct_collective_attrs *)l->op->attrs)->reduction;
    call.in = l->in[i].data;
    call.out = l->out[i].data;
    call.count = (size_t)ct_tensor_count(&l->in[i]);
    return call;
}

static int run_all_reduce(const struct ct_launch *l, const struct ct_transport *by)
{
    return run_items(l, by, all_reduce_item);
}

static int run_exchange(const struct ct_launch *l, const struct ct_transport *by)
{
    const struct ct_moved *m = l->state;
    const struct ct_collective_attrs *attrs = l->op->attrs;
    int dim = (int)attrs->dim, to = (int)attrs->to, rc = 0;
    const struct ct_tensor *x = &l->in[0], *y = &l->out[0];
    struct ct_call call = call_of(l, CT_CALL_ALL_TO_ALL);
    size_t bytes;
    char *out, *in;

    call.count = ct_collective_packet(m, x, dim, to);
    bytes = call.count * ct_dtype_size(call.dtype);
    call.in = out = l->workspace;
    call.out = in = out + bytes * (size_t)m->head.ranks;
    for (int64_t i = 0; rc == 0 && i < m->head.ranks; i++) {
        struct box box =
            box_of(x, dim, (struct ct_shard){0, x->shape[dim]}, to, ct_layout_shard(&m->in, i));

        rc = move_box(l, x, &box, out + (size_t)i * bytes, true);
    }
    if (rc == 0)
        rc = ct_transport_call(l, by, &call);
    for (int64_t i = 0; rc == 0 && i < m->head.ranks; i++) {
        struct box box =
            box_of(y, dim, ct_layout_shard(&m->out, i), to, (struct ct_shard){0, y->shape[to]});

        rc = move_box(l, y, &box, in + (size_t)i * bytes, false);
    }
    return rc;
}

static int run_permute(const struct ct_launch *l, const struct ct_transport *by)
{
    const struct ct_moved *m = l->state;
    struct ct_call call = call_of(l, CT_CALL_EXCHANGE);
    int rc = 0;

    call.to = (int)((m->head.me + m->shift) % m->head.ranks);
    call.from = (int)((m->head.me + m->head.ranks - m->shift) % m->head.ranks);
    for (int i = 0; rc == 0 && i < l->ins; i++) {
        call.in = l->in[i].data;
        call.out = l->out[i].data;
        call.count = (size_t)ct_tensor_count(&l->in[i]);
        call.tag = i;
        rc = ct_transport_call(l, by, &call);
    }
    return rc;
}

static int run_slice(const struct ct_launch *l, const struct ct_transport *by)
{
    const struct ct_moved *m = l->state;

    (void)by;
    return move_shard(l, &m->in, m->head.me, l->in[0].data, l->out[0].data, true);
}

/* ---- by op ---- */

static double sent_by_gather(double in, double out, double ranks)
{
    return (in > out ? in : out) * (ranks - 1) / ranks;
}

static double sent_by_all_reduce(double in, double out, double ranks)
{
    return 2 * sent_by_gather(in, out, ranks);
}

static double sent_whole(double in, double out, double ranks)
{
    (void)out, (void)ranks;
    return in;
}

const struct ct_collective_ops ct_collective_all_gather =
                                   CT_COLLECTIVE(ct_prepare_gather, run_gather, sent_by_gather),
                               ct_collective_reduce_scatter =
                                   CT_COLLECTIVE(ct_prepare_scatter, run_scatter, sent_by_gather),
                               ct_collective_all_reduce = CT_COLLECTIVE(
                                   ct_prepare_all_reduce, run_all_reduce, sent_by_all_reduce),
                               ct_collective_all_to_all =
                                   CT_COLLECTIVE(ct_prepare_exchange, run_exchange, sent_by_gather),
                               ct_collective_permute =
                                   CT_COLLECTIVE(ct_prepare_permute, run_permute, sent_whole),
                               ct_collective_slice =
                                   CT_COLLECTIVE(ct_prepare_slice, run_slice, NULL);
