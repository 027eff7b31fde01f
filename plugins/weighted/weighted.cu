/* Weighted cross entropy: a block for each row of logits, then one that sums the losses. */
#include <ctitan/lib/cuda/tokens.cuh>

#include "weighted_cuda.h"

template <typename T> DEVICE void rows(const weighted_call &a)
{
    int64_t row = blockIdx.x;
    const T *x = logits_at<T>(a.in, row);
    double lse = block_log_sum(a.in.vocabulary, 1.0, logits_of<T>{x});
    int32_t label = label_at(a.in, row);

    if (threadIdx.x != 0)
        return;
    a.lse[row] = (float)lse;
    a.loss[row] = label == CT_CUDA_TOKEN_MASKED ? 0.0 : a.weights[row] * (lse - to_float(x[label]));
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
