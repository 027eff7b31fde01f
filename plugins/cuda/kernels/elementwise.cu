/*
 * Elementwise kernels on matrices: a thread handles a vector of columns in every row of its own.
 */
#include <ctitan/lib/cuda/device.cuh>

#include "arguments.h"

template <typename T, int W, typename F> DEVICE void map(const gpu_map &a, F f)
{
    int64_t first = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * W;
    int64_t step = (int64_t)gridDim.x * blockDim.x * W;

    for (int64_t row = (int64_t)blockIdx.y * blockDim.y + threadIdx.y; row < a.rows;
         row += (int64_t)gridDim.y * blockDim.y)
        for (int64_t column = first; column < a.columns; column += step)
            f(row, column);
}

template <typename T> DEVICE const T *in(const gpu_map &a, int i, int64_t row, int64_t column)
{
    return (const T *)a.in[i] + row * a.in_stride[i] + column;
}

template <typename T> DEVICE T *out(const gpu_map &a, int i, int64_t row, int64_t column)
{
    return (T *)a.out[i] + row * a.out_stride[i] + column;
}

template <typename T, int W> DEVICE void add(const gpu_map &a)
{
    map<T, W>(a, [&](int64_t row, int64_t column) {
        float x[W], y[W];

        load<W>(in<T>(a, 0, row, column), x);
        load<W>(in<T>(a, 1, row, column), y);
#pragma unroll
        for (int i = 0; i < W; i++)
            x[i] += y[i];
        store<W>(out<T>(a, 0, row, column), x);
    });
}

DEVICE float sigmoid(float x)
{
    return 1.0f / (1.0f + expf(-x));
}

/* Each gives the numbers of W elements: swiglu in y; its gradient's in gate and up. */
template <typename T, int W>
DEVICE void swiglu_at(const gpu_map &a, int64_t row, int64_t column, float (&y)[W])
{
    float gate[W];

    load<W>(in<T>(a, 0, row, column), gate);
    load<W>(in<T>(a, 1, row, column), y);
#pragma unroll
    for (int i = 0; i < W; i++)
        y[i] *= gate[i] * sigmoid(gate[i]);
}

template <typename T, int W>
DEVICE void swiglu_grad_at(const gpu_map &a, int64_t row, int64_t column, float (&gate)[W],
                           float (&up)[W])
{
    float dy[W];

    load<W>(in<T>(a, 0, row, column), dy);
    load<W>(in<T>(a, 1, row, column), gate);
    load<W>(in<T>(a, 2, row, column), up);
#pragma unroll
    for (int i = 0; i < W; i++) {
        float s = sigmoid(gate[i]);
        float d_up = dy[i] * gate[i] * s;

        gate[i] = dy[i] * up[i] * s * (1.0f + gate[i] * (1.0f - s));
        up[i] = d_up;
    }
}

template <typename T, int W> DEVICE void swiglu(const gpu_map &a)
{
    map<T, W>(a, [&](int64_t row, int64_t column) {
        float y[W];

        swiglu_at<T, W>(a, row, column, y);
        store<W>(out<T>(a, 0, row, column), y);
    });
}

template <typename T, int W> DEVICE void swiglu_grad(const gpu_map &a)
{
    map<T, W>(a, [&](int64_t row, int64_t column) {
        float gate[W], up[W];

        swiglu_grad_at<T, W>(a, row, column, gate, up);
        store<W>(out<T>(a, 0, row, column), gate);
        store<W>(out<T>(a, 1, row, column), up);
    });
}

/* The same with largest magnitudes, as T holds them: a block takes a row. f(column, most) writes W
   columns, and raises most[k] to the largest magnitude in output k. */
template <typename T, int W, int OUTS, typename F>
DEVICE void map_row(const gpu_map_rows &a, int64_t row, F f)
{
    float most[OUTS] = {0};

    for (int64_t column = (int64_t)threadIdx.x * W; column < a.map.columns;
         column += (int64_t)blockDim.x * W)
        f(column, most);
#pragma unroll
    for (int k = 0; k < OUTS; k++) {
        float whole = block_max(most[k]);

        if (threadIdx.x == 0)
            a.largest[k][row] = rounded<T>(whole);
    }
}

template <typename T, int W>
DEVICE void store_raising(const gpu_map &a, int k, int64_t row, int64_t column, const float (&x)[W],
                          float &most)
{
    store<W>(out<T>(a, k, row, column), x);
#pragma unroll
    for (int i = 0; i < W; i++)
        most = fmaxf(most, fabsf(x[i]));
}

template <typename T, int W> DEVICE void swiglu_largest(const gpu_map_rows &a)
{
    int64_t row = blockIdx.x;

    map_row<T, W, 1>(a, row, [&](int64_t column, float(&most)[1]) {
        float y[W];

        swiglu_at<T, W>(a.map, row, column, y);
        store_raising<T, W>(a.map, 0, row, column, y, most[0]);
    });
}

template <typename T, int W> DEVICE void swiglu_grad_largest(const gpu_map_rows &a)
{
    int64_t row = blockIdx.x;

    map_row<T, W, 2>(a, row, [&](int64_t column, float(&most)[2]) {
        float gate[W], up[W];

        swiglu_grad_at<T, W>(a.map, row, column, gate, up);
        store_raising<T, W>(a.map, 0, row, column, gate, most[0]);
        store_raising<T, W>(a.map, 1, row, column, up, most[1]);
    });
}

template <typename T, int W> DEVICE void mul(const gpu_map &a)
{
    map<T, W>(a, [&](int64_t row, int64_t column) {
        float x[W], y[W];

        load<W>(in<T>(a, 0, row, column), x);
        load<W>(in<T>(a, 1, row, column), y);
#pragma unroll
        for (int i = 0; i < W; i++)
            x[i] *= y[i];
        store<W>(out<T>(a, 0, row, column), x);
    });
}

/* y = f(x); a gradient: dx = dy f'(x), with `slope` for f. */
template <typename T, int W, typename F> DEVICE void activate(const gpu_map &a, F f)
{
    map<T, W>(a, [&](int64_t row, int64_t column) {
        float x[W];

        load<W>(in<T>(a, 0, row, column), x);
#pragma unroll
        for (int i = 0; i < W; i++)
            x[i] = f(x[i]);
        store<W>(out<T>(a, 0, row, column), x);
    });
}

template <typename T, int W, typename F> DEVICE void activate_grad(const gpu_map &a, F slope)
{
    map<T, W>(a, [&](int64_t row, int64_t column) {
        float dy[W], x[W];

        load<W>(in<T>(a, 0, row, column), dy);
        load<W>(in<T>(a, 1, row, column), x);
#pragma unroll
        for (int i = 0; i < W; i++)
            x[i] = dy[i] * slope(x[i]);
        store<W>(out<T>(a, 0, row, column), x);
    });
}

#define ROOT_2_OVER_PI 0.79788456080286535588f
#define ROOT_1_OVER_2 0.70710678118654752440f

struct silu {
    DEVICE float value(float x)
    {
        return x * sigmoid(x);
    }
    DEVICE float slope(float x)
    {
        float s = sigmoid(x);

        return s * (1.0f + x * (1.0f - s));
    }
};

struct gelu {
    DEVICE float value(float x)
    {
        return 0.5f * x * (1.0f + erff(ROOT_1_OVER_2 * x));
    }
    DEVICE float slope(float x)
    {
        return 0.5f * (1.0f + erff(ROOT_1_OVER_2 * x)) +
               0.5f * ROOT_2_OVER_PI * x * expf(-0.5f * x * x);
    }
};

/* The approximation of GPT-2. */
struct gelu_tanh {
    DEVICE float value(float x)
    {
        return 0.5f * x * (1.0f + tanhf(ROOT_2_OVER_PI * (x + 0.044715f * x * x * x)));
    }
    DEVICE float slope(float x)
    {
        float t = tanhf(ROOT_2_OVER_PI * (x + 0.044715f * x * x * x));

        return 0.5f * (1.0f + t) +
               0.5f * x * (1.0f - t * t) * ROOT_2_OVER_PI * (1.0f + 3.0f * 0.044715f * x * x);
    }
};

#define ACTIVATION_AT(T, W, name, suffix)                                                          \
    KERNEL(name##_##suffix, gpu_map, 256)                                                          \
    {                                                                                              \
        activate<T, W>(a, [](float x) { return name::value(x); });                                 \
    }                                                                                              \
    KERNEL(name##_grad_##suffix, gpu_map, 256)                                                     \
    {                                                                                              \
        activate_grad<T, W>(a, [](float x) { return name::slope(x); });                            \
    }
#define ACTIVATION(T, dtype, name)                                                                 \
    ACTIVATION_AT(T, 1, name, dtype)                                                               \
    ACTIVATION_AT(T, lanes<T>::of, name, dtype##_vector)
#define ACTIVATIONS(T, dtype)                                                                      \
    ACTIVATION(T, dtype, silu)                                                                     \
    ACTIVATION(T, dtype, gelu)                                                                     \
    ACTIVATION(T, dtype, gelu_tanh)
FOR_DTYPES(ACTIVATIONS)

#define ELEMENTWISE(T, dtype)                                                                      \
    KERNEL(add_##dtype, gpu_map, 256)                                                              \
    {                                                                                              \
        add<T, 1>(a);                                                                              \
    }                                                                                              \
    KERNEL(add_##dtype##_vector, gpu_map, 256)                                                     \
    {                                                                                              \
        add<T, lanes<T>::of>(a);                                                                   \
    }                                                                                              \
    KERNEL(mul_##dtype, gpu_map, 256)                                                              \
    {                                                                                              \
        mul<T, 1>(a);                                                                              \
    }                                                                                              \
    KERNEL(mul_##dtype##_vector, gpu_map, 256)                                                     \
    {                                                                                              \
        mul<T, lanes<T>::of>(a);                                                                   \
    }                                                                                              \
    KERNEL(swiglu_##dtype, gpu_map, 256)                                                           \
    {                                                                                              \
        swiglu<T, 1>(a);                                                                           \
    }                                                                                              \
    KERNEL(swiglu_##dtype##_vector, gpu_map, 256)                                                  \
    {                                                                                              \
        swiglu<T, lanes<T>::of>(a);                                                                \
    }                                                                                              \
    KERNEL(swiglu_grad_##dtype, gpu_map, 256)                                                      \
    {                                                                                              \
        swiglu_grad<T, 1>(a);                                                                      \
    }                                                                                              \
    KERNEL(swiglu_grad_##dtype##_vector, gpu_map, 256)                                             \
    {                                                                                              \
        swiglu_grad<T, lanes<T>::of>(a);                                                           \
    }                                                                                              \
    KERNEL(swiglu_largest_##dtype, gpu_map_rows, 256)                                              \
    {                                                                                              \
        swiglu_largest<T, 1>(a);                                                                   \
    }                                                                                              \
    KERNEL(swiglu_largest_##dtype##_vector, gpu_map_rows, 256)                                     \
    {                                                                                              \
        swiglu_largest<T, lanes<T>::of>(a);                                                        \
    }                                                                                              \
    KERNEL(swiglu_grad_largest_##dtype, gpu_map_rows, 256)                                         \
    {                                                                                              \
        swiglu_grad_largest<T, 1>(a);                                                              \
    }                                                                                              \
    KERNEL(swiglu_grad_largest_##dtype##_vector, gpu_map_rows, 256)                                \
    {                                                                                              \
        swiglu_grad_largest<T, lanes<T>::of>(a);                                                   \
    }
FOR_DTYPES(ELEMENTWISE)

/* From one dtype to another: vectors of four. */
template <typename From, typename To, int W> DEVICE void cast(const gpu_map &a)
{
    map<From, W>(a, [&](int64_t row, int64_t column) {
        float x[W];

        load<W>(in<From>(a, 0, row, column), x);
        store<W>(out<To>(a, 0, row, column), x);
    });
}

template <typename T, int W> DEVICE void sum(const gpu_sum &a)
{
    int64_t at = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * W;
    float total[W], x[W];

    if (at >= a.count)
        return;
    load<W>((const T *)a.in[0] + at, total);
    for (int64_t term = 1; term < a.terms; term++) {
        load<W>((const T *)a.in[term] + at, x);
#pragma unroll
        for (int i = 0; i < W; i++)
            total[i] += x[i];
    }
    store<W>((T *)a.out + at, total);
}

#define SUM(T, dtype)                                                                              \
    KERNEL(sum_##dtype, gpu_sum, 256)                                                              \
    {                                                                                              \
        sum<T, 1>(a);                                                                              \
    }                                                                                              \
    KERNEL(sum_##dtype##_vector, gpu_sum, 256)                                                     \
    {                                                                                              \
        sum<T, lanes<T>::of>(a);                                                                   \
    }
FOR_DTYPES(SUM)

#define CAST(From, from, To, to)                                                                   \
    KERNEL(cast_##from##_to_##to, gpu_map, 256)                                                    \
    {                                                                                              \
        cast<From, To, 1>(a);                                                                      \
    }                                                                                              \
    KERNEL(cast_##from##_to_##to##_vector, gpu_map, 256)                                           \
    {                                                                                              \
        cast<From, To, 4>(a);                                                                      \
    }
CAST(float, float32, bfloat16, bfloat16)
CAST(bfloat16, bfloat16, float, float32)
CAST(float, float32, float, float32)
CAST(bfloat16, bfloat16, bfloat16, bfloat16)

KERNEL(reciprocal_float32, gpu_scalar, 256)
{
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;

    if (i < a.count)
        ((float *)a.out)[i] = (float)a.numerator / ((const float *)a.in)[i];
}

KERNEL(reciprocal_float64, gpu_scalar, 256)
{
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;

    if (i < a.count)
        ((double *)a.out)[i] = a.numerator / ((const double *)a.in)[i];
}

KERNEL(add_numbers, gpu_add_numbers, 1)
{
    *a.out = *a.a + *a.b;
}
