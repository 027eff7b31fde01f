/*
 * The part of the CUDA driver that this plugin calls, found at run time: the plugin builds without
 * CUDA's headers and loads without its libraries. The declarations are the driver's binary
 * interface; tests/cuda compares them with CUDA's own headers where those are installed.
 */
#ifndef GPU_DRIVER_H
#define GPU_DRIVER_H

#include <ctitan/base.h>

typedef uint64_t CUdeviceptr;
typedef struct CUctx_st *CUcontext;
typedef struct CUmod_st *CUmodule;
typedef struct CUfunc_st *CUfunction;
typedef struct CUstream_st *CUstream;
typedef struct CUevent_st *CUevent;
typedef struct CUgraph_st *CUgraph;
typedef struct CUgraphExec_st *CUgraphExec;

enum {
    CUDA_SUCCESS = 0,
    CUDA_ERROR_OUT_OF_MEMORY = 2,
    CUDA_ERROR_NO_DEVICE = 100,
    CUDA_ERROR_NOT_FOUND = 500,
    CUDA_ERROR_NOT_READY = 600,

    CU_MEMORYTYPE_DEVICE = 2,
    CU_STREAM_NON_BLOCKING = 1,
    CU_EVENT_DISABLE_TIMING = 2,
    CU_EVENT_RECORD_EXTERNAL = 1,
    CU_STREAM_CAPTURE_MODE_THREAD_LOCAL = 1,
    CU_MEMHOSTALLOC_PORTABLE = 1,
    CU_MEMHOSTALLOC_DEVICEMAP = 2,

    CU_MEM_ALLOCATION_TYPE_PINNED = 1,
    CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR = 1,
    CU_MEM_LOCATION_TYPE_DEVICE = 1,
    CU_MEM_ACCESS_FLAGS_PROT_READWRITE = 3,
    CU_MEM_ALLOC_GRANULARITY_RECOMMENDED = 1,

    CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT = 16,
    CU_DEVICE_ATTRIBUTE_CLOCK_RATE = 13,
    CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE = 38,
    CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR = 75,
    CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR = 76,
    CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN = 97,
    CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED = 102,
    CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED = 103,
    CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED = 110,

    CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES = 8,
};

typedef struct {
    int type, id;
} CUmemLocation;

typedef struct {
    int type, requestedHandleTypes;
    CUmemLocation location;
    void *win32HandleMetaData;
    struct {
        unsigned char compressionType, gpuDirectRDMACapable;
        unsigned short usage;
        unsigned char reserved[4];
    } allocFlags;
} CUmemAllocationProp;

typedef struct {
    CUmemLocation location;
    int flags;
} CUmemAccessDesc;

typedef struct {
    size_t srcXInBytes, srcY;
    int srcMemoryType;
    const void *srcHost;
    CUdeviceptr srcDevice;
    void *srcArray;
    size_t srcPitch, dstXInBytes, dstY;
    int dstMemoryType;
    void *dstHost;
    CUdeviceptr dstDevice;
    void *dstArray;
    size_t dstPitch, WidthInBytes, Height;
} CUDA_MEMCPY2D;

/* name, symbol of the library, parameters */
#define GPU_DRIVER_CALLS(X)                                                                        \
    X(cuInit, cuInit, (unsigned flags))                                                            \
    X(cuDriverGetVersion, cuDriverGetVersion, (int *version))                                      \
    X(cuGetErrorName, cuGetErrorName, (int error, const char **name))                              \
    X(cuGetErrorString, cuGetErrorString, (int error, const char **text))                          \
    X(cuDeviceGetCount, cuDeviceGetCount, (int *count))                                            \
    X(cuDeviceGet, cuDeviceGet, (int *device, int ordinal))                                        \
    X(cuDeviceGetName, cuDeviceGetName, (char *name, int room, int device))                        \
    X(cuDeviceGetAttribute, cuDeviceGetAttribute, (int *value, int attribute, int device))         \
    X(cuDeviceTotalMem, cuDeviceTotalMem_v2, (size_t * bytes, int device))                         \
    X(cuDeviceCanAccessPeer, cuDeviceCanAccessPeer, (int *can, int device, int peer))              \
    X(cuDevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain, (CUcontext * context, int device))       \
    X(cuDevicePrimaryCtxRelease, cuDevicePrimaryCtxRelease_v2, (int device))                       \
    X(cuCtxSetCurrent, cuCtxSetCurrent, (CUcontext context))                                       \
    X(cuModuleLoadData, cuModuleLoadData, (CUmodule * module, const void *image))                  \
    X(cuModuleGetFunction, cuModuleGetFunction,                                                    \
      (CUfunction * function, CUmodule module, const char *name))                                  \
    X(cuModuleUnload, cuModuleUnload, (CUmodule module))                                           \
    X(cuFuncSetAttribute, cuFuncSetAttribute, (CUfunction function, int attribute, int value))     \
    X(cuLaunchKernel, cuLaunchKernel,                                                              \
      (CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,   \
       unsigned block_y, unsigned block_z, unsigned shared, CUstream stream, void **parameters,    \
       void **extra))                                                                              \
    X(cuMemGetInfo, cuMemGetInfo_v2, (size_t * available, size_t * total))                         \
    X(cuMemAlloc, cuMemAlloc_v2, (CUdeviceptr * address, size_t bytes))                            \
    X(cuMemFree, cuMemFree_v2, (CUdeviceptr address))                                              \
    X(cuMemHostAlloc, cuMemHostAlloc, (void **address, size_t bytes, unsigned flags))              \
    X(cuMemHostGetDevicePointer, cuMemHostGetDevicePointer_v2,                                     \
      (CUdeviceptr * address, void *host, unsigned flags))                                         \
    X(cuMemFreeHost, cuMemFreeHost, (void *address))                                               \
    X(cuMemGetAllocationGranularity, cuMemGetAllocationGranularity,                                \
      (size_t * bytes, const CUmemAllocationProp *properties, int option))                         \
    X(cuMemAddressReserve, cuMemAddressReserve,                                                    \
      (CUdeviceptr * address, size_t bytes, size_t align, CUdeviceptr at,                          \
       unsigned long long flags))                                                                  \
    X(cuMemAddressFree, cuMemAddressFree, (CUdeviceptr address, size_t bytes))                     \
    X(cuMemCreate, cuMemCreate,                                                                    \
      (unsigned long long *handle, size_t bytes, const CUmemAllocationProp *properties,            \
       unsigned long long flags))                                                                  \
    X(cuMemRelease, cuMemRelease, (unsigned long long handle))                                     \
    X(cuMemMap, cuMemMap,                                                                          \
      (CUdeviceptr address, size_t bytes, size_t offset, unsigned long long handle,                \
       unsigned long long flags))                                                                  \
    X(cuMemUnmap, cuMemUnmap, (CUdeviceptr address, size_t bytes))                                 \
    X(cuMemSetAccess, cuMemSetAccess,                                                              \
      (CUdeviceptr address, size_t bytes, const CUmemAccessDesc *access, size_t count))            \
    X(cuMemsetD8Async, cuMemsetD8Async,                                                            \
      (CUdeviceptr address, unsigned char value, size_t count, CUstream stream))                   \
    X(cuMemcpyHtoDAsync, cuMemcpyHtoDAsync_v2,                                                     \
      (CUdeviceptr to, const void *from, size_t bytes, CUstream stream))                           \
    X(cuMemcpyDtoHAsync, cuMemcpyDtoHAsync_v2,                                                     \
      (void *to, CUdeviceptr from, size_t bytes, CUstream stream))                                 \
    X(cuMemcpyDtoDAsync, cuMemcpyDtoDAsync_v2,                                                     \
      (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream))                           \
    X(cuMemcpy2DAsync, cuMemcpy2DAsync_v2, (const CUDA_MEMCPY2D *copy, CUstream stream))           \
    X(cuStreamCreateWithPriority, cuStreamCreateWithPriority,                                      \
      (CUstream * stream, unsigned flags, int priority))                                           \
    X(cuStreamDestroy, cuStreamDestroy_v2, (CUstream stream))                                      \
    X(cuStreamSynchronize, cuStreamSynchronize, (CUstream stream))                                 \
    X(cuStreamWaitEvent, cuStreamWaitEvent, (CUstream stream, CUevent event, unsigned flags))      \
    X(cuStreamBeginCapture, cuStreamBeginCapture_v2, (CUstream stream, int mode))                  \
    X(cuStreamEndCapture, cuStreamEndCapture, (CUstream stream, CUgraph * graph))                  \
    X(cuGraphInstantiate, cuGraphInstantiateWithFlags,                                             \
      (CUgraphExec * exec, CUgraph graph, unsigned long long flags))                               \
    X(cuGraphLaunch, cuGraphLaunch, (CUgraphExec exec, CUstream stream))                           \
    X(cuGraphDestroy, cuGraphDestroy, (CUgraph graph))                                             \
    X(cuGraphExecDestroy, cuGraphExecDestroy, (CUgraphExec exec))                                  \
    X(cuEventCreate, cuEventCreate, (CUevent * event, unsigned flags))                             \
    X(cuEventDestroy, cuEventDestroy_v2, (CUevent event))                                          \
    X(cuEventRecord, cuEventRecord, (CUevent event, CUstream stream))                              \
    X(cuEventRecordWithFlags, cuEventRecordWithFlags,                                              \
      (CUevent event, CUstream stream, unsigned flags))                                            \
    X(cuEventSynchronize, cuEventSynchronize, (CUevent event))                                     \
    X(cuEventQuery, cuEventQuery, (CUevent event))                                                 \
    X(cuEventElapsedTime, cuEventElapsedTime, (float *milliseconds, CUevent begin, CUevent end))

struct gpu_driver {
#define X(name, symbol, parameters) int(*name) parameters;
    GPU_DRIVER_CALLS(X)
#undef X
};
extern struct gpu_driver gpu_driver;

/* Load libcuda.so.1 and start it, once. CT_ENOENT: no driver, or an older one: what is missing. */
int gpu_driver_open(void);

/* code is what a call of the driver returned: 0, or CT_EIO (CT_ENOMEM) with the driver's words. */
int gpu_check(int code, const char *what);

/* The first of the libraries named (NULL ends) that the linker finds. CT_ENOENT: none, and its own
   words. */
int gpu_library(const char *const *names, void **library);
/* Calls by their symbols, into places for pointers to functions: the first that library does not
   have, or NULL. */
struct gpu_call {
    const char *symbol;
    void *at;
};
const char *gpu_find_calls(void *library, const struct gpu_call *calls, size_t count);

#endif
