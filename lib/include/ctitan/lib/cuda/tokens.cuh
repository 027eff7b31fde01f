/*
 * Device functions for losses of tokens (tokens.h): the logarithm of a sum of exponentials, sums by
 * sequence. All threads of a block call them, and all get the result, which is summed in a fixed
 * order. Exponentials are float32, their sums float64.
 */
#ifndef CT_CUDA_TOKENS_CUH
#define CT_CUDA_TOKENS_CUH

#include <ctitan/lib/cuda/device.cuh>
#include <ctitan/lib/cuda/tokens.h>

template <typename T> DEVICE const T *logits_at(const ct_cuda_tokens &in, int64_t row)
{
    return (const T *)in.logits + row * in.vocabulary;
}

/* The label of a row, the same for all threads: the masked one where it is out of range, too, which
   is noted. */
DEVICE int32_t label_at(const ct_cuda_tokens &in, int64_t row)
{
    int32_t label = in.labels[row];

    if (label == CT_CUDA_TOKEN_MASKED || (label >= 0 && label < in.vocabulary))
        return label;
    if (threadIdx.x == 0)
        in_range(CT_CUDA_FAULT_LABEL, label, row, in.vocabulary, in.fault);
    return CT_CUDA_TOKEN_MASKED;
}

/* The logarithm of the sum of exp(number(i) * inverse), i below count, inverse being that of a
   temperature; -INFINITY adds nothing. */
template <typename F> DEVICE double block_log_sum(int64_t count, double inverse, F number)
{
    float most = -INFINITY;
    double sum = 0;

    for (int64_t i = threadIdx.x; i < count; i += blockDim.x)
        most = fmaxf(most, number(i));
    most = block_max(most);
    for (int64_t i = threadIdx.x; i < count; i += blockDim.x) {
        float x = number(i);

        sum += x == -INFINITY ? 0.0 : (double)expf((float)(((double)x - most) * inverse));
    }
    return most * inverse + log(block_sum(sum));
}

/* The sums of a block's sequence. */
DEVICE void sum_tokens(const ct_cuda_token_sums &a)
{
    int64_t bytes = a.kind == CT_CUDA_F64 ? 8 : a.kind == CT_CUDA_F32 ? 4 : 2;

    for (int k = 0; k < a.count; k++) {
        const double *from = a.numbers + blockIdx.x * a.tokens * a.count + k;
        double sum = 0;

        for (int64_t t = threadIdx.x; t < a.tokens; t += blockDim.x)
            sum += from[t * a.count];
        sum = block_sum(sum);
        if (threadIdx.x == 0 && a.sum[k])
            store_scalar((char *)a.sum[k] + blockIdx.x * bytes, a.kind, sum);
    }
}

/* Logits of a row, as float32. */
template <typename T> struct logits_of {
    const T *x;
    DEVICE_MEMBER float operator()(int64_t i) const
    {
        return to_float(x[i]);
    }
};

#endif
