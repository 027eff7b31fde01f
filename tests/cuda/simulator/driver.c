/*
 * The simulated driver: libcuda.so.1. Memory is the host's, streams do at once what is enqueued on
 * them, captured graphs are lists of calls.
 */
#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "driver.h"
#include "simulator.h"

/* Symbols that are versioned. */
#define cuDeviceTotalMem cuDeviceTotalMem_v2
#define cuDevicePrimaryCtxRelease cuDevicePrimaryCtxRelease_v2
#define cuMemGetInfo cuMemGetInfo_v2
#define cuMemAlloc cuMemAlloc_v2
#define cuMemFree cuMemFree_v2
#define cuMemHostGetDevicePointer cuMemHostGetDevicePointer_v2
#define cuMemcpyHtoDAsync cuMemcpyHtoDAsync_v2
#define cuMemcpyDtoHAsync cuMemcpyDtoHAsync_v2
#define cuMemcpy2DAsync cuMemcpy2DAsync_v2
#define cuStreamDestroy cuStreamDestroy_v2
#define cuStreamBeginCapture cuStreamBeginCapture_v2
#define cuGraphInstantiate cuGraphInstantiateWithFlags
#define cuEventDestroy cuEventDestroy_v2
#define cuMemGetAddressRange cuMemGetAddressRange_v2

#define X(name, symbol, parameters) CT_API int symbol parameters;
GPU_DRIVER_CALLS(X)
/* What the nccl plugin calls beside. */
X(cuEventQuery, cuEventQuery, (CUevent event))
X(cuCtxGetCurrent, cuCtxGetCurrent, (CUcontext * context))
X(cuMemGetAddressRange, cuMemGetAddressRange_v2,
  (CUdeviceptr * base, size_t *bytes, CUdeviceptr address))
X(cuMemcpyAsync, cuMemcpyAsync, (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream))
X(cuStreamCreate, cuStreamCreate, (CUstream * stream, unsigned flags))
X(cuStreamIsCapturing, cuStreamIsCapturing, (CUstream stream, int *status))
#undef X

/* ---- calls that can be captured ---- */

struct call {
    enum { LAUNCH, SET, COPY, OTHER } kind;
    struct simulated_launch launch; /* its arguments are a copy */
    int (*other)(const void *arguments);
    CUDA_MEMCPY2D copy;
    unsigned char value;
};

struct CUgraph_st {
    struct call *call;
    size_t count, room;
};

static CUgraph capture; /* NULL: calls are run at once */

static void copy_rows(const CUDA_MEMCPY2D *c)
{
    for (size_t row = 0; row < c->Height; row++)
        memmove((char *)(uintptr_t)c->dstDevice + row * c->dstPitch,
                (const char *)(uintptr_t)c->srcDevice + row * c->srcPitch, c->WidthInBytes);
}

static void run(const struct call *c)
{
    if (c->kind == LAUNCH)
        simulated_run(&c->launch);
    else if (c->kind == SET)
        memset((void *)(uintptr_t)c->copy.dstDevice, c->value, c->copy.WidthInBytes);
    else if (c->kind == COPY)
        copy_rows(&c->copy);
    else
        c->other(c->launch.arguments);
}

static void *self(void)
{
    Dl_info here;

    return dladdr((void *)(uintptr_t)self, &here) ? dlopen(here.dli_fname, RTLD_NOW | RTLD_NOLOAD)
                                                  : NULL;
}

/* KERNEL notes them beside the function. */
static size_t argument_bytes(void (*kernel)(const void *))
{
    char name[128];
    Dl_info info;
    const size_t *bytes = NULL;

    if (dladdr((void *)(uintptr_t)kernel, &info) && info.dli_sname) {
        snprintf(name, sizeof(name), "%s_bytes", info.dli_sname);
        bytes = dlsym(self(), name);
    }
    return bytes ? *bytes : 0;
}

static void note(struct call c, size_t bytes)
{
    if (bytes)
        c.launch.arguments = memcpy(malloc(bytes), c.launch.arguments, bytes);
    if (capture->count == capture->room) {
        capture->room = capture->room ? 2 * capture->room : 64;
        capture->call = realloc(capture->call, capture->room * sizeof(*capture->call));
    }
    capture->call[capture->count++] = c;
}

static int submit(struct call c)
{
    if (capture)
        note(c, c.kind == LAUNCH ? argument_bytes(c.launch.kernel) : 0);
    else
        run(&c);
    return CUDA_SUCCESS;
}

int simulated_submit(int (*call)(const void *arguments), const void *arguments, size_t bytes)
{
    if (!capture)
        return call(arguments);
    note((struct call){.kind = OTHER, .other = call, .launch = {.arguments = arguments}}, bytes);
    return 0;
}

/* ---- the device ---- */

int cuInit(unsigned flags)
{
    (void)flags;
    return getenv("SIMULATOR_NO_DEVICE") ? CUDA_ERROR_NO_DEVICE : CUDA_SUCCESS;
}

int cuDriverGetVersion(int *version)
{
    *version = 13000;
    return CUDA_SUCCESS;
}

int cuGetErrorName(int error, const char **name)
{
    *name = error == CUDA_ERROR_OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR_UNKNOWN";
    return CUDA_SUCCESS;
}

int cuGetErrorString(int error, const char **text)
{
    *text = error == CUDA_ERROR_OUT_OF_MEMORY ? "out of memory" : "unknown error";
    return CUDA_SUCCESS;
}

int cuDeviceGetCount(int *count)
{
    *count = 1;
    return CUDA_SUCCESS;
}

int cuDeviceGet(int *device, int ordinal)
{
    *device = ordinal;
    return CUDA_SUCCESS;
}

int cuDeviceGetName(char *name, int room, int device)
{
    (void)device;
    snprintf(name, (size_t)room, "simulated device");
    return CUDA_SUCCESS;
}

int cuDeviceGetAttribute(int *value, int attribute, int device)
{
    (void)device;
    switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
        *value = 4;
        break;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
        *value = 9;
        break;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR:
        *value = 0;
        break;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN:
        *value = 227 << 10;
        break;
    default:
        *value = 1;
    }
    return CUDA_SUCCESS;
}

int cuDeviceTotalMem(size_t *bytes, int device)
{
    (void)device;
    *bytes = (size_t)1 << 30;
    return CUDA_SUCCESS;
}

int cuDeviceCanAccessPeer(int *can, int device, int peer)
{
    *can = device != peer;
    return CUDA_SUCCESS;
}

int cuDevicePrimaryCtxRetain(CUcontext *context, int device)
{
    (void)device;
    *context = (CUcontext)(uintptr_t)1;
    return CUDA_SUCCESS;
}

int cuDevicePrimaryCtxRelease(int device)
{
    (void)device;
    return CUDA_SUCCESS;
}

int cuCtxGetCurrent(CUcontext *context)
{
    *context = (CUcontext)(uintptr_t)1;
    return CUDA_SUCCESS;
}

int cuCtxSetCurrent(CUcontext context)
{
    (void)context;
    return CUDA_SUCCESS;
}

/* ---- kernels: functions of this library, by name ---- */

int cuModuleLoadData(CUmodule *module, const void *image)
{
    (void)image;
    *module = (CUmodule)(uintptr_t)1;
    return CUDA_SUCCESS;
}

int cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name)
{
    (void)module;
    *function = (CUfunction)dlsym(self(), name);
    return *function ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

int cuModuleUnload(CUmodule module)
{
    (void)module;
    return CUDA_SUCCESS;
}

int cuFuncSetAttribute(CUfunction function, int attribute, int value)
{
    (void)function;
    return attribute == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES && value > 227 << 10
               ? CUDA_ERROR_NOT_FOUND
               : CUDA_SUCCESS;
}

int cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                   unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared,
                   CUstream stream, void **parameters, void **extra)
{
    struct call c = {.kind = LAUNCH,
                     .launch = {{grid_x, grid_y, grid_z},
                                {block_x, block_y, block_z},
                                shared,
                                (void (*)(const void *))(uintptr_t)function,
                                parameters[0]}};

    (void)stream;
    (void)extra;
    return submit(c);
}

/* ---- memory ---- */

int cuMemGetInfo(size_t *available, size_t *total)
{
    *available = *total = (size_t)1 << 30;
    return CUDA_SUCCESS;
}

static int allocate(CUdeviceptr *address, size_t bytes)
{
    void *memory =
        bytes > (size_t)8 << 30 ? NULL : aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);

    *address = (uintptr_t)memory;
    return memory ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

int cuMemAlloc(CUdeviceptr *address, size_t bytes)
{
    return allocate(address, bytes);
}

int cuMemFree(CUdeviceptr address)
{
    free((void *)(uintptr_t)address);
    return CUDA_SUCCESS;
}

int cuMemHostAlloc(void **address, size_t bytes, unsigned flags)
{
    (void)flags;
    *address = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
    return *address ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

int cuMemHostGetDevicePointer(CUdeviceptr *address, void *host, unsigned flags)
{
    (void)flags;
    *address = (uintptr_t)host;
    return CUDA_SUCCESS;
}

int cuMemFreeHost(void *address)
{
    free(address);
    return CUDA_SUCCESS;
}

int cuMemGetAllocationGranularity(size_t *bytes, const CUmemAllocationProp *properties, int option)
{
    (void)properties;
    (void)option;
    *bytes = (size_t)2 << 20;
    return CUDA_SUCCESS;
}

int cuMemAddressReserve(CUdeviceptr *address, size_t bytes, size_t align, CUdeviceptr at,
                        unsigned long long flags)
{
    (void)align;
    (void)at;
    (void)flags;
    return allocate(address, bytes);
}

int cuMemAddressFree(CUdeviceptr address, size_t bytes)
{
    (void)bytes;
    return cuMemFree(address);
}

int cuMemCreate(unsigned long long *handle, size_t bytes, const CUmemAllocationProp *properties,
                unsigned long long flags)
{
    const char *refused = getenv("SIMULATOR_REFUSES");

    (void)bytes;
    (void)flags;
    if (refused && (!strcmp(refused, "mapping") || properties->requestedHandleTypes))
        return 801; /* CUDA_ERROR_NOT_SUPPORTED */
    *handle = 1;
    return CUDA_SUCCESS;
}

int cuMemRelease(unsigned long long handle)
{
    (void)handle;
    return CUDA_SUCCESS;
}

int cuMemMap(CUdeviceptr address, size_t bytes, size_t offset, unsigned long long handle,
             unsigned long long flags)
{
    (void)address;
    (void)bytes;
    (void)offset;
    (void)handle;
    (void)flags;
    return CUDA_SUCCESS;
}

int cuMemUnmap(CUdeviceptr address, size_t bytes)
{
    (void)address;
    (void)bytes;
    return CUDA_SUCCESS;
}

int cuMemSetAccess(CUdeviceptr address, size_t bytes, const CUmemAccessDesc *access, size_t count)
{
    (void)address;
    (void)bytes;
    (void)access;
    (void)count;
    return CUDA_SUCCESS;
}

int cuMemsetD8Async(CUdeviceptr address, unsigned char value, size_t count, CUstream stream)
{
    (void)stream;
    return submit((struct call){
        .kind = SET, .value = value, .copy = {.dstDevice = address, .WidthInBytes = count}});
}

int cuMemcpyHtoDAsync(CUdeviceptr to, const void *from, size_t bytes, CUstream stream)
{
    (void)stream;
    memcpy((void *)(uintptr_t)to, from, bytes);
    return CUDA_SUCCESS;
}

int cuMemcpyDtoHAsync(void *to, CUdeviceptr from, size_t bytes, CUstream stream)
{
    (void)stream;
    memcpy(to, (void *)(uintptr_t)from, bytes);
    return CUDA_SUCCESS;
}

int cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream)
{
    (void)stream;
    memcpy((void *)(uintptr_t)to, (void *)(uintptr_t)from, bytes);
    return CUDA_SUCCESS;
}

/* Of any address: windows are not simulated. */
int cuMemGetAddressRange(CUdeviceptr *base, size_t *bytes, CUdeviceptr address)
{
    (void)base;
    (void)bytes;
    (void)address;
    return CUDA_ERROR_NOT_FOUND;
}

int cuMemcpy2DAsync(const CUDA_MEMCPY2D *copy, CUstream stream)
{
    (void)stream;
    if (copy->srcMemoryType != CU_MEMORYTYPE_DEVICE ||
        copy->dstMemoryType != CU_MEMORYTYPE_DEVICE || copy->srcPitch < copy->WidthInBytes ||
        copy->dstPitch < copy->WidthInBytes)
        return CUDA_ERROR_NOT_FOUND;
    return submit((struct call){.kind = COPY, .copy = *copy});
}

/* ---- streams and events ---- */

struct CUevent_st {
    double time;
};

int cuStreamCreateWithPriority(CUstream *stream, unsigned flags, int priority)
{
    static char handles[64];
    static int next;

    (void)flags;
    (void)priority;
    *stream = (CUstream)(void *)&handles[next++ % 64];
    return CUDA_SUCCESS;
}

int cuStreamCreate(CUstream *stream, unsigned flags)
{
    return cuStreamCreateWithPriority(stream, flags, 0);
}

int cuStreamIsCapturing(CUstream stream, int *status)
{
    (void)stream;
    *status = capture != NULL;
    return CUDA_SUCCESS;
}

int cuStreamDestroy(CUstream stream)
{
    (void)stream;
    return CUDA_SUCCESS;
}

int cuStreamSynchronize(CUstream stream)
{
    (void)stream;
    return capture ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
}

int cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags)
{
    (void)stream;
    (void)event;
    (void)flags;
    return CUDA_SUCCESS;
}

int cuStreamBeginCapture(CUstream stream, int mode)
{
    (void)stream;
    (void)mode;
    capture = calloc(1, sizeof(*capture));
    return CUDA_SUCCESS;
}

int cuStreamEndCapture(CUstream stream, CUgraph *graph)
{
    (void)stream;
    *graph = capture;
    capture = NULL;
    return CUDA_SUCCESS;
}

int cuGraphInstantiate(CUgraphExec *exec, CUgraph graph, unsigned long long flags)
{
    (void)flags;
    *exec = (CUgraphExec)(void *)graph;
    return CUDA_SUCCESS;
}

int cuGraphLaunch(CUgraphExec exec, CUstream stream)
{
    CUgraph graph = (CUgraph)(void *)exec;

    (void)stream;
    for (size_t i = 0; i < graph->count; i++)
        run(&graph->call[i]);
    return CUDA_SUCCESS;
}

/* The instance is the graph: it is freed with that. */
int cuGraphDestroy(CUgraph graph)
{
    (void)graph;
    return CUDA_SUCCESS;
}

int cuGraphExecDestroy(CUgraphExec exec)
{
    CUgraph graph = (CUgraph)(void *)exec;

    for (size_t i = 0; i < graph->count; i++)
        if (graph->call[i].launch.arguments)
            free((void *)(uintptr_t)graph->call[i].launch.arguments);
    free(graph->call);
    free(graph);
    return CUDA_SUCCESS;
}

static double now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

int cuEventCreate(CUevent *event, unsigned flags)
{
    (void)flags;
    *event = calloc(1, sizeof(**event));
    return *event ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

int cuEventDestroy(CUevent event)
{
    free(event);
    return CUDA_SUCCESS;
}

int cuEventRecord(CUevent event, CUstream stream)
{
    (void)stream;
    event->time = now();
    return CUDA_SUCCESS;
}

int cuEventQuery(CUevent event)
{
    (void)event;
    return CUDA_SUCCESS;
}

int cuEventSynchronize(CUevent event)
{
    (void)event;
    return CUDA_SUCCESS;
}

int cuEventElapsedTime(float *milliseconds, CUevent begin, CUevent end)
{
    *milliseconds = (float)(end->time - begin->time);
    return CUDA_SUCCESS;
}
