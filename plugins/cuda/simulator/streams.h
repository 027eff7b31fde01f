/* The simulated driver's interface, between its sources: what the plugins call of it. */
#ifndef STREAMS_H
#define STREAMS_H

#include <stdbool.h>

#include "driver.h"
#include <ctitan/lib/cuda/simulator.h>

#define CUDA_ERROR_INVALID_VALUE 1

/* Calls that are performed, and may touch the device's memory: one more, or one less. */
void simulated_memory_open(int change);

#define X(name, symbol, parameters) CT_API int symbol parameters;
GPU_DRIVER_CALLS(X)
/* Further functions that the nccl plugin calls. */
X(cuCtxGetCurrent, cuCtxGetCurrent, (CUcontext * context))
X(cuMemGetAddressRange, cuMemGetAddressRange_v2,
  (CUdeviceptr * base, size_t *bytes, CUdeviceptr address))
X(cuMemcpyAsync, cuMemcpyAsync, (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream))
X(cuStreamCreate, cuStreamCreate, (CUstream * stream, unsigned flags))
X(cuStreamIsCapturing, cuStreamIsCapturing, (CUstream stream, int *status))
#undef X

#endif
