/*
 * The language of kernels for CUDA (ctitan/lib/cuda.h): the form of a kernel, numbers, vectors of
 * 16 bytes, sums and maxima over a block.
 *
 * A kernel takes one struct by value. KERNEL(name, struct type, largest block) begins it. The
 * simulated device says some of it otherwise, behind SIMULATED (simulator.h).
 */
#ifndef CT_CUDA_DEVICE_CUH
#define CT_CUDA_DEVICE_CUH

#include <ctitan/lib/cuda/arguments.h>

#ifdef SIMULATED
#include <ctitan/lib/cuda/simulated.cuh>
#else
#define KERNEL(name, type, threads)                                                                \
    extern "C" __global__ void __launch_bounds__(threads) name(const __grid_constant__ type a)
#define DEVICE static __device__ __forceinline__
#define DEVICE_MEMBER __device__ __forceinline__
#define DYNAMIC_SHARED(type, name)                                                                 \
    extern __shared__ __align__(16) unsigned char shared_bytes[];                                  \
    type *name = (type *)shared_bytes
#endif

#define ALL_LANES 0xffffffffu
#define COMMA , /* in an argument of a macro */

/* ---- numbers ---- */

struct bfloat16 {
    uint16_t bits;
};

DEVICE float to_float(float x)
{
    return x;
}

DEVICE float to_float(bfloat16 x)
{
    return __uint_as_float((uint32_t)x.bits << 16);
}

DEVICE void convert(float x, float &y)
{
    y = x;
}

DEVICE void convert(float x, bfloat16 &y)
{
#ifdef SIMULATED
    y.bits = simulated_bfloat16(x);
#else
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
#endif
}

template <typename T> DEVICE T from_float(float x)
{
    T y;

    convert(x, y);
    return y;
}

/* x as T would hold it */
template <typename T> DEVICE float rounded(float x)
{
    return to_float(from_float<T>(x));
}

DEVICE double load_scalar(const void *p, int kind)
{
    return kind == CT_CUDA_F64    ? *(const double *)p
           : kind == CT_CUDA_BF16 ? (double)to_float(*(const bfloat16 *)p)
                                  : (double)*(const float *)p;
}

DEVICE void store_scalar(void *p, int kind, double x)
{
    if (kind == CT_CUDA_F64)
        *(double *)p = x;
    else if (kind == CT_CUDA_BF16)
        *(bfloat16 *)p = from_float<bfloat16>((float)x);
    else
        *(float *)p = (float)x;
}

/* ---- vectors ---- */

template <typename T, int W> struct alignas(W * sizeof(T)) vector {
    T at[W];
};

/* W elements at p, which is a multiple of W elements. */
template <int W, typename T> DEVICE void load(const T *p, float (&x)[W])
{
    vector<T, W> v = *(const vector<T, W> *)p;
#pragma unroll
    for (int i = 0; i < W; i++)
        x[i] = to_float(v.at[i]);
}

template <int W, typename T> DEVICE void store(T *p, const float (&x)[W])
{
    vector<T, W> v;
#pragma unroll
    for (int i = 0; i < W; i++)
        v.at[i] = from_float<T>(x[i]);
    *(vector<T, W> *)p = v;
}

template <int W, typename T> DEVICE void widen(const vector<T, W> &v, float (&x)[W])
{
#pragma unroll
    for (int i = 0; i < W; i++)
        x[i] = to_float(v.at[i]);
}

/* As load and store, for what nobody reads again soon: past the L2 cache, where a vector has 16
   bytes. */
template <typename T, int W> DEVICE vector<T, W> load_streaming(const vector<T, W> *p)
{
#ifndef SIMULATED
    if (sizeof(vector<T, W>) == 16) {
        union {
            uint4 bits;
            vector<T, W> v;
        } x = {__ldcs((const uint4 *)p)};

        return x.v;
    }
#endif
    return *p;
}

template <int W, typename T> DEVICE void store_streaming(T *p, const float (&x)[W])
{
    vector<T, W> v;

#pragma unroll
    for (int i = 0; i < W; i++)
        v.at[i] = from_float<T>(x[i]);
#ifndef SIMULATED
    if (sizeof(v) == 16) {
        __stcs((uint4 *)p, *(const uint4 *)&v);
        return;
    }
    if (sizeof(v) == 8) {
        __stcs((uint2 *)p, *(const uint2 *)&v);
        return;
    }
#endif
    *(vector<T, W> *)p = v;
}

/* For operands whose dtype is known when the kernel runs only. */
template <int W> DEVICE void load_as(int kind, const void *p, int64_t at, float (&x)[W])
{
    if (kind == CT_CUDA_BF16)
        load<W>((const bfloat16 *)p + at, x);
    else
        load<W>((const float *)p + at, x);
}

template <int W> DEVICE void store_as(int kind, void *p, int64_t at, const float (&x)[W])
{
    if (kind == CT_CUDA_BF16)
        store<W>((bfloat16 *)p + at, x);
    else
        store<W>((float *)p + at, x);
}

/* Elements of a vector of 16 bytes. */
template <typename T> struct lanes {
    enum { of = 16 / sizeof(T) };
};

/* ---- sums and maxima over a block ---- */

DEVICE int flat_thread()
{
    return (int)(threadIdx.x + threadIdx.y * blockDim.x);
}

DEVICE int flat_threads()
{
    return (int)(blockDim.x * blockDim.y);
}

template <typename T> DEVICE T warp_sum(T x)
{
#pragma unroll
    for (int step = 16; step; step >>= 1)
        x += __shfl_xor_sync(ALL_LANES, x, step);
    return x;
}

/* The sum of all threads' x, for all of them; blocks are whole warps. Always in the same order. */
template <typename T> DEVICE T block_sum(T x)
{
    __shared__ T of_warp[32];
    int warp = flat_thread() / 32, warps = flat_threads() / 32;
    T sum = 0;

    x = warp_sum(x);
    __syncthreads();
    if (flat_thread() % 32 == 0)
        of_warp[warp] = x;
    __syncthreads();
    for (int i = 0; i < warps; i++)
        sum += of_warp[i];
    return sum;
}

DEVICE float warp_max(float x)
{
#pragma unroll
    for (int step = 16; step; step >>= 1)
        x = fmaxf(x, __shfl_xor_sync(ALL_LANES, x, step));
    return x;
}

/* The largest x of all threads, for all of them; blocks are whole warps. */
DEVICE float block_max(float x)
{
    __shared__ float of_warp[32];
    int warps = flat_threads() / 32;
    float most;

    x = warp_max(x);
    __syncthreads();
    if (flat_thread() % 32 == 0)
        of_warp[flat_thread() / 32] = x;
    __syncthreads();
    most = of_warp[0];
    for (int i = 1; i < warps; i++)
        most = fmaxf(most, of_warp[i]);
    return most;
}

/* The sum of x over this lane and those below. */
DEVICE int32_t sum_up_to_lane(int32_t x)
{
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        int32_t below = __shfl_up_sync(ALL_LANES, x, step);

        x += (int)threadIdx.x % 32 >= step ? below : 0;
    }
    return x;
}

/* The sum of x over the threads before this one; *sum: over all. */
DEVICE int32_t sum_before_thread(int32_t x, int32_t *sum)
{
    __shared__ int32_t of_warp[32];
    int warp = (int)threadIdx.x / 32, warps = (int)blockDim.x / 32;
    int32_t to = sum_up_to_lane(x), before = to - x;

    __syncthreads();
    if (threadIdx.x % 32 == 31)
        of_warp[warp] = to;
    __syncthreads();
    *sum = 0;
    for (int w = 0; w < warps; w++) {
        before += w < warp ? of_warp[w] : 0;
        *sum += of_warp[w];
    }
    return before;
}

/* Every kernel on T: NAME(T, suffix) for each dtype. */
#define FOR_DTYPES(NAME) NAME(float, float32) NAME(bfloat16, bfloat16)

/* Is an index from the data in range? If not, it is noted. */
DEVICE bool in_range(int32_t kind, int64_t value, int64_t position, int64_t limit,
                     ct_cuda_fault *fault)
{
    if (value >= 0 && value < limit)
        return true;
    fault->value = value;
    fault->position = position;
    fault->limit = limit;
    fault->kind = kind;
    return false;
}

#endif
