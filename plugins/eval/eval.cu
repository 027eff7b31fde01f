/* Scores of labels: a block for each row of logits, then one for each sequence's sums. */
#include <ctitan/lib/cuda/tokens.cuh>

#include "eval_cuda.h"

/* The first of the largest; rows have at most 2^24 numbers, which float32 counts. */
template <typename T> DEVICE int64_t likeliest(const T *x, int64_t count)
{
    float most = -INFINITY, first = -INFINITY;

    for (int64_t i = threadIdx.x; i < count; i += blockDim.x)
        most = fmaxf(most, to_float(x[i]));
    most = block_max(most);
    for (int64_t i = threadIdx.x; i < count; i += blockDim.x)
        if (to_float(x[i]) == most)
            first = fmaxf(first, -(float)i);
    first = block_max(first);
    return first == -INFINITY ? 0 : (int64_t)-first;
}

template <typename T> DEVICE void rows(const eval_call &a)
{
    int64_t row = blockIdx.x;
    const T *x = logits_at<T>(a.in, row);
    double *to = a.numbers + row * EVAL_NUMBERS;
    int32_t label = label_at(a.in, row);

    if (label == CT_CUDA_TOKEN_MASKED) { /* all threads alike */
        if (threadIdx.x == 0)
            to[0] = to[1] = to[2] = 0;
        return;
    }
    double lse = block_log_sum(a.in.vocabulary, 1.0, logits_of<T>{x});
    int64_t best = likeliest(x, a.in.vocabulary);

    if (threadIdx.x == 0) {
        to[0] = to_float(x[label]) - lse;
        to[1] = best != label;
        to[2] = (double)best;
    }
}

#define ROWS(T, dtype)                                                                             \
    KERNEL(eval_rows_##dtype, eval_call, CT_CUDA_TOKEN_THREADS)                                    \
    {                                                                                              \
        rows<T>(a);                                                                                \
    }
FOR_DTYPES(ROWS)

KERNEL(eval_sums, ct_cuda_token_sums, CT_CUDA_TOKEN_THREADS)
{
    sum_tokens(a);
}
