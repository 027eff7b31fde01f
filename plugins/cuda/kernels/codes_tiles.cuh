/*
 * Grouped products of experts in 8 bits, by tiles on tensor cores: T is mma_codes
 * (experts_float8.cu) or wgmma_codes (experts_float8_wgmma.cu).
 *
 * All products sum along lines of codes. Sums of 128 codes, of MXFP8 32, are multiplied by the
 * factors of both operands, and added up in float32. Lines are copied in pairs of codes,
 * as if these were bfloat16.
 */
#ifndef GPU_CODES_TILES_CUH
#define GPU_CODES_TILES_CUH

#include "copies.cuh"
#include "experts.cuh"

/* Where the numbers of an expert with `first` rows before it begin in a line of rows of choices. */
DEVICE int64_t codes_begin(int64_t first, int64_t expert)
{
    return (first + expert * GPU_CODES_BLOCK) / GPU_CODES_BLOCK * GPU_CODES_BLOCK;
}

DEVICE int64_t filled_up(int64_t count)
{
    return (count + 15) / 16 * 16;
}

/* As many rows and columns of a tile as there are. */
struct tile_size {
    int64_t rows, columns;
};

/* ---- lines of operands ---- */

/* Lines of a tile of ROWS, N of them this thread's: line(i) is where line i begins, for i below
   `count`. */
template <typename T, int ROWS, int N, typename LINE>
DEVICE loader_by_row<N> code_lines(int64_t count, const LINE &line)
{
    loader_by_row<N> l = {{}, 0};

#pragma unroll
    for (int j = 0; j < N; j++) {
        int i = T::template chunk<false, ROWS>(j).row;

        l.row[j] = kept((const bfloat16 *)line(i < count ? i : 0));
    }
    return l;
}

/* The same of a tile's rows, and of its columns. */
template <typename T, typename LINE>
DEVICE loader_by_row<T::a_chunks> row_lines(tile_size size, const LINE &line)
{
    return code_lines<T, T::rows, T::a_chunks>(size.rows, line);
}

template <typename T, typename LINE>
DEVICE loader_by_row<T::b_chunks> column_lines(tile_size size, const LINE &line)
{
    return code_lines<T, T::columns, T::b_chunks>(size.columns, line);
}

/* ---- results ---- */

/* *to = x, or + x */
DEVICE void put(void *to, int kind, int64_t at, float x, bool adds)
{
    float value[1] = {x}, before[1];

    if (adds) {
        load_as<1>(kind, to, at, before);
        value[0] += before[0];
    }
    store_as<1>(kind, to, at, value);
}

/* Where a tile's results are: element `at` of `to` is the first; rows are `stride` apart. */
struct tile_result {
    void *to;
    int64_t at, stride;
    int kind;
    bool adds;
};

/* Each two of a row at once: the address of each pair is a multiple of its size. */
template <typename T, bool ADDS, typename NUMBER>
DEVICE void put_pairs(typename T::sums &c, tile_size size, NUMBER *to, int64_t stride)
{
    T::each_pair(c, [&](int row, int column, const float *x) {
        NUMBER *at = to + row * stride + column;
        float pair[2] = {x[0], x[1]}, before[2];

        if (row >= size.rows || column >= size.columns)
            return;
        if (ADDS) {
            load<2>(at, before);
            pair[0] += before[0];
            pair[1] += before[1];
        }
        store<2>(at, pair);
    });
}

template <typename T, typename NUMBER>
DEVICE bool put_in_pairs(typename T::sums &c, tile_size size, const tile_result &r)
{
    NUMBER *to = (NUMBER *)r.to + r.at;

    if (r.stride % 2 || (intptr_t)to % (intptr_t)(2 * sizeof(*to)))
        return false;
    if (r.adds)
        put_pairs<T, true>(c, size, to, r.stride);
    else
        put_pairs<T, false>(c, size, to, r.stride);
    return true;
}

template <typename T>
DEVICE void put_tile(typename T::sums &c, tile_size size, const tile_result &r)
{
    if (r.kind == CT_CUDA_BF16 ? put_in_pairs<T, bfloat16>(c, size, r)
                               : put_in_pairs<T, float>(c, size, r))
        return;
    T::each_pair(c, [&](int row, int column, const float *x) {
#pragma unroll
        for (int e = 0; e < 2; e++)
            if (row < size.rows && column + e < size.columns)
                put(r.to, r.kind, r.at + row * r.stride + column + e, x[e], r.adds);
    });
}

/* The biases from `at` on, one for each column. */
template <typename T>
DEVICE void add_biases(typename T::sums &c, tile_size size, const void *bias, int kind, int64_t at)
{
    T::each_pair(c, [&](int, int column, float *x) {
#pragma unroll
        for (int e = 0; e < 2; e++) {
            float b[1] = {0};

            if (column + e < size.columns)
                load_as<1>(kind, bias, at + column + e, b);
            x[e] += b[0];
        }
    });
}

/* ---- products ---- */

/* The tile of as many rows and columns as are left of these. */
template <typename T> DEVICE tile_size size_of_tile(int64_t rows, int64_t columns)
{
    const int64_t down = T::rows, across = T::columns;
    tile_size size = {rows < down ? rows : down, columns < across ? columns : across};

    return size;
}

template <typename T>
DEVICE void product_of_codes(const gpu_codes_product &a, typename T::shared &shared)
{
    expert_tile t = find_tile(a.counts, a.experts, (int32_t)blockIdx.y, T::rows);
    int64_t first = (int64_t)blockIdx.x * T::columns;
    tile_size size = size_of_tile<T>(t.rows, a.columns - first);
    const gpu_codes &in = a.in, &w = a.weight;
    typename T::sums c = {};

    if (!t.rows)
        return;

    auto line = [&](int64_t i) { return a.tokens ? a.tokens[t.from + i] : t.from + i; };
    auto weight = [&](int64_t i) { return t.expert * a.columns + first + i; };

    T::multiply(c, shared,
                row_lines<T>(size, [&](int64_t i) { return in.codes + line(i) * in.stride; }),
                column_lines<T>(size, [&](int64_t i) { return w.codes + weight(i) * w.stride; }),
                a.depth, size,
                T::factors_of(
                    in, w, size, [&](int64_t i) { return line(i) * in.line; },
                    [&](int64_t i) { return t.expert * w.each + (first + i) / w.share * w.line; }));
    if (a.bias)
        add_biases<T>(c, size, a.bias, a.kind, weight(0));

    tile_result r = {a.c, t.from * a.columns + first, a.columns, a.kind, a.accumulate != 0};

    put_tile<T>(c, size, r);
}

template <typename T>
DEVICE void outer_of_codes(const gpu_codes_outer &a, typename T::shared &shared)
{
    int64_t expert = blockIdx.z, begin = codes_begin(rows_before(a.counts, expert), expert);
    int64_t row0 = (int64_t)blockIdx.y * T::rows, column0 = (int64_t)blockIdx.x * T::columns;
    tile_size size = size_of_tile<T>(a.rows - row0, a.columns - column0);
    const gpu_codes &l = a.left, &r = a.right;
    typename T::sums c = {};

    auto base = [&](const gpu_codes &o) {
        return o.block ? begin / T::along * o.block : expert * o.each;
    };

    T::multiply(
        c, shared,
        row_lines<T>(size, [&](int64_t i) { return l.codes + (row0 + i) * l.stride + begin; }),
        column_lines<T>(size,
                        [&](int64_t i) { return r.codes + (column0 + i) * r.stride + begin; }),
        a.counts[expert], size,
        T::factors_of(
            l, r, size, [&](int64_t i) { return base(l) + (row0 + i) * l.line; },
            [&](int64_t i) { return base(r) + (column0 + i) * r.line; }));

    tile_result t = {a.out, (expert * a.rows + row0) * a.columns + column0, a.columns, a.kind,
                     a.accumulate != 0};

    put_tile<T>(c, size, t);
}

#endif
