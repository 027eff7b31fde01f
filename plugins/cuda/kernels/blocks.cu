/*
 * Blocks of numbers with a scale each: their stored scales in cuBLASLt's tiles, for MXFP8 and
 * NVFP4, and NVFP4's casts (plugins/float8/nvfp4.c): scales, codes to nearest even and
 * stochastically, the random Hadamard transform, two codes to a byte.
 *
 * A tile has the stored scales of 128 rows and 4 blocks of each (cuBLAS, "1D Block Scaling Factors
 * Layout"); row r and block k of it are at byte r % 32 * 16 + r / 32 * 4 + k. Tiles of the same
 * rows follow each other. The rest of a tile is 0.
 */
#include "float8.cuh"
#include "philox.cuh"

#define LARGEST_E2M1 6.0f
#define LARGEST_E4M3 448.0f
#define LARGEST 0x1.fffffep127f /* of float32 */

DEVICE float at_most_finite(float x)
{
    return x > LARGEST ? LARGEST : x;
}

/* Factor of a tensor's numbers, before blocks' scales: 2688 / its largest. */
DEVICE float gain_of(float amax_of_tensor)
{
    float g = at_most_finite(LARGEST_E4M3 * LARGEST_E2M1 / amax_of_tensor);

    return g == 0 ? 1 : g;
}

/* ---- stored scales ---- */

/* E8M0 of 1 / scale; 255 is NaN. */
DEVICE uint32_t stored_e8m0(float scale)
{
    return scale != scale ? 255 : 254 - (__float_as_uint(scale) >> 23 & 255);
}

/* The float8_e4m3 that the scale was made of: what is lost in float32 is far less than its
   rounding. */
DEVICE uint32_t stored_e4m3(float scale, float gain)
{
    return scale >= LARGEST ? 0 : narrowed<false>(1 / scale * gain);
}

DEVICE int64_t tiles_of(int64_t count, int64_t side)
{
    return (count + side - 1) / side;
}

/* The byte of a row's block; across: tiles of a row. */
DEVICE int64_t place_of(int64_t row, int64_t block, int64_t across)
{
    int64_t tile = row / GPU_SCALES_OUTER * across + block / GPU_SCALES_INNER;

    return tile * (GPU_SCALES_OUTER * GPU_SCALES_INNER) + row % 32 * 16 +
           row % GPU_SCALES_OUTER / 32 * 4 + block % GPU_SCALES_INNER;
}

/* A thread writes 4 bytes: a row's blocks in a tile. */
KERNEL(block_scales, gpu_block_scales, 256)
{
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    int which = (int)blockIdx.y;
    const float *from = which ? a.from[1] : a.from[0], *amax = which ? a.amax[1] : a.amax[0];
    int64_t outer = which ? a.outer[1] : a.outer[0], across = tiles_of(a.inner, GPU_SCALES_INNER);
    bool turned = which ? a.turned[1] : a.turned[0];
    int word = (int)(i % GPU_SCALES_OUTER);
    int64_t tile = i / GPU_SCALES_OUTER;
    int64_t row = tile / across * GPU_SCALES_OUTER + word % 4 * 32 + word / 4;
    int64_t first = tile % across * GPU_SCALES_INNER;
    float gain = amax ? gain_of(amax[0]) : 0;
    uint32_t bytes = 0;

    if (tile >= tiles_of(outer, GPU_SCALES_OUTER) * across)
        return;
    for (int k = 0; k < GPU_SCALES_INNER && row < outer && first + k < a.inner; k++) {
        float scale = from[turned ? (first + k) * outer + row : row * a.inner + first + k];

        bytes |= (amax ? stored_e4m3(scale, gain) : stored_e8m0(scale)) << (8 * k);
    }
    ((uint32_t *)(which ? a.to[1] : a.to[0]))[i] = bytes;
    if (a.factor && i == 0 && which == 0) {
        a.factor[0] = (1 / gain_of(a.amax[0][0])) * (1 / gain_of(a.amax[1][0]));
        a.factor[1] = a.accumulate ? 1.0f : 0.0f;
    }
}

/* ---- two codes to a byte ---- */

/* e2m1 of a number of it, from its float8_e4m3. */
DEVICE uint32_t narrow_code(uint32_t e4m3)
{
    uint32_t magnitude = e4m3 >> 2 & 31; /* 0; 12 for 0.5; 14 to 19 */

    return (e4m3 >> 4 & 8) | (magnitude > 12 ? (magnitude - 12) & 7 : magnitude / 12);
}

/* 8 codes, the first in the lowest bits; *nan: one of them is NaN. */
DEVICE uint32_t pack_codes(const uint8_t (&code)[8], bool *nan)
{
    uint32_t word = 0;

    *nan = false;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        word |= narrow_code(code[i]) << (4 * i);
        *nan |= (code[i] & 0x7f) == 0x7f;
    }
    return word;
}

DEVICE void put_codes(const gpu_nvfp4_pack &a, int64_t row, int64_t k, const uint8_t (&code)[8])
{
    int64_t across = tiles_of(tiles_of(a.depth, GPU_NVFP4_BLOCK), GPU_SCALES_INNER);
    bool nan;

    *(uint32_t *)(a.to + row * a.stride + k / 2) = pack_codes(code, &nan);
    if (nan)
        a.scales[place_of(row, k / GPU_NVFP4_BLOCK, across)] = 0x7f;
}

/* A thread packs 8 codes. */
KERNEL(nvfp4_pack, gpu_nvfp4_pack, 256)
{
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, words = a.stride / 4;
    int64_t row = i / words, k = i % words * 8;
    vector<uint8_t, 8> code = {};

    if (row >= a.rows)
        return;
    if (k < a.depth)
        code = *(const vector<uint8_t, 8> *)(a.from + row * a.depth + k);
    put_codes(a, row, k, code.at);
}

/* A block packs a square of codes, whose columns become rows. */
KERNEL(nvfp4_pack_turned, gpu_nvfp4_pack, 256)
{
    __shared__ uint32_t tile[GPU_NVFP4_SIDE][GPU_NVFP4_SIDE / 4 + 1];
    int64_t k0 = (int64_t)blockIdx.x * GPU_NVFP4_SIDE, row0 = (int64_t)blockIdx.y * GPU_NVFP4_SIDE;

    for (int i = (int)threadIdx.x; i < GPU_NVFP4_SIDE * GPU_NVFP4_SIDE / 4; i += (int)blockDim.x) {
        int64_t k = k0 + i / (GPU_NVFP4_SIDE / 4), row = row0 + i % (GPU_NVFP4_SIDE / 4) * 4;

        tile[i / (GPU_NVFP4_SIDE / 4)][i % (GPU_NVFP4_SIDE / 4)] =
            k < a.depth && row < a.rows ? *(const uint32_t *)(a.from + k * a.rows + row) : 0;
    }
    __syncthreads();
    for (int i = (int)threadIdx.x; i < GPU_NVFP4_SIDE * GPU_NVFP4_SIDE / 8; i += (int)blockDim.x) {
        int r = i / (GPU_NVFP4_SIDE / 8), k = i % (GPU_NVFP4_SIDE / 8) * 8;
        uint8_t code[8];

#pragma unroll
        for (int j = 0; j < 8; j++)
            code[j] = (uint8_t)(tile[k + j][r / 4] >> (8 * (r % 4)));
        if (row0 + r < a.rows && k0 + k < 2 * a.stride)
            put_codes(a, row0 + r, k0 + k, code);
    }
}

/* ---- scales of NVFP4 ---- */

DEVICE float nvfp4_scale_of(float amax, float amax_of_tensor)
{
    float gain = gain_of(amax_of_tensor), s;

    if (!(amax < INFINITY) || !(amax_of_tensor < INFINITY))
        return NAN;
    s = from_e4m3(narrowed<false>(at_most_finite(amax / LARGEST_E2M1 * gain)));
    return at_most_finite(1 / (s * (1 / gain)));
}

/* The scale of a cell, or of 16 neighbouring ones that share it. */
KERNEL(nvfp4_scales, gpu_nvfp4_scale, 256)
{
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    int64_t step = a.share == GPU_SHARE_ROWS ? a.columns : 1;
    int64_t place = a.share == GPU_SHARE_ROWS ? i / a.columns : i % a.columns;
    float most;

    if (i >= a.rows * a.columns)
        return;
    most = a.amax[i];
    for (int k = 0; a.share != GPU_SHARE_NONE && k < GPU_NVFP4_BLOCK; k++) {
        float amax = a.amax[i + (k - place % GPU_NVFP4_BLOCK) * step];

        most = amax > most || amax != amax ? amax : most;
    }
    a.scale[i] = nvfp4_scale_of(most, a.amax_of_tensor[0]);
}

/* ---- codes of NVFP4 ---- */

DEVICE float nearest_e2m1(float magnitude)
{
    const float middle[] = {0.25f, 0.75f, 1.25f, 1.75f, 2.5f, 3.5f, 5};
    int code = 0;

#pragma unroll
    for (int i = 0; i < 7; i++)
        code += i % 2 ? magnitude >= middle[i] : magnitude > middle[i];
    return code < 5 ? (float)code * 0.5f : code < 7 ? (float)(code - 2) : LARGEST_E2M1;
}

/* The upper neighbour if u is below the distance from the lower one, as a share of theirs. */
DEVICE float stochastic_e2m1(float magnitude, float u)
{
    float step = magnitude < 2 ? 0.5f : magnitude < 4 ? 1.0f : 2.0f;
    float lower = magnitude >= LARGEST_E2M1 ? LARGEST_E2M1 : floorf(magnitude / step) * step;

    return u < (magnitude - lower) / step && lower < LARGEST_E2M1 ? lower + step : lower;
}

DEVICE uint8_t nvfp4_code(float x, bool random, float u)
{
    float magnitude = fabsf(x);

    if (x != x)
        return 0x7f;
    return narrowed<false>(
        copysignf(random ? stochastic_e2m1(magnitude, u) : nearest_e2m1(magnitude), x));
}

DEVICE float scale_at(const gpu_nvfp4_quantise &a, int64_t row, int64_t column)
{
    if (a.per == GPU_PER_ROW_BLOCK)
        return a.scale[(row * a.columns + column) >> a.shift];
    return a.scale[(row >> a.shift) * a.columns + column];
}

/* A thread rounds 4 numbers of a row, which share a call of the generator. */
KERNEL(nvfp4_codes, gpu_nvfp4_quantise, 256)
{
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    int64_t groups = (a.first + a.columns + 3) / 4 - a.first / 4, row = i / groups;
    int64_t group = a.first / 4 + i % groups, column = group * 4 - a.first;
    philox numbers = {};

    if (row >= a.rows)
        return;
    if (a.ordinals)
        numbers = draw(a.seed, a.stream,
                       ((uint64_t)(uint32_t)a.ordinals[row] << 32 | (uint64_t)(group * 4)) / 4);
#pragma unroll
    for (int k = 0; k < 4; k++, column++) {
        float x[1];

        if (column < 0 || column >= a.columns)
            continue;
        load_as<1>(a.kind, a.x, row * a.columns + column, x);
        a.q[row * a.columns + column] =
            nvfp4_code(x[0] * scale_at(a, row, column), a.ordinals != NULL, uniform(numbers.v[k]));
    }
}

/* ---- the random Hadamard transform ---- */

/* A thread takes 16 rows of a column: signs, then butterflies in float32. */
KERNEL(hadamard_rows, gpu_hadamard, 256)
{
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, block = i / a.columns;
    int64_t at = block * GPU_NVFP4_BLOCK * a.columns + i % a.columns;
    float x[GPU_NVFP4_BLOCK];

    if (block >= a.blocks)
        return;
#pragma unroll
    for (int k = 0; k < GPU_NVFP4_BLOCK; k++) {
        float one[1];

        load_as<1>(a.kind, a.x, at + k * a.columns, one);
        x[k] = a.negative >> k & 1 ? -one[0] : one[0];
    }
#pragma unroll
    for (int step = 1; step < GPU_NVFP4_BLOCK; step *= 2)
#pragma unroll
        for (int k = 0; k < GPU_NVFP4_BLOCK; k++)
            if (!(k & step)) {
                float first = x[k], second = x[k + step];

                x[k] = first + second;
                x[k + step] = first - second;
            }
#pragma unroll
    for (int k = 0; k < GPU_NVFP4_BLOCK; k++) {
        float one[1] = {x[k] * 0.25f};

        store_as<1>(a.kind, a.y, at + k * a.columns, one);
    }
}
