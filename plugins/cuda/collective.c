/*
 * Collectives through the host, for communicators that know nothing of this device (local, mpi):
 * the operand is copied to pinned memory, travels, and is copied back. The stream is waited for,
 * so nothing overlaps, and the host, which waits, meets other ranks in the order of the program:
 * this is for tests, and for several ranks on one device. A communicator that brings kernels for
 * the device goes first. slice needs none.
 */
#include <stdlib.h>

#include <ctitan/collective.h>

#include "graph.h"

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

    return gpu_check(gpu_driver.cuMemcpy2DAsync(&c, l->stream), "a copy on the device");
}

static int clear(const struct ct_launch *l, void *at, size_t bytes)
{
    return gpu_check(gpu_driver.cuMemsetD8Async((uintptr_t)at, 0, bytes, l->stream),
                     "clearing memory");
}

/* ---- pinned memory ---- */

struct staging {
    const void *device_in;
    void *device_out, *in, *out;
    size_t in_bytes, out_bytes;
};

static int make_room(struct gpu *gpu, size_t bytes)
{
    if (bytes <= gpu->staging_bytes)
        return 0;
    if (gpu->staging)
        gpu_driver.cuMemFreeHost(gpu->staging);
    gpu->staging = NULL;
    gpu->staging_bytes = bytes;
    return gpu_check(gpu_driver.cuMemHostAlloc(&gpu->staging, bytes, CU_MEMHOSTALLOC_PORTABLE),
                     "pinned memory");
}

static int fetch(const struct ct_launch *l, const struct staging *s)
{
    int rc = gpu_check(
        gpu_driver.cuMemcpyDtoHAsync(s->in, (uintptr_t)s->device_in, s->in_bytes, l->stream),
        "a copy from the device");

    return rc < 0 ? rc
                  : gpu_check(gpu_driver.cuStreamSynchronize(l->stream), "a copy from the device");
}

/* in's bytes on the host, and room for out's. */
static int stage_in(const struct ct_launch *l, struct staging *s)
{
    struct gpu *gpu = gpu_of(l->device);
    size_t at = (s->in_bytes + 63) / 64 * 64;
    int rc = make_room(gpu, at + s->out_bytes + 64);

    gpu_graph_refuse(gpu, "collectives go through the host (load nccl)");
    if (rc < 0)
        return rc;
    s->in = gpu->staging;
    s->out = (char *)gpu->staging + at;
    return s->in_bytes ? fetch(l, s) : 0;
}

static int stage_out(const struct ct_launch *l, const struct staging *s)
{
    int rc = gpu_check(
        gpu_driver.cuMemcpyHtoDAsync((uintptr_t)s->device_out, s->out, s->out_bytes, l->stream),
        "a copy to the device");

    return rc < 0 ? rc : gpu_check(gpu_driver.cuStreamSynchronize(l->stream), "a copy");
}

/* ---- the transport ---- */

static int all_gather(const struct ct_launch *l, struct ct_group *g, const void *in, void *out,
                      size_t count, enum ct_dtype dtype)
{
    size_t bytes = count * ct_dtype_size(dtype);
    struct staging s = {in, out, .in_bytes = bytes, .out_bytes = bytes * (size_t)g->size};
    int rc = stage_in(l, &s);

    if (rc == 0)
        rc = g->ops->all_gather(g, s.in, s.out, count, dtype);
    return rc < 0 ? rc : stage_out(l, &s);
}

static int reduce_scatter(const struct ct_launch *l, struct ct_group *g, const void *in, void *out,
                          size_t count, enum ct_dtype dtype)
{
    size_t bytes = count * ct_dtype_size(dtype);
    struct staging s = {in, out, .in_bytes = bytes * (size_t)g->size, .out_bytes = bytes};
    int rc = stage_in(l, &s);

    if (rc == 0)
        rc = g->ops->reduce_scatter(g, s.in, s.out, count, dtype, CT_REDUCE_SUM);
    return rc < 0 ? rc : stage_out(l, &s);
}

static int all_reduce(const struct ct_launch *l, struct ct_group *g, const void *in, void *out,
                      size_t count, enum ct_dtype dtype)
{
    size_t bytes = count * ct_dtype_size(dtype);
    struct staging s = {in, out, .in_bytes = bytes, .out_bytes = bytes};
    int rc = stage_in(l, &s);

    if (rc == 0)
        rc = g->ops->all_reduce(g, s.in, s.out, count, dtype, CT_REDUCE_SUM);
    return rc < 0 ? rc : stage_out(l, &s);
}

static int all_to_all(const struct ct_launch *l, struct ct_group *g, const void *in, void *out,
                      size_t count, enum ct_dtype dtype)
{
    size_t bytes = count * (size_t)g->size * ct_dtype_size(dtype);
    struct staging s = {in, out, .in_bytes = bytes, .out_bytes = bytes};
    int rc = stage_in(l, &s);

    if (rc == 0)
        rc = g->ops->all_to_all(g, s.in, s.out, count, dtype);
    return rc < 0 ? rc : stage_out(l, &s);
}

static int exchange(const struct ct_launch *l, struct ct_group *g, const void *out, int to,
                    void *in, int from, size_t bytes, int tag)
{
    struct staging s = {out, in, .in_bytes = bytes, .out_bytes = bytes};
    int rc = stage_in(l, &s);

    if (rc == 0)
        rc = g->ops->exchange(g, s.in, bytes, to, s.out, bytes, from, tag);
    return rc < 0 ? rc : stage_out(l, &s);
}

static int send(const struct ct_launch *l, struct ct_group *g, const void *data, size_t bytes,
                int to, int tag)
{
    struct staging s = {.device_in = data, .in_bytes = bytes};
    int rc = stage_in(l, &s);

    return rc < 0 ? rc : g->ops->send(g, s.in, bytes, to, tag);
}

static int receive(const struct ct_launch *l, struct ct_group *g, void *data, size_t bytes,
                   int from, int tag)
{
    struct staging s = {.device_out = data, .out_bytes = bytes};
    int rc = stage_in(l, &s);

    if (rc == 0)
        rc = g->ops->receive(g, s.out, bytes, from, tag);
    return rc < 0 ? rc : stage_out(l, &s);
}

static const struct ct_transport staged = {
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
    return ct_collective_run(l, &staged);
}

/* Another plugin's kernel for the device is better. */
static bool has_better(const char *op)
{
    const struct ct_kernel *k;

    for (size_t i = 0; (k = ct_kernel_at("cuda", i)); i++)
        if (!strcmp(k->op, op) && k->run != run)
            return true;
    return false;
}

static bool accepts(const struct ct_prepare *p)
{
    return !has_better(p->op->type->name);
}

bool gpu_collectives_wait(void)
{
    return !has_better("send");
}

const struct ct_kernel gpu_collective_kernels[] = {
    {"all_gather", "staged", 0, accepts, ct_collective_prepare, run},
    {"reduce_scatter", "staged", 0, accepts, ct_collective_prepare, run},
    {"all_reduce", "staged", 0, accepts, ct_collective_prepare, run},
    {"all_to_all", "staged", 0, accepts, ct_collective_prepare, run},
    {"permute", "staged", 0, accepts, ct_collective_prepare, run},
    {"send", "staged", 0, accepts, ct_collective_prepare, run},
    {"receive", "staged", 0, accepts, ct_collective_prepare, run},
    {"stage_sum", "staged", 0, accepts, ct_collective_prepare, run},
    {"slice", "copy", 0, NULL, ct_collective_prepare, run},
    {0}};
