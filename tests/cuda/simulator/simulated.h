/*
 * CUDA's language for kernels, as far as the plugin's use it, in terms of the simulator.
 */
#ifndef SIMULATED_H
#define SIMULATED_H

#include <math.h>
#include <string.h>

#include "simulator.h"

#define KERNEL(name, type, threads)                                                                \
    extern "C" __attribute__((visibility("default"))) const size_t name##_bytes;                   \
    const size_t name##_bytes = sizeof(struct type);                                               \
    static void name##_body(const struct type &a);                                                 \
    extern "C" __attribute__((visibility("default"))) void name(const void *arguments)             \
    {                                                                                              \
        struct type copy;                                                                          \
        memcpy((void *)&copy, arguments, sizeof(copy));                                            \
        name##_body(copy);                                                                         \
    }                                                                                              \
    static void name##_body(const struct type &a)
#define DEVICE static inline
#define DEVICE_MEMBER inline
#define DYNAMIC_SHARED(type, name) type *name = (type *)simulated_shared

#define __shared__ static
#define threadIdx simulated_thread
#define blockIdx simulated_block
#define blockDim simulated_threads
#define gridDim simulated_blocks

#define __syncthreads simulated_barrier
#define __syncthreads_or simulated_barrier_or
#define __syncwarp simulated_warp_barrier
#define __popc __builtin_popcount

template <typename T> static inline T __shfl_xor_sync(unsigned lanes, T x, int mask)
{
    uint64_t bits = 0;

    (void)lanes;
    memcpy(&bits, &x, sizeof(x));
    bits = simulated_shuffle_xor(bits, mask);
    memcpy(&x, &bits, sizeof(x));
    return x;
}

static inline uint32_t __ballot_sync(unsigned lanes, bool x)
{
    (void)lanes;
    return simulated_ballot(x);
}

static inline int __ffs(int x)
{
    return __builtin_ffs(x);
}

static inline int atomicMin(int *at, int x)
{
    int old = *at;

    *at = x < old ? x : old;
    return old;
}

static inline int atomicAdd(int *at, int x)
{
    int old = *at;

    *at = old + x;
    return old;
}

static inline float __uint_as_float(uint32_t bits)
{
    float x;

    memcpy(&x, &bits, sizeof(x));
    return x;
}

static inline uint32_t __float_as_uint(float x)
{
    uint32_t bits;

    memcpy(&bits, &x, sizeof(bits));
    return bits;
}

static inline void sincospif(float x, float *s, float *c)
{
    *s = (float)sin(M_PI * (double)x);
    *c = (float)cos(M_PI * (double)x);
}

#endif
