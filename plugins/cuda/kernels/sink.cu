/*
 * A sink of attention: rows of o[b, t, h, v] times w = 1 / (1 + exp(sink - lse)), and the gradient.
 * A row has `lanes` threads of one warp.
 */
#include <ctitan/lib/cuda/device.cuh>

#include "arguments.h"

/* A row, and this thread's place in it. */
struct sink_row {
    int64_t b, t, h;
    int lane;
    bool exists;
    float w, rest; /* w and 1 - w */
};

/* The exponential is of the negative distance: 1 - w is exact where w is 1, too. */
DEVICE void weigh(sink_row &r, float lse, float sink)
{
    float e = expf(-fabsf(sink - lse)), larger = 1.0f / (1.0f + e), smaller = e * larger;

    if (lse == -INFINITY) {
        r.w = 0.0f;
        r.rest = 1.0f;
    } else if (sink > lse) {
        r.w = smaller;
        r.rest = larger;
    } else {
        r.w = larger;
        r.rest = smaller;
    }
}

template <typename T> DEVICE sink_row own_row(const gpu_sink &a, int64_t row)
{
    sink_row r = {row / a.heads / a.tokens,
                  row / a.heads % a.tokens,
                  row % a.heads,
                  (int)threadIdx.x & (a.lanes - 1),
                  row < a.rows,
                  0.0f,
                  0.0f};

    if (r.exists)
        weigh(r, a.lse[r.b * a.lse_stride[0] + r.h * a.lse_stride[1] + r.t],
              to_float(((const T *)a.sink)[r.h]));
    return r;
}

DEVICE int64_t place(const int64_t *stride, const sink_row &r)
{
    return r.b * stride[0] + r.t * stride[1] + r.h * stride[2];
}

DEVICE int64_t row_of_thread(const gpu_sink &a)
{
    return ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) / a.lanes;
}

template <typename T, int W> DEVICE void sink(const gpu_sink &a)
{
    sink_row r = own_row<T>(a, row_of_thread(a));
    const T *from = (const T *)a.x + place(a.x_stride, r);
    T *to = (T *)a.out + place(a.out_stride, r);

    for (int i = r.lane * W; r.exists && i < a.size; i += a.lanes * W) {
        float x[W];

        load<W>(from + i, x);
#pragma unroll
        for (int k = 0; k < W; k++)
            x[k] *= r.w;
        store<W>(to + i, x);
    }
}

template <typename T, int W> DEVICE void sink_grad(const gpu_sink &a)
{
    int64_t row = row_of_thread(a);
    sink_row r = own_row<T>(a, row);
    const T *dy = (const T *)a.x + place(a.x_stride, r), *y = (const T *)a.y + place(a.y_stride, r);
    T *to = (T *)a.out + place(a.out_stride, r);
    float dot = 0;

    for (int i = r.lane * W; r.exists && i < a.size; i += a.lanes * W) {
        float d[W], of_y[W], before[W] = {};

        load<W>(dy + i, d);
        load<W>(y + i, of_y);
        if (a.accumulate)
            load<W>(to + i, before);
#pragma unroll
        for (int k = 0; k < W; k++) {
            dot += d[k] * of_y[k];
            d[k] = d[k] * r.w + before[k];
        }
        store<W>(to + i, d);
    }
    for (int step = a.lanes / 2; step; step >>= 1)
        dot += __shfl_xor_sync(ALL_LANES, dot, step);
    if (r.exists && r.lane == 0)
        a.dsink[row] = -r.rest * dot;
}

#define SINK_AT(T, W, suffix)                                                                      \
    KERNEL(attention_sink_##suffix, gpu_sink, 256)                                                 \
    {                                                                                              \
        sink<T, W>(a);                                                                             \
    }                                                                                              \
    KERNEL(attention_sink_grad_##suffix, gpu_sink, 256)                                            \
    {                                                                                              \
        sink_grad<T, W>(a);                                                                        \
    }
#define SINK(T, dtype)                                                                             \
    SINK_AT(T, 1, dtype)                                                                           \
    SINK_AT(T, lanes<T>::of, dtype##_vector)
FOR_DTYPES(SINK)
