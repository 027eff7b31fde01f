/*
 * Mixtures of experts in bfloat16: grouped products on tensor cores.
 *
 * Choices are sorted by expert, as for the plain kernels (experts.cu). Inner values are rounded to
 * bfloat16: g, u and h of each choice, their gradients, and the rows that are added up by token.
 */
#include "experts.cuh"
#include "tensor.cuh"

DEVICE const bfloat16 *source_row(const gpu_expert_rows &r, const int32_t *order, int32_t k,
                                  int64_t row)
{
    return (const bfloat16 *)r.x + (r.of_tokens ? order[row] / k : row) * r.columns;
}

/* The tile's rows of r. */
DEVICE loader_by_row tile_rows(const gpu_expert_rows &r, const int32_t *order, int32_t k,
                               const expert_tile &t)
{
    loader_by_row l = {{}, (const bfloat16 *)r.x, r.columns};

#pragma unroll
    for (int j = 0; j < 2; j++) {
        int64_t i = threadIdx.x / 4 + j * 64;

        l.row[j] = i < t.rows ? source_row(r, order, k, t.from + i) : nullptr;
    }
    return l;
}

/* Rows of w[rows][depth], from `from` on. */
DEVICE loader_by_row matrix_rows(const bfloat16 *w, int64_t rows, int64_t depth, int64_t from)
{
    loader_by_row l = {{}, w, depth};

#pragma unroll
    for (int j = 0; j < 2; j++) {
        int64_t i = from + threadIdx.x / 4 + j * 64;

        l.row[j] = i < rows ? w + i * depth : nullptr;
    }
    return l;
}

DEVICE void store_pair(void *to, int64_t at, float x, float y)
{
    float pair[2] = {x, y};

    store<2>((bfloat16 *)to + at, pair);
}

/* ---- g = x gate^T and u = x up^T, of the same 64 columns: those of a warp are 16 of each ---- */

#define GATED (SIDE / 2)

DEVICE loader_by_row gated_rows(const gpu_experts_gated &a, int64_t expert)
{
    int64_t weights = expert * a.f * a.in.columns, from = (int64_t)blockIdx.x * GATED;
    loader_by_row l = {{}, (const bfloat16 *)a.gate, a.in.columns};

#pragma unroll
    for (int j = 0; j < 2; j++) {
        int64_t i = threadIdx.x / 4 + j * 64, row = from + i / 32 * 16 + i % 16;
        const void *w = i % 32 < 16 ? a.gate : a.up;

        l.row[j] = row < a.f ? (const bfloat16 *)w + weights + row * a.in.columns : nullptr;
    }
    return l;
}

/* x[0] and x[1], and biases of the expert where there are any. */
DEVICE void add_pair(const void *bias, int64_t at, float (&x)[2])
{
    float b[2];

    if (!bias)
        return;
    load<2>((const bfloat16 *)bias + at, b);
    x[0] += b[0];
    x[1] += b[1];
}

DEVICE float layer_of(const gpu_gate &how, float g, float u)
{
    gated_layer l = gated(how, g, u);

    return l.g * l.s * l.u;
}

/* What is beyond the limit becomes infinite, so that rounding brings nothing across the limit. */
DEVICE float marked(float x, float limit)
{
    return x > limit ? INFINITY : x;
}

DEVICE float marked_twice(float x, float limit)
{
    return x < -limit ? -INFINITY : marked(x, limit);
}

/* h, the gated layer, or g and u where h is not given */
KERNEL(experts_gated, gpu_experts_gated, GPU_TENSOR_THREADS)
{
    __shared__ tensor_slices slices;
    expert_tile t = find_tile(a.counts, a.experts, (int32_t)blockIdx.y, SIDE);
    tile_sums c = {};

    if (!t.rows)
        return;
    multiply_tile(c, slices, tile_rows(a.in, a.order, a.k, t), gated_rows(a, t.expert),
                  a.in.columns);
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int j = 0; j < 2; j++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                tile_place p = pair_place(i, j, half);
                int64_t column = (int64_t)blockIdx.x * GATED + p.column / 32 * 16 + p.column % 16;
                int64_t at = (t.from + p.row) * a.f + column;
                float g[2] = {c[i][j][2 * half], c[i][j][2 * half + 1]};
                float u[2] = {c[i][j + 2][2 * half], c[i][j + 2][2 * half + 1]};
                float limit = a.how.limit;

                if (p.row >= t.rows || column >= a.f)
                    continue;
                add_pair(a.gate_bias, t.expert * a.f + column, g);
                add_pair(a.up_bias, t.expert * a.f + column, u);
                if (a.h) {
                    store_pair(a.h, at, layer_of(a.how, g[0], u[0]), layer_of(a.how, g[1], u[1]));
                } else {
                    store_pair(a.g, at, marked(g[0], limit), marked(g[1], limit));
                    store_pair(a.u, at, marked_twice(u[0], limit), marked_twice(u[1], limit));
                }
            }
}

/* Of dh, g and u: dg over g, du over u, the weighted hidden layer over dh, and the gradient of the
   choice's weight. A warp for each row. */
KERNEL(experts_gated_grad, gpu_experts_rows, 256)
{
    int64_t row = warp_row(), choice;
    bfloat16 *g_row = (bfloat16 *)a.g + row * a.f, *u_row = (bfloat16 *)a.u + row * a.f;
    bfloat16 *dh_row = (bfloat16 *)a.dh + row * a.f;
    float weight, sum = 0;

    if (row >= rows_before(a.all.counts, a.all.experts))
        return;
    choice = a.all.order[row];
    weight = a.weights[choice];
    for (int64_t i = threadIdx.x % 32 * 8; i < a.f; i += 256) {
        float g[8], u[8], dh[8];

        load<8>(g_row + i, g);
        load<8>(u_row + i, u);
        load<8>(dh_row + i, dh);
#pragma unroll
        for (int w = 0; w < 8; w++) {
            gated_layer l = gated(a.how, g[w], u[w]);
            float h = l.g * l.s * l.u, d = weight * dh[w];

            sum += dh[w] * h;
            dh[w] = weight * h;
            g[w] = gradient_by_g(a.how, l, g[w], d);
            u[w] = gradient_by_u(a.how, l, u[w], d);
        }
        store<8>(g_row + i, g);
        store<8>(u_row + i, u);
        store<8>(dh_row + i, dh);
    }
    sum = warp_sum(sum);
    if (a.dweights && threadIdx.x % 32 == 0)
        a.dweights[choice] = a.accumulate ? a.dweights[choice] + sum : sum;
}

/* ---- rows times weights ---- */

DEVICE void store_rows(const gpu_experts_tensor &a, const expert_tile &t, const tile_sums &c)
{
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int j = 0; j < 4; j++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                tile_place p = pair_place(i, j, half);
                int64_t column = (int64_t)blockIdx.x * SIDE + p.column;

                if (p.row < t.rows && column < a.columns)
                    store_pair(a.c, (t.from + p.row) * a.columns + column, c[i][j][2 * half],
                               c[i][j][2 * half + 1]);
            }
}

/* c[row][column] = sum over the parts, and i, of rows[row][i] weight[expert][column][i] */
KERNEL(experts_tensor, gpu_experts_tensor, GPU_TENSOR_THREADS)
{
    __shared__ tensor_slices slices;
    expert_tile t = find_tile(a.counts, a.experts, (int32_t)blockIdx.y, SIDE);
    tile_sums c = {};

    if (!t.rows)
        return;
    for (int part = 0; part < a.parts; part++) {
        int64_t depth = a.in[part].columns;
        const bfloat16 *w = (const bfloat16 *)a.weight[part] + t.expert * a.columns * depth;

        multiply_tile(c, slices, tile_rows(a.in[part], a.order, a.k, t),
                      matrix_rows(w, a.columns, depth, (int64_t)blockIdx.x * SIDE), depth);
    }
    store_rows(a, t, c);
}

/* The same by weight[expert][i][column]. */
KERNEL(experts_tensor_turned, gpu_experts_tensor, GPU_TENSOR_THREADS)
{
    __shared__ tensor_slices slices;
    expert_tile t = find_tile(a.counts, a.experts, (int32_t)blockIdx.y, SIDE);
    tile_sums c = {};

    if (!t.rows)
        return;
    for (int part = 0; part < a.parts; part++) {
        int64_t depth = a.in[part].columns;
        const bfloat16 *w = (const bfloat16 *)a.weight[part] + t.expert * a.columns * depth;
        loader_by_depth b = {w,         w,     a.columns, (int64_t)blockIdx.x * SIDE,
                             a.columns, depth, nullptr,   0};

        multiply_tile(c, slices, tile_rows(a.in[part], a.order, a.k, t), b, depth);
    }
    store_rows(a, t, c);
}

/* ---- gradients of weights ---- */

/* Columns of an expert's rows, from blockIdx's tile on. */
DEVICE loader_by_depth expert_columns(const gpu_experts_outer &a, const gpu_expert_rows &r,
                                      int64_t first, int64_t rows, unsigned tile)
{
    const bfloat16 *x = (const bfloat16 *)r.x;
    loader_by_depth l = {r.of_tokens ? x : x + first * r.columns,
                         x,
                         r.columns,
                         (int64_t)tile * SIDE,
                         r.columns,
                         rows,
                         r.of_tokens ? a.order + first : nullptr,
                         a.k};

    return l;
}

/* out[expert][i][j] = sum over the rows of blockIdx.z's expert of left[row][i] right[row][j]. */
KERNEL(experts_outer_tensor, gpu_experts_outer, GPU_TENSOR_THREADS)
{
    __shared__ tensor_slices slices;
    int64_t expert = blockIdx.z, first = rows_before(a.counts, expert), rows = a.counts[expert];
    tile_sums c = {};

    multiply_tile(c, slices, expert_columns(a, a.left, first, rows, blockIdx.y),
                  expert_columns(a, a.right, first, rows, blockIdx.x), rows);
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int j = 0; j < 4; j++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                tile_place p = pair_place(i, j, half);
                int64_t row = (int64_t)blockIdx.y * SIDE + p.row;
                int64_t column = (int64_t)blockIdx.x * SIDE + p.column;
                int64_t at = (expert * a.left.columns + row) * a.right.columns + column;
                float value[2] = {c[i][j][2 * half], c[i][j][2 * half + 1]}, before[2];

                if (row >= a.left.columns || column >= a.right.columns)
                    continue;
                if (a.accumulate) {
                    load_as<2>(a.kind, a.out, at, before);
                    value[0] += before[0];
                    value[1] += before[1];
                }
                store_as<2>(a.kind, a.out, at, value);
            }
}

/* Rows in bfloat16, summed by token. */
KERNEL(experts_combine_tensor, gpu_experts_combine, 256)
{
    combine_rows<8>((const bfloat16 *)a.rows, a);
}
