/*
 * Device memory: addresses are reserved once, and physical memory is mapped to them. Unlike memory
 * of cuMemAlloc, such a range can be exported to other processes and registered with NCCL as a
 * window. Where the driver has no virtual memory management, or refuses it, cuMemAlloc serves.
 */
#include <stdlib.h>

#include <ctitan/log.h>

#include "gpu.h"

struct gpu_arena {
    struct gpu_arena *next;
    CUdeviceptr base;
    size_t bytes;
    unsigned long long handle;
    bool mapped; /* else from cuMemAlloc */
};

static int attribute(const struct gpu *gpu, int which)
{
    int value = 0;

    gpu_driver.cuDeviceGetAttribute(&value, which, gpu->device);
    return value;
}

static CUmemAllocationProp properties(const struct gpu *gpu)
{
    CUmemAllocationProp p = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                             .location = {CU_MEM_LOCATION_TYPE_DEVICE, gpu->device}};

    if (attribute(gpu, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED))
        p.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    p.allocFlags.gpuDirectRDMACapable =
        attribute(gpu, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED) != 0;
    return p;
}

static int map(struct gpu_arena *a, const CUmemAllocationProp *p, size_t granularity)
{
    CUmemAccessDesc access = {p->location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    int rc = gpu_check(gpu_driver.cuMemAddressReserve(&a->base, a->bytes, granularity, 0, 0),
                       "reserving addresses");

    a->mapped = true;
    if (rc == 0)
        rc = gpu_check(gpu_driver.cuMemCreate(&a->handle, a->bytes, p, 0), "device memory");
    if (rc == 0)
        rc = gpu_check(gpu_driver.cuMemMap(a->base, a->bytes, 0, a->handle, 0), "mapping memory");
    if (rc == 0)
        rc = gpu_check(gpu_driver.cuMemSetAccess(a->base, a->bytes, &access, 1), "mapping memory");
    return rc;
}

static int map_with(struct gpu_arena *a, const CUmemAllocationProp *p)
{
    size_t granularity = 0;
    int rc = gpu_check(gpu_driver.cuMemGetAllocationGranularity(
                           &granularity, p, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED),
                       "the granularity of device memory");

    if (rc < 0)
        return rc;
    a->bytes = (a->bytes + granularity - 1) / granularity * granularity;
    return map(a, p, granularity);
}

static void give_back(struct gpu_arena *a)
{
    if (!a->mapped) {
        gpu_driver.cuMemFree(a->base);
        return;
    }
    gpu_driver.cuMemUnmap(a->base, a->bytes);
    if (a->handle)
        gpu_driver.cuMemRelease(a->handle);
    gpu_driver.cuMemAddressFree(a->base, a->bytes);
}

/* Some containers and virtual machines refuse memory that can be exported, or mapping at all. */
static int take(struct gpu *gpu, struct gpu_arena *a)
{
    const CUmemAllocationProp best = properties(gpu),
                              plain = {.type = best.type, .location = best.location};
    const CUmemAllocationProp *ways[] = {&best, &plain};
    bool maps = attribute(gpu, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED) != 0;
    size_t bytes = a->bytes;

    for (size_t i = 0; maps && i < CT_COUNT(ways); i++) {
        int rc = map_with(a, ways[i]);

        if (rc == 0 || rc == CT_ENOMEM)
            return rc;
        if (a->base)
            give_back(a);
        *a = (struct gpu_arena){.bytes = bytes};
        ct_warn("cuda: memory is not %s: %s",
                i ? "mapped, so it cannot be registered with NCCL" : "exportable",
                ct_error_message());
    }
    return gpu_check(gpu_driver.cuMemAlloc(&a->base, a->bytes), "device memory");
}

static int explain(size_t bytes, int rc)
{
    size_t available = 0, total = 0;

    if (rc != CT_ENOMEM)
        return rc;
    gpu_driver.cuMemGetInfo(&available, &total);
    return ct_fail(CT_ENOMEM,
                   "%.2f GiB are needed, but only %.2f of %.2f GiB are free on the device",
                   (double)bytes / 0x1p30, (double)available / 0x1p30, (double)total / 0x1p30);
}

/* Libraries take their memory later, when a step runs. */
static void warn_if_tight(void)
{
    size_t available = 0, total = 0;

    if (gpu_driver.cuMemGetInfo(&available, &total) == 0 && available < GPU_BESIDE / 2)
        ct_warn("cuda: only %.2f of %.2f GiB are left for cuBLASLt, cuDNN and NCCL, which may need "
                "more: see `ctitan plan`",
                (double)available / 0x1p30, (double)total / 0x1p30);
}

int gpu_arena_create(struct gpu *gpu, size_t bytes, void **base)
{
    struct gpu_arena *a = calloc(1, sizeof(*a));
    int rc;

    if (!a)
        return ct_fail(CT_ENOMEM, "an arena");
    a->bytes = bytes ? bytes : 1;
    rc = take(gpu, a);
    if (rc == 0)
        rc = gpu_check(gpu_driver.cuMemsetD8Async(a->base, 0, a->bytes, gpu->stream[0]),
                       "clearing memory");
    if (rc == 0)
        rc = gpu_check(gpu_driver.cuStreamSynchronize(gpu->stream[0]), "clearing memory");
    if (rc < 0) {
        if (a->base)
            give_back(a);
        free(a);
        return explain(bytes, rc);
    }
    warn_if_tight();
    a->next = gpu->arenas;
    gpu->arenas = a;
    *base = (void *)(uintptr_t)a->base;
    return 0;
}

void gpu_arena_destroy(struct gpu *gpu, void *base)
{
    for (struct gpu_arena **at = &gpu->arenas, *a; (a = *at); at = &a->next)
        if (a->base == (uintptr_t)base) {
            *at = a->next;
            give_back(a);
            free(a);
            return;
        }
}

void gpu_arena_destroy_all(struct gpu *gpu)
{
    while (gpu->arenas)
        gpu_arena_destroy(gpu, (void *)(uintptr_t)gpu->arenas->base);
}
