/*
 * Collectives on the device: NCCL's calls, enqueued on the stream of the launch.
 */
#include <ctitan/collective.h>

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
    pthread_mutex_lock(&g->comm->lock);
    if (!g->comm->failed)
        return 0;
    pthread_mutex_unlock(&g->comm->lock);
    return nccl_failed(g->comm);
}

static int end(struct group *g, int code, const char *what, CUstream stream)
{
    int rc;

    pthread_mutex_unlock(&g->comm->lock);
    rc = nccl_check(g, code, what);
    return rc < 0 ? rc : nccl_watch(g, what, stream);
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

    if (!nccl_config.windows || g->window_base || !nccl.ncclCommWindowRegister)
        return ncclSuccess;
    if (nccl.cuMemGetAddressRange(&base, &bytes, (uintptr_t)data))
        return ncclSuccess;
    g->window_base = base;
    return nccl.ncclCommWindowRegister(g->nccl, (void *)(uintptr_t)base, bytes, &g->window,
                                       NCCL_WIN_COLL_SYMMETRIC);
}

static int ready_window(struct group *g, const void *data)
{
    int rc = begin(g), code;

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
    for (int i = 0; code == ncclSuccess && i < g->base.size; i++) {
        code =
            nccl.ncclSend((const char *)in + (size_t)i * bytes, bytes, UINT8, i, g->nccl, stream);
        if (code == ncclSuccess)
            code = nccl.ncclRecv((char *)out + (size_t)i * bytes, bytes, UINT8, i, g->nccl, stream);
    }
    if (code == ncclSuccess)
        code = nccl.ncclGroupEnd();
    return end(g, code, "all_to_all", stream);
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
    if (code == ncclSuccess && to >= 0)
        code = nccl.ncclSend(out, out_bytes, UINT8, to, g->nccl, stream);
    if (code == ncclSuccess && from >= 0)
        code = nccl.ncclRecv(in, in_bytes, UINT8, from, g->nccl, stream);
    if (code == ncclSuccess)
        code = nccl.ncclGroupEnd();
    return end(g, code, what, stream);
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

static int all_gather(const struct ct_launch *l, struct ct_group *g, const void *in, void *out,
                      size_t count, enum ct_dtype dtype)
{
    return nccl_all_gather((struct group *)g, in, out, count, dtype, l->stream);
}

static int reduce_scatter(const struct ct_launch *l, struct ct_group *g, const void *in, void *out,
                          size_t count, enum ct_dtype dtype)
{
    return nccl_reduce_scatter((struct group *)g, in, out, count, dtype, CT_REDUCE_SUM, l->stream);
}

static int all_reduce(const struct ct_launch *l, struct ct_group *g, const void *in, void *out,
                      size_t count, enum ct_dtype dtype)
{
    return nccl_all_reduce((struct group *)g, in, out, count, dtype, CT_REDUCE_SUM, l->stream);
}

static int all_to_all(const struct ct_launch *l, struct ct_group *g, const void *in, void *out,
                      size_t count, enum ct_dtype dtype)
{
    return nccl_all_to_all((struct group *)g, in, out, count, dtype, l->stream);
}

static int exchange(const struct ct_launch *l, struct ct_group *g, const void *out, int to,
                    void *in, int from, size_t bytes, int tag)
{
    (void)tag;
    return nccl_exchange((struct group *)g, out, bytes, to, in, bytes, from, l->stream);
}

/* Messages of a pair are in order: NCCL has no tags. */
static int send(const struct ct_launch *l, struct ct_group *g, const void *data, size_t bytes,
                int to, int tag)
{
    (void)tag;
    return nccl_exchange((struct group *)g, data, bytes, to, NULL, 0, -1, l->stream);
}

static int receive(const struct ct_launch *l, struct ct_group *g, void *data, size_t bytes,
                   int from, int tag)
{
    (void)tag;
    return nccl_exchange((struct group *)g, NULL, 0, -1, data, bytes, from, l->stream);
}

static const struct ct_transport transport = {
    .copy = copy,
    .clear = clear,
    .all_gather = all_gather,
    .reduce_scatter = reduce_scatter,
    .all_reduce = all_reduce,
    .all_to_all = all_to_all,
    .exchange = exchange,
    .send = send,
    .receive = receive,
};

static int run(const struct ct_launch *l)
{
    return ct_collective_run(l, &transport);
}

const struct ct_kernel nccl_kernels[] = {
    {"all_gather", "nccl", 0, NULL, ct_collective_prepare, run},
    {"reduce_scatter", "nccl", 0, NULL, ct_collective_prepare, run},
    {"all_reduce", "nccl", 0, NULL, ct_collective_prepare, run},
    {"all_to_all", "nccl", 0, NULL, ct_collective_prepare, run},
    {"permute", "nccl", 0, NULL, ct_collective_prepare, run},
    {"send", "nccl", 0, NULL, ct_collective_prepare, run},
    {"receive", "nccl", 0, NULL, ct_collective_prepare, run},
    {"stage_sum", "nccl", 0, NULL, ct_collective_prepare, run},
    {0}};
