/*
 * Magnitudes, and weights with their adapters. A block takes LORA_ROWS rows, for which a row of A
 * is read once; all sums have a fixed order.
 */
#include <ctitan/lib/cuda/device.cuh>

#include "lora_cuda.h"

DEVICE float number_at(const lora_tensor_of_kind &t, int64_t matrix, int64_t row, int64_t column)
{
    float one[1];

    load_as<1>(t.kind, t.data, matrix * t.stride[0] + row * t.stride[1] + column, one);
    return one[0];
}

DEVICE void put(const lora_tensor_of_kind &t, int64_t matrix, int64_t row, int64_t column, float x,
                int accumulate)
{
    float one[1] = {accumulate ? x + number_at(t, matrix, row, column) : x};

    store_as<1>(t.kind, t.data, matrix * t.stride[0] + row * t.stride[1] + column, one);
}

/* A column of LORA_ROWS rows of w + scale b a. */
DEVICE void add_adapter(const lora_call &a, int64_t matrix, int64_t row, int64_t column,
                        float (&x)[LORA_ROWS])
{
#pragma unroll
    for (int i = 0; i < LORA_ROWS; i++)
        x[i] = row + i < a.rows ? number_at(a.w, matrix, row + i, column) : 0.0f;
    for (int64_t r = 0; r < a.rank; r++) {
        float of_a = number_at(a.a, matrix, r, column);

#pragma unroll
        for (int i = 0; i < LORA_ROWS; i++)
            if (row + i < a.rows)
                x[i] += a.scale * number_at(a.b, matrix, row + i, r) * of_a;
    }
}

KERNEL(lora_squared_norms, lora_call, LORA_THREADS)
{
    int64_t row = (int64_t)blockIdx.x * LORA_ROWS;
    float x[LORA_ROWS], sum[LORA_ROWS] = {};

    for (int64_t c = threadIdx.x; c < a.columns; c += blockDim.x) {
        add_adapter(a, 0, row, c, x);
#pragma unroll
        for (int i = 0; i < LORA_ROWS; i++)
            sum[i] += x[i] * x[i];
    }
#pragma unroll
    for (int i = 0; i < LORA_ROWS; i++) {
        double whole = block_sum((double)sum[i]);

        if (threadIdx.x == 0 && row + i < a.rows)
            ((float *)a.out.data)[row + i] = (float)whole;
    }
}

KERNEL(lora_merge, lora_call, LORA_THREADS)
{
    int64_t column = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    int64_t row = (int64_t)blockIdx.y * LORA_ROWS;
    float x[LORA_ROWS];

    if (column >= a.columns)
        return;
    add_adapter(a, blockIdx.z, row, column, x);
#pragma unroll
    for (int i = 0; i < LORA_ROWS; i++)
        if (row + i < a.rows)
            put(a.out, blockIdx.z, row + i, column, x[i], a.accumulate);
}

/* w: dy. Blocks of 32 columns x 8 rows of da. */
KERNEL(lora_merge_da, lora_call, LORA_THREADS)
{
    int64_t column = (int64_t)blockIdx.x * 32 + threadIdx.x;
    int64_t r = (int64_t)blockIdx.y * 8 + threadIdx.y;
    float sum = 0;

    if (column >= a.columns || r >= a.rank)
        return;
    for (int64_t row = 0; row < a.rows; row++)
        sum +=
            a.scale * number_at(a.b, blockIdx.z, row, r) * number_at(a.w, blockIdx.z, row, column);
    put(a.out, blockIdx.z, r, column, sum, a.accumulate);
}

/* w: dy. A warp has one number of db. */
KERNEL(lora_merge_db, lora_call, LORA_THREADS)
{
    int64_t at = (int64_t)blockIdx.x * 8 + threadIdx.y, row = at / a.rank, r = at % a.rank;
    float sum = 0;

    if (row >= a.rows)
        return;
    for (int64_t c = threadIdx.x; c < a.columns; c += 32)
        sum += number_at(a.w, blockIdx.z, row, c) * number_at(a.a, blockIdx.z, r, c);
    sum = warp_sum(sum);
    if (threadIdx.x == 0)
        put(a.out, blockIdx.z, row, r, a.scale * sum, a.accumulate);
}

/* ---- magnitudes ---- */

/* A row of zeros stays one. */
DEVICE float factor_of(float magnitude, float squared_norm)
{
    return squared_norm > 0 ? (float)(magnitude / sqrt((double)squared_norm)) : 0.0f;
}

KERNEL(lora_magnify, lora_magnify_call, LORA_THREADS)
{
    int64_t at = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    int64_t row = at / a.columns, column = at % a.columns;

    if (row < a.rows)
        put(a.out, 0, row, column,
            number_at(a.x, 0, row, column) * factor_of(a.m[column], a.squared_norms[column]),
            a.accumulate);
}

/* Blocks of 32 columns x 8 rows. */
KERNEL(lora_magnify_dm, lora_magnify_call, LORA_THREADS)
{
    __shared__ float part[8][33];
    int64_t column = (int64_t)blockIdx.x * 32 + threadIdx.x;
    float sum = 0;

    for (int64_t row = threadIdx.y; row < a.rows && column < a.columns; row += 8)
        sum += number_at(a.dy, 0, row, column) * number_at(a.x, 0, row, column);
    part[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y != 0 || column >= a.columns)
        return;
    sum = 0;
    for (int i = 0; i < 8; i++)
        sum += part[i][threadIdx.x];
    put(a.out, 0, 0, column, sum * factor_of(1, a.squared_norms[column]), a.accumulate);
}
