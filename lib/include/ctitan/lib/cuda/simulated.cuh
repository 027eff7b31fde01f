/*
 * CUDA's language for kernels, as far as the plugins' use it, in terms of the simulator.
 */
#ifndef CT_CUDA_SIMULATED_CUH
#define CT_CUDA_SIMULATED_CUH

#include <math.h>
#include <string.h>

#include <ctitan/lib/cuda/simulator.h>

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

template <typename T> static inline T __shfl_up_sync(unsigned lanes, T x, unsigned by)
{
    const uint32_t(*all)[SIMULATED_WORDS] = simulated_exchange(&x, sizeof(x));
    unsigned lane = simulated_thread.x % 32;

    (void)lanes;
    memcpy(&x, all[lane < by ? lane : lane - by], sizeof(x));
    return x;
}

template <typename T> static inline T __shfl_sync(unsigned lanes, T x, int lane)
{
    const uint32_t(*all)[SIMULATED_WORDS] = simulated_exchange(&x, sizeof(x));

    (void)lanes;
    memcpy(&x, all[lane % 32], sizeof(x));
    return x;
}

/* Register i holds element pair lane % 4 of row lane / 4 of the 8 x 8 matrix whose rows are where
   lanes 8 i to 8 i + 7 say; transposed: of its transpose. */
static inline void simulated_load_matrices(uint32_t (&r)[4], const void *row, bool transposed)
{
    const uint32_t(*all)[SIMULATED_WORDS] = simulated_exchange(&row, sizeof(row));
    unsigned lane = simulated_thread.x % 32, pair = lane % 4 * 2;

    for (int i = 0; i < 4; i++) {
        uint32_t word = 0;

        for (unsigned half = 0; half < 2; half++) {
            unsigned at_row = transposed ? pair + half : lane / 4;
            const uint16_t *from;

            memcpy(&from, all[8 * i + (int)at_row], sizeof(from));
            word |= (uint32_t)from[transposed ? lane / 4 : pair + half] << 16 * half;
        }
        r[i] = word;
    }
}

/* c += a b, 16 x 8 x 16, with the lanes' elements as mma.m16n8k16 has them. */
static inline void simulated_multiply_add(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                          uint32_t b1)
{
    uint32_t mine[SIMULATED_WORDS] = {a[0], a[1], a[2], a[3], b0, b1};
    const uint32_t(*all)[SIMULATED_WORDS] = simulated_exchange(mine, sizeof(mine));
    unsigned lane = simulated_thread.x % 32;

    for (unsigned i = 0; i < 4; i++) {
        unsigned row = lane / 4, column = lane % 4 * 2 + i % 2;

        for (unsigned k = 0; k < 16; k++) {
            uint32_t x = all[row * 4 + k % 8 / 2][i / 2 + k / 8 * 2];
            uint32_t y = all[column * 4 + k % 8 / 2][4 + k / 8];
            uint32_t x_bits = k % 2 ? x & 0xffff0000u : x << 16;
            uint32_t y_bits = k % 2 ? y & 0xffff0000u : y << 16;
            float xf, yf;

            memcpy(&xf, &x_bits, sizeof(xf));
            memcpy(&yf, &y_bits, sizeof(yf));
            c[i] += xf * yf;
        }
    }
}

/* Element k of row i of an operand of wgmma, as its descriptor says (PTX ISA), where a row of 128
   bytes has its chunks of 16 bytes permuted by bits 7 to 9 of their addresses. */
static inline float simulated_operand(uint64_t descriptor, bool turned, unsigned i, unsigned k)
{
    uint64_t start = (descriptor & 0x3fff) << 4, leading = (descriptor >> 16 & 0x3fff) << 4;
    uint64_t stride = (descriptor >> 32 & 0x3fff) << 4;
    uint64_t at = start + (turned ? i / 64 * leading + i % 64 * 2 + k / 8 * stride + k % 8 * 128
                                  : i / 8 * stride + i % 8 * 128 + k * 2);
    uint32_t bits;
    uint16_t x;
    float value;

    memcpy(&x, simulated_shared + (at ^ (at >> 7 & 7) << 4), sizeof(x));
    bits = (uint32_t)x << 16;
    memcpy(&value, &bits, sizeof(value));
    return descriptor >> 62 == 1 ? value : NAN;
}

/* c += a b^T, 64 x 256 x 16, with a warpgroup's sums as wgmma has them. */
static inline void simulated_wgmma(float (&c)[128], uint64_t a, uint64_t b, bool a_turned,
                                   bool b_turned)
{
    unsigned lane = simulated_thread.x % 32, warp = simulated_thread.x / 32 % 4;
    float x[2][16];

    for (unsigned half = 0; half < 2; half++)
        for (unsigned k = 0; k < 16; k++)
            x[half][k] = simulated_operand(a, a_turned, warp * 16 + half * 8 + lane / 4, k);
    for (unsigned j = 0; j < 64; j++) {
        unsigned column = j / 2 * 8 + lane % 4 * 2 + j % 2;

        for (unsigned k = 0; k < 16; k++) {
            float y = simulated_operand(b, b_turned, column, k);

            c[j / 2 * 4 + j % 2] += x[0][k] * y;
            c[j / 2 * 4 + 2 + j % 2] += x[1][k] * y;
        }
    }
}

static inline int min(int x, int y)
{
    return x < y ? x : y;
}

static inline int max(int x, int y)
{
    return x > y ? x : y;
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

/* Rounded apart: the compiler of the device joins products and sums. */
static inline float __fmul_rn(float x, float y)
{
    return x * y;
}

static inline float __fadd_rn(float x, float y)
{
    return x + y;
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
