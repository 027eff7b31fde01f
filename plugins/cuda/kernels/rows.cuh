/*
 * The language of rows (ctitan/lib/compiler.h) for CUDA: what plugins generate is compiled with
 * this header when a run is planned, by NVRTC. A worker is a block. Each thread does LANES adjacent
 * columns, then those a block's width further, the same in every loop, so what it writes in one
 * loop it may read in the next.
 */
#ifdef __CUDACC_RTC__ /* which has no headers of its own */
#define INFINITY __int_as_float(0x7f800000)
#endif
#include <ctitan/lib/cuda/device.cuh>

#include "arguments.h"

#define LANES 8

enum ct_dtype { CT_F32, CT_BF16 }; /* pointers say it, too */
typedef gpu_compiled_operand operand;

struct vf {
    float at[LANES];
};
struct vh {
    vector<bfloat16, LANES> bits;
};

#define FOR_LANES(i) _Pragma("unroll") for (int i = 0; i < LANES; i++)

/* ---- rows, columns, results ---- */

struct worker {
    int64_t row, row_end, row_step, column, column_end, sum_step;
    float *sums;
};

#define FOR_ROWS(i) for (int64_t i = worker.row; i < worker.row_end; i += worker.row_step)
#define FOR_COLUMNS(j)                                                                             \
    for (int64_t j = column + (int64_t)threadIdx.x * LANES; j < column_end;                        \
         j += (int64_t)blockDim.x * LANES)
#define FOR_STEPS(j, s)                                                                            \
    for (int64_t j = column + (int64_t)threadIdx.x * LANES, s = 0; j < column_end;                 \
         j += (int64_t)blockDim.x * LANES)
#define PARTS(name, x) vf name[1] = {v_set(x)}
#define SUM(k) (worker.sums + (k)*worker.sum_step)
#define ROW_RESULTS if (row_is_read())

/* Every thread has read what it needs of the row; one of them writes its results. */
DEVICE bool row_is_read()
{
    __syncthreads();
    return threadIdx.x == 0;
}

/* Workers take rows at a distance, or, of one long row, chunks. */
#define ROW_KERNEL                                                                                 \
    DEVICE void on_rows(const operand *in, const operand *out, const struct worker &worker,        \
                        int64_t column, int64_t column_end);                                       \
    KERNEL(compiled, gpu_compiled, 256)                                                            \
    {                                                                                              \
        int64_t width = a.chunk ? a.chunk : a.columns, step = a.chunk ? gridDim.x : 1;             \
        struct worker worker = {a.chunk ? 0 : (int64_t)blockIdx.x, a.rows,                         \
                                a.chunk ? 1 : (int64_t)gridDim.x};                                 \
                                                                                                   \
        worker.sums = a.sums + (int64_t)blockIdx.x * a.columns;                                    \
        worker.sum_step = (int64_t)gridDim.x * a.columns;                                          \
        for (int k = 0; k < a.sum_count; k++)                                                      \
            for (int64_t j = threadIdx.x; j < a.columns; j += blockDim.x)                          \
                SUM(k)[j] = 0;                                                                     \
        __syncthreads();                                                                           \
        for (int64_t c = a.chunk ? blockIdx.x : 0; c * width < a.columns; c += step)               \
            on_rows(a.in, a.out, worker, c *width,                                                 \
                    (c + 1) * width < a.columns ? (c + 1) * width : a.columns);                    \
    }                                                                                              \
    DEVICE void on_rows(const operand *in, const operand *out, const struct worker &worker,        \
                        int64_t column, int64_t column_end)

/* ---- loads and stores ---- */

DEVICE vf v_set(float x)
{
    vf v;

    FOR_LANES(i) v.at[i] = x;
    return v;
}

/* May LANES elements at p be moved as 16-byte vectors? */
DEVICE bool is_whole(const void *p, int64_t left)
{
    return left >= LANES && (uint64_t)p % 16 == 0;
}

DEVICE vf v_get(ct_dtype, const float *p, int64_t j, int64_t n)
{
    vf v;

    if (is_whole(p + j, n - j)) {
        float low[4], high[4];

        load<4>(p + j, low);
        load<4>(p + j + 4, high);
        FOR_LANES(i) v.at[i] = i < 4 ? low[i & 3] : high[i & 3];
        return v;
    }
    FOR_LANES(i) v.at[i] = j + i < n ? p[j + i] : 0;
    return v;
}

DEVICE vf v_get(ct_dtype, const uint16_t *p, int64_t j, int64_t n)
{
    vf v;

    if (is_whole(p + j, n - j)) {
        load<LANES>((const bfloat16 *)p + j, v.at);
        return v;
    }
    FOR_LANES(i) v.at[i] = j + i < n ? to_float(((const bfloat16 *)p)[j + i]) : 0;
    return v;
}

DEVICE void v_put(ct_dtype, float *p, int64_t j, int64_t n, vf v)
{
    if (is_whole(p + j, n - j)) {
        float low[4] = {v.at[0], v.at[1], v.at[2], v.at[3]};
        float high[4] = {v.at[4], v.at[5], v.at[6], v.at[7]};

        store<4>(p + j, low);
        store<4>(p + j + 4, high);
        return;
    }
    FOR_LANES(i)
    if (j + i < n)
        p[j + i] = v.at[i];
}

DEVICE void put_narrow(uint16_t *p, int64_t j, int64_t n, vh h)
{
    if (is_whole(p + j, n - j)) {
        *(vector<bfloat16, LANES> *)(p + j) = h.bits;
        return;
    }
    FOR_LANES(i)
    if (j + i < n)
        p[j + i] = h.bits.at[i].bits;
}

DEVICE vh v_narrow(vf v)
{
    vh h;

    FOR_LANES(i) h.bits.at[i] = from_float<bfloat16>(v.at[i]);
    return h;
}

DEVICE vf v_widen(vh h)
{
    vf v;

    FOR_LANES(i) v.at[i] = to_float(h.bits.at[i]);
    return v;
}

DEVICE void v_put(ct_dtype, uint16_t *p, int64_t j, int64_t n, vf v)
{
    put_narrow(p, j, n, v_narrow(v));
}

DEVICE float widen(uint16_t bits)
{
    return to_float(bfloat16{bits});
}

DEVICE uint16_t narrow(float x)
{
    return from_float<bfloat16>(x).bits;
}

DEVICE vf first(vf v, int64_t n, float rest)
{
    FOR_LANES(i) v.at[i] = i < n ? v.at[i] : rest;
    return v;
}

/* ---- arithmetic ---- */

#define BINARY(operator_, op)                                                                      \
    DEVICE vf operator_(vf a, vf b)                                                                \
    {                                                                                              \
        FOR_LANES(i) a.at[i] = a.at[i] op b.at[i];                                                 \
        return a;                                                                                  \
    }                                                                                              \
    DEVICE vf operator_(vf a, float b)                                                             \
    {                                                                                              \
        FOR_LANES(i) a.at[i] = a.at[i] op b;                                                       \
        return a;                                                                                  \
    }                                                                                              \
    DEVICE vf operator_(float a, vf b)                                                             \
    {                                                                                              \
        FOR_LANES(i) b.at[i] = a op b.at[i];                                                       \
        return b;                                                                                  \
    }
BINARY(operator+, +)
BINARY(operator-, -)
BINARY(operator*, *)
BINARY(operator/, /)

DEVICE vf operator-(vf a)
{
    FOR_LANES(i) a.at[i] = -a.at[i];
    return a;
}

DEVICE vf &operator+=(vf &a, vf b)
{
    return a = a + b;
}

#define f_columns() ((float)columns)
/* f_NAME of a number, w_NAME of each lane. */
#define FUNCTION(name, ...)                                                                        \
    DEVICE float f_##name(float a)                                                                 \
    {                                                                                              \
        return __VA_ARGS__;                                                                        \
    }                                                                                              \
    DEVICE vf w_##name(vf v)                                                                       \
    {                                                                                              \
        FOR_LANES(i) v.at[i] = f_##name(v.at[i]);                                                  \
        return v;                                                                                  \
    }
FUNCTION(exp, expf(a))
FUNCTION(log, logf(a))
FUNCTION(log1p, log1pf(a))
FUNCTION(tanh, tanhf(a))
FUNCTION(erf, erff(a))
FUNCTION(sin, sinf(a))
FUNCTION(cos, cosf(a))
FUNCTION(sqrt, sqrtf(a))
FUNCTION(abs, fabsf(a))
FUNCTION(sigmoid, 1.0f / (1.0f + expf(-a)))
FUNCTION(bfloat16, rounded<bfloat16>(a))

#define FUNCTION_OF_TWO(name, ...)                                                                 \
    DEVICE float f_##name(float a, float b)                                                        \
    {                                                                                              \
        return __VA_ARGS__;                                                                        \
    }                                                                                              \
    DEVICE vf w_##name(vf v, vf w)                                                                 \
    {                                                                                              \
        FOR_LANES(i) v.at[i] = f_##name(v.at[i], w.at[i]);                                         \
        return v;                                                                                  \
    }
FUNCTION_OF_TWO(min, a < b ? a : b)
FUNCTION_OF_TWO(max, a > b ? a : b)
FUNCTION_OF_TWO(pow, powf(a, b))
FUNCTION_OF_TWO(less, a < b ? 1.0f : 0.0f)
FUNCTION_OF_TWO(greater, a > b ? 1.0f : 0.0f)

DEVICE vf w_select(vf condition, vf yes, vf no)
{
    FOR_LANES(i) yes.at[i] = condition.at[i] != 0.0f ? yes.at[i] : no.at[i];
    return yes;
}

/* ---- reductions ---- */

/* NaN stays. */
DEVICE float larger(float a, float b)
{
    return a < b || b != b ? b : a;
}

DEVICE vf v_max(vf a, vf b)
{
    FOR_LANES(i) a.at[i] = larger(a.at[i], b.at[i]);
    return a;
}

DEVICE float total(const vf *part)
{
    float sum = 0;

    FOR_LANES(i) sum += part->at[i];
    return block_sum(sum);
}

DEVICE float largest(const vf *part)
{
    __shared__ float of_warp[32];
    float x = part->at[0];

    FOR_LANES(i) x = larger(x, part->at[i]);
#pragma unroll
    for (int step = 16; step; step >>= 1)
        x = larger(x, __shfl_xor_sync(ALL_LANES, x, step));
    __syncthreads();
    if (flat_thread() % 32 == 0)
        of_warp[flat_thread() / 32] = x;
    __syncthreads();
    for (int i = 0; i < flat_threads() / 32; i++)
        x = larger(x, of_warp[i]);
    return x;
}
