/*
 * Mixtures of experts in 8 bits: codes of operands, and grouped products of these on tensor cores.
 *
 * All products sum along lines of codes, so those of transposes are made from x's columns. Sums of
 * 128 codes, of MXFP8 32, are multiplied by the factors of both operands, and added up in float32.
 * On their way to the tensor cores codes become bfloat16, which holds each of them: 8-bit operands
 * of mma.sync become float16 on sm_90 and sm_100, and are no faster there.
 */
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

DEVICE float row_number(const gpu_encode &a, int64_t row, int64_t column)
{
    float x[1];

    load_as<1>(a.kind, a.x, (a.tokens ? a.tokens[row] : row) * a.columns + column, x);
    if (!a.weights)
        return x[0];
    x[0] *= a.weights[a.order[row]];
    return a.kind == CT_CUDA_BF16 ? rounded<bfloat16>(x[0]) : x[0];
}

/* Rows are lines; a warp takes a.along numbers of one. */
KERNEL(codes_of_rows, gpu_encode, 256)
{
    int64_t blocks = (a.columns + a.along - 1) / a.along, row = warp_row() / blocks;
    int64_t block = warp_row() % blocks, from = block * a.along, lane = threadIdx.x % 32;
    int64_t end = from + a.along < a.columns ? from + a.along : a.columns;
    uint8_t *to = a.to.codes + row * a.to.stride;
    float most = 0;

    if (row >= (a.counts ? rows_before(a.counts, a.experts) : a.rows))
        return;
    for (int64_t i = from + lane; i < end; i += 32)
        most = fmaxf(most, magnitude(row_number(a, row, i)));

    coding c = line_coding(warp_max(most), a.rule);

    for (int64_t i = from + lane; i < end; i += 32)
        to[i] = narrowed<false>(row_number(a, row, i) * c.scale);
    for (int64_t i = end + lane; end == a.columns && i < a.to.stride; i += 32)
        to[i] = 0;
    if (lane == 0)
        a.to.factors[row * a.to.line + block * a.to.block] = c.factor;
}

/* Codes on their way to lines: [line][number]. */
struct alignas(4) code_chunk {
    uint8_t at[CHUNK][CHUNK + 4];
};

/* Whole blocks of 256 threads write a chunk to lines `stride` apart, as far as there is room. */
DEVICE void write_chunk(const code_chunk &chunk, uint8_t *to, int64_t stride, int64_t lines,
                        int64_t room)
{
    int line = (int)threadIdx.x / 8, at = (int)threadIdx.x % 8 * 4;

    __syncthreads();
    if (line < lines && at < room)
        *(uint32_t *)(to + line * stride + at) = *(const uint32_t *)&chunk.at[line][at];
    __syncthreads();
}

/* The largest of each of 32 columns among rows [from, end), for all warps. */
DEVICE float column_magnitude(const gpu_encode &a, int64_t from, int64_t end, int64_t column)
{
    __shared__ float of_warp[8][32];
    int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    float most = 0;

    for (int64_t row = from + warp; column < a.columns && row < end; row += 8)
        most = fmaxf(most, magnitude(row_number(a, row, column)));
    __syncthreads();
    of_warp[warp][lane] = most;
    __syncthreads();
    for (int w = 0; w < 8; w++)
        most = fmaxf(most, of_warp[w][lane]);
    return most;
}

/* A block takes CHUNK columns, the lines, of expert blockIdx.y. a.along rows share a scale. */
KERNEL(codes_of_columns, gpu_encode, 256)
{
    __shared__ code_chunk chunk;
    int64_t expert = blockIdx.y, column0 = (int64_t)blockIdx.x * CHUNK;
    int64_t first = a.counts ? rows_before(a.counts, expert) : expert * a.rows;
    int64_t rows = a.counts ? a.counts[expert] : a.rows;
    int64_t begin = a.counts ? codes_begin(first, expert) : 0;
    int64_t line = a.counts ? column0 : expert * a.columns + column0;
    float *factors =
        a.to.factors + (a.counts && a.to.block ? begin / a.along * a.to.block : expert * a.to.each);
    int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    bool here = column0 + lane < a.columns;

    for (int64_t from = 0; from < rows; from += a.along) {
        int64_t end = from + a.along < rows ? from + a.along : rows;
        coding c =
            line_coding(column_magnitude(a, first + from, first + end, column0 + lane), a.rule);

        if (warp == 0 && here)
            factors[(column0 + lane) * a.to.line + from / a.along * a.to.block] = c.factor;
        for (int64_t row = from; row < end; row += CHUNK) {
            for (int i = warp; i < CHUNK; i += 8)
                chunk.at[lane][i] =
                    here && row + i < end
                        ? narrowed<false>(row_number(a, first + row + i, column0 + lane) * c.scale)
                        : 0;
            write_chunk(chunk, a.to.codes + line * a.to.stride + begin + row, a.to.stride,
                        a.columns - column0, filled_up(rows) - row);
        }
    }
}

/* The largest of a square of expert blockIdx.z. */
DEVICE float square_magnitude(const gpu_encode &a, int64_t first, int64_t row0, int64_t column0)
{
    float most = 0;

    for (int i = (int)threadIdx.x; i < BLOCK * BLOCK; i += (int)blockDim.x) {
        int64_t row = row0 + i / BLOCK, column = column0 + i % BLOCK;

        if (row < a.rows && column < a.columns)
            most = fmaxf(most, magnitude(row_number(a, first + row, column)));
    }
    return block_max(most);
}

/* Lines are rows of weights, or columns if TURNED; a block takes a square. */
template <bool TURNED> DEVICE void encode_square(const gpu_encode &a, code_chunk &chunk)
{
    int64_t expert = blockIdx.z, first = expert * a.rows;
    int64_t row0 = (int64_t)blockIdx.y * BLOCK, column0 = (int64_t)blockIdx.x * BLOCK;
    int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    coding c = coding_of(square_magnitude(a, first, row0, column0), a.rule);

    if (threadIdx.x == 0)
        a.to.factors[expert * a.to.each + (int64_t)blockIdx.y * gridDim.x + blockIdx.x] = c.factor;
    for (int64_t row = row0; row < row0 + BLOCK && row < filled_up(a.rows); row += CHUNK)
        for (int64_t column = column0; column < column0 + BLOCK && column < filled_up(a.columns);
             column += CHUNK) {
            for (int i = warp; i < CHUNK; i += 8)
                chunk.at[TURNED ? lane : i][TURNED ? i : lane] =
                    row + i < a.rows && column + lane < a.columns
                        ? narrowed<false>(row_number(a, first + row + i, column + lane) * c.scale)
                        : 0;
            if (TURNED)
                write_chunk(chunk, a.to.codes + (expert * a.columns + column) * a.to.stride + row,
                            a.to.stride, a.columns - column, a.to.stride - row);
            else
                write_chunk(chunk, a.to.codes + (first + row) * a.to.stride + column, a.to.stride,
                            a.rows - row, a.to.stride - column);
        }
}

KERNEL(codes_of_squares, gpu_encode, 256)
{
    __shared__ code_chunk chunk;

    encode_square<false>(a, chunk);
}

KERNEL(codes_of_squares_turned, gpu_encode, 256)
{
    __shared__ code_chunk chunk;

    encode_square<true>(a, chunk);
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
