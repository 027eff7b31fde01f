/*
 * Rows times a number each: one that is given, or the inverse of the root of their mean square; the
 * gradients; ones, and all numbers times one. A row has `lanes` threads of one warp.
 */
#include <ctitan/lib/cuda/device.cuh>

#include "arguments.h"

/* A row, and this thread's first element of it. */
struct place {
    int64_t row, at;
    int first;
    bool exists;
};

template <int W> DEVICE place own_place(const gpu_scale_rows &a)
{
    int64_t row = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) / a.lanes;

    return {row, row * a.columns, ((int)threadIdx.x & (a.lanes - 1)) * W, row < a.rows};
}

/* The sum over all threads of a row. */
DEVICE float sum_of_row(const gpu_scale_rows &a, float x)
{
    for (int step = a.lanes / 2; step; step >>= 1)
        x += __shfl_xor_sync(ALL_LANES, x, step);
    return x;
}

/* x . y over this thread's elements of a row. */
template <typename T, int W>
DEVICE float product(const gpu_scale_rows &a, const place &p, const void *x, const void *y)
{
    float sum = 0;

    for (int64_t i = p.first; p.exists && i < a.columns; i += a.lanes * W) {
        float v[W], w[W];

        load<W>((const T *)x + p.at + i, v);
        load<W>((const T *)y + p.at + i, w);
#pragma unroll
        for (int k = 0; k < W; k++)
            sum += v[k] * w[k];
    }
    return sum;
}

/* out = factor x - less y, plus out if it accumulates. y NULL: zeros. */
template <typename T, int W>
DEVICE void write(const gpu_scale_rows &a, const place &p, const void *x, float factor,
                  const void *y, float less)
{
    for (int64_t i = p.first; p.exists && i < a.columns; i += a.lanes * W) {
        float v[W], w[W] = {}, before[W] = {};

        load<W>((const T *)x + p.at + i, v);
        if (y)
            load<W>((const T *)y + p.at + i, w);
        if (a.accumulate & 1)
            load<W>((const T *)a.out + p.at + i, before);
#pragma unroll
        for (int k = 0; k < W; k++)
            v[k] = factor * v[k] - less * w[k] + before[k];
        store<W>((T *)a.out + p.at + i, v);
    }
}

template <typename T, int W> DEVICE void scale_rows(const gpu_scale_rows &a)
{
    place p = own_place<W>(a);

    write<T, W>(a, p, a.x, p.exists ? a.w[p.row] : 0.0f, NULL, 0.0f);
}

template <typename T, int W> DEVICE void scale_rows_grad(const gpu_scale_rows &a)
{
    place p = own_place<W>(a);
    float dot = sum_of_row(a, product<T, W>(a, p, a.dy, a.x));

    write<T, W>(a, p, a.dy, p.exists ? a.w[p.row] : 0.0f, NULL, 0.0f);
    if (p.exists && p.first == 0)
        a.of_row[p.row] = a.accumulate >> 1 & 1 ? a.of_row[p.row] + dot : dot;
}

template <typename T, int W> DEVICE void rms_norm_plain(const gpu_scale_rows &a)
{
    place p = own_place<W>(a);
    float square = sum_of_row(a, product<T, W>(a, p, a.x, a.x));
    float rstd = 1.0f / sqrtf(square / (float)a.columns + a.eps);

    write<T, W>(a, p, a.x, rstd, NULL, 0.0f);
    if (p.exists && p.first == 0)
        a.of_row[p.row] = rstd;
}

template <typename T, int W> DEVICE void rms_norm_plain_grad(const gpu_scale_rows &a)
{
    place p = own_place<W>(a);
    float rstd = p.exists ? a.w[p.row] : 0.0f;
    float mean = sum_of_row(a, product<T, W>(a, p, a.dy, a.x)) / (float)a.columns;

    write<T, W>(a, p, a.dy, rstd, a.x, rstd * rstd * rstd * mean);
}

#define ROWS_AT(T, W, suffix)                                                                      \
    KERNEL(scale_rows_##suffix, gpu_scale_rows, 256)                                               \
    {                                                                                              \
        scale_rows<T, W>(a);                                                                       \
    }                                                                                              \
    KERNEL(scale_rows_grad_##suffix, gpu_scale_rows, 256)                                          \
    {                                                                                              \
        scale_rows_grad<T, W>(a);                                                                  \
    }                                                                                              \
    KERNEL(rms_norm_plain_##suffix, gpu_scale_rows, 256)                                           \
    {                                                                                              \
        rms_norm_plain<T, W>(a);                                                                   \
    }                                                                                              \
    KERNEL(rms_norm_plain_grad_##suffix, gpu_scale_rows, 256)                                      \
    {                                                                                              \
        rms_norm_plain_grad<T, W>(a);                                                              \
    }
#define ROWS(T, dtype)                                                                             \
    ROWS_AT(T, 1, dtype)                                                                           \
    ROWS_AT(T, lanes<T>::of, dtype##_vector)
FOR_DTYPES(ROWS)

KERNEL(ones, gpu_ones, 256)
{
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;

    if (i < a.count)
        a.out[i] = 1.0f;
}

#define SCALE(T, dtype)                                                                            \
    KERNEL(scale_##dtype, gpu_scale, 256)                                                          \
    {                                                                                              \
        int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;                                \
                                                                                                   \
        if (i < a.count)                                                                           \
            ((T *)a.out)[i] = from_float<T>(a.factor * to_float(((const T *)a.x)[i]));             \
    }
FOR_DTYPES(SCALE)
