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

/* The tile's rows of r; in the second part, `apart` elements on. */
template <typename T>
DEVICE loader_by_row<T::a_chunks> tile_rows(const gpu_expert_rows &r, const int32_t *tokens,
                                            const expert_tile &t, int64_t apart)
{
    loader_by_row<T::a_chunks> l = {{}, apart};

#pragma unroll
    for (int j = 0; j < T::a_chunks; j++) {
        int i = T::template chunk<false, T::rows>(j).row;
        int64_t row = t.from + (i < t.rows ? i : 0);

        l.row[j] = kept((const bfloat16 *)r.x + (r.of_tokens ? tokens[row] : row) * r.columns);
    }
    return l;
}

/* ---- g = x gate^T and u = x up^T, of the same columns ---- */

template <typename T>
DEVICE loader_by_row<T::b_chunks> gated_rows(const gpu_experts_gated &a, int64_t expert,
                                             int64_t first)
{
    loader_by_row<T::b_chunks> l = {{}, 0};

#pragma unroll
    for (int j = 0; j < T::b_chunks; j++) {
        typename T::gated_row r = T::gated(T::template chunk<false, T::columns>(j).row);
        int64_t row = expert * a.f + (first + r.row < a.f ? first + r.row : 0);

        l.row[j] = kept((const bfloat16 *)(r.up ? a.up : a.gate) + row * a.in.columns);
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

/* A value beyond the limit becomes infinite, so that rounding brings nothing across the limit. */
DEVICE float marked(float x, float limit)
{
    return x > limit ? INFINITY : x;
}

DEVICE float marked_twice(float x, float limit)
{
    return x < -limit ? -INFINITY : marked(x, limit);
}

/* g and u, and h, the gated layer: those that are wanted. The layer of what was marked is the same:
   what is beyond the limit counts as the limit. */
template <typename T> DEVICE void gated_tile(const gpu_experts_gated &a, typename T::shared &shared)
{
    expert_tile t = find_tile(a.counts, a.experts, (int32_t)blockIdx.y, T::rows);
    int64_t first = (int64_t)blockIdx.x * (T::columns / 2);
    typename T::sums c = {};

    if (!t.rows)
        return;
    T::multiply(c, shared, tile_rows<T>(a.in, a.tokens, t, 0), gated_rows<T>(a, t.expert, first),
                (int)a.in.columns, 1);
    T::each_gated(c, [&](int, int column, float *g, float *u) {
        if (first + column >= a.f)
            return;
        add_pair(a.gate_bias, t.expert * a.f + first + column, g);
        add_pair(a.up_bias, t.expert * a.f + first + column, u);
#pragma unroll
        for (int i = 0; i < 2; i++) {
            g[i] = marked(g[i], a.how.limit);
            u[i] = marked_twice(u[i], a.how.limit);
        }
    });

    auto place = [&](void *to, int row, int column) {
        return row < t.rows && first + column < a.f
                   ? (bfloat16 *)to + (t.from + row) * a.f + first + column
                   : nullptr;
    };

    if (a.g) {
        T::template store_half<false>(c,
                                      [&](int row, int column) { return place(a.g, row, column); });
        T::template store_half<true>(c,
                                     [&](int row, int column) { return place(a.u, row, column); });
    }
    if (!a.h)
        return;
    T::each_gated(c, [&](int, int, float *g, const float *u) {
        g[0] = layer_of(a.how, g[0], u[0]);
        g[1] = layer_of(a.how, g[1], u[1]);
    });
    T::template store_half<false>(c, [&](int row, int column) { return place(a.h, row, column); });
}

/* ---- rows times weights ---- */

DEVICE int64_t elements_between(const void *from, const void *to)
{
    return ((intptr_t)to - (intptr_t)from) / (intptr_t)sizeof(bfloat16);
}

/* Rows of the expert's w[columns][depth], from `first` on. */
template <typename T>
DEVICE loader_by_row<T::b_chunks> matrix_rows(const bfloat16 *w, int64_t columns, int64_t depth,
                                              int64_t first, int64_t apart)
{
    loader_by_row<T::b_chunks> l = {{}, apart};

#pragma unroll
    for (int j = 0; j < T::b_chunks; j++) {
        int64_t row = first + T::template chunk<false, T::columns>(j).row;

        l.row[j] = kept(w + (row < columns ? row : 0) * depth);
    }
    return l;
}

/* x, of a matrix with so many columns, points to column `first`. */
template <int N>
DEVICE loader_by_depth<N> columns_from(const bfloat16 *x, int64_t columns, int64_t first,
                                       const int32_t *tokens, int64_t apart)
{
    uint32_t stride = (uint32_t)columns * (uint32_t)sizeof(*x);
    loader_by_depth<N> l = {x, apart, stride, (int)(columns - first), tokens, {}};

    return l;
}

/* c[row][column] = sum over the parts, and i, of rows[row][i] times weight[expert][column][i], or
   [expert][i][column] */
template <typename T, bool TURNED>
DEVICE void product_tile(const gpu_experts_tensor &a, typename T::shared &shared)
{
    expert_tile t = find_tile(a.counts, a.experts, (int32_t)blockIdx.y, T::rows);
    int64_t depth = a.in[0].columns, first = (int64_t)blockIdx.x * T::columns;
    const bfloat16 *w = (const bfloat16 *)a.weight[0] + t.expert * a.columns * depth;
    int64_t w_apart = elements_between(a.weight[0], a.weight[1]);
    typename T::sums c = {};

    if (!t.rows)
        return;

    auto rows = tile_rows<T>(a.in[0], a.tokens, t, elements_between(a.in[0].x, a.in[1].x));

    if (TURNED)
        T::multiply(c, shared, rows,
                    columns_from<T::b_chunks>(w + first, a.columns, first, nullptr, w_apart),
                    (int)depth, a.parts);
    else
        T::multiply(c, shared, rows, matrix_rows<T>(w, a.columns, depth, first, w_apart),
                    (int)depth, a.parts);
    T::store_all(c, [&](int row, int column) {
        return row < t.rows && first + column < a.columns
                   ? (bfloat16 *)a.c + (t.from + row) * a.columns + first + column
                   : nullptr;
    });
}

/* ---- gradients of weights ---- */

/* Columns of an expert's rows, from `column` on; `begin`: its first row. */
template <int N>
DEVICE loader_by_depth<N> expert_columns(const gpu_experts_outer &a, const gpu_expert_rows &r,
                                         int64_t begin, int64_t column)
{
    const bfloat16 *x = (const bfloat16 *)r.x + column;

    if (r.of_tokens)
        return columns_from<N>(x, r.columns, column, a.tokens + begin, 0);
    return columns_from<N>(x + begin * r.columns, r.columns, column, nullptr, 0);
}

/* out[expert][i][j] = sum over the rows of blockIdx.z's expert of left[row][i] right[row][j]. */
template <typename T> DEVICE void outer_tile(const gpu_experts_outer &a, typename T::shared &shared)
{
    int64_t expert = blockIdx.z, begin = rows_before(a.counts, expert);
    int64_t from_i = (int64_t)blockIdx.y * T::rows, from_j = (int64_t)blockIdx.x * T::columns;
    typename T::sums c = {};

    T::multiply(c, shared, expert_columns<T::a_chunks>(a, a.left, begin, from_i),
                expert_columns<T::b_chunks>(a, a.right, begin, from_j), a.counts[expert], 1);
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
