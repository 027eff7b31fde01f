/*
 * Root mean square norm. Forward: a row per block, kept in registers between its two uses as far as
 * KEPT vectors a thread reach. Backward: a block takes rows at a distance, and adds its share of
 * the weight's gradient up in shared memory, each thread in columns of its own; a second kernel
 * adds the blocks' shares, in order.
 */
#include "device.cuh"

#define KEPT 4

template <typename T, int W> DEVICE void read_row(const gpu_norm &a, int64_t at, float (&x)[W])
{
    float r[W];

    load<W>((const T *)a.x + at, x);
    if (!a.r)
        return;
    load<W>((const T *)a.r + at, r);
#pragma unroll
    for (int i = 0; i < W; i++)
        x[i] = rounded<T>(x[i] + r[i]);
    store<W>((T *)a.sum + at, x);
}

template <typename T, int W>
DEVICE void write_row(const gpu_norm &a, int64_t row, int64_t column, float rstd,
                      const float (&x)[W])
{
    float w[W];

    load<W>((const T *)a.w + column, w);
#pragma unroll
    for (int i = 0; i < W; i++)
        w[i] *= x[i] * rstd;
    store<W>((T *)a.y + row * a.columns + column, w);
}

template <typename T, int W> DEVICE void norm(const gpu_norm &a)
{
    int64_t row = blockIdx.x, step = (int64_t)blockDim.x * W, first = (int64_t)threadIdx.x * W;
    float kept[KEPT][W], square = 0, rstd;

#pragma unroll
    for (int k = 0; k < KEPT; k++) {
        if (first + k * step >= a.columns)
            continue;
        read_row<T, W>(a, row * a.columns + first + k * step, kept[k]);
#pragma unroll
        for (int i = 0; i < W; i++)
            square += kept[k][i] * kept[k][i];
    }
    for (int64_t column = first + KEPT * step; column < a.columns; column += step) {
        float x[W];

        read_row<T, W>(a, row * a.columns + column, x);
        for (int i = 0; i < W; i++)
            square += x[i] * x[i];
    }
    rstd = 1.0f / sqrtf(block_sum(square) / (float)a.columns + a.eps);
    if (threadIdx.x == 0)
        a.rstd[row] = rstd;
#pragma unroll
    for (int k = 0; k < KEPT; k++)
        if (first + k * step < a.columns)
            write_row<T, W>(a, row, first + k * step, rstd, kept[k]);
    for (int64_t column = first + KEPT * step; column < a.columns; column += step) {
        float x[W];

        load<W>((a.r ? (const T *)a.sum : (const T *)a.x) + row * a.columns + column, x);
        write_row<T, W>(a, row, column, rstd, x);
    }
}

template <typename T, int W> DEVICE float mean_product(const gpu_norm_grad &a, int64_t row)
{
    int64_t step = (int64_t)blockDim.x * W;
    float sum = 0;

    for (int64_t column = (int64_t)threadIdx.x * W; column < a.columns; column += step) {
        float dy[W], x[W], w[W];

        load<W>((const T *)a.dy + row * a.columns + column, dy);
        load<W>((const T *)a.x + row * a.columns + column, x);
        load<W>((const T *)a.w + column, w);
#pragma unroll
        for (int i = 0; i < W; i++)
            sum += dy[i] * w[i] * x[i];
    }
    return block_sum(sum) * a.rstd[row] / (float)a.columns;
}

/* dx of W columns; their share of dw goes to dw. */
template <typename T, int W>
DEVICE void grad_columns(const gpu_norm_grad &a, int64_t row, int64_t column, float mean, float *dw)
{
    int64_t at = row * a.columns + column;
    float dy[W], x[W], w[W], rstd = a.rstd[row];

    load<W>((const T *)a.dy + at, dy);
    load<W>((const T *)a.x + at, x);
    load<W>((const T *)a.w + column, w);
#pragma unroll
    for (int i = 0; i < W; i++) {
        float normed = x[i] * rstd;

        dw[i] += dy[i] * normed;
        dy[i] = rstd * (dy[i] * w[i] - normed * mean);
    }
    if (a.dres) {
        load<W>((const T *)a.dres + at, x);
#pragma unroll
        for (int i = 0; i < W; i++)
            dy[i] += x[i];
    }
    if (a.accumulate & 1) {
        load<W>((const T *)a.dx + at, x);
#pragma unroll
        for (int i = 0; i < W; i++)
            dy[i] += x[i];
    }
    store<W>((T *)a.dx + at, dy);
}

template <typename T, int W> DEVICE void norm_grad(const gpu_norm_grad &a)
{
    int64_t step = (int64_t)blockDim.x * W, first = (int64_t)threadIdx.x * W;
    DYNAMIC_SHARED(float, dw);

    for (int64_t column = first; column < a.columns; column += step)
        for (int i = 0; i < W; i++)
            dw[column + i] = 0;
    for (int64_t row = blockIdx.x; row < a.rows; row += gridDim.x) {
        float mean = mean_product<T, W>(a, row);

        for (int64_t column = first; column < a.columns; column += step)
            grad_columns<T, W>(a, row, column, mean, dw + column);
    }
    for (int64_t column = first; column < a.columns; column += step)
        for (int i = 0; i < W; i++)
            a.partial[blockIdx.x * a.columns + column + i] = dw[column + i];
}

#define NORM(T, dtype)                                                                             \
    KERNEL(norm_##dtype, gpu_norm, 256)                                                            \
    {                                                                                              \
        norm<T, 1>(a);                                                                             \
    }                                                                                              \
    KERNEL(norm_##dtype##_vector, gpu_norm, 256)                                                   \
    {                                                                                              \
        norm<T, lanes<T>::of>(a);                                                                  \
    }                                                                                              \
    KERNEL(norm_grad_##dtype, gpu_norm_grad, 256)                                                  \
    {                                                                                              \
        norm_grad<T, 1>(a);                                                                        \
    }                                                                                              \
    KERNEL(norm_grad_##dtype##_vector, gpu_norm_grad, 256)                                         \
    {                                                                                              \
        norm_grad<T, lanes<T>::of>(a);                                                             \
    }
FOR_DTYPES(NORM)

/* Blocks of 32 columns x 8 rows: each thread adds every eighth row, then row 0 adds the eight. */
KERNEL(column_sum, gpu_column_sum, 256)
{
    __shared__ float part[8][32];
    int64_t column = (int64_t)blockIdx.x * 32 + threadIdx.x;
    float sum = 0;

    for (int64_t row = threadIdx.y; row < a.rows && column < a.columns; row += 8)
        sum += a.in[row * a.columns + column];
    part[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y || column >= a.columns)
        return;
    for (int i = 1; i < 8; i++)
        sum += part[i][threadIdx.x];
    if (a.accumulate)
        sum += (float)load_scalar((char *)a.out + column * (a.kind == GPU_BF16 ? 2 : 4), a.kind);
    store_scalar((char *)a.out + column * (a.kind == GPU_BF16 ? 2 : 4), a.kind, sum);
}
