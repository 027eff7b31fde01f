/* The part of cuBLASLt that this plugin calls: its binary interface (see driver.h). */
#ifndef GPU_BLAS_LIBRARY_H
#define GPU_BLAS_LIBRARY_H

#include <ctitan/base.h>

typedef struct cublasLtContext *cublasLtHandle_t;
typedef struct gpu_lt_desc *cublasLtMatmulDesc_t;
typedef struct gpu_lt_layout *cublasLtMatrixLayout_t;
typedef struct gpu_lt_preference *cublasLtMatmulPreference_t;

enum {
    CUBLAS_STATUS_SUCCESS = 0,
    CUBLAS_STATUS_INVALID_VALUE = 7,
    CUBLAS_STATUS_NOT_SUPPORTED = 15,
    CUBLAS_OP_N = 0,
    CUBLAS_OP_T = 1,
    CUBLAS_COMPUTE_32F = 68,
    CUBLAS_COMPUTE_32F_FAST_TF32 = 77,
    CUDA_R_32F = 0,
    CUDA_R_16BF = 14,
    CUDA_R_8F_E4M3 = 28,
    CUDA_R_8F_E5M2 = 29,
    CUDA_R_4F_E2M1 = 33,
    CUBLASLT_MATMUL_DESC_POINTER_MODE = 2,
    CUBLASLT_POINTER_MODE_DEVICE = 1,
    CUBLASLT_MATMUL_DESC_TRANSA = 3,
    CUBLASLT_MATMUL_DESC_TRANSB = 4,
    CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET = 15,
    CUBLASLT_MATMUL_DESC_A_SCALE_POINTER = 17,
    CUBLASLT_MATMUL_DESC_B_SCALE_POINTER = 18,
    CUBLASLT_MATMUL_DESC_FAST_ACCUM = 25,
    CUBLASLT_MATMUL_DESC_A_SCALE_MODE = 31,
    CUBLASLT_MATMUL_DESC_B_SCALE_MODE = 32,
    CUBLASLT_MATMUL_MATRIX_SCALE_VEC16_UE4M3 = 1,
    CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0 = 2,
    CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F = 3,
    CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES = 1,
    CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK = 3,
    CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES = 5,
    CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES = 6,
    CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES = 7,
    CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES = 8,
    CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE = 2,
};

typedef struct {
    uint64_t data[8];
} cublasLtMatmulAlgo_t;

typedef struct {
    cublasLtMatmulAlgo_t algo;
    size_t workspaceSize;
    int state;
    float wavesCount;
    int reserved[4];
} cublasLtMatmulHeuristicResult_t;

#define GPU_BLAS_CALLS(X)                                                                          \
    X(cublasLtGetProperty, (int property, int *value))                                             \
    X(cublasLtCreate, (cublasLtHandle_t * handle))                                                 \
    X(cublasLtDestroy, (cublasLtHandle_t handle))                                                  \
    X(cublasLtMatmulDescCreate, (cublasLtMatmulDesc_t * desc, int compute, int scale))             \
    X(cublasLtMatmulDescDestroy, (cublasLtMatmulDesc_t desc))                                      \
    X(cublasLtMatmulDescSetAttribute,                                                              \
      (cublasLtMatmulDesc_t desc, int attribute, const void *value, size_t bytes))                 \
    X(cublasLtMatrixLayoutCreate,                                                                  \
      (cublasLtMatrixLayout_t * layout, int type, uint64_t rows, uint64_t columns, int64_t ld))    \
    X(cublasLtMatrixLayoutDestroy, (cublasLtMatrixLayout_t layout))                                \
    X(cublasLtMatmulPreferenceCreate, (cublasLtMatmulPreference_t * preference))                   \
    X(cublasLtMatmulPreferenceDestroy, (cublasLtMatmulPreference_t preference))                    \
    X(cublasLtMatmulPreferenceSetAttribute,                                                        \
      (cublasLtMatmulPreference_t preference, int attribute, const void *value, size_t bytes))     \
    X(cublasLtMatmulAlgoGetHeuristic,                                                              \
      (cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, cublasLtMatrixLayout_t a,               \
       cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,               \
       cublasLtMatmulPreference_t preference, int wanted,                                          \
       cublasLtMatmulHeuristicResult_t *results, int *count))                                      \
    X(cublasLtMatmul,                                                                              \
      (cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, const void *alpha, const void *a,       \
       cublasLtMatrixLayout_t a_layout, const void *b, cublasLtMatrixLayout_t b_layout,            \
       const void *beta, const void *c, cublasLtMatrixLayout_t c_layout, void *d,                  \
       cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t *algo, void *workspace,         \
       size_t workspace_bytes, void *stream))

#endif
