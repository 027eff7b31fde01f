/*
 * Layer norm and sums over columns. Forward and dx: a block for each row. Gradients of weights and
 * biases: blocks of 32 columns x 8 rows, each for a share of the rows; column_sum (norm.cu) adds
 * the shares up, in order.
 */
#include <ctitan/lib/cuda/device.cuh>

#include "arguments.h"

template <typename T> DEVICE void layer_norm(const gpu_layer_norm &a)
{
    int64_t row = blockIdx.x, at = row * a.columns;
    float sum = 0, square = 0, mean, rstd;

    for (int64_t i = threadIdx.x; i < a.columns; i += blockDim.x)
        sum += to_float(((const T *)a.x)[at + i]);
    mean = block_sum(sum) / (float)a.columns;
    for (int64_t i = threadIdx.x; i < a.columns; i += blockDim.x) {
        float x = to_float(((const T *)a.x)[at + i]) - mean;

        square += x * x;
    }
    rstd = 1.0f / sqrtf(block_sum(square) / (float)a.columns + a.eps);
    for (int64_t i = threadIdx.x; i < a.columns; i += blockDim.x) {
        float x = to_float(((const T *)a.x)[at + i]) - mean;
        float bias = a.bias ? to_float(((const T *)a.bias)[i]) : 0.0f;

        ((T *)a.y)[at + i] = from_float<T>(x * rstd * to_float(((const T *)a.w)[i]) + bias);
    }
    if (threadIdx.x == 0) {
        a.mean[row] = mean;
        a.rstd[row] = rstd;
    }
}

template <typename T> DEVICE void layer_norm_grad(const gpu_layer_norm_grad &a)
{
    int64_t row = blockIdx.x, at = row * a.columns;
    float mean = a.mean[row], rstd = a.rstd[row], of_g = 0, of_gz = 0;

    for (int64_t i = threadIdx.x; i < a.columns; i += blockDim.x) {
        float g = to_float(((const T *)a.dy)[at + i]) * to_float(((const T *)a.w)[i]);

        of_g += g;
        of_gz += g * (to_float(((const T *)a.x)[at + i]) - mean) * rstd;
    }
    of_g = block_sum(of_g) / (float)a.columns;
    of_gz = block_sum(of_gz) / (float)a.columns;
    for (int64_t i = threadIdx.x; i < a.columns; i += blockDim.x) {
        float g = to_float(((const T *)a.dy)[at + i]) * to_float(((const T *)a.w)[i]);
        float z = (to_float(((const T *)a.x)[at + i]) - mean) * rstd;
        float dx[1] = {rstd * (g - of_g - z * of_gz)}, before[1];

        if (a.accumulate) {
            load_as<1>(a.kind, a.dx, at + i, before);
            dx[0] += before[0];
        }
        store_as<1>(a.kind, a.dx, at + i, dx);
    }
}

/* Share blockIdx.y of the sums over rows of dy and, unless x is NULL, of dy (x - mean) rstd. */
template <typename T> DEVICE void column_shares(const gpu_column_shares &a)
{
    __shared__ float of_y[8][32], of_z[8][32];
    int64_t column = (int64_t)blockIdx.x * 32 + threadIdx.x;
    float sum = 0, sum_z = 0;

    for (int64_t row = (int64_t)blockIdx.y * 8 + threadIdx.y; row < a.rows && column < a.columns;
         row += (int64_t)gridDim.y * 8) {
        float dy = to_float(((const T *)a.dy)[row * a.dy_stride + column]);

        sum += dy;
        if (a.x)
            sum_z += dy * (to_float(((const T *)a.x)[row * a.columns + column]) - a.mean[row]) *
                     a.rstd[row];
    }
    of_y[threadIdx.y][threadIdx.x] = sum;
    of_z[threadIdx.y][threadIdx.x] = sum_z;
    __syncthreads();
    if (threadIdx.y || column >= a.columns)
        return;
    for (int i = 1; i < 8; i++) {
        sum += of_y[i][threadIdx.x];
        sum_z += of_z[i][threadIdx.x];
    }
    a.of_y[blockIdx.y * a.columns + column] = sum;
    if (a.x)
        a.of_z[blockIdx.y * a.columns + column] = sum_z;
}

#define LAYER_NORM(T, dtype)                                                                       \
    KERNEL(layer_norm_##dtype, gpu_layer_norm, 1024)                                               \
    {                                                                                              \
        layer_norm<T>(a);                                                                          \
    }                                                                                              \
    KERNEL(layer_norm_grad_##dtype, gpu_layer_norm_grad, 1024)                                     \
    {                                                                                              \
        layer_norm_grad<T>(a);                                                                     \
    }                                                                                              \
    KERNEL(column_shares_##dtype, gpu_column_shares, 256)                                          \
    {                                                                                              \
        column_shares<T>(a);                                                                       \
    }
FOR_DTYPES(LAYER_NORM)
