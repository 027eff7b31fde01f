/*
 * Collectives in host memory: a communicator's own calls, and kernels for every device whose memory
 * the host may read and write.
 */
#include <string.h>

#include <ctitan/collective.h>

#include "collective.h"

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
    (void)l;
    return group->ops->all_gather(group, in, out, count, dtype);
}

static int host_reduce_scatter(const struct ct_launch *l, struct ct_group *group, const void *in,
                               void *out, size_t count, enum ct_dtype dtype)
{
    (void)l;
    return group->ops->reduce_scatter(group, in, out, count, dtype, CT_REDUCE_SUM);
}

static int host_all_reduce(const struct ct_launch *l, struct ct_group *group, const void *in,
                           void *out, size_t count, enum ct_dtype dtype)
{
    (void)l;
    return group->ops->all_reduce(group, in, out, count, dtype, CT_REDUCE_SUM);
}

static int host_all_to_all(const struct ct_launch *l, struct ct_group *group, const void *in,
                           void *out, size_t count, enum ct_dtype dtype)
{
    (void)l;
    return group->ops->all_to_all(group, in, out, count, dtype);
}

static int host_exchange(const struct ct_launch *l, struct ct_group *group, const void *out, int to,
                         void *in, int from, size_t bytes, int tag)
{
    (void)l;
    return group->ops->exchange(group, out, bytes, to, in, bytes, from, tag);
}

static int host_send(const struct ct_launch *l, struct ct_group *group, const void *data,
                     size_t bytes, int to, int tag)
{
    (void)l;
    return group->ops->send(group, data, bytes, to, tag);
}

static int host_receive(const struct ct_launch *l, struct ct_group *group, void *data, size_t bytes,
                        int from, int tag)
{
    (void)l;
    return group->ops->receive(group, data, bytes, from, tag);
}

static int host_sum(const struct ct_launch *l, const struct ct_tensor *terms, int count,
                    const struct ct_tensor *out)
{
    double sum = 0;

    (void)l;
    for (int i = 0; i < count; i++)
        sum += ct_tensor_load(&terms[i], 0);
    ct_tensor_store(out, 0, sum);
    return 0;
}

/* 1: calls up to the end are one. */
static int host_together(const struct ct_launch *l, struct ct_group *group, bool begins)
{
    const struct ct_comm_ops *ops = group->ops;
    int rc;

    (void)l;
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
    .send = host_send,
    .receive = host_receive,
    .sum = host_sum,
};

static int run(const struct ct_launch *l)
{
    return ct_collective_run(l, &host_transport);
}

const struct ct_kernel ct_collective_kernels[] = {
    {"all_gather", "host", 0, NULL, ct_collective_prepare, run},
    {"reduce_scatter", "host", 0, NULL, ct_collective_prepare, run},
    {"all_reduce", "host", 0, NULL, ct_collective_prepare, run},
    {"all_to_all", "host", 0, NULL, ct_collective_prepare, run},
    {"permute", "host", 0, NULL, ct_collective_prepare, run},
    {"slice", "host", 0, NULL, ct_collective_prepare, run},
    {"send", "host", 0, NULL, ct_collective_prepare, run},
    {"receive", "host", 0, NULL, ct_collective_prepare, run},
    {"stage_sum", "host", 0, NULL, ct_collective_prepare, run},
    {0},
};
