/*
 * ep.exchange: an all-to-all of as many rows as are needed. All ranks of a group know that number,
 * so they make the same calls, and none in a round without rows.
 */
#include <string.h>

#include <ctitan/collective.h>
#include <ctitan/error.h>
#include <ctitan/lib/ops.h>

#include "ep.h"

struct ep_traffic ep_traffic;

static const struct ct_option attrs[] = {
    CT_OPT_AXES(struct ep_round, axes, "axes", "Axes of the group"),
    CT_OPT_INT(struct ep_round, round, "round", "0", 0, INT32_MAX, "Number of the round"),
    CT_OPT_INT(struct ep_round, capacity, "capacity", "1", 1, INT32_MAX,
               "Rows between two ranks, at most"),
    CT_OPT_BOOL(struct ep_round, agreed, "agreed", "true",
                "Send at most as many rows as any rank has for another"),
    {0}};

static int prepare(struct ct_prepare *p)
{
    return ct_collective_prepare_axes(p, ct_arena_new(p->arena, struct ct_collective));
}

/* Rows of indices that no rank sent are not choices. */
static void fill_rest(const struct ct_tensor *y, int64_t sent)
{
    size_t begin = (size_t)sent * ct_dtype_size(y->dtype);
    size_t end = (size_t)ct_tensor_count(y) * ct_dtype_size(y->dtype);

    if (y->dtype == CT_I32 && begin < end)
        memset((char *)y->data + begin, 0xff, end - begin);
}

static int run_exchange(const struct ct_launch *l, const struct ct_transport *by)
{
    const struct ep_round *a = l->op->attrs;
    const struct ct_collective *c = l->state;
    const struct ct_tensor *x = &l->in[1];
    const int32_t *most = a->agreed ? l->in[0].data : NULL; /* else in memory of the device */
    int64_t count = ep_rows(a, most ? *most : 0) * x->shape[x->ndim - 1];
    struct ct_call call = {.kind = CT_CALL_ALL_TO_ALL,
                           .group = c->group,
                           .dtype = x->dtype,
                           .count = (size_t)count,
                           .in = x->data,
                           .out = l->out[0].data};
    double others = (double)(c->ranks - 1) * (double)ct_dtype_size(x->dtype);
    int rc = count > 0 ? ct_transport_call(l, by, &call) : 0;

    ep_traffic.sent += others * (double)count;
    ep_traffic.buffers += others * (double)(ct_tensor_count(x) / c->ranks);

    if (rc == 0 && a->agreed)
        fill_rest(&l->out[0], c->ranks * count);
    return rc;
}

/* At most: all rows of a round. */
static double sent(double in, double out, double ranks)
{
    (void)in;
    return out * (ranks - 1) / ranks;
}

static const struct ct_collective_ops collective = CT_COLLECTIVE(prepare, run_exchange, sent);

const struct ct_op_type ep_exchange = {
    .size = sizeof(struct ct_op_type),
    .name = "ep.exchange",
    .summary = "every rank gets its rows from every rank",
    .signature = "rows[.] i, x[bpcn] A -> y[bpcn] A",
    .flags = CT_OP_COLLECTIVE,
    .attrs = attrs,
    .attrs_size = sizeof(struct ep_round),
    .collective = &collective,
};
