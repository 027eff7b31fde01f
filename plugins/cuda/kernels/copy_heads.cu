/*
 * Copies of heads, and the sums of their gradients: a thread for each element that is written.
 */
#include <ctitan/lib/cuda/device.cuh>

#include "arguments.h"

template <typename T> DEVICE void copy_heads(const gpu_copy_heads &a)
{
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, head = i / a.size;
    int64_t group = (a.first + head % a.heads) / a.share - a.first_group;

    if (i < a.count)
        ((T *)a.to)[i] =
            ((const T *)a.from)[(head / a.heads * a.groups + group) * a.size + i % a.size];
}

template <typename T> DEVICE void copy_heads_grad(const gpu_copy_heads &a)
{
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, group = i / a.size;
    int64_t begin = (a.first_group + group % a.groups) * a.share - a.first, end = begin + a.share;
    const T *from = (const T *)a.from + group / a.groups * a.heads * a.size + i % a.size;
    float sum = 0;

    if (i >= a.count)
        return;
    begin = begin > 0 ? begin : 0;
    end = end < a.heads ? end : a.heads;
    for (int64_t h = begin; h < end; h++)
        sum += to_float(from[h * a.size]);
    ((T *)a.to)[i] = from_float<T>(sum);
}

#define COPY_HEADS(T, dtype)                                                                       \
    KERNEL(copy_heads_##dtype, gpu_copy_heads, 256)                                                \
    {                                                                                              \
        copy_heads<T>(a);                                                                          \
    }                                                                                              \
    KERNEL(copy_heads_grad_##dtype, gpu_copy_heads, 256)                                           \
    {                                                                                              \
        copy_heads_grad<T>(a);                                                                     \
    }
FOR_DTYPES(COPY_HEADS)
