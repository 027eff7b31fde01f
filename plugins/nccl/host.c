/*
 * Blocking calls on memory anywhere, made by ranks outside of programs. They are staged through
 * device memory. Such calls are small and rare, so the code is simple.
 */
#include "cluster.h"

/* Make device memory for `bytes`; earlier contents are lost. */
static int make_room(struct group *g, size_t bytes)
{
    int rc;

    if (bytes <= g->staging_bytes)
        return 0;
    if (g->staging)
        nccl.cuMemFree(g->staging);
    g->staging = 0;
    g->staging_bytes = 0;
    rc = nccl_check_cuda(g->comm, nccl.cuMemAlloc(&g->staging, bytes), "device memory");
    if (rc == 0)
        g->staging_bytes = bytes;
    return rc;
}

static size_t rounded(size_t bytes)
{
    return (bytes + 255) / 256 * 256;
}

static int copy(struct group *g, uintptr_t to, uintptr_t from, size_t bytes)
{
    return bytes ? nccl_check_cuda(g->comm, nccl.cuMemcpyAsync(to, from, bytes, g->stream),
                                   "a copy between host and device")
                 : 0;
}

/* Set up the same call on device memory, and copy its input there. */
static int stage(const struct ct_call *c, struct ct_call *staged)
{
    struct group *g = (struct group *)c->group;
    size_t in = rounded(ct_call_in_bytes(c)), out = rounded(ct_call_out_bytes(c));
    int rc = nccl_check_cuda(g->comm, nccl.cuCtxSetCurrent(g->comm->context), "the device");

    if (rc == 0 && !g->stream)
        rc = nccl_check_cuda(g->comm, nccl.cuStreamCreate(&g->stream, CU_STREAM_NON_BLOCKING),
                             "a stream");
    if (rc == 0)
        rc = make_room(g, in + out + 256);
    if (rc < 0)
        return rc;
    *staged = *c;
    staged->in = (const void *)(uintptr_t)g->staging;
    staged->out = (void *)(uintptr_t)(g->staging + in);
    return copy(g, g->staging, (uintptr_t)c->in, ct_call_in_bytes(c));
}

static int run_call(const struct ct_call *c)
{
    struct group *g = (struct group *)c->group;
    struct ct_call staged;
    int rc = stage(c, &staged);

    if (rc == 0)
        rc = nccl_enqueue(&staged, g->stream);
    if (rc == 0)
        rc = nccl_drain(g->comm);
    if (rc == 0)
        rc = copy(g, (uintptr_t)c->out, (uintptr_t)staged.out, ct_call_out_bytes(c));
    if (rc == 0)
        rc = nccl_check_cuda(g->comm, nccl.cuStreamSynchronize(g->stream), "a copy");
    return rc;
}

int nccl_host_call(const struct ct_call *c)
{
    float one = 1;

    if (c->kind == CT_CALL_BARRIER) /* NCCL has no barrier */
        return run_call(&(struct ct_call){.kind = CT_CALL_ALL_REDUCE,
                                          .group = c->group,
                                          .in = &one,
                                          .out = &one,
                                          .count = 1,
                                          .dtype = CT_F32});
    return run_call(c);
}
