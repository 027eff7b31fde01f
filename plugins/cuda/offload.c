/*
 * The GPU's host memory: pinned memory of the host, which copy engines reach without a detour.
 */
#include "gpu.h"

int gpu_reserve_host(struct ct_device *device, size_t bytes, void **base)
{
    int rc;

    (void)device;
    rc = gpu_check(gpu_driver.cuMemHostAlloc(base, bytes, CU_MEMHOSTALLOC_PORTABLE),
                   "pinned memory of the host");
    if (rc < 0)
        return rc;
    memset(*base, 0, bytes);
    return 0;
}

void gpu_release_host(struct ct_device *device, void *base, size_t bytes)
{
    (void)device;
    (void)bytes;
    gpu_driver.cuMemFreeHost(base);
}

/* ---- kernels ---- */

static int load(const struct ct_launch *l)
{
    size_t bytes = ct_tensor_bytes(&l->out[0]);

    if (!bytes)
        return 0;
    return gpu_check(
        gpu_driver.cuMemcpyHtoDAsync((uintptr_t)l->out[0].data, l->in[0].data, bytes, l->stream),
        "a copy to the device");
}

static int put(const struct ct_launch *l, void *to, const struct ct_tensor *from)
{
    size_t bytes = ct_tensor_bytes(from);

    if (!bytes)
        return 0;
    return gpu_check(gpu_driver.cuMemcpyDtoHAsync(to, (uintptr_t)from->data, bytes, l->stream),
                     "a copy from the device");
}

static int store(const struct ct_launch *l)
{
    return put(l, l->in[0].data, &l->in[1]);
}

static int offload(const struct ct_launch *l)
{
    return put(l, l->out[0].data, &l->in[0]);
}

const struct ct_kernel gpu_offload_kernels[] = {
    CT_KERNEL("load", "copy engine", 0, NULL, NULL, load),
    CT_KERNEL("store", "copy engine", 0, NULL, NULL, store),
    CT_KERNEL("offload", "copy engine", 0, NULL, NULL, offload),
    {0}};
