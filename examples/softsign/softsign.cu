/* The op and its gradient for CUDA: a thread computes one element, in float32. */
#include <ctitan/lib/cuda/device.cuh>

#include "softsign.h"

DEVICE int64_t own_element()
{
    return (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
}

template <typename T> DEVICE void forward(const softsign_call &a)
{
    int64_t i = own_element();

    if (i < a.count) {
        float x = to_float(((const T *)a.x)[i]);

        ((T *)a.out)[i] = from_float<T>(x / (1.0f + fabsf(x)));
    }
}

template <typename T> DEVICE void backward(const softsign_call &a)
{
    int64_t i = own_element();

    if (i < a.count) {
        float share = 1.0f / (1.0f + fabsf(to_float(((const T *)a.x)[i])));

        ((T *)a.out)[i] = from_float<T>(to_float(((const T *)a.dy)[i]) * share * share);
    }
}

/* Functions are named after the op and the dtype. */
#define ON(T, dtype)                                                                               \
    KERNEL(softsign_##dtype, softsign_call, THREADS)                                               \
    {                                                                                              \
        forward<T>(a);                                                                             \
    }                                                                                              \
    KERNEL(softsign_grad_##dtype, softsign_call, THREADS)                                          \
    {                                                                                              \
        backward<T>(a);                                                                            \
    }
FOR_DTYPES(ON)
