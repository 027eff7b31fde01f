/*
 * The parts of NCCL and of the CUDA driver that this plugin calls. Both are loaded at run time, so
 * the plugin builds without their headers and loads without their libraries. The declarations
 * follow the libraries' binary interface; tests/cuda compares them with the headers if those are
 * installed.
 */
#ifndef NCCL_LIBRARY_H
#define NCCL_LIBRARY_H

#include <ctitan/base.h>

typedef struct ncclComm *ncclComm_t;
typedef struct ncclWindow *ncclWindow_t;

typedef struct {
    char internal[128];
} ncclUniqueId;

enum {
    ncclSuccess = 0,
    ncclInProgress = 7,
    ncclSum = 0,
    ncclMax = 2,
    NCCL_WIN_COLL_SYMMETRIC = 1,
    NCCL_CTA_POLICY_ZERO = 2,
    NCCL_UNDEFINED = INT32_MIN,
};

/* Layout of 2.28; older libraries read the fields that they know, by size and version. */
typedef struct {
    size_t size;
    unsigned magic, version;
    int blocking, cgaClusterSize, minCTAs, maxCTAs;
    const char *netName;
    int splitShare, trafficClass;
    const char *commName;
    int collnetEnable, CTAPolicy, shrinkShare, nvlsCTAs, nChannelsPerNetPeer, nvlinkCentricSched;
} ncclConfig_t;

#define NCCL_CALLS(X)                                                                              \
    X(ncclGetVersion, (int *version))                                                              \
    X(ncclGetUniqueId, (ncclUniqueId * id))                                                        \
    X(ncclCommInitRankConfig,                                                                      \
      (ncclComm_t * comm, int ranks, ncclUniqueId id, int rank, ncclConfig_t *config))             \
    X(ncclCommGetAsyncError, (ncclComm_t comm, int *error))                                        \
    X(ncclCommFinalize, (ncclComm_t comm))                                                         \
    X(ncclCommDestroy, (ncclComm_t comm))                                                          \
    X(ncclCommAbort, (ncclComm_t comm))                                                            \
    X(ncclGroupStart, (void))                                                                      \
    X(ncclGroupEnd, (void))                                                                        \
    X(ncclAllGather,                                                                               \
      (const void *in, void *out, size_t count, int type, ncclComm_t comm, void *stream))          \
    X(ncclReduceScatter,                                                                           \
      (const void *in, void *out, size_t count, int type, int op, ncclComm_t comm, void *stream))  \
    X(ncclAllReduce,                                                                               \
      (const void *in, void *out, size_t count, int type, int op, ncclComm_t comm, void *stream))  \
    X(ncclBroadcast, (const void *in, void *out, size_t count, int type, int root,                 \
                      ncclComm_t comm, void *stream))                                              \
    X(ncclSend,                                                                                    \
      (const void *data, size_t count, int type, int peer, ncclComm_t comm, void *stream))         \
    X(ncclRecv, (void *data, size_t count, int type, int peer, ncclComm_t comm, void *stream))

typedef uint64_t CUdeviceptr;
typedef struct CUctx_st *CUcontext;
typedef struct CUstream_st *CUstream;
typedef struct CUevent_st *CUevent;

enum {
    CUDA_SUCCESS = 0,
    CUDA_ERROR_NOT_READY = 600,
    CU_EVENT_DISABLE_TIMING = 2,
    CU_STREAM_NON_BLOCKING = 1,
};

/* name, symbol of the library, parameters */
#define CUDA_CALLS(X)                                                                              \
    X(cuCtxGetCurrent, cuCtxGetCurrent, (CUcontext * context))                                     \
    X(cuCtxSetCurrent, cuCtxSetCurrent, (CUcontext context))                                       \
    X(cuMemAlloc, cuMemAlloc_v2, (CUdeviceptr * address, size_t bytes))                            \
    X(cuMemFree, cuMemFree_v2, (CUdeviceptr address))                                              \
    X(cuMemGetAddressRange, cuMemGetAddressRange_v2,                                               \
      (CUdeviceptr * base, size_t * bytes, CUdeviceptr address))                                   \
    X(cuMemcpyAsync, cuMemcpyAsync,                                                                \
      (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream))                           \
    X(cuStreamCreate, cuStreamCreate, (CUstream * stream, unsigned flags))                         \
    X(cuStreamDestroy, cuStreamDestroy_v2, (CUstream stream))                                      \
    X(cuStreamSynchronize, cuStreamSynchronize, (CUstream stream))                                 \
    X(cuStreamIsCapturing, cuStreamIsCapturing, (CUstream stream, int *status))                    \
    X(cuEventCreate, cuEventCreate, (CUevent * event, unsigned flags))                             \
    X(cuEventDestroy, cuEventDestroy_v2, (CUevent event))                                          \
    X(cuEventRecord, cuEventRecord, (CUevent event, CUstream stream))                              \
    X(cuEventQuery, cuEventQuery, (CUevent event))

struct nccl_library {
#define X(name, parameters) int(*name) parameters;
    NCCL_CALLS(X)
#undef X
#define X(name, symbol, parameters) int(*name) parameters;
    CUDA_CALLS(X)
#undef X
    const char *(*ncclGetErrorString)(int);
    /* NULL if older than 2.27 */
    int (*ncclCommWindowRegister)(ncclComm_t, void *, size_t, ncclWindow_t *, int);
};
extern struct nccl_library nccl;

/* The first NCCL that aborts several communicators as a group, and the first that gathers by copy
   engines. */
#define NCCL_OLDEST 22200
#define NCCL_WINDOWS 22800

/* Load both libraries, once. CT_ENOENT: one is missing or too old; CT_ECONFIG: NCCL is too old for
   windows. */
int nccl_library_open(bool windows);

#endif
