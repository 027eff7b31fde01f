/*
 * Grouped products of experts in bfloat16, by tiles on tensor cores: T is mma_tiles (tensor.cuh) or
 * wgmma_tiles (wgmma.cuh).
 *
 * Choices are sorted by expert, as for the plain kernels (experts.cu). Inner values are rounded to
 * bfloat16: g, u and h of each choice, their gradients, and the rows that are added up by token.
 */
#ifndef GPU_EXPERTS_TILES_CUH
#define GPU_EXPERTS_TILES_CUH

#include "copies.cuh"
#include "experts.cuh"

/* The tile's rows of r. */
template <typename T>
DEVICE loader_by_row<T::a_rows> tile_rows(const gpu_expert_rows &r, const int32_t *tokens,
                                          const expert_tile &t)
{
    loader_by_row<T::a_rows> l = {{}, (const bfloat16 *)r.x, r.columns};

#pragma unroll
    for (int j = 0; j < T::a_rows; j++) {
        int64_t row = t.from + T::row_of(j);

        if (T::row_of(j) < t.rows)
            l.row[j] = (const bfloat16 *)r.x + (r.of_tokens ? tokens[row] : row) * r.columns;
    }
    return l;
}

/* Rows of w[rows][depth], from `from` on. */
template <typename T>
DEVICE loader_by_row<T::b_rows> matrix_rows(const bfloat16 *w, int64_t rows, int64_t depth,
                                            int64_t from)
{
    loader_by_row<T::b_rows> l = {{}, w, depth};

#pragma unroll
    for (int j = 0; j < T::b_rows; j++)
        l.row[j] = from + T::row_of(j) < rows ? w + (from + T::row_of(j)) * depth : nullptr;
    return l;
}

/* ---- g = x gate^T and u = x up^T, of the same columns ---- */

template <typename T>
DEVICE loader_by_row<T::b_rows> gated_rows(const gpu_experts_gated &a, int64_t expert,
                                           int64_t first)
{
    loader_by_row<T::b_rows> l = {{}, (const bfloat16 *)a.gate, a.in.columns};

#pragma unroll
    for (int j = 0; j < T::b_rows; j++) {
        typename T::gated_row r = T::gated(T::row_of(j));
        const bfloat16 *w = (const bfloat16 *)(r.up ? a.up : a.gate);

        l.row[j] =
            first + r.row < a.f ? w + (expert * a.f + first + r.row) * a.in.columns : nullptr;
    }
    return l;
}

/* x[0] and x[1], and biases of the expert where there are any. */
DEVICE void add_pair(const void *bias, int64_t at, float *x)
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
template <typename T> DEVICE void gated_tile(const gpu_experts_gated &a, typename T::shared &shared)
{
    expert_tile t = find_tile(a.counts, a.experts, (int32_t)blockIdx.y, T::rows);
    int64_t first = (int64_t)blockIdx.x * (T::columns / 2);
    typename T::sums c = {};

    if (!t.rows)
        return;
    T::multiply(c, shared, tile_rows<T>(a.in, a.tokens, t), gated_rows<T>(a, t.expert, first),
                a.in.columns);
    T::each_gated(c, [&](int, int column, float *g, float *u) {
        if (first + column >= a.f)
            return;
        add_pair(a.gate_bias, t.expert * a.f + first + column, g);
        add_pair(a.up_bias, t.expert * a.f + first + column, u);
#pragma unroll
        for (int i = 0; i < 2; i++)
            if (a.h) {
                g[i] = layer_of(a.how, g[i], u[i]);
            } else {
                g[i] = marked(g[i], a.how.limit);
                u[i] = marked_twice(u[i], a.how.limit);
            }
    });

    auto place = [&](void *to, int row, int column) {
        return row < t.rows && first + column < a.f
                   ? (bfloat16 *)to + (t.from + row) * a.f + first + column
                   : nullptr;
    };

    T::template store_half<false>(
        c, [&](int row, int column) { return place(a.h ? a.h : a.g, row, column); });
    if (!a.h)
        T::template store_half<true>(c,
                                     [&](int row, int column) { return place(a.u, row, column); });
}

/* ---- rows times weights ---- */

/* Part number `part` of the product, by weight[expert][column][i], or [expert][i][column]. */
template <typename T, bool TURNED>
DEVICE void multiply_part(typename T::sums &c, typename T::shared &shared,
                          const gpu_experts_tensor &a, const expert_tile &t, int part)
{
    int64_t depth = a.in[part].columns, column = (int64_t)blockIdx.x * T::columns;
    const bfloat16 *w = (const bfloat16 *)a.weight[part] + t.expert * a.columns * depth;
    loader_by_row<T::a_rows> rows = tile_rows<T>(a.in[part], a.tokens, t);

    if (TURNED) {
        loader_by_depth b = {w, w, a.columns, column, a.columns, depth, nullptr};

        T::multiply(c, shared, rows, b, depth);
    } else {
        T::multiply(c, shared, rows, matrix_rows<T>(w, a.columns, depth, column), depth);
    }
}

/* c[row][column] = sum over the parts, and i, of rows[row][i] times the weight */
template <typename T, bool TURNED>
DEVICE void product_tile(const gpu_experts_tensor &a, typename T::shared &shared)
{
    expert_tile t = find_tile(a.counts, a.experts, (int32_t)blockIdx.y, T::rows);
    int64_t first = (int64_t)blockIdx.x * T::columns;
    typename T::sums c = {};

    if (!t.rows)
        return;
    for (int part = 0; part < a.parts; part++)
        multiply_part<T, TURNED>(c, shared, a, t, part);
    T::store_all(c, [&](int row, int column) {
        return row < t.rows && first + column < a.columns
                   ? (bfloat16 *)a.c + (t.from + row) * a.columns + first + column
                   : nullptr;
    });
}

/* ---- gradients of weights ---- */

/* Columns of an expert's rows, from `column` on. */
DEVICE loader_by_depth expert_columns(const gpu_experts_outer &a, const gpu_expert_rows &r,
                                      int64_t first, int64_t rows, int64_t column)
{
    const bfloat16 *x = (const bfloat16 *)r.x;
    loader_by_depth l = {
        r.of_tokens ? x : x + first * r.columns, x, r.columns, column, r.columns, rows,
        r.of_tokens ? a.tokens + first : nullptr};

    return l;
}

/* out[expert][i][j] = sum over the rows of blockIdx.z's expert of left[row][i] right[row][j]. */
template <typename T> DEVICE void outer_tile(const gpu_experts_outer &a, typename T::shared &shared)
{
    int64_t expert = blockIdx.z, begin = rows_before(a.counts, expert), rows = a.counts[expert];
    int64_t from_i = (int64_t)blockIdx.y * T::rows, from_j = (int64_t)blockIdx.x * T::columns;
    typename T::sums c = {};

    T::multiply(c, shared, expert_columns(a, a.left, begin, rows, from_i),
                expert_columns(a, a.right, begin, rows, from_j), rows);
    T::each_pair(c, [&](int row, int column, const float *x) {
        int64_t i = from_i + row, j = from_j + column;
        int64_t at = (expert * a.left.columns + i) * a.right.columns + j;
        float value[2] = {x[0], x[1]}, before[2];

        if (i >= a.left.columns || j >= a.right.columns)
            return;
        if (a.accumulate) {
            load_as<2>(a.kind, a.out, at, before);
            value[0] += before[0];
            value[1] += before[1];
        }
        store_as<2>(a.kind, a.out, at, value);
    });
}

#endif
