/*
 * Parts of the last dimension, and keys and values of latent attention. A thread copies a vector of
 * columns: of its rows, or of all heads of a token.
 */
#include <ctitan/lib/cuda/device.cuh>

#include "arguments.h"

template <typename T, int W> DEVICE void copy(T *to, const T *from)
{
    if (from)
        *(vector<T, W> *)to = *(const vector<T, W> *)from;
    else
        *(vector<T, W> *)to = vector<T, W>{};
}

/* ---- split ---- */

template <typename T, int W, bool BACK> DEVICE void split(const gpu_parts &a)
{
    int64_t column = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * W;
    int part = 0;
    int64_t begin;
    T *at;

    if (column >= a.columns)
        return;
    while (column >= a.end[part])
        part++;
    begin = part ? a.end[part - 1] : 0;
    at = a.part[part] ? (T *)a.part[part] + column - begin : NULL;
    for (int64_t row = (int64_t)blockIdx.y * blockDim.y + threadIdx.y; row < a.rows;
         row += (int64_t)gridDim.y * blockDim.y) {
        T *whole = (T *)a.whole + row * a.whole_stride + column;
        T *own = at ? at + row * a.part_stride[part] : NULL;

        if (BACK)
            copy<T, W>(whole, own);
        else
            copy<T, W>(own, whole);
    }
}

/* ---- expand_latent ---- */

/* A column of each head of a token; at NULL: zeros. */
template <typename T> struct heads {
    T *at;
    int64_t step;
};

template <typename T>
DEVICE heads<T> heads_of(void *data, const int64_t *stride, int64_t b, int64_t t, int64_t column)
{
    return {data ? (T *)data + b * stride[0] + t * stride[1] + column : NULL, stride[2]};
}

template <typename T, int W>
DEVICE void copy_heads(int32_t count, const heads<T> &to, const heads<T> &from)
{
    for (int h = 0; h < count; h++)
        copy<T, W>(to.at + h * to.step, from.at ? from.at + h * from.step : NULL);
}

template <typename T, int W> DEVICE void add_heads(int32_t count, T *to, const heads<T> &from)
{
    float sum[W] = {};

#pragma unroll 4
    for (int h = 0; from.at && h < count; h++) {
        float x[W];

        load<W>(from.at + h * from.step, x);
#pragma unroll
        for (int i = 0; i < W; i++)
            sum[i] += x[i];
    }
    store<W>(to, sum);
}

/* Columns are those of keys, then of values, then of what is shared. */
template <typename T, int W, bool BACK> DEVICE void expand(const gpu_latent &a)
{
    int column = (int)(blockIdx.x * blockDim.x + threadIdx.x) * W;
    int value = column - a.keys, rest = value - a.values;
    bool is_value = value >= 0 && rest < 0, shared = rest >= 0;

    if (column >= a.columns)
        return;
    for (int64_t i = (int64_t)blockIdx.y * blockDim.y + threadIdx.y; i < a.batch * a.tokens;
         i += (int64_t)gridDim.y * blockDim.y) {
        int64_t b = i / a.tokens, t = i % a.tokens;
        heads<T> latent = shared ? heads_of<T>(a.shared, a.shared_stride, b, t, rest)
                                 : heads_of<T>(a.kv, a.kv_stride, b, t, column);
        heads<T> whole = is_value
                             ? heads_of<T>(a.v, a.v_stride, b, t, value)
                             : heads_of<T>(a.k, a.k_stride, b, t, shared ? a.keys + rest : column);

        if (!BACK)
            copy_heads<T, W>(a.heads, whole, latent);
        else if (shared)
            add_heads<T, W>(a.heads, latent.at, whole);
        else
            copy_heads<T, W>(a.heads, latent, whole);
    }
}

#define LATENT_AT(T, W, suffix)                                                                    \
    KERNEL(split_##suffix, gpu_parts, 256)                                                         \
    {                                                                                              \
        split<T, W, false>(a);                                                                     \
    }                                                                                              \
    KERNEL(split_grad_##suffix, gpu_parts, 256)                                                    \
    {                                                                                              \
        split<T, W, true>(a);                                                                      \
    }                                                                                              \
    KERNEL(expand_latent_##suffix, gpu_latent, 256)                                                \
    {                                                                                              \
        expand<T, W, false>(a);                                                                    \
    }                                                                                              \
    KERNEL(expand_latent_grad_##suffix, gpu_latent, 256)                                           \
    {                                                                                              \
        expand<T, W, true>(a);                                                                     \
    }
#define LATENT(T, dtype)                                                                           \
    LATENT_AT(T, 1, dtype)                                                                         \
    LATENT_AT(T, lanes<T>::of, dtype##_vector)
FOR_DTYPES(LATENT)
