/*
 * Shared parts of the kernels of MoE layers: where an expert's rows are, and sums by token.
 */
#ifndef GPU_EXPERTS_CUH
#define GPU_EXPERTS_CUH

#include <ctitan/lib/cuda/device.cuh>

#include "arguments.h"

/* Rows of the experts before `expert`; whole warps call this. */
DEVICE int64_t rows_before(const int32_t *counts, int64_t expert)
{
    int32_t rows = 0;

    for (int64_t e = threadIdx.x % 32; e < expert; e += 32)
        rows += counts[e];
    return warp_sum(rows);
}

struct expert_tile {
    int64_t expert, from, rows; /* rows [from, from + rows) of the sorted choices */
};

/* Tile number `tile` of `side` rows; rows 0: there is none. Whole warps call this. */
DEVICE expert_tile find_tile(const int32_t *counts, int64_t experts, int32_t tile, int32_t side)
{
    int64_t first = 0;

    for (int64_t e = 0; e < experts; e += 32) {
        int64_t mine = e + threadIdx.x % 32;
        int32_t count = mine < experts ? counts[mine] : 0, tiles = (count + side - 1) / side;
        int32_t rows_to = sum_up_to_lane(count), tiles_to = sum_up_to_lane(tiles);
        uint32_t reached = __ballot_sync(ALL_LANES, tile < tiles_to);

        if (reached) {
            int at = __ffs((int)reached) - 1;
            int32_t from = (tile - __shfl_sync(ALL_LANES, tiles_to - tiles, at)) * side;
            int32_t before = __shfl_sync(ALL_LANES, rows_to - count, at);
            int32_t left = __shfl_sync(ALL_LANES, count, at) - from;
            expert_tile t = {e + at, first + before + from, left < side ? left : side};

            return t;
        }
        tile -= __shfl_sync(ALL_LANES, tiles_to, 31);
        first += __shfl_sync(ALL_LANES, rows_to, 31);
    }
    expert_tile none = {0, 0, 0};

    return none;
}

DEVICE float sigmoid(float x)
{
    return 1.0f / (1.0f + expf(-x));
}

/* NaN stays NaN. */
DEVICE float at_most(float x, float limit)
{
    return x > limit ? limit : x;
}

DEVICE float within(float x, float limit)
{
    return x < -limit ? -limit : at_most(x, limit);
}

/* g and u within the limits, the offset added to u; s = sigmoid(alpha g). The layer is g s u. */
struct gated_layer {
    float g, u, s;
};

DEVICE gated_layer gated(const gpu_gate &how, float g, float u)
{
    float x = at_most(g, how.limit);
    gated_layer layer = {x, within(u, how.limit) + how.offset, sigmoid(how.alpha * x)};

    return layer;
}

/* The layer's gradients by g and u, which are as they were before the limits, from its own: d. */
DEVICE float gradient_by_g(const gpu_gate &how, const gated_layer &l, float g, float d)
{
    return g > how.beyond ? 0 : d * l.u * l.s * (1.0f + how.alpha * l.g * (1.0f - l.s));
}

DEVICE float gradient_by_u(const gpu_gate &how, const gated_layer &l, float u, float d)
{
    return fabsf(u) > how.beyond ? 0 : d * l.g * l.s;
}

DEVICE int64_t warp_row()
{
    return ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) / 32;
}

/* y[token] = sum of the rows of its choices, weighted where weights are given; W columns at a time,
   a warp for each token. */
template <int W, typename T> DEVICE void combine_rows(const T *rows, const gpu_experts_combine &a)
{
    int64_t token = warp_row();

    if (token >= a.tokens)
        return;
    for (int64_t i = threadIdx.x % 32 * W; i < a.columns; i += 32 * W) {
        float sum[W] = {}, more[W];

        for (int64_t k = 0; k < a.k; k++) {
            int64_t row = a.place[token * a.k + k];
            float weight = a.weights ? a.weights[token * a.k + k] : 1.0f;

            if (row < 0)
                continue;
            load<W>(rows + row * a.columns + i, more);
#pragma unroll
            for (int w = 0; w < W; w++)
                sum[w] += weight * more[w];
        }
        if (a.accumulate) {
            load_as<W>(a.kind, a.y, token * a.columns + i, more);
#pragma unroll
            for (int w = 0; w < W; w++)
                sum[w] += more[w];
        }
        store_as<W>(a.kind, a.y, token * a.columns + i, sum);
    }
    for (int64_t k = threadIdx.x % 32; a.dweights && k < a.k; k += 32)
        if (a.place[token * a.k + k] < 0)
            a.dweights[token * a.k + k] = 0;
}

/* out[expert] = the sum of its rows, weighted where weights are given; W columns for each lane of a
   block's first warp, the expert is blockIdx.y. Warps have every eighth row. */
template <int W> DEVICE void sum_expert(const gpu_experts_sum &a)
{
    __shared__ float of_warp[8][32][W + 1];
    int64_t expert = blockIdx.y, first = rows_before(a.counts, expert), rows = a.counts[expert];
    int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    int64_t column = ((int64_t)blockIdx.x * 32 + lane) * W;
    float sum[W] = {}, more[W];

    for (int64_t r = first + warp; column < a.in.columns && r < first + rows; r += 8) {
        int64_t row = a.in.of_tokens ? a.tokens[r] : r;
        float weight = a.weights ? a.weights[a.order[r]] : 1.0f;

        load_as<W>(a.in.kind, a.in.x, row * a.in.columns + column, more);
#pragma unroll
        for (int w = 0; w < W; w++)
            sum[w] += weight * more[w];
    }
#pragma unroll
    for (int w = 0; w < W; w++)
        of_warp[warp][lane][w] = sum[w];
    __syncthreads();
    if (warp > 0 || column >= a.in.columns)
        return;
    for (int other = 1; other < 8; other++)
#pragma unroll
        for (int w = 0; w < W; w++)
            sum[w] += of_warp[other][lane][w];
    if (a.accumulate) {
        load_as<W>(a.kind, a.out, expert * a.in.columns + column, more);
#pragma unroll
        for (int w = 0; w < W; w++)
            sum[w] += more[w];
    }
    store_as<W>(a.kind, a.out, expert * a.in.columns + column, sum);
}

#endif
