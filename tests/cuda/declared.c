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
#define CU_EVENT_DISABLE_TIMING nccl_CU_EVENT_DISABLE_TIMING
#define CU_STREAM_NON_BLOCKING nccl_CU_STREAM_NON_BLOCKING
#include "library.h"
#undef CUdeviceptr
#undef CUcontext
#undef CUstream
#undef CUevent
#undef CUDA_SUCCESS
#undef CUDA_ERROR_NOT_READY
#undef CU_EVENT_DISABLE_TIMING
#undef CU_STREAM_NON_BLOCKING

#include "blas_library.h"
#include "dnn_library.h"
#include "names.h"

const struct declared own_declarations[] = DECLARED;
