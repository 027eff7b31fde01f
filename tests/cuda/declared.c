/*
 * The plugins' own declarations. The two plugins share some names: nccl's are kept apart.
 */
#include "driver.h"

#define CUdeviceptr nccl_CUdeviceptr
#define CUcontext nccl_CUcontext
#define CUstream nccl_CUstream
#define CUevent nccl_CUevent
#define CUDA_SUCCESS nccl_CUDA_SUCCESS
#define CUDA_ERROR_NOT_READY nccl_CUDA_ERROR_NOT_READY
#define CU_MEMORYTYPE_DEVICE nccl_CU_MEMORYTYPE_DEVICE
#define CU_EVENT_DISABLE_TIMING nccl_CU_EVENT_DISABLE_TIMING
#define CU_STREAM_NON_BLOCKING nccl_CU_STREAM_NON_BLOCKING
#define CUDA_MEMCPY2D nccl_CUDA_MEMCPY2D
#include "library.h"
#undef CUdeviceptr
#undef CUcontext
#undef CUstream
#undef CUevent
#undef CUDA_SUCCESS
#undef CUDA_ERROR_NOT_READY
#undef CU_MEMORYTYPE_DEVICE
#undef CU_EVENT_DISABLE_TIMING
#undef CU_STREAM_NON_BLOCKING
#undef CUDA_MEMCPY2D

#include "blas_library.h"
#include "dnn_library.h"
#include "names.h"

const struct declared own_declarations[] = DECLARED;

_Static_assert(sizeof(nccl_CUDA_MEMCPY2D) == sizeof(CUDA_MEMCPY2D), "nccl's is the same");
