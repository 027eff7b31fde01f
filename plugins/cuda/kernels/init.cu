/*
 * Initial weights. An element's number depends on the seed, the parameter's name and the element's
 * index in the whole parameter: the generator is that of ctitan/rng.h.
 */
#include <ctitan/lib/cuda/device.cuh>

#include "arguments.h"
#include "philox.cuh"

DEVICE float normal(uint64_t seed, uint64_t stream, uint64_t index)
{
    philox c = draw(seed, stream, index / 4);
    float first = uniform(index & 2 ? c.v[2] : c.v[0]);
    float second = uniform(index & 2 ? c.v[3] : c.v[1]);
    float radius = sqrtf(-2.0f * logf(first)), s, cosine;

    sincospif(2.0f * second, &s, &cosine);
    return radius * (index & 1 ? s : cosine);
}

DEVICE uint64_t global_index(const gpu_init &a, int64_t i)
{
    uint64_t index = 0, stride = 1;

    for (int d = a.rank - 1; d >= 0; d--) {
        index += (uint64_t)(a.offset[d] + i % a.size[d]) * stride;
        stride *= (uint64_t)a.global[d];
        i /= a.size[d];
    }
    return index;
}

DEVICE void put(const gpu_init &a, int64_t i, double x)
{
    if (a.kind == CT_CUDA_BF16)
        ((bfloat16 *)a.out)[i] = from_float<bfloat16>((float)x);
    else
        ((float *)a.out)[i] = (float)x;
}

KERNEL(init_normal, gpu_init, 256)
{
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    uint64_t stream = a.stream, index;
    float n;

    if (i >= a.count)
        return;
    index = global_index(a, i);
    n = normal(a.seed, stream, index);
    while (a.truncate > 0 && fabs((double)n) > a.truncate)
        n = normal(a.seed, stream += 0x9E3779B97F4A7C15u, index);
    put(a, i, a.std * (double)n);
}

KERNEL(init_uniform, gpu_init, 256)
{
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    uint64_t index;
    uint32_t bits;
    philox c;

    if (i >= a.count)
        return;
    index = global_index(a, i);
    c = draw(a.seed, a.stream, index / 4);
    if (index & 2)
        bits = index & 1 ? c.v[3] : c.v[2];
    else
        bits = index & 1 ? c.v[1] : c.v[0];
    put(a, i, a.value + a.std * (double)uniform(bits));
}

KERNEL(init_constant, gpu_init, 256)
{
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;

    if (i < a.count)
        put(a, i, a.value);
}
