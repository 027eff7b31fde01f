/*
 * Calls on memory anywhere, as ranks make them outside of programs: through memory on the device,
 * waited for. Small and rare, so plain.
 */
#include "cluster.h"

/* Memory on the device for `bytes`; what was there before is lost. */
static int make_room(struct group *g, size_t bytes)
{
    if (bytes <= g->staging_bytes)
        return 0;
    if (g->staging)
        nccl.cuMemFree(g->staging);
    g->staging = 0;
    g->staging_bytes = bytes;
    return nccl_check_cuda(g->comm, nccl.cuMemAlloc(&g->staging, bytes), "device memory");
}

/* Where in the memory on the device the input and the output of a call lie. */
struct places {
    void *in, *out;
};

static size_t rounded(size_t bytes)
{
    return (bytes + 255) / 256 * 256;
}

static int stage(struct group *g, const void *in, size_t in_bytes, size_t out_bytes,
                 struct places *p)
{
    struct comm *comm = g->comm;
    int rc = nccl_check_cuda(comm, nccl.cuCtxSetCurrent(comm->context), "the device");

    if (rc == 0 && !g->stream)
        rc = nccl_check_cuda(comm, nccl.cuStreamCreate(&g->stream, CU_STREAM_NON_BLOCKING),
                             "a stream");
    if (rc == 0)
        rc = make_room(g, rounded(in_bytes) + rounded(out_bytes) + 256);
    if (rc < 0)
        return rc;
    p->in = (void *)(uintptr_t)g->staging;
    p->out = (char *)p->in + rounded(in_bytes);
    if (!in_bytes)
        return 0;
    return nccl_check_cuda(comm,
                           nccl.cuMemcpyAsync((uintptr_t)p->in, (uintptr_t)in, in_bytes, g->stream),
                           "a copy to the device");
}

static int fetch(struct group *g, int rc, void *out, const void *from, size_t bytes)
{
    if (rc == 0)
        rc = nccl_drain(g->comm);
    if (rc == 0 && bytes)
        rc = nccl_check_cuda(g->comm,
                             nccl.cuMemcpyAsync((uintptr_t)out, (uintptr_t)from, bytes, g->stream),
                             "a copy from the device");
    if (rc == 0)
        rc = nccl_check_cuda(g->comm, nccl.cuStreamSynchronize(g->stream), "a copy");
    return rc;
}

int nccl_host_all_gather(struct ct_group *group, const void *in, void *out, size_t count,
                         enum ct_dtype dtype)
{
    struct group *g = (struct group *)group;
    size_t bytes = count * ct_dtype_size(dtype), all = bytes * (size_t)group->size;
    struct places p = {0};
    int rc = stage(g, in, bytes, all, &p);

    if (rc == 0)
        rc = nccl_all_gather(g, p.in, p.out, count, dtype, g->stream);
    return fetch(g, rc, out, p.out, all);
}

int nccl_host_reduce_scatter(struct ct_group *group, const void *in, void *out, size_t count,
                             enum ct_dtype dtype, enum ct_reduction reduction)
{
    struct group *g = (struct group *)group;
    size_t bytes = count * ct_dtype_size(dtype);
    struct places p = {0};
    int rc = stage(g, in, bytes * (size_t)group->size, bytes, &p);

    if (rc == 0)
        rc = nccl_reduce_scatter(g, p.in, p.out, count, dtype, reduction, g->stream);
    return fetch(g, rc, out, p.out, bytes);
}

int nccl_host_all_reduce(struct ct_group *group, const void *in, void *out, size_t count,
                         enum ct_dtype dtype, enum ct_reduction reduction)
{
    struct group *g = (struct group *)group;
    size_t bytes = count * ct_dtype_size(dtype);
    struct places p = {0};
    int rc = stage(g, in, bytes, bytes, &p);

    if (rc == 0)
        rc = nccl_all_reduce(g, p.in, p.out, count, dtype, reduction, g->stream);
    return fetch(g, rc, out, p.out, bytes);
}

int nccl_host_all_to_all(struct ct_group *group, const void *in, void *out, size_t count,
                         enum ct_dtype dtype)
{
    struct group *g = (struct group *)group;
    size_t all = count * ct_dtype_size(dtype) * (size_t)group->size;
    struct places p = {0};
    int rc = stage(g, in, all, all, &p);

    if (rc == 0)
        rc = nccl_all_to_all(g, p.in, p.out, count, dtype, g->stream);
    return fetch(g, rc, out, p.out, all);
}

int nccl_host_broadcast(struct ct_group *group, void *data, size_t count, enum ct_dtype dtype,
                        int root)
{
    struct group *g = (struct group *)group;
    size_t bytes = count * ct_dtype_size(dtype);
    struct places p = {0};
    int rc;

    if (root < 0 || root >= group->size)
        return ct_fail(CT_EINVAL, "broadcast from position %d in group '%s' of %d", root,
                       group->name, group->size);
    rc = stage(g, data, bytes, 0, &p);
    if (rc == 0)
        rc = nccl_broadcast(g, p.in, count, dtype, root, g->stream);
    return fetch(g, rc, data, p.in, bytes);
}

int nccl_host_barrier(struct ct_group *group)
{
    float one = 1;

    return nccl_host_all_reduce(group, &one, &one, 1, CT_F32, CT_REDUCE_SUM);
}

/* ---- messages ---- */

static int check_peer(const struct ct_group *group, int peer)
{
    if (peer >= 0 && peer < group->size && peer != group->position)
        return 0;
    return ct_fail(CT_EINVAL, "a message between positions %d and %d of group '%s' of %d",
                   group->position, peer, group->name, group->size);
}

static int message(struct ct_group *group, const void *out, size_t out_bytes, int to, void *in,
                   size_t in_bytes, int from)
{
    struct group *g = (struct group *)group;
    struct places p = {0};
    int rc = stage(g, out, out_bytes, in_bytes, &p);

    if (rc == 0)
        rc = nccl_exchange(g, p.in, out_bytes, to, p.out, in_bytes, from, g->stream);
    return fetch(g, rc, in, p.out, in_bytes);
}

int nccl_host_send(struct ct_group *group, const void *data, size_t bytes, int peer, int tag)
{
    int rc = check_peer(group, peer);

    (void)tag; /* messages of a pair are in order */
    return rc < 0 ? rc : message(group, data, bytes, peer, NULL, 0, -1);
}

int nccl_host_receive(struct ct_group *group, void *data, size_t bytes, int peer, int tag)
{
    int rc = check_peer(group, peer);

    (void)tag;
    return rc < 0 ? rc : message(group, NULL, 0, -1, data, bytes, peer);
}

int nccl_host_exchange(struct ct_group *group, const void *out, size_t out_bytes, int to, void *in,
                       size_t in_bytes, int from, int tag)
{
    int rc = check_peer(group, to);

    (void)tag;
    if (rc == 0)
        rc = check_peer(group, from);
    return rc < 0 ? rc : message(group, out, out_bytes, to, in, in_bytes, from);
}
