/*
 * Collectives through the host, for communicators that know nothing of this device (local, mpi):
 * the operand is copied to pinned memory, travels, and is copied back. The stream is waited for,
 * so nothing overlaps, and the host, which waits, meets other ranks in the order of the program:
 * this is for tests, and for several ranks on one device. A communicator that brings a transport
 * for the device goes first.
 */
#include <stdlib.h>

#include <ctitan/collective.h>

#include "graph.h"

/* ---- pinned memory ---- */

struct staging {
    const void *device_in;
    void *device_out, *in, *out;
    size_t in_bytes, out_bytes;
};

static int make_room(struct gpu *gpu, size_t bytes)
{
    int rc;

    if (bytes <= gpu->staging_bytes)
        return 0;
    if (gpu->staging)
        gpu_driver.cuMemFreeHost(gpu->staging);
    gpu->staging = NULL;
    gpu->staging_bytes = 0;
    rc = gpu_check(gpu_driver.cuMemHostAlloc(&gpu->staging, bytes, CU_MEMHOSTALLOC_PORTABLE),
                   "pinned memory");
    if (rc == 0)
        gpu->staging_bytes = bytes;
    return rc;
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

static int call(const struct ct_launch *l, const struct ct_call *on_device)
{
    struct ct_call c = *on_device;
    struct staging s = {.device_in = c.in,
                        .device_out = c.out,
                        .in_bytes = ct_call_in_bytes(&c),
                        .out_bytes = ct_call_out_bytes(&c)};
    int rc = stage_in(l, &s);

    c.in = s.in;
    c.out = s.out;
    if (rc == 0)
        rc = ct_call_run(&c);
    return rc < 0 || !s.out_bytes ? rc : stage_out(l, &s);
}

const struct ct_transport gpu_staged_transport = {
    .size = sizeof(gpu_staged_transport),
    .name = "staged",
    .waits = true,
    .call = call,
};

bool gpu_collectives_wait(void)
{
    const struct ct_transport *used = ct_transport_find(&(struct ct_device){.name = "cuda"});

    return used && used->call == gpu_staged_transport.call;
}
