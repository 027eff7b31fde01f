/*
 * Root mean square norm. A row per block and a vector per thread, kept in registers between its two
 * uses; columns beyond are read twice. Backward: a block takes rows at a distance, and adds its
 * share of the weight's gradient up, each thread in columns of its own (in registers; beyond, in
 * shared memory); a second kernel adds the blocks' shares, in order. Narrow rows, as those of
 * heads, have a group of lanes each, and a block has many.
 */
#include <ctitan/lib/cuda/device.cuh>

#include "arguments.h"

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

/* offset + w, from a column on. */
template <typename T, int W>
DEVICE void load_weight(const void *weight, float offset, int64_t column, float (&w)[W])
{
    load<W>((const T *)weight + column, w);
#pragma unroll
    for (int i = 0; i < W; i++)
        w[i] += offset;
}

/* The largest |x|, as T holds it. */
template <typename T, int W> DEVICE float largest_of(const float (&x)[W])
{
    float most = 0;

#pragma unroll
    for (int i = 0; i < W; i++)
        most = fmaxf(most, fabsf(x[i]));
    return rounded<T>(most);
}

/* Returns the largest magnitude of what it writes. */
template <typename T, int W>
DEVICE float write_row(const gpu_norm &a, int64_t row, int64_t column, float rstd,
                       const float (&x)[W], const float (&w)[W])
{
    float y[W];

#pragma unroll
    for (int i = 0; i < W; i++)
        y[i] = w[i] * (x[i] * rstd);
    store<W>((T *)a.y + row * a.columns + column, y);
    return a.largest ? largest_of<T, W>(y) : 0;
}

DEVICE void put_largest(float *largest, int64_t row, float most)
{
    if (!largest)
        return;
    most = block_max(most);
    if (threadIdx.x == 0)
        largest[row] = most;
}

template <int W> DEVICE float sum_of_squares(const float (&x)[W])
{
    float sum = 0;

#pragma unroll
    for (int i = 0; i < W; i++)
        sum += x[i] * x[i];
    return sum;
}

template <typename T, int W> DEVICE void norm(const gpu_norm &a)
{
    int64_t row = blockIdx.x, step = (int64_t)blockDim.x * W, first = (int64_t)threadIdx.x * W;
    float kept[W] = {0}, w[W] = {0}, square = 0, most = 0, rstd;

    if (first < a.columns) {
        read_row<T, W>(a, row * a.columns + first, kept);
        load_weight<T, W>(a.w, a.offset, first, w);
        square = sum_of_squares<W>(kept);
    }
    for (int64_t column = first + step; column < a.columns; column += step) {
        float x[W];

        read_row<T, W>(a, row * a.columns + column, x);
        square += sum_of_squares<W>(x);
    }
    rstd = 1.0f / sqrtf(block_sum(square) / (float)a.columns + a.eps);
    if (threadIdx.x == 0)
        a.rstd[row] = rstd;
    if (first < a.columns)
        most = write_row<T, W>(a, row, first, rstd, kept, w);
    for (int64_t column = first + step; column < a.columns; column += step) {
        float x[W];

        load<W>((a.r ? (const T *)a.sum : (const T *)a.x) + row * a.columns + column, x);
        load_weight<T, W>(a.w, a.offset, column, w);
        most = fmaxf(most, write_row<T, W>(a, row, column, rstd, x, w));
    }
    put_largest(a.largest, row, most);
}

/* W columns of a row: what arrives, what the forward saw, and what dx is added to. */
template <int W> struct columns_of_row {
    float dy[W], x[W], base[W];
};

template <typename T, int W>
DEVICE void read_columns(const gpu_norm_grad &a, int64_t at, columns_of_row<W> &c)
{
    float before[W];

    load<W>((const T *)a.dy + at, c.dy);
    load<W>((const T *)a.x + at, c.x);
#pragma unroll
    for (int i = 0; i < W; i++)
        c.base[i] = 0;
    if (a.dres)
        load<W>((const T *)a.dres + at, c.base);
    if (!(a.accumulate & 1))
        return;
    load<W>((const T *)a.dx + at, before);
#pragma unroll
    for (int i = 0; i < W; i++)
        c.base[i] += before[i];
}

template <int W> DEVICE float product(const columns_of_row<W> &c, const float (&w)[W])
{
    float sum = 0;

#pragma unroll
    for (int i = 0; i < W; i++)
        sum += c.dy[i] * w[i] * c.x[i];
    return sum;
}

/* dx of W columns; their share of dw goes to dw. Returns the largest magnitude of dx. */
template <typename T, int W>
DEVICE float write_columns(const gpu_norm_grad &a, int64_t at, columns_of_row<W> &c,
                           const float (&w)[W], float rstd, float mean, float *dw)
{
#pragma unroll
    for (int i = 0; i < W; i++) {
        float normed = c.x[i] * rstd;

        dw[i] += c.dy[i] * normed;
        c.dy[i] = rstd * (c.dy[i] * w[i] - normed * mean) + c.base[i];
    }
    store<W>((T *)a.dx + at, c.dy);
    return a.largest ? largest_of<T, W>(c.dy) : 0;
}

/* Elements beyond the first vector of each thread: read here, and again when the mean is known. */
template <typename T, int W> DEVICE float far_product(const gpu_norm_grad &a, int64_t row)
{
    int64_t step = (int64_t)blockDim.x * W;
    float sum = 0;

    for (int64_t column = (int64_t)threadIdx.x * W + step; column < a.columns; column += step) {
        columns_of_row<W> c;
        float w[W];

        load<W>((const T *)a.dy + row * a.columns + column, c.dy);
        load<W>((const T *)a.x + row * a.columns + column, c.x);
        load_weight<T, W>(a.w, a.offset, column, w);
        sum += product<W>(c, w);
    }
    return sum;
}

template <typename T, int W>
DEVICE float far_columns(const gpu_norm_grad &a, int64_t row, float rstd, float mean, float *dw)
{
    int64_t step = (int64_t)blockDim.x * W;
    float most = 0;

    for (int64_t column = (int64_t)threadIdx.x * W + step; column < a.columns; column += step) {
        columns_of_row<W> c;
        float w[W];

        load_weight<T, W>(a.w, a.offset, column, w);
        read_columns<T, W>(a, row * a.columns + column, c);
        most = fmaxf(most, write_columns<T, W>(a, row * a.columns + column, c, w, rstd, mean,
                                               dw + column - step));
    }
    return most;
}

template <typename T, int W> DEVICE void norm_grad(const gpu_norm_grad &a)
{
    int step = (int)blockDim.x * W, first = (int)threadIdx.x * W;
    float dw[W] = {0}, w[W] = {0};
    DYNAMIC_SHARED(float, far_dw);

    for (int64_t column = first + step; column < a.columns; column += step)
        for (int i = 0; i < W; i++)
            far_dw[column - step + i] = 0;
    if (first < a.columns)
        load_weight<T, W>(a.w, a.offset, first, w);
    for (int64_t row = blockIdx.x; row < a.rows; row += gridDim.x) {
        columns_of_row<W> c = {};
        float rstd = a.rstd[row], most = 0, mean;

        if (first < a.columns)
            read_columns<T, W>(a, row * a.columns + first, c);
        mean = block_sum(product<W>(c, w) + far_product<T, W>(a, row)) * rstd / (float)a.columns;
        if (first < a.columns)
            most = write_columns<T, W>(a, row * a.columns + first, c, w, rstd, mean, dw);
        most = fmaxf(most, far_columns<T, W>(a, row, rstd, mean, far_dw));
        put_largest(a.largest, row, most);
    }
    for (int64_t column = first; column < a.columns; column += step)
        for (int i = 0; i < W; i++)
            a.partial[blockIdx.x * a.columns + column + i] =
                column == first ? dw[i] : far_dw[column - step + i];
}

/* ---- narrow rows: of no more vectors than a warp has lanes ---- */

/* A power of two: a row's lanes. */
DEVICE int lanes_for(int64_t vectors)
{
    int lanes = 1;

    while (lanes < vectors)
        lanes *= 2;
    return lanes;
}

DEVICE float group_sum(float x, int lanes)
{
    for (int step = lanes / 2; step; step /= 2)
        x += __shfl_xor_sync(ALL_LANES, x, step);
    return x;
}

/* most: of each lane of the row's group; write: of its first, of a row that is there */
DEVICE void put_narrow_largest(float *largest, int64_t row, float most, int lanes, bool write)
{
    if (!largest)
        return;
    for (int step = lanes / 2; step; step /= 2)
        most = fmaxf(most, __shfl_xor_sync(ALL_LANES, most, step));
    if (write)
        largest[row] = most;
}

template <typename T, int W> DEVICE void norm_narrow(const gpu_norm &a)
{
    int lanes = lanes_for(a.columns / W);
    int64_t row = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) / lanes;
    int64_t first = threadIdx.x % lanes * W;
    bool here = row < a.rows && first < a.columns;
    float x[W] = {0}, w[W], most = 0, rstd;

    if (here)
        read_row<T, W>(a, row * a.columns + first, x);
    rstd = 1.0f / sqrtf(group_sum(sum_of_squares<W>(x), lanes) / (float)a.columns + a.eps);
    if (here && first == 0)
        a.rstd[row] = rstd;
    if (here) {
        load_weight<T, W>(a.w, a.offset, first, w);
        most = write_row<T, W>(a, row, first, rstd, x, w);
    }
    put_narrow_largest(a.largest, row, most, lanes, here && first == 0);
}

template <typename T, int W> DEVICE void norm_narrow_grad(const gpu_norm_grad &a)
{
    __shared__ float part[GPU_NARROW_THREADS][W + 1];
    int lanes = lanes_for(a.columns / W), groups = (int)blockDim.x / lanes;
    int64_t first = threadIdx.x % lanes * W;
    float dw[W] = {0}, w[W] = {0};

    if (first < a.columns)
        load_weight<T, W>(a.w, a.offset, first, w);
    for (int64_t begin = (int64_t)blockIdx.x * groups; begin < a.rows;
         begin += (int64_t)gridDim.x * groups) {
        int64_t row = begin + threadIdx.x / lanes;
        bool here = row < a.rows && first < a.columns;
        columns_of_row<W> c = {};
        float rstd = 0, most = 0, mean;

        if (here) {
            rstd = a.rstd[row];
            read_columns<T, W>(a, row * a.columns + first, c);
        }
        mean = group_sum(product<W>(c, w), lanes) * rstd / (float)a.columns;
        if (here)
            most = write_columns<T, W>(a, row * a.columns + first, c, w, rstd, mean, dw);
        put_narrow_largest(a.largest, row, most, lanes, here && first == 0);
    }
#pragma unroll
    for (int i = 0; i < W; i++)
        part[threadIdx.x][i] = dw[i];
    __syncthreads();
    for (int column = (int)threadIdx.x; column < a.columns; column += (int)blockDim.x) {
        float sum = 0;

        for (int group = 0; group < groups; group++)
            sum += part[group * lanes + column / W][column % W];
        a.partial[blockIdx.x * a.columns + column] = sum;
    }
}

#define NORM(T, dtype)                                                                             \
    KERNEL(norm_##dtype, gpu_norm, 1024)                                                           \
    {                                                                                              \
        norm<T, 1>(a);                                                                             \
    }                                                                                              \
    KERNEL(norm_##dtype##_vector, gpu_norm, 1024)                                                  \
    {                                                                                              \
        norm<T, lanes<T>::of>(a);                                                                  \
    }                                                                                              \
    KERNEL(norm_narrow_##dtype##_vector, gpu_norm, GPU_NARROW_THREADS)                             \
    {                                                                                              \
        norm_narrow<T, lanes<T>::of>(a);                                                           \
    }                                                                                              \
    KERNEL(norm_narrow_grad_##dtype##_vector, gpu_norm_grad, GPU_NARROW_THREADS)                   \
    {                                                                                              \
        norm_narrow_grad<T, lanes<T>::of>(a);                                                      \
    }                                                                                              \
    KERNEL(norm_grad_##dtype, gpu_norm_grad, 1024)                                                 \
    {                                                                                              \
        norm_grad<T, 1>(a);                                                                        \
    }                                                                                              \
    KERNEL(norm_grad_##dtype##_vector, gpu_norm_grad, 1024)                                        \
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
        sum +=
            (float)load_scalar((char *)a.out + column * (a.kind == CT_CUDA_BF16 ? 2 : 4), a.kind);
    store_scalar((char *)a.out + column * (a.kind == CT_CUDA_BF16 ? 2 : 4), a.kind, sum);
}
