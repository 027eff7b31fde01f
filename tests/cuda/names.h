/*
 * Declarations of the plugins about NVIDIA's interfaces: constants, sizes of structs, places in
 * them.
 */
#ifndef TEST_CUDA_NAMES_H
#define TEST_CUDA_NAMES_H

#include <stddef.h>

struct declared {
    const char *name;
    long value;
};

/* As the plugins declare them; NULL ends. */
extern const struct declared own_declarations[];

#define CONSTANTS(X)                                                                               \
    X(CUDA_SUCCESS)                                                                                \
    X(CUDA_ERROR_OUT_OF_MEMORY)                                                                    \
    X(CUDA_ERROR_NO_DEVICE)                                                                        \
    X(CUDA_ERROR_NOT_FOUND)                                                                        \
    X(CUDA_ERROR_NOT_READY)                                                                        \
    X(CU_MEMORYTYPE_DEVICE)                                                                        \
    X(CU_STREAM_NON_BLOCKING)                                                                      \
    X(CU_EVENT_DISABLE_TIMING)                                                                     \
    X(CU_EVENT_RECORD_EXTERNAL)                                                                    \
    X(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)                                                         \
    X(CU_MEMHOSTALLOC_PORTABLE)                                                                    \
    X(CU_MEMHOSTALLOC_DEVICEMAP)                                                                   \
    X(CU_MEM_ALLOCATION_TYPE_PINNED)                                                               \
    X(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)                                                    \
    X(CU_MEM_LOCATION_TYPE_DEVICE)                                                                 \
    X(CU_MEM_ACCESS_FLAGS_PROT_READWRITE)                                                          \
    X(CU_MEM_ALLOC_GRANULARITY_RECOMMENDED)                                                        \
    X(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)                                                    \
    X(CU_DEVICE_ATTRIBUTE_CLOCK_RATE)                                                              \
    X(CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE)                                                           \
    X(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)                                                \
    X(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)                                                \
    X(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)                                       \
    X(CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED)                                     \
    X(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED)                             \
    X(CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED)                                 \
    X(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES)                                             \
    X(CUBLAS_STATUS_SUCCESS)                                                                       \
    X(CUBLAS_STATUS_INVALID_VALUE)                                                                 \
    X(CUBLAS_STATUS_NOT_SUPPORTED)                                                                 \
    X(CUBLAS_OP_N)                                                                                 \
    X(CUBLAS_OP_T)                                                                                 \
    X(CUBLAS_COMPUTE_32F)                                                                          \
    X(CUBLAS_COMPUTE_32F_FAST_TF32)                                                                \
    X(CUDA_R_32F)                                                                                  \
    X(CUDA_R_16BF)                                                                                 \
    X(CUDA_R_8F_E4M3)                                                                              \
    X(CUDA_R_4F_E2M1)                                                                              \
    X(CUDA_R_8F_E5M2)                                                                              \
    X(CUBLASLT_MATMUL_DESC_TRANSA)                                                                 \
    X(CUBLASLT_MATMUL_DESC_TRANSB)                                                                 \
    X(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER)                                                        \
    X(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER)                                                        \
    X(CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET)                                                        \
    X(CUBLASLT_MATMUL_DESC_FAST_ACCUM)                                                             \
    X(CUBLASLT_MATMUL_DESC_A_SCALE_MODE)                                                           \
    X(CUBLASLT_MATMUL_DESC_B_SCALE_MODE)                                                           \
    X(CUBLASLT_MATMUL_DESC_POINTER_MODE)                                                           \
    X(CUBLASLT_POINTER_MODE_DEVICE)                                                                \
    X(CUBLASLT_MATMUL_MATRIX_SCALE_VEC16_UE4M3)                                                    \
    X(CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0)                                                    \
    X(CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F)                                                  \
    X(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES)                                                    \
    X(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK)                                                  \
    X(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES)                                                  \
    X(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES)                                                  \
    X(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES)                                                  \
    X(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES)                                                  \
    X(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE)                                                      \
    X(CUDNN_STATUS_SUCCESS)                                                                        \
    X(CUDNN_DATA_FLOAT)                                                                            \
    X(CUDNN_DATA_INT32)                                                                            \
    X(CUDNN_DATA_BFLOAT16)                                                                         \
    X(CUDNN_DATA_INT64)                                                                            \
    X(CUDNN_DATA_BOOLEAN)                                                                          \
    X(CUDNN_HEUR_MODE_A)                                                                           \
    X(CUDNN_REDUCE_TENSOR_ADD)                                                                     \
    X(CUDNN_REDUCE_TENSOR_MAX)                                                                     \
    X(CUDNN_POINTWISE_ADD)                                                                         \
    X(CUDNN_POINTWISE_DIV)                                                                         \
    X(CUDNN_POINTWISE_MUL)                                                                         \
    X(CUDNN_POINTWISE_SUB)                                                                         \
    X(CUDNN_POINTWISE_EXP)                                                                         \
    X(CUDNN_POINTWISE_LOG)                                                                         \
    X(CUDNN_POINTWISE_CMP_GE)                                                                      \
    X(CUDNN_POINTWISE_CMP_LT)                                                                      \
    X(CUDNN_POINTWISE_LOGICAL_AND)                                                                 \
    X(CUDNN_POINTWISE_GEN_INDEX)                                                                   \
    X(CUDNN_POINTWISE_BINARY_SELECT)                                                               \
    X(CUDNN_POINTWISE_IDENTITY)                                                                    \
    X(CUDNN_TYPE_HANDLE)                                                                           \
    X(CUDNN_TYPE_DATA_TYPE)                                                                        \
    X(CUDNN_TYPE_BOOLEAN)                                                                          \
    X(CUDNN_TYPE_INT64)                                                                            \
    X(CUDNN_TYPE_DOUBLE)                                                                           \
    X(CUDNN_TYPE_VOID_PTR)                                                                         \
    X(CUDNN_TYPE_HEUR_MODE)                                                                        \
    X(CUDNN_TYPE_POINTWISE_MODE)                                                                   \
    X(CUDNN_TYPE_BACKEND_DESCRIPTOR)                                                               \
    X(CUDNN_TYPE_REDUCTION_OPERATOR_TYPE)                                                          \
    X(CUDNN_TYPE_CHAR)                                                                             \
    X(CUDNN_BACKEND_POINTWISE_DESCRIPTOR)                                                          \
    X(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR)                                                          \
    X(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR)                                                         \
    X(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR)                                                     \
    X(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR)                                                \
    X(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR)                                                     \
    X(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR)                                                       \
    X(CUDNN_BACKEND_TENSOR_DESCRIPTOR)                                                             \
    X(CUDNN_BACKEND_MATMUL_DESCRIPTOR)                                                             \
    X(CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR)                                                   \
    X(CUDNN_BACKEND_REDUCTION_DESCRIPTOR)                                                          \
    X(CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR)                                                \
    X(CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR)                                                  \
    X(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR)                                                         \
    X(CUDNN_ATTR_POINTWISE_MODE)                                                                   \
    X(CUDNN_ATTR_POINTWISE_MATH_PREC)                                                              \
    X(CUDNN_ATTR_POINTWISE_AXIS)                                                                   \
    X(CUDNN_ATTR_ENGINEHEUR_MODE)                                                                  \
    X(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH)                                                       \
    X(CUDNN_ATTR_ENGINEHEUR_RESULTS)                                                               \
    X(CUDNN_ATTR_ENGINEHEUR_DEVICEPROP)                                                            \
    X(CUDNN_ATTR_EXECUTION_PLAN_HANDLE)                                                            \
    X(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG)                                                     \
    X(CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE)                                                    \
    X(CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION)                                               \
    X(CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP)                                                        \
    X(CUDNN_ATTR_OPERATIONGRAPH_HANDLE)                                                            \
    X(CUDNN_ATTR_OPERATIONGRAPH_OPS)                                                               \
    X(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR)                                                \
    X(CUDNN_ATTR_OPERATION_POINTWISE_XDESC)                                                        \
    X(CUDNN_ATTR_OPERATION_POINTWISE_BDESC)                                                        \
    X(CUDNN_ATTR_OPERATION_POINTWISE_YDESC)                                                        \
    X(CUDNN_ATTR_OPERATION_POINTWISE_TDESC)                                                        \
    X(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT)                                                            \
    X(CUDNN_ATTR_TENSOR_DATA_TYPE)                                                                 \
    X(CUDNN_ATTR_TENSOR_DIMENSIONS)                                                                \
    X(CUDNN_ATTR_TENSOR_STRIDES)                                                                   \
    X(CUDNN_ATTR_TENSOR_UNIQUE_ID)                                                                 \
    X(CUDNN_ATTR_TENSOR_IS_VIRTUAL)                                                                \
    X(CUDNN_ATTR_TENSOR_IS_BY_VALUE)                                                               \
    X(CUDNN_ATTR_TENSOR_RAGGED_OFFSET_DESC)                                                        \
    X(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS)                                                          \
    X(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS)                                                       \
    X(CUDNN_ATTR_VARIANT_PACK_WORKSPACE)                                                           \
    X(CUDNN_ATTR_MATMUL_COMP_TYPE)                                                                 \
    X(CUDNN_ATTR_MATMUL_PADDING_VALUE)                                                             \
    X(CUDNN_ATTR_OPERATION_MATMUL_ADESC)                                                           \
    X(CUDNN_ATTR_OPERATION_MATMUL_BDESC)                                                           \
    X(CUDNN_ATTR_OPERATION_MATMUL_CDESC)                                                           \
    X(CUDNN_ATTR_OPERATION_MATMUL_DESC)                                                            \
    X(CUDNN_ATTR_OPERATION_MATMUL_GEMM_M_OVERRIDE_DESC)                                            \
    X(CUDNN_ATTR_OPERATION_MATMUL_GEMM_N_OVERRIDE_DESC)                                            \
    X(CUDNN_ATTR_OPERATION_MATMUL_GEMM_K_OVERRIDE_DESC)                                            \
    X(CUDNN_ATTR_REDUCTION_OPERATOR)                                                               \
    X(CUDNN_ATTR_REDUCTION_COMP_TYPE)                                                              \
    X(CUDNN_ATTR_OPERATION_REDUCTION_XDESC)                                                        \
    X(CUDNN_ATTR_OPERATION_REDUCTION_YDESC)                                                        \
    X(CUDNN_ATTR_OPERATION_REDUCTION_DESC)                                                         \
    X(CUDNN_ATTR_OPERATION_RESHAPE_XDESC)                                                          \
    X(CUDNN_ATTR_OPERATION_RESHAPE_YDESC)                                                          \
    X(CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION)                                                   \
    X(ncclSuccess)                                                                                 \
    X(ncclInProgress)                                                                              \
    X(ncclSum)                                                                                     \
    X(ncclMax)                                                                                     \
    X(NCCL_WIN_COLL_SYMMETRIC)                                                                     \
    X(NCCL_CTA_POLICY_ZERO)

#define SIZES(X)                                                                                   \
    X(CUDA_MEMCPY2D)                                                                               \
    X(CUmemAllocationProp)                                                                         \
    X(CUmemAccessDesc)                                                                             \
    X(CUmemLocation)                                                                               \
    X(cublasLtMatmulAlgo_t)                                                                        \
    X(cublasLtMatmulHeuristicResult_t)                                                             \
    X(ncclUniqueId)                                                                                \
    X(ncclConfig_t)                                                                                \
    X(CUdeviceptr)

#define PLACES(X)                                                                                  \
    X(CUDA_MEMCPY2D, srcDevice)                                                                    \
    X(CUDA_MEMCPY2D, dstMemoryType)                                                                \
    X(CUDA_MEMCPY2D, dstDevice)                                                                    \
    X(CUDA_MEMCPY2D, Height)                                                                       \
    X(CUmemAllocationProp, location)                                                               \
    X(CUmemAllocationProp, requestedHandleTypes)                                                   \
    X(CUmemAllocationProp, allocFlags)                                                             \
    X(cublasLtMatmulHeuristicResult_t, workspaceSize)                                              \
    X(cublasLtMatmulHeuristicResult_t, state)                                                      \
    X(ncclConfig_t, blocking)                                                                      \
    X(ncclConfig_t, trafficClass)                                                                  \
    X(ncclConfig_t, commName)                                                                      \
    X(ncclConfig_t, CTAPolicy)

#define DECLARED                                                                                   \
    {                                                                                              \
        CONSTANTS(CONSTANT) SIZES(SIZE) PLACES(PLACE)                                              \
        {                                                                                          \
            NULL, 0                                                                                \
        }                                                                                          \
    }
#define CONSTANT(name) {#name, (long)name},
#define SIZE(type) {"sizeof " #type, (long)sizeof(type)},
#define PLACE(type, field) {#type "." #field, (long)offsetof(type, field)},

#endif
