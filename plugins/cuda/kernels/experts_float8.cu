/*
 * Mixtures of experts in 8 bits: codes of operands, and grouped products of these on tensor cores.
 *
 * All products sum along lines of codes, so those of transposes are made from x's columns. Sums of
 * 128 codes, of MXFP8 32, are multiplied by the factors of both operands, and added up in float32.
 * On their way to the tensor cores codes become bfloat16, which holds each of them: 8-bit operands
 * of mma.sync become float16 on sm_90 and sm_100, and are no faster there.
 *
 * Casts load 4 or 8 numbers at once where the sizes allow it.
 */
#include "code_rows.h"
#include "codes_tiles.cuh"
#include "float8.cuh"
#include "tensor.cuh"

#define BLOCK GPU_CODES_BLOCK
#define CHUNK GPU_CODES_CHUNK

/* ---- codes ---- */

struct coding {
    float scale, factor;
};

/* By a magnitude that is not finite, all that shares its factor becomes NaN. */
DEVICE coding finite_coding(float amax, float scale, float factor)
{
    coding c = {scale, amax < INFINITY ? factor : NAN};

    return c;
}

/* The scale is the largest power of two that takes amax to no more than 448 = 1.75 * 2^8. */
DEVICE coding power_coding(float amax)
{
    uint32_t bits = __float_as_uint(fmaxf(amax, 1e-12f));
    uint32_t up = (bits >> 23) - ((bits & 0x7fffff) <= 0x600000); /* 127 + 7 - the power */

    return finite_coding(amax, __uint_as_float((2 * 127 + 7 - up) << 23),
                         __uint_as_float((up - 7) << 23));
}

/* OCP MX, rounded up such that nothing saturates. */
DEVICE coding mx_coding(float amax)
{
    uint32_t exponent = mx_exponent(amax, GPU_CODES_LARGEST, true);

    return finite_coding(amax, mx_scale(amax, GPU_CODES_LARGEST, true),
                         __uint_as_float(exponent ? exponent << 23 : 0x400000));
}

DEVICE coding coding_of(float amax, int rule)
{
    float scale = GPU_CODES_LARGEST / fmaxf(amax, 1e-12f);

    return rule == GPU_CODES_POWER_OF_TWO ? power_coding(amax)
                                          : finite_coding(amax, scale, 1 / scale);
}

/* Squares are no part of MXFP8. */
DEVICE coding line_coding(float amax, int rule)
{
    return rule == GPU_CODES_MX_RCEIL ? mx_coding(amax) : coding_of(amax, rule);
}

DEVICE float magnitude(float x)
{
    return x != x ? INFINITY : fabsf(x);
}

/* ---- operands ---- */

/* Whether each W numbers of a row can be loaded at once. */
template <int W> DEVICE bool has_vectors(const gpu_encode &a)
{
    int64_t bytes = W * (a.kind == CT_CUDA_BF16 ? 2 : 4);

    return a.columns % W == 0 && (intptr_t)a.x % bytes == 0;
}

/* W numbers of a row; those behind its end are zeros. */
template <int W>
DEVICE void load_numbers(const gpu_encode &a, bool vectors, int64_t row, int64_t column,
                         float (&x)[W])
{
    int64_t from = (a.tokens ? a.tokens[row] : row) * a.columns;

#pragma unroll
    for (int i = 0; i < W; i++)
        x[i] = 0;
    if (vectors && column < a.columns)
        load_as<W>(a.kind, a.x, from + column, x);
    if (!vectors)
#pragma unroll
        for (int i = 0; i < W; i++) {
            float one[1] = {0};

            if (column + i < a.columns)
                load_as<1>(a.kind, a.x, from + column + i, one);
            x[i] = one[0];
        }
    if (!a.weights)
        return;

    float weight = a.weights[a.order[row]];

#pragma unroll
    for (int i = 0; i < W; i++)
        x[i] = a.kind == CT_CUDA_BF16 ? rounded<bfloat16>(x[i] * weight) : x[i] * weight;
}

/* ---- lines of rows ---- */

template <int N> DEVICE float raised(float most, const float (&x)[N])
{
#pragma unroll
    for (int i = 0; i < N; i++)
        most = fmaxf(most, magnitude(x[i]));
    return most;
}

/* Codes of a row from `column` on, zeros behind its end. */
DEVICE void put_row_codes(const gpu_encode &a, int64_t row, int64_t column,
                          const float (&x)[GPU_ROW_VECTOR], float scale)
{
    vector<uint8_t, GPU_ROW_VECTOR> codes;

    if (column >= a.to.stride)
        return;
#pragma unroll
    for (int i = 0; i < GPU_ROW_VECTOR; i++)
        codes.at[i] = column + i < a.columns ? narrowed<false>(x[i] * scale) : 0;
    *(vector<uint8_t, GPU_ROW_VECTOR> *)(a.to.codes + row * a.to.stride + column) = codes;
}

/* A warp takes a row, whose numbers share a scale. Long ones are read again. */
DEVICE void encode_row(const gpu_encode &a, bool vectors, int64_t row)
{
    int64_t lane = threadIdx.x % 32 * GPU_ROW_VECTOR;
    float x[GPU_ROW_HELD][GPU_ROW_VECTOR] = {}, most = 0;

    for (int64_t from = 0; from < a.columns; from += GPU_ROW)
#pragma unroll
        for (int i = 0; i < GPU_ROW_HELD; i++)
            if (from + i * GPU_ROW_STEP < a.columns) {
                load_numbers<GPU_ROW_VECTOR>(a, vectors, row, from + i * GPU_ROW_STEP + lane, x[i]);
                most = raised(most, x[i]);
            }

    coding c = line_coding(warp_max(most), a.rule);

    if (threadIdx.x % 32 == 0)
        a.to.factors[row * a.to.line] = c.factor;
    for (int64_t from = 0; from < a.to.stride; from += GPU_ROW)
#pragma unroll
        for (int i = 0; i < GPU_ROW_HELD; i++) {
            int64_t column = from + i * GPU_ROW_STEP + lane;

            if (a.columns > GPU_ROW)
                load_numbers<GPU_ROW_VECTOR>(a, vectors, row, column, x[i]);
            put_row_codes(a, row, column, x[i], c.scale);
        }
}

/* A warp takes a step of a row, in which each a.along numbers share a scale. */
DEVICE void encode_row_blocks(const gpu_encode &a, bool vectors, int64_t row, int64_t step)
{
    int64_t column = step * GPU_ROW_STEP + threadIdx.x % 32 * GPU_ROW_VECTOR;
    float x[GPU_ROW_VECTOR], most;

    load_numbers<GPU_ROW_VECTOR>(a, vectors, row, column, x);
    most = raised(0, x);
    for (int lanes = 1; lanes * GPU_ROW_VECTOR < a.along; lanes *= 2)
        most = fmaxf(most, __shfl_xor_sync(ALL_LANES, most, lanes));

    coding c = line_coding(most, a.rule);

    if (column % a.along == 0 && column < a.columns)
        a.to.factors[row * a.to.line + column / a.along * a.to.block] = c.factor;
    put_row_codes(a, row, column, x, c.scale);
}

/* Rows are lines. */
KERNEL(codes_of_rows, gpu_encode, 256)
{
    int64_t steps = a.to.block ? (a.columns + GPU_ROW_STEP - 1) / GPU_ROW_STEP : 1;
    int64_t row = warp_row() / steps;
    bool vectors = has_vectors<GPU_ROW_VECTOR>(a);

    if (row >= (a.counts ? rows_before(a.counts, a.experts) : a.rows))
        return;
    if (a.to.block)
        encode_row_blocks(a, vectors, row, warp_row() % steps);
    else
        encode_row(a, vectors, row);
}

/* ---- lines of columns ---- */

#define PATCH 4 /* rows and columns of one */

/* Numbers that a thread takes at once: [row][column]. */
struct patch {
    float at[PATCH][PATCH];
};

/* Rows from `end` on are zeros. */
DEVICE void load_patch(const gpu_encode &a, bool vectors, int64_t row, int64_t end, int64_t column,
                       patch &x)
{
#pragma unroll
    for (int i = 0; i < PATCH; i++)
        if (row + i < end)
            load_numbers<PATCH>(a, vectors, row + i, column, x.at[i]);
        else
#pragma unroll
            for (int j = 0; j < PATCH; j++)
                x.at[i][j] = 0;
}

/* Codes on their way to lines, which are columns: four rows in a word. */
template <int COLUMNS> struct code_tile {
    uint32_t at[COLUMNS][BLOCK / PATCH + 1];
};

/* This thread's codes, to words `down` of lines from `across` on. There are `rows` and `columns` of
   them. */
template <int COLUMNS>
DEVICE void put_patch(code_tile<COLUMNS> &tile, const patch &x, const float (&scale)[PATCH],
                      int across, int down, int64_t rows, int64_t columns)
{
#pragma unroll
    for (int j = 0; j < PATCH; j++) {
        uint32_t word = 0;

#pragma unroll
        for (int i = 0; i < PATCH; i++)
            if (i < rows && j < columns)
                word |= (uint32_t)narrowed<false>(x.at[i][j] * scale[j]) << 8 * i;
        tile.at[across + j][down] = word;
    }
}

/* Whole blocks of 256 threads write a tile to lines `stride` apart, a warp one line after the
   other, as far as there is room. */
template <int COLUMNS>
DEVICE void write_tile(const code_tile<COLUMNS> &tile, uint8_t *to, int64_t stride, int64_t lines,
                       int64_t room)
{
    int lane = (int)threadIdx.x % 32;

    __syncthreads();
    for (int line = (int)threadIdx.x / 32; line < COLUMNS && line < lines; line += 8)
        if (PATCH * lane < room)
            *(uint32_t *)(to + line * stride + PATCH * lane) = tile.at[line][lane];
    __syncthreads();
}

/* Threads have BLOCK rows of CHUNK columns: [row / PATCH][column / PATCH]. */
struct column_threads {
    int across, down; /* this thread's first column and row */
};

DEVICE column_threads column_thread()
{
    column_threads t = {(int)threadIdx.x % (CHUNK / PATCH) * PATCH,
                        (int)threadIdx.x / (CHUNK / PATCH) * PATCH};

    return t;
}

DEVICE void raise_columns(float (&most)[PATCH], const patch &x)
{
#pragma unroll
    for (int j = 0; j < PATCH; j++)
#pragma unroll
        for (int i = 0; i < PATCH; i++)
            most[j] = fmaxf(most[j], magnitude(x.at[i][j]));
}

/* The largest of this thread's columns, of the `along` rows that it is among. */
DEVICE void share_columns(float (&most)[PATCH], int along)
{
    __shared__ float of_warp[8][CHUNK];
    const int rows = BLOCK / 8; /* of a warp */
    int warps = along < BLOCK ? along / rows : 8, across = column_thread().across;
    int first = (int)threadIdx.x / 32 / warps * warps;

#pragma unroll
    for (int j = 0; j < PATCH; j++)
        for (int lanes = CHUNK / PATCH; lanes < 32; lanes *= 2)
            most[j] = fmaxf(most[j], __shfl_xor_sync(ALL_LANES, most[j], lanes));
    __syncthreads();
    if (threadIdx.x % 32 < CHUNK / PATCH)
#pragma unroll
        for (int j = 0; j < PATCH; j++)
            of_warp[threadIdx.x / 32][across + j] = most[j];
    __syncthreads();
    for (int w = first; w < first + warps; w++)
#pragma unroll
        for (int j = 0; j < PATCH; j++)
            most[j] = fmaxf(most[j], of_warp[w][across + j]);
}

/* The scales of this thread's columns; of as many as there are, a thread of each notes the
   factors. */
DEVICE void code_columns(const gpu_encode &a, const float (&most)[PATCH], bool notes,
                         float *factors, int64_t columns, float (&scale)[PATCH])
{
#pragma unroll
    for (int j = 0; j < PATCH; j++) {
        coding c = line_coding(most[j], a.rule);

        scale[j] = c.scale;
        if (notes && j < columns)
            factors[j * a.to.line] = c.factor;
    }
}

/* A block takes CHUNK columns, the lines, of expert blockIdx.y. */
struct column_lines_of {
    int64_t first, rows, begin; /* of x; of the lines, where codes begin */
    int64_t column0, column;    /* of the block; of this thread */
    uint8_t *codes;             /* of the block's first line, from `begin` on */
    bool vectors;
};

DEVICE column_lines_of column_lines_here(const gpu_encode &a)
{
    int64_t expert = blockIdx.y, column0 = (int64_t)blockIdx.x * CHUNK;
    int64_t first = a.counts ? rows_before(a.counts, expert) : expert * a.rows;
    int64_t begin = a.counts ? codes_begin(first, expert) : 0;
    int64_t line = a.counts ? column0 : expert * a.columns + column0;
    column_lines_of l = {first,
                         a.counts ? a.counts[expert] : a.rows,
                         begin,
                         column0,
                         column0 + column_thread().across,
                         a.to.codes + line * a.to.stride + begin,
                         has_vectors<PATCH>(a)};

    return l;
}

/* Codes of the rows from `from` on, of which this thread has x. */
DEVICE void put_columns(const gpu_encode &a, const column_lines_of &l, code_tile<CHUNK> &tile,
                        const patch &x, const float (&scale)[PATCH], int64_t from)
{
    column_threads t = column_thread();

    put_patch(tile, x, scale, t.across, t.down / PATCH, l.rows - from - t.down,
              a.columns - l.column);
    write_tile(tile, l.codes + from, a.to.stride, a.columns - l.column0, filled_up(l.rows) - from);
}

/* All rows of an expert share a scale, so they are read twice. */
KERNEL(codes_of_columns, gpu_encode, 256)
{
    __shared__ code_tile<CHUNK> tile;
    column_lines_of l = column_lines_here(a);
    int down = column_thread().down;
    float most[PATCH] = {0}, scale[PATCH];
    patch x;

    for (int64_t row = down; row < l.rows; row += BLOCK) {
        load_patch(a, l.vectors, l.first + row, l.first + l.rows, l.column, x);
        raise_columns(most, x);
    }
    share_columns(most, BLOCK);
    code_columns(a, most, down == 0 && l.rows,
                 a.to.factors + blockIdx.y * a.to.each + l.column * a.to.line, a.columns - l.column,
                 scale);
    for (int64_t from = 0; from < l.rows; from += BLOCK) {
        load_patch(a, l.vectors, l.first + from + down, l.first + l.rows, l.column, x);
        put_columns(a, l, tile, x, scale, from);
    }
}

/* a.along rows share a scale. */
KERNEL(codes_of_column_blocks, gpu_encode, 256)
{
    __shared__ code_tile<CHUNK> tile;
    column_lines_of l = column_lines_here(a);
    int down = column_thread().down, along = (int)a.along, blocks = BLOCK / along;
    float *factors =
        a.to.factors + (a.counts ? l.begin / BLOCK * blocks * a.to.block : blockIdx.y * a.to.each);

    factors += l.column * a.to.line + down / along * a.to.block;

    for (int64_t from = 0; from < l.rows; from += BLOCK, factors += blocks * a.to.block) {
        float most[PATCH] = {0}, scale[PATCH];
        patch x;

        load_patch(a, l.vectors, l.first + from + down, l.first + l.rows, l.column, x);
        raise_columns(most, x);
        share_columns(most, along);
        code_columns(a, most, down % along == 0 && from + down < l.rows, factors,
                     a.columns - l.column, scale);
        put_columns(a, l, tile, x, scale, from);
    }
}

/* ---- squares ---- */

/* Lines are rows of weights, or columns if TURNED; a block takes a square of expert blockIdx.z, and
   a thread four columns of rows, 32 apart. */
template <bool TURNED> DEVICE void encode_square(const gpu_encode &a, code_tile<BLOCK> *tile)
{
    int64_t expert = blockIdx.z, first = expert * a.rows, row0 = (int64_t)blockIdx.y * BLOCK;
    int64_t column0 = (int64_t)blockIdx.x * BLOCK;
    int across = (int)threadIdx.x % 32 * PATCH, down = (int)threadIdx.x / 32 * PATCH;
    int64_t column = column0 + across;
    bool vectors = has_vectors<PATCH>(a);
    patch x[PATCH];
    float most = 0;

#pragma unroll
    for (int h = 0; h < PATCH; h++) {
        load_patch(a, vectors, first + row0 + down + h * 32, first + a.rows, column, x[h]);
#pragma unroll
        for (int i = 0; i < PATCH; i++)
            most = raised(most, x[h].at[i]);
    }

    coding c = coding_of(block_max(most), a.rule);
    const float scale[PATCH] = {c.scale, c.scale, c.scale, c.scale};

    if (threadIdx.x == 0)
        a.to.factors[expert * a.to.each + (int64_t)blockIdx.y * gridDim.x + blockIdx.x] = c.factor;
#pragma unroll
    for (int h = 0; h < PATCH; h++) {
        int64_t row = row0 + down + h * 32;

        if (TURNED)
            put_patch(*tile, x[h], scale, across, down / PATCH + h * 32 / PATCH, a.rows - row,
                      a.columns - column);
        else
#pragma unroll
            for (int i = 0; i < PATCH; i++)
                if (row + i < a.rows && column < a.to.stride) {
                    vector<uint8_t, PATCH> codes;

#pragma unroll
                    for (int j = 0; j < PATCH; j++)
                        codes.at[j] =
                            column + j < a.columns ? narrowed<false>(x[h].at[i][j] * c.scale) : 0;
                    *(vector<uint8_t, PATCH> *)(a.to.codes + (first + row + i) * a.to.stride +
                                                column) = codes;
                }
    }
    if (TURNED)
        write_tile(*tile, a.to.codes + (expert * a.columns + column0) * a.to.stride + row0,
                   a.to.stride, a.columns - column0, a.to.stride - row0);
}

KERNEL(codes_of_squares, gpu_encode, 256)
{
    encode_square<false>(a, NULL);
}

KERNEL(codes_of_squares_turned, gpu_encode, 256)
{
    __shared__ code_tile<BLOCK> tile;

    encode_square<true>(a, &tile);
}

/* ---- products of codes ---- */

/* Codes in the upper byte of both halves of x, as bfloat16. */
DEVICE uint32_t widened_pair(uint32_t x)
{
#ifdef SIMULATED
    return __float_as_uint(from_e4m3(x >> 8 & 255)) >> 16 |
           (__float_as_uint(from_e4m3(x >> 24)) & 0xffff0000u);
#else
    uint32_t y, small = (x & 0x7f007f00) >> 4 | (x & 0x80008000);

    /* bfloat16's exponents are 120 larger */
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(y) : "r"(small), "r"(0x7b807b80), "r"(0x80008000));
    return y;
#endif
}

/* Four codes as bfloat16. */
DEVICE void widen_codes(uint32_t codes, uint32_t &low, uint32_t &high)
{
    low = widened_pair((codes & 0xff) << 8 | (codes & 0xff00) << 16);
    high = widened_pair((codes >> 16 & 0xff) << 8 | (codes & 0xff000000));
}

/* c[16, 8] += a[16, 32] b[32, 8], of widened codes; depths in an order that both operands have. */
DEVICE void multiply_add_widened(float (&c)[4], const uint32_t (&a)[8], const uint32_t (&b)[4])
{
#pragma unroll
    for (int half = 0; half < 2; half++) {
        uint32_t part[4] = {a[4 * half], a[4 * half + 1], a[4 * half + 2], a[4 * half + 3]};

        multiply_add(c, part, b[2 * half], b[2 * half + 1]);
    }
}

/* Sums of 32 codes from pair k of a slice on. */
DEVICE void multiply_codes_step(tile_sums &c, const bfloat16 *a, const bfloat16 *b, int k,
                                tile_size size)
{
    tile_place at = warp_place();
    uint32_t y[2][4], wide_y[4][4];

    if (at.row >= size.rows || at.column >= size.columns)
        return;
#pragma unroll
    for (int j = 0; j < 2; j++)
        load_operand<false>(y[j], b, at.column + j * 16, k);
#pragma unroll
    for (int j = 0; j < 4; j++)
#pragma unroll
        for (int half = 0; half < 2; half++)
            widen_codes(y[j / 2][j % 2 + 2 * half], wide_y[j][2 * half], wide_y[j][2 * half + 1]);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        uint32_t x[4], wide_x[8];

        if (at.row + i * 16 >= size.rows)
            break;
        load_operand<false>(x, a, at.row + i * 16, k);
#pragma unroll
        for (int w = 0; w < 4; w++)
            widen_codes(x[w], wide_x[w / 2 * 4 + w % 2], wide_x[w / 2 * 4 + w % 2 + 2]);
#pragma unroll
        for (int j = 0; j < 4; j++)
            multiply_add_widened(c[i][j], wide_x, wide_y[j]);
    }
}

/* Where factors of the rows and columns that this thread sums are: in block 0, and how far apart
   blocks are. */
struct thread_factors {
    const float *of_rows, *of_columns;
    uint32_t row[4][2], column[4][2], row_block, column_block;
};

/* whole += part times the factors of a block; part = 0. */
DEVICE void add_block(tile_sums &whole, tile_sums &part, const thread_factors &f, uint32_t block)
{
    float of_column[4][2];

#pragma unroll
    for (int j = 0; j < 4; j++)
#pragma unroll
        for (int e = 0; e < 2; e++)
            of_column[j][e] = f.of_columns[f.column[j][e] + block * f.column_block];
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float of_row = f.of_rows[f.row[i][half] + block * f.row_block];

#pragma unroll
            for (int j = 0; j < 4; j++)
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    whole[i][j][2 * half + e] +=
                        part[i][j][2 * half + e] * (of_row * of_column[j][e]);
                    part[i][j][2 * half + e] = 0;
                }
        }
}

/* As the products of codes use it (codes_tiles.cuh). ALONG: codes of a block. */
template <int ALONG> struct mma_codes : mma_tiles {
    enum { along = ALONG };

    /* row(i) and column(i) are the places of line i's factors in block 0. */
    template <typename ROW, typename COLUMN>
    DEVICE_MEMBER static thread_factors factors_of(const gpu_codes &rows, const gpu_codes &columns,
                                                   tile_size size, const ROW &row,
                                                   const COLUMN &column)
    {
        thread_factors f = {rows.factors, columns.factors,      {},
                            {},           (uint32_t)rows.block, (uint32_t)columns.block};

#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                tile_place p = pair_place(i, i, half);
                int of_column = pair_place(i, i, 0).column + half;

                f.row[i][half] = (uint32_t)row(p.row < size.rows ? p.row : 0);
                f.column[i][half] = (uint32_t)column(of_column < size.columns ? of_column : 0);
            }
        return f;
    }

    /* c = the sums of lines of `depth` codes. Copies count in pairs of codes. */
    DEVICE_MEMBER static void multiply(tile_sums &c, tensor_slices &slices, loader_by_row<2> a,
                                       loader_by_row<2> b, int64_t depth, tile_size size,
                                       const thread_factors &factors)
    {
        int pairs = (int)(filled_up(depth) / 2), steps = (pairs + DEPTH - 1) / DEPTH;
        tile_sums part = {};

        each_slice(slices, a, b, steps, steps, pairs,
                   [&](int s, const bfloat16 *of_a, const bfloat16 *of_b) {
                       _Pragma("unroll") for (int k = 0; k < DEPTH; k += 16)
                       {
                           int from = 2 * (s * DEPTH + k);

                           multiply_codes_step(part, of_a, of_b, k, size);
                           if (ALONG == GPU_CODES_MX && from < depth)
                               add_block(c, part, factors, (uint32_t)(from / ALONG));
                       }
                       if (ALONG == BLOCK && (s % 2 || s + 1 == steps))
                           add_block(c, part, factors, (uint32_t)s / 2);
                   });
    }
};

KERNEL(codes_product, gpu_codes_product, GPU_TENSOR_THREADS)
{
    __shared__ tensor_slices slices;

    product_of_codes<mma_codes<BLOCK>>(a, slices);
}

KERNEL(codes_product_mx, gpu_codes_product, GPU_TENSOR_THREADS)
{
    __shared__ tensor_slices slices;

    product_of_codes<mma_codes<GPU_CODES_MX>>(a, slices);
}

KERNEL(codes_outer, gpu_codes_outer, GPU_TENSOR_THREADS)
{
    __shared__ tensor_slices slices;

    outer_of_codes<mma_codes<BLOCK>>(a, slices);
}

KERNEL(codes_outer_mx, gpu_codes_outer, GPU_TENSOR_THREADS)
{
    __shared__ tensor_slices slices;

    outer_of_codes<mma_codes<GPU_CODES_MX>>(a, slices);
}

/* ---- between them: a warp for each row ---- */

DEVICE float inner(const gpu_experts_rows &a, const void *x, int64_t at)
{
    float value[1];

    load_as<1>(a.kind, x, at, value);
    return value[0];
}

/* The layer, as it is stored. */
DEVICE float inner_layer(const gpu_experts_rows &a, const gated_layer &l)
{
    float h = l.g * l.s * l.u;

    return a.kind == CT_CUDA_BF16 ? rounded<bfloat16>(h) : h;
}

/* g = the gated layer of from_g and from_u */
KERNEL(codes_hidden, gpu_experts_rows, 256)
{
    int64_t row = warp_row();

    if (row >= rows_before(a.all.counts, a.all.experts))
        return;
    for (int64_t i = row * a.f + threadIdx.x % 32; i < (row + 1) * a.f; i += 32)
        put(a.g, a.kind, i,
            inner_layer(a, gated(a.how, inner(a, a.from_g, i), inner(a, a.from_u, i))), false);
}

/* Makes, from dh, from_g and from_u: dg to g, du to u, the layer over dh, and the gradient of the
   choice's weight. */
KERNEL(codes_hidden_grad, gpu_experts_rows, 256)
{
    int64_t row = warp_row(), choice;
    float weight, sum = 0;

    if (row >= rows_before(a.all.counts, a.all.experts))
        return;
    choice = a.all.order[row];
    weight = a.weights[choice];
    for (int64_t i = row * a.f + threadIdx.x % 32; i < (row + 1) * a.f; i += 32) {
        float g = inner(a, a.from_g, i), u = inner(a, a.from_u, i), dh = inner(a, a.dh, i);
        gated_layer l = gated(a.how, g, u);
        float h = inner_layer(a, l);

        sum += dh * h;
        put(a.g, a.kind, i, gradient_by_g(a.how, l, g, weight * dh), false);
        put(a.u, a.kind, i, gradient_by_u(a.how, l, u, weight * dh), false);
        put(a.dh, a.kind, i, h, false);
    }
    sum = warp_sum(sum);
    if (a.dweights && threadIdx.x % 32 == 0)
        a.dweights[choice] = a.accumulate ? a.dweights[choice] + sum : sum;
}
