/*
 * Collectives on the device: NCCL's calls, enqueued on the stream of the launch.
 */
#include <ctitan/device/collective.h>

#include "cluster.h"

static int type_of(enum ct_dtype dtype)
{
    static const int types[CT_DTYPE_COUNT] = {
        [CT_F32] = 7,   [CT_BF16] = 9, [CT_F64] = 8, [CT_F16] = 6, [CT_E4M3] = 10,
        [CT_E5M2] = 11, [CT_I32] = 2,  [CT_I64] = 4, [CT_U8] = 1,
    };

    return types[dtype];
}

#define UINT8 1

/* NCCL must not be aborted by the watchdog while it is in a call. */
static int begin(struct group *g)
{
    if (g->together)
        return 0;
    pthread_mutex_lock(&g->comm->lock);
    if (!g->comm->failed)
        return 0;
    pthread_mutex_unlock(&g->comm->lock);
    return nccl_failed(g->comm);
}

static int end(struct group *g, int code, const char *what, CUstream stream)
{
    int rc;

    if (g->together)
        return code == ncclSuccess || code == ncclInProgress
                   ? 0
                   : ct_fail(CT_EPEER, "%s in group '%s': NCCL: %s", what, g->base.name,
                             nccl.ncclGetErrorString(code));
    pthread_mutex_unlock(&g->comm->lock);
    rc = nccl_check(g, code, what);
    return rc < 0 ? rc : nccl_watch(g, what, stream);
}

/* A group of NCCL's that was begun is ended, whatever its calls returned. */
static int end_group(int code)
{
    int ended = nccl.ncclGroupEnd();

    return code == ncclSuccess ? ended : code;
}

static int op_of(enum ct_reduction reduction)
{
    return reduction == CT_REDUCE_MAX ? ncclMax : ncclSum;
}

/* The arena that holds a buffer, registered once for each group: all ranks gather from the same
   place of theirs. */
static int register_window(struct group *g, const void *data)
{
    CUdeviceptr base;
    size_t bytes;

    if (g->window_base || !nccl.ncclCommWindowRegister)
        return ncclSuccess;
    if (nccl.cuMemGetAddressRange(&base, &bytes, (uintptr_t)data))
        return ncclSuccess;
    g->window_base = base;
    return nccl.ncclCommWindowRegister(g->nccl, (void *)(uintptr_t)base, bytes, &g->window,
                                       NCCL_WIN_COLL_SYMMETRIC);
}

static int ready_window(struct group *g, const void *data)
{
    int rc, code;

    if (!nccl_config.windows)
        return 0;
    rc = begin(g);

    if (rc < 0)
        return rc;
    code = register_window(g, data);
    pthread_mutex_unlock(&g->comm->lock);
    return nccl_check(g, code, "registering memory");
}

int nccl_all_gather(struct group *g, const void *in, void *out, size_t count, enum ct_dtype dtype,
                    CUstream stream)
{
    int rc = ready_window(g, out), code;

    if (rc == 0)
        rc = begin(g);
    if (rc < 0)
        return rc;
    code = nccl.ncclAllGather(in, out, count * ct_dtype_size(dtype), UINT8, g->nccl, stream);
    return end(g, code, "all_gather", stream);
}

int nccl_reduce_scatter(struct group *g, const void *in, void *out, size_t count,
                        enum ct_dtype dtype, enum ct_reduction reduction, CUstream stream)
{
    int rc = begin(g), code;

    if (rc < 0)
        return rc;
    code =
        nccl.ncclReduceScatter(in, out, count, type_of(dtype), op_of(reduction), g->nccl, stream);
    return end(g, code, "reduce_scatter", stream);
}

int nccl_all_reduce(struct group *g, const void *in, void *out, size_t count, enum ct_dtype dtype,
                    enum ct_reduction reduction, CUstream stream)
{
    int rc = begin(g), code;

    if (rc < 0)
        return rc;
    code = nccl.ncclAllReduce(in, out, count, type_of(dtype), op_of(reduction), g->nccl, stream);
    return end(g, code, "all_reduce", stream);
}

int nccl_all_to_all(struct group *g, const void *in, void *out, size_t count, enum ct_dtype dtype,
                    CUstream stream)
{
    size_t bytes = count * ct_dtype_size(dtype);
    int rc = begin(g), code;

    if (rc < 0)
        return rc;
    code = nccl.ncclGroupStart();
    if (code != ncclSuccess)
        return end(g, code, "all_to_all", stream);
    for (int i = 0; code == ncclSuccess && i < g->base.size; i++) {
        code =
            nccl.ncclSend((const char *)in + (size_t)i * bytes, bytes, UINT8, i, g->nccl, stream);
        if (code == ncclSuccess)
            code = nccl.ncclRecv((char *)out + (size_t)i * bytes, bytes, UINT8, i, g->nccl, stream);
    }
    return end(g, end_group(code), "all_to_all", stream);
}

int nccl_broadcast(struct group *g, void *data, size_t count, enum ct_dtype dtype, int root,
                   CUstream stream)
{
    int rc = begin(g), code;

    if (rc < 0)
        return rc;
    code =
        nccl.ncclBroadcast(data, data, count * ct_dtype_size(dtype), UINT8, root, g->nccl, stream);
    return end(g, code, "broadcast", stream);
}

int nccl_exchange(struct group *g, const void *out, size_t out_bytes, int to, void *in,
                  size_t in_bytes, int from, CUstream stream)
{
    const char *what = to < 0 ? "receive" : from < 0 ? "send" : "exchange";
    int rc = begin(g), code;

    if (rc < 0)
        return rc;
    code = nccl.ncclGroupStart();
    if (code != ncclSuccess)
        return end(g, code, what, stream);
    if (to >= 0)
        code = nccl.ncclSend(out, out_bytes, UINT8, to, g->nccl, stream);
    if (code == ncclSuccess && from >= 0)
        code = nccl.ncclRecv(in, in_bytes, UINT8, from, g->nccl, stream);
    return end(g, end_group(code), what, stream);
}

/* ---- the transport ---- */

static int copy(const struct ct_launch *l, void *to, size_t to_stride, const void *from,
                size_t from_stride, size_t bytes, int64_t count)
{
    CUDA_MEMCPY2D c = {.srcMemoryType = CU_MEMORYTYPE_DEVICE,
                       .srcDevice = (uintptr_t)from,
                       .srcPitch = from_stride,
                       .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                       .dstDevice = (uintptr_t)to,
                       .dstPitch = to_stride,
                       .WidthInBytes = bytes,
                       .Height = (size_t)count};
    int code = nccl.cuMemcpy2DAsync(&c, l->stream);

    return code ? ct_fail(CT_EIO, "a copy on the device: CUDA error %d", code) : 0;
}

static int clear(const struct ct_launch *l, void *at, size_t bytes)
{
    int code = nccl.cuMemsetD8Async((uintptr_t)at, 0, bytes, l->stream);

    return code ? ct_fail(CT_EIO, "clearing memory: CUDA error %d", code) : 0;
}

/* Messages of a pair are in order: NCCL has no tags. */
static int call(const struct ct_launch *l, const struct ct_call *c)
{
    struct group *g = (struct group *)c->group;
    size_t bytes = c->count * ct_dtype_size(c->dtype);

    switch (c->kind) {
    case CT_CALL_ALL_GATHER:
        return nccl_all_gather(g, c->in, c->out, c->count, c->dtype, l->stream);
    case CT_CALL_REDUCE_SCATTER:
        return nccl_reduce_scatter(g, c->in, c->out, c->count, c->dtype, c->reduction, l->stream);
    case CT_CALL_ALL_REDUCE:
        return nccl_all_reduce(g, c->in, c->out, c->count, c->dtype, c->reduction, l->stream);
    case CT_CALL_ALL_TO_ALL:
        return nccl_all_to_all(g, c->in, c->out, c->count, c->dtype, l->stream);
    case CT_CALL_EXCHANGE:
        return nccl_exchange(g, c->in, bytes, c->to, c->out, bytes, c->from, l->stream);
    case CT_CALL_SEND:
        return nccl_exchange(g, c->in, bytes, c->to, NULL, 0, -1, l->stream);
    case CT_CALL_RECEIVE:
        return nccl_exchange(g, NULL, 0, -1, c->out, bytes, c->from, l->stream);
    case CT_CALL_KINDS:
        break;
    }
    return ct_fail(CT_EINVAL, "no kind %d of calls", (int)c->kind);
}

/* One call of NCCL's for all values of an op. Windows are registered between calls. */
static int begin_together(const struct ct_launch *l, struct ct_group *group)
{
    struct group *g = (struct group *)group;
    int rc = nccl_config.windows ? 0 : begin(g), code;

    if (rc < 0 || nccl_config.windows)
        return rc;
    code = nccl.ncclGroupStart();
    if (code != ncclSuccess)
        return end(g, code, "calls together", l->stream);
    g->together = true;
    return 1;
}

static int end_together(const struct ct_launch *l, struct ct_group *group)
{
    struct group *g = (struct group *)group;

    g->together = false;
    return end(g, nccl.ncclGroupEnd(), l->op->type->name, l->stream);
}

const struct ct_transport nccl_transport = {
    .size = sizeof(nccl_transport),
    .name = "nccl",
    .begin = begin_together,
    .end = end_together,
    .copy = copy,
    .clear = clear,
    .call = call,
};
