/*
 * The device: streams, events, copies, and the way from the core's calls to the driver.
 */
#include <stdio.h>
#include <stdlib.h>

#include "blas.h"
#include "graph.h"

#define OLDEST 80 /* compute capability that the kernels are built for, at least */

/* ---- opening ---- */

static int choose_device(const struct ct_device_request *request, struct gpu *gpu)
{
    int count = 0, rc = gpu_check(gpu_driver.cuDeviceGetCount(&count), "counting devices");
    int ordinal = gpu_config.device >= 0 ? (int)gpu_config.device : request->local_rank;

    if (rc < 0)
        return rc;
    if (count == 0)
        return ct_fail(CT_ENOENT, "there is no CUDA device: the NVIDIA driver sees none");
    if (ordinal >= count)
        return ct_fail(CT_ENOENT,
                       "there is no CUDA device %d for local rank %d: the machine has %d. Start "
                       "fewer ranks, or let them share one ([cuda] device = 0)",
                       ordinal, request->local_rank, count);
    return gpu_check(gpu_driver.cuDeviceGet(&gpu->device, ordinal), "the device");
}

static int attribute(const struct gpu *gpu, int which)
{
    int value = 0;

    gpu_driver.cuDeviceGetAttribute(&value, which, gpu->device);
    return value;
}

static int look(struct gpu *gpu)
{
    gpu->cuda.capability = 10 * attribute(gpu, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR) +
                           attribute(gpu, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
    gpu->cuda.multiprocessors = attribute(gpu, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
    gpu->cuda.cache = attribute(gpu, CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE);
    gpu->cuda.shared_memory = attribute(gpu, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN);
    if (gpu->cuda.capability < OLDEST)
        return ct_fail(CT_ENOENT,
                       "CUDA device %d has compute capability %d.%d; %d.%d is the oldest that the "
                       "kernels are built for",
                       gpu->device, gpu->cuda.capability / 10, gpu->cuda.capability % 10,
                       OLDEST / 10, OLDEST % 10);
    return 0;
}

/* Communication goes first where both could run: it is short, and others wait for it. */
static int create_streams(struct gpu *gpu)
{
    int rc = 0;

    for (int i = 0; rc == 0 && i < CT_STREAMS; i++)
        rc =
            gpu_check(gpu_driver.cuStreamCreateWithPriority(&gpu->stream[i], CU_STREAM_NON_BLOCKING,
                                                            i == CT_STREAM_COMPUTE ? 0 : -1),
                      "a stream");
    if (rc == 0)
        rc =
            gpu_check(gpu_driver.cuStreamCreateWithPriority(&gpu->aside, CU_STREAM_NON_BLOCKING, 0),
                      "a stream");
    return rc;
}

static int create_fault(struct gpu *gpu)
{
    CUdeviceptr address = 0;
    void *memory = NULL;
    int rc =
        gpu_check(gpu_driver.cuMemHostAlloc(&memory, sizeof(*gpu->fault),
                                            CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP),
                  "pinned memory");

    if (rc < 0)
        return rc;
    gpu->fault = memory;
    memset(gpu->fault, 0, sizeof(*gpu->fault));
    rc = gpu_check(gpu_driver.cuMemHostGetDevicePointer(&address, memory, 0), "pinned memory");
    gpu->cuda.fault = (void *)(uintptr_t)address;
    return rc;
}

static void close_device(struct ct_device *base)
{
    struct gpu *gpu = gpu_of(base);

    if (!gpu)
        return;
    ct_arena_finish(&gpu->arena);
    gpu_dnn_close(gpu);
    if (gpu->described) {
        free(gpu);
        return;
    }
    gpu_blas_close(gpu);
    gpu_graph_destroy(gpu->graph);
    gpu_stamps_destroy(gpu->stamps);
    gpu_events_destroy(&gpu->events);
    gpu_arena_destroy_all(gpu);
    if (gpu->staging)
        gpu_driver.cuMemFreeHost(gpu->staging);
    if (gpu->fault)
        gpu_driver.cuMemFreeHost(gpu->fault);
    for (int i = 0; i < CT_STREAMS; i++)
        if (gpu->stream[i])
            gpu_driver.cuStreamDestroy(gpu->stream[i]);
    if (gpu->aside)
        gpu_driver.cuStreamDestroy(gpu->aside);
    gpu_functions_unload(gpu);
    if (gpu->context)
        gpu_driver.cuDevicePrimaryCtxRelease(gpu->device);
    free(gpu);
}

static int start(struct gpu *gpu)
{
    int rc = gpu_check(gpu_driver.cuDevicePrimaryCtxRetain(&gpu->context, gpu->device),
                       "a context of the device");

    if (rc == 0)
        rc = gpu_check(gpu_driver.cuCtxSetCurrent(gpu->context), "a context of the device");
    if (rc == 0)
        rc = create_streams(gpu);
    if (rc == 0)
        rc = create_fault(gpu);
    if (rc == 0)
        rc = gpu_functions_open(gpu);
    if (rc == 0)
        rc = gpu_blas_open(gpu);
    if (rc == 0 && gpu_config.graph && !(gpu->graph = gpu_graph_create()))
        rc = ct_fail(CT_ENOMEM, "the graph of the step");
    return rc;
}

static int check_spare(const struct gpu *gpu)
{
    if (gpu_config.spare < gpu->cuda.multiprocessors)
        return 0;
    return ct_fail(CT_ECONFIG,
                   "[cuda] spare_multiprocessors = %d leaves none for products: the device has %d",
                   (int)gpu_config.spare, gpu->cuda.multiprocessors);
}

/* Where a receive waits on the device for a peer, a kernel that is loaded at its first launch may
   wait until the device is idle, which it never is if the peer waits for this kernel's result: the
   libraries load all kernels early. Elsewhere they load what is called, as is the driver's way. */
static void choose_loading(void)
{
    if (!gpu_collectives_wait())
        setenv("CUDA_MODULE_LOADING", "EAGER", 0);
}

static int open_driver(void)
{
    choose_loading();
    return gpu_driver_open();
}

static int open_device(const struct ct_device_request *request, struct ct_device **out)
{
    bool described = *gpu_config.describe;
    struct gpu *gpu;
    int rc = described ? 0 : open_driver();

    if (rc < 0)
        return rc;
    gpu = calloc(1, sizeof(*gpu));
    if (!gpu)
        return ct_fail(CT_ENOMEM, "the cuda device");
    gpu->base.base = (struct ct_device){
        .ops = &gpu_device_ops, .name = "cuda", .in_order = gpu_collectives_wait()};
    gpu->base.base.enqueues = !gpu->base.base.in_order;
    gpu->base.cuda = &gpu->cuda;
    gpu->cuda.size = sizeof(gpu->cuda);
    gpu->cuda.find = gpu_find_function;
    gpu->cuda.launch = gpu_launch_function;
    rc = described ? gpu_describe(gpu_config.describe, gpu) : choose_device(request, gpu);
    if (rc == 0 && !described)
        rc = look(gpu);
    if (rc == 0)
        rc = check_spare(gpu);
    if (rc == 0 && !described)
        rc = start(gpu);
    if (rc < 0) {
        close_device(&gpu->base.base);
        return rc;
    }
    *out = &gpu->base.base;
    return 0;
}

/* ---- what it is ---- */

/* Dense bfloat16, as the vendor's data sheets say; float32 in TF32 is half, without it `scalar`.
   The first name that is found in the device's counts, so longer names come first. */
static const struct {
    const char *name;
    double bf16, scalar;
} peaks[] = {{"H100 PCIe", 756e12, 51e12}, {"H100 NVL", 835e12, 60e12}, {"H200 NVL", 835e12, 60e12},
             {"GH200", 989e12, 67e12},     {"H100", 989e12, 67e12},     {"H200", 989e12, 67e12},
             {"H800", 989e12, 67e12},      {"H20", 148e12, 44e12},      {"GB200", 2500e12, 80e12},
             {"B200", 2250e12, 75e12},     {"A100", 312e12, 19.5e12},   {"A800", 312e12, 19.5e12},
             {"L40S", 362e12, 91.6e12}};

static double peak(const char *name, enum ct_dtype compute)
{
    for (size_t i = 0; i < CT_COUNT(peaks); i++)
        if (strstr(name, peaks[i].name))
            return compute == CT_F32 ? (gpu_config.tf32 ? peaks[i].bf16 / 2 : peaks[i].scalar)
                                     : peaks[i].bf16;
    return 0;
}

void gpu_identify(const struct gpu *gpu, char *text, size_t room)
{
    char name[64] = "CUDA device";
    int version = 0;

    gpu_driver.cuDeviceGetName(name, sizeof(name), gpu->device);
    gpu_driver.cuDriverGetVersion(&version);
    snprintf(text, room, "%.40s, %d SMs, capability %d.%d, CUDA %d.%d", name,
             gpu->cuda.multiprocessors, gpu->cuda.capability / 10, gpu->cuda.capability % 10,
             version / 1000, version % 1000 / 10);
}

static void info(struct ct_device *device, enum ct_dtype compute, struct ct_device_info *info)
{
    struct gpu *gpu = gpu_of(device);
    char name[64] = "CUDA device";

    if (gpu->described) {
        gpu_described_info(gpu, compute, info);
        return;
    }
    *info = (struct ct_device_info){.threads = gpu->cuda.multiprocessors, .beside = GPU_BESIDE};
    gpu_driver.cuDeviceGetName(name, sizeof(name), gpu->device);
    gpu_driver.cuDeviceTotalMem(&info->memory, gpu->device);
    info->peak_flops = peak(name, compute);
    gpu_identify(gpu, info->name, sizeof(info->name));
}

/* ---- memory ---- */

static int reserve(struct ct_device *device, size_t bytes, void **base)
{
    if (gpu_of(device)->described)
        return ct_fail(CT_ECONFIG, "[cuda] describe: this device is only described; `ctitan plan` "
                                   "and `ctitan simulate` plan for it, but nothing can run on it");
    return gpu_arena_create(gpu_of(device), bytes, base);
}

static void release(struct ct_device *device, void *base, size_t bytes)
{
    (void)bytes;
    gpu_graph_forget(gpu_of(device));
    gpu_arena_destroy(gpu_of(device), base);
}

static int copy_in(struct ct_device *device, void *to, const void *host, size_t bytes)
{
    struct gpu *gpu = gpu_of(device);
    int rc = gpu_check(
        gpu_driver.cuMemcpyHtoDAsync((uintptr_t)to, host, bytes, gpu->stream[CT_STREAM_COMPUTE]),
        "a copy to the device");

    if (rc == 0)
        rc = gpu_check(gpu_driver.cuStreamSynchronize(gpu->stream[CT_STREAM_COMPUTE]),
                       "a copy to the device");
    return rc;
}

static int copy_out(struct ct_device *device, void *host, const void *from, size_t bytes)
{
    struct gpu *gpu = gpu_of(device);
    int rc = gpu_check(
        gpu_driver.cuMemcpyDtoHAsync(host, (uintptr_t)from, bytes, gpu->stream[CT_STREAM_COMPUTE]),
        "a copy from the device");

    if (rc == 0)
        rc = gpu_check(gpu_driver.cuStreamSynchronize(gpu->stream[CT_STREAM_COMPUTE]),
                       "a copy from the device");
    return rc;
}

/* ---- streams ---- */

static int enqueue(struct ct_device *device, int stream, const struct ct_kernel *kernel,
                   const struct ct_launch *launch)
{
    struct ct_launch here = *launch;
    int rc = gpu_graph_enqueue(gpu_of(device), launch);

    if (rc)
        return rc < 0 ? rc : 0;
    here.stream = gpu_of(device)->stream[stream];
    rc = kernel->run(&here);
    return rc < 0 ? ct_context(rc, "%s (%s)", launch->op->type->name, kernel->name) : 0;
}

static int events(struct ct_device *device, int count)
{
    struct gpu *gpu = gpu_of(device);

    gpu_graph_begin(gpu);
    return gpu_events_begin(&gpu->events, count, CU_EVENT_DISABLE_TIMING);
}

static int record(struct ct_device *device, int stream, int event)
{
    struct gpu *gpu = gpu_of(device);

    int rc;

    if (gpu_graph_replays(gpu))
        return 0;
    rc = gpu_check(gpu_driver.cuEventRecord(gpu->events.event[event], gpu->stream[stream]),
                   "an event");
    if (rc == 0)
        gpu->events.recorded[event] = 1;
    return rc;
}

/* Events of a captured step are no events of the device: asking for one would end the capture. */
static int query(struct ct_device *device, int event)
{
    struct gpu *gpu = gpu_of(device);
    int rc;

    if (!gpu_graph_is_plain(gpu))
        return ct_fail(CT_EINVAL, "a step that is replayed as one graph has no events");
    if (!gpu->events.recorded[event])
        return 0;
    rc = gpu_driver.cuEventQuery(gpu->events.event[event]);
    return rc == CUDA_ERROR_NOT_READY ? 0 : rc ? gpu_check(rc, "an event") : 1;
}

static int wait_event(struct ct_device *device, int stream, int event)
{
    struct gpu *gpu = gpu_of(device);

    if (gpu_graph_replays(gpu))
        return 0;
    return gpu_check(gpu_driver.cuStreamWaitEvent(gpu->stream[stream], gpu->events.event[event], 0),
                     "an event");
}

static int check_fault(struct gpu *gpu)
{
    static const char *const names[] = {[CT_CUDA_FAULT_TOKEN] = "token",
                                        [CT_CUDA_FAULT_LABEL] = "label",
                                        [CT_CUDA_FAULT_SLOT] = "a cache's slot",
                                        [CT_CUDA_FAULT_EXPERT] = "expert",
                                        [CT_CUDA_FAULT_INDEX] = "index"};
    struct ct_cuda_fault f = *gpu->fault;

    if (!f.kind)
        return 0;
    memset(gpu->fault, 0, sizeof(*gpu->fault));
    return ct_fail(CT_EINVAL, "%s %lld at position %lld is not below %lld", names[f.kind],
                   (long long)f.value, (long long)f.position, (long long)f.limit);
}

static int synchronize(struct ct_device *device)
{
    struct gpu *gpu = gpu_of(device);
    int rc = gpu_graph_end(gpu);

    for (int i = 0; rc == 0 && i < CT_STREAMS; i++)
        rc = gpu_check(gpu_driver.cuStreamSynchronize(gpu->stream[i]), "the device");
    return rc < 0 ? rc : check_fault(gpu);
}

/* A context belongs to a thread. */
static int copy_aside(struct ct_device *device, void *host, const void *from, size_t bytes)
{
    struct gpu *gpu = gpu_of(device);
    int rc = gpu_check(gpu_driver.cuCtxSetCurrent(gpu->context), "a context of the device");

    if (rc == 0)
        rc = gpu_check(gpu_driver.cuMemcpyDtoHAsync(host, (uintptr_t)from, bytes, gpu->aside),
                       "a copy from the device");
    if (rc == 0)
        rc = gpu_check(gpu_driver.cuStreamSynchronize(gpu->aside), "a copy from the device");
    return rc;
}

/* Contiguous blocks are one copy, so the device's limit for strides does not apply. */
static int copy_blocks(const struct ct_launch *l, void *to, size_t to_stride, const void *from,
                       size_t from_stride, size_t bytes, int64_t count)
{
    bool whole = count == 1 || (to_stride == bytes && from_stride == bytes);
    CUDA_MEMCPY2D c = {.srcMemoryType = CU_MEMORYTYPE_DEVICE,
                       .srcDevice = (uintptr_t)from,
                       .srcPitch = from_stride,
                       .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                       .dstDevice = (uintptr_t)to,
                       .dstPitch = to_stride,
                       .WidthInBytes = bytes,
                       .Height = (size_t)count};

    return gpu_check(whole ? gpu_driver.cuMemcpyDtoDAsync((uintptr_t)to, (uintptr_t)from,
                                                          bytes * (size_t)count, l->stream)
                           : gpu_driver.cuMemcpy2DAsync(&c, l->stream),
                     "a copy on the device");
}

static int clear(const struct ct_launch *l, void *at, size_t bytes)
{
    return gpu_check(gpu_driver.cuMemsetD8Async((uintptr_t)at, 0, bytes, l->stream),
                     "clearing memory");
}

const struct ct_device_ops gpu_device_ops = {
    .size = sizeof(struct ct_device_ops),
    .open = open_device,
    .close = close_device,
    .info = info,
    .reserve = reserve,
    .release = release,
    .reserve_host = gpu_reserve_host,
    .release_host = gpu_release_host,
    .copy_in = copy_in,
    .copy_out = copy_out,
    .enqueue = enqueue,
    .events = events,
    .record = record,
    .wait = wait_event,
    .synchronize = synchronize,
    .query = query,
    .copy_aside = copy_aside,
    .copy = copy_blocks,
    .clear = clear,
    .diagnose = gpu_diagnose,
    .stamps = gpu_stamps_begin,
    .stamp = gpu_stamp,
    .stamped = gpu_stamped,
    .used = gpu_used,
};
