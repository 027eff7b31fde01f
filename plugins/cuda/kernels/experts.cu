/*
 * Mixtures of experts: grouped products in float32.
 *
 * Choices are sorted by expert (a block each, in the order of the tokens), and the rows of an
 * expert are split into tiles of TILE. A block of the product takes a tile of rows and one of
 * columns. It finds the expert of its tile from the counts: the host knows nothing of the choices.
 * Results of choices are added up by token, in the order of its choices: there is no atomic.
 */
#include "experts.cuh"

#define TILE GPU_EXPERTS_TILE
#define DEPTH 16 /* of the operands in shared memory */

/* ---- choices by expert ---- */

#define SORTED 8 /* choices that a thread looks at at a time */

struct sorted_ids {
    int32_t at[SORTED];
};

/* Loads the experts of choices [from, from + SORTED); beyond the last one there is no expert. */
DEVICE sorted_ids load_ids(const gpu_experts &a, int64_t from)
{
    bool aligned = (uintptr_t)a.ids % sizeof(vector<int32_t, 4>) == 0;
    sorted_ids ids;

#pragma unroll
    for (int i = 0; i < SORTED; i += 4)
        if (aligned && from + i + 4 <= a.choices) {
            vector<int32_t, 4> four = *(const vector<int32_t, 4> *)(a.ids + from + i);

#pragma unroll
            for (int j = 0; j < 4; j++)
                ids.at[i + j] = four.at[j];
        } else {
            for (int j = 0; j < 4; j++)
                ids.at[i + j] = from + i + j < a.choices ? a.ids[from + i + j] : GPU_NO_EXPERT;
        }
    return ids;
}

/* Block e counts the choices of expert first + e. */
KERNEL(experts_count, gpu_experts, GPU_SORT_THREADS)
{
    int64_t count = 0, expert = a.first + blockIdx.x, step = blockDim.x * SORTED;

    for (int64_t from = threadIdx.x * SORTED; from < a.choices; from += step) {
        sorted_ids ids = load_ids(a, from);

#pragma unroll
        for (int i = 0; i < SORTED; i++)
            if (ids.at[i] != GPU_NO_EXPERT &&
                in_range(CT_CUDA_FAULT_EXPERT, ids.at[i], (from + i) / a.k, a.all, a.fault))
                count += ids.at[i] == expert;
    }
    count = block_sum(count);
    if (threadIdx.x == 0)
        a.counts[blockIdx.x] = (int32_t)count;
}

/* Block e lists the choices of expert first + e, in order. */
KERNEL(experts_sort, gpu_experts, GPU_SORT_THREADS)
{
    int64_t expert = a.first + blockIdx.x, at = rows_before(a.counts, blockIdx.x);

    for (int64_t begin = 0; begin < a.choices; begin += blockDim.x * SORTED) {
        int64_t from = begin + threadIdx.x * SORTED;
        sorted_ids ids = load_ids(a, from);
        int32_t mine = 0, all;
        int64_t place;

#pragma unroll
        for (int i = 0; i < SORTED; i++)
            mine += ids.at[i] == expert;
        place = at + sum_before_thread(mine, &all);
        at += all;
#pragma unroll
        for (int i = 0; i < SORTED; i++)
            if (ids.at[i] == expert) {
                a.order[place] = (int32_t)(from + i);
                a.tokens[place] = (int32_t)((from + i) / a.k);
                a.place[from + i] = (int32_t)place++;
            }
    }
}

KERNEL(experts_clear, gpu_experts, 256)
{
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;

    if (i < a.choices)
        a.place[i] = -1;
}

/* ---- products ---- */

/* Row `row` of the sorted choices: of its token, or its own. */
DEVICE float row_element(const gpu_expert_rows &r, const int32_t *tokens, int64_t row,
                         int64_t column)
{
    float x[1];

    load_as<1>(r.kind, r.x, (r.of_tokens ? tokens[row] : row) * r.columns + column, x);
    return x[0];
}

/* c[row][column] = sum over i of rows[row][i] weight[expert](column, i), or c + it. 256 threads
   share a tile of TILE x TILE, 4 x 4 elements each. */
KERNEL(experts_product, gpu_experts_product, 256)
{
    __shared__ float x[DEPTH][TILE + 1], w[DEPTH][TILE + 1];
    expert_tile t = find_tile(a.counts, a.experts, blockIdx.y, TILE);
    int64_t column = (int64_t)blockIdx.x * TILE, depth = a.in.columns;
    int64_t base = t.expert * a.columns * depth;
    int row4 = (int)threadIdx.x / 16 * 4, column4 = (int)threadIdx.x % 16 * 4;
    float sum[4][4] = {};

    if (!t.rows)
        return;
    for (int64_t from = 0; from < depth; from += DEPTH) {
        __syncthreads();
        for (int i = (int)threadIdx.x; i < TILE * DEPTH; i += (int)blockDim.x) {
            int64_t row = i / DEPTH, at = from + i % DEPTH;

            x[i % DEPTH][row] =
                row < t.rows && at < depth ? row_element(a.in, a.tokens, t.from + row, at) : 0;
        }
        for (int i = (int)threadIdx.x; i < TILE * DEPTH; i += (int)blockDim.x) {
            int64_t c = a.turned ? i % TILE : i / DEPTH, at = a.turned ? i / TILE : i % DEPTH;
            float value[1] = {0};

            if (column + c < a.columns && from + at < depth)
                load_as<1>(a.weight_kind, a.weight,
                           base + (a.turned ? (from + at) * a.columns + column + c
                                            : (column + c) * depth + from + at),
                           value);
            w[at][c] = value[0];
        }
        __syncthreads();
        for (int i = 0; i < DEPTH; i++)
#pragma unroll
            for (int r = 0; r < 4; r++)
#pragma unroll
                for (int c = 0; c < 4; c++)
                    sum[r][c] += x[i][row4 + r] * w[i][column4 + c];
    }
#pragma unroll
    for (int r = 0; r < 4; r++)
#pragma unroll
        for (int c = 0; c < 4; c++)
            if (row4 + r < t.rows && column + column4 + c < a.columns) {
                float *to = a.c + (t.from + row4 + r) * a.columns + column + column4 + c;

                *to = a.accumulate ? *to + sum[r][c] : sum[r][c];
            }
}

/* out[expert][i][j] = sum over the rows of blockIdx.z's expert of left[row][i] right[row][j]. */
KERNEL(experts_outer, gpu_experts_outer, 256)
{
    __shared__ float x[DEPTH][TILE + 1], y[DEPTH][TILE + 1];
    int64_t expert = blockIdx.z, first = rows_before(a.counts, expert), rows = a.counts[expert];
    int64_t i0 = (int64_t)blockIdx.y * TILE, j0 = (int64_t)blockIdx.x * TILE;
    int row4 = (int)threadIdx.x / 16 * 4, column4 = (int)threadIdx.x % 16 * 4;
    float sum[4][4] = {};

    for (int64_t from = 0; from < rows; from += DEPTH) {
        __syncthreads();
        for (int i = (int)threadIdx.x; i < TILE * DEPTH; i += (int)blockDim.x) {
            int64_t row = from + i / TILE, at = i % TILE;
            bool here = row < rows;

            x[i / TILE][at] = here && i0 + at < a.left.columns
                                  ? row_element(a.left, a.tokens, first + row, i0 + at)
                                  : 0;
            y[i / TILE][at] = here && j0 + at < a.right.columns
                                  ? row_element(a.right, a.tokens, first + row, j0 + at)
                                  : 0;
        }
        __syncthreads();
        for (int i = 0; i < DEPTH; i++)
#pragma unroll
            for (int r = 0; r < 4; r++)
#pragma unroll
                for (int c = 0; c < 4; c++)
                    sum[r][c] += x[i][row4 + r] * y[i][column4 + c];
    }
    for (int r = 0; r < 4; r++)
        for (int c = 0; c < 4; c++) {
            int64_t i = i0 + row4 + r, j = j0 + column4 + c;
            int64_t at = (expert * a.left.columns + i) * a.right.columns + j;
            float value[1] = {sum[r][c]}, before[1];

            if (i >= a.left.columns || j >= a.right.columns)
                continue;
            if (a.accumulate) {
                load_as<1>(a.kind, a.out, at, before);
                value[0] += before[0];
            }
            store_as<1>(a.kind, a.out, at, value);
        }
}

/* ---- rows of choices: a warp each ---- */

/* Where the biases of the row's expert begin; 0 without biases. */
DEVICE int64_t bias_of(const gpu_experts_rows &a, int64_t row)
{
    return a.gate_bias ? find_tile(a.all.counts, a.all.experts, (int32_t)row, 1).expert * a.f : 0;
}

DEVICE float biased(const gpu_experts_rows &a, const void *bias, float x, int64_t at)
{
    float b[1] = {0};

    if (bias)
        load_as<1>(a.bias_kind, bias, at, b);
    return bias ? x + b[0] : x;
}

/* g = the gated layer of from_g and from_u */
KERNEL(experts_hidden, gpu_experts_rows, 256)
{
    int64_t row = warp_row(), bias, at = row * a.f;
    const float *g = (const float *)a.from_g + at, *u = (const float *)a.from_u + at;

    if (row >= rows_before(a.all.counts, a.all.experts))
        return;
    bias = bias_of(a, row);
    for (int64_t i = threadIdx.x % 32; i < a.f; i += 32) {
        gated_layer l = gated(a.how, biased(a, a.gate_bias, g[i], bias + i),
                              biased(a, a.up_bias, u[i], bias + i));

        ((float *)a.g)[at + i] = l.g * (l.s * l.u);
    }
}

/* Makes, from dh, from_g and from_u: dg to g, du to u, the weighted hidden layer over dh, and the
   gradient of the choice's weight. */
KERNEL(experts_hidden_grad, gpu_experts_rows, 256)
{
    int64_t row = warp_row(), choice, bias, at = row * a.f;
    const float *from_g = (const float *)a.from_g + at, *from_u = (const float *)a.from_u + at;
    float *dg = (float *)a.g + at, *du = (float *)a.u + at, *wh = (float *)a.dh + at;
    float weight, sum = 0;

    if (row >= rows_before(a.all.counts, a.all.experts))
        return;
    bias = bias_of(a, row);
    choice = a.all.order[row];
    weight = a.weights[choice];
    for (int64_t i = threadIdx.x % 32; i < a.f; i += 32) {
        float g = biased(a, a.gate_bias, from_g[i], bias + i);
        float u = biased(a, a.up_bias, from_u[i], bias + i);
        gated_layer l = gated(a.how, g, u);
        float dh = wh[i], h = l.g * l.s * l.u;

        sum += dh * h;
        dh *= weight;
        dg[i] = gradient_by_g(a.how, l, g, dh);
        du[i] = gradient_by_u(a.how, l, u, dh);
        wh[i] = weight * h;
    }
    sum = warp_sum(sum);
    if (a.dweights && threadIdx.x % 32 == 0)
        a.dweights[choice] = a.accumulate ? a.dweights[choice] + sum : sum;
}

/* y[token] = sum of the rows of its choices, weighted where weights are given. */
KERNEL(experts_combine, gpu_experts_combine, 256)
{
    combine_rows<1>((const float *)a.rows, a);
}

/* ---- sums of rows by expert ---- */

KERNEL(experts_sum, gpu_experts_sum, 256)
{
    sum_expert<1>(a);
}

KERNEL(experts_sum_vector, gpu_experts_sum, 256)
{
    sum_expert<8>(a);
}

/* ---- biases of results ---- */

/* The expert of a choice, among this rank's experts; -1: it is none of them. */
DEVICE int64_t bias_expert(const gpu_expert_bias &a, int64_t token, int64_t choice)
{
    int32_t id = a.ids[choice];

    if (id == GPU_NO_EXPERT || !in_range(CT_CUDA_FAULT_EXPERT, id, token, a.all, a.fault))
        return -1;
    return id >= a.first && id < a.first + a.experts ? id - a.first : -1;
}

/* y[token] = the weighted sum of the biases of its choices; a warp for each token. */
template <int W> DEVICE void add_biases(const gpu_expert_bias &a)
{
    int64_t token = warp_row();

    if (token >= a.tokens)
        return;
    for (int64_t i = threadIdx.x % 32 * W; i < a.columns; i += 32 * W) {
        float sum[W] = {}, more[W];

        for (int64_t k = 0; k < a.k; k++) {
            int64_t expert = bias_expert(a, token, token * a.k + k);
            float weight = a.weights[token * a.k + k];

            if (expert < 0)
                continue;
            load_as<W>(a.kind, a.bias, expert * a.columns + i, more);
#pragma unroll
            for (int w = 0; w < W; w++)
                sum[w] += weight * more[w];
        }
        store_as<W>(a.kind, a.y, token * a.columns + i, sum);
    }
}

/* dweights[choice] = its bias times its token's row of dy; a warp for each choice. */
template <int W> DEVICE void bias_products(const gpu_expert_bias &a)
{
    int64_t choice = warp_row(), token, expert;
    float sum = 0;

    if (choice >= a.tokens * a.k)
        return;
    token = choice / a.k;
    expert = bias_expert(a, token, choice);
    for (int64_t i = threadIdx.x % 32 * W; expert >= 0 && i < a.columns; i += 32 * W) {
        float dy[W], bias[W];

        load_as<W>(a.kind, a.dy, token * a.columns + i, dy);
        load_as<W>(a.kind, a.bias, expert * a.columns + i, bias);
#pragma unroll
        for (int w = 0; w < W; w++)
            sum += dy[w] * bias[w];
    }
    sum = warp_sum(sum);
    if (threadIdx.x % 32 == 0)
        a.dweights[choice] = sum;
}

KERNEL(expert_bias, gpu_expert_bias, 256)
{
    add_biases<1>(a);
}

KERNEL(expert_bias_vector, gpu_expert_bias, 256)
{
    add_biases<8>(a);
}

KERNEL(expert_bias_dweights, gpu_expert_bias, 256)
{
    bias_products<1>(a);
}

KERNEL(expert_bias_dweights_vector, gpu_expert_bias, 256)
{
    bias_products<8>(a);
}
