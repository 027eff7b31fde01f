/* Weighted cross entropy: a block for each row of logits, then one that sums the losses. */
#include <ctitan/lib/cuda/tokens.cuh>

#include "weighted_cuda.h"

template <typename T> DEVICE void rows(const weighted_call &a)
{
    int64_t row = blockIdx.x;
    const T *x = (const T *)a.logits + row * a.vocabulary;
    double lse = block_log_sum(a.vocabulary, 1.0, logits_of<T>{x});
    int32_t label = a.labels[row];

    if (threadIdx.x != 0)
        return;
    a.lse[row] = (float)lse;
    a.loss[row] = label != CT_CUDA_TOKEN_MASKED &&
                          in_range(CT_CUDA_FAULT_LABEL, label, row, a.vocabulary, a.fault)
                      ? a.weights[row] * (lse - to_float(x[label]))
                      : 0.0;
}

#define ROWS(T, dtype)                                                                             \
    KERNEL(weighted_rows_##dtype, weighted_call, CT_CUDA_TOKEN_THREADS)                            \
    {                                                                                              \
        rows<T>(a);                                                                                \
    }
FOR_DTYPES(ROWS)

KERNEL(weighted_sum, ct_cuda_token_sums, CT_CUDA_TOKEN_THREADS)
{
    sum_tokens(a);
}
