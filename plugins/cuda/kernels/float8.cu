/*
 * Quantising to 8 bits: largest magnitudes, scales, and the rounding. Before products, transposes
 * and the inverses of scales.
 */
#include "float8.cuh"

/* ---- largest magnitudes ---- */

#define BATCH 4 /* vectors that a thread asks for before it uses the first */

/* most = the larger of it and |x|, of BATCH vectors `step` elements apart, of those before end. */
template <typename T, int W>
DEVICE void raise(float (&most)[W], const T *x, int64_t step, const T *end)
{
    vector<T, W> v[BATCH] = {};

#pragma unroll
    for (int k = 0; k < BATCH; k++)
        if (x + k * step < end)
            v[k] = *(const vector<T, W> *)(x + k * step);
#pragma unroll
    for (int k = 0; k < BATCH; k++)
#pragma unroll
        for (int i = 0; i < W; i++)
            most[i] = fmaxf(most[i], fabsf(to_float(v[k].at[i])));
}

/* The largest of |x|, for `lane` of `lanes` threads that share `columns` elements. */
template <typename T, int W>
DEVICE float lane_max(const T *x, int64_t columns, unsigned lane, unsigned lanes)
{
    int64_t step = (int64_t)lanes * W;
    const T *end = x + columns;
    float most[W] = {0};

    for (x += (int64_t)lane * W; x < end; x += BATCH * step)
        raise<T, W>(most, x, step, end);
    for (int i = 1; i < W; i++)
        most[0] = fmaxf(most[0], most[i]);
    return most[0];
}

/* A block takes GPU_FLOAT8_PART elements; the whole is found from all blocks' by float8_whole. */
template <typename T, int W> DEVICE void parts_max(const gpu_float8_amax &a)
{
    int64_t begin = (int64_t)blockIdx.x * GPU_FLOAT8_PART, left = a.count - begin;
    float most =
        lane_max<T, W>((const T *)a.x + begin, left < GPU_FLOAT8_PART ? left : GPU_FLOAT8_PART,
                       threadIdx.x, blockDim.x);

    most = block_max(most);
    if (threadIdx.x == 0)
        a.partial[blockIdx.x] = most;
}

KERNEL(float8_whole, gpu_float8_amax, 1024)
{
    float most = block_max(lane_max<float, 1>(a.partial, a.parts, threadIdx.x, blockDim.x));

    if (threadIdx.x == 0)
        a.amax[0] = most;
}

/* Blocks of 32 x 8 threads: a warp takes a row. */
template <typename T, int W> DEVICE void rows_max(const gpu_float8_amax &a)
{
    int64_t row = (int64_t)blockIdx.x * blockDim.y + threadIdx.y;
    float most;

    if (row >= a.rows)
        return;
    most = warp_max(
        lane_max<T, W>((const T *)a.x + row * a.columns, a.columns, threadIdx.x, blockDim.x));
    if (threadIdx.x == 0)
        a.amax[row] = most;
}

/* Blocks of 32 x 8 threads take a.strip rows of 32 vectors. The whole is found from all strips' by
   the same kernel. */
template <typename T, int W> DEVICE void columns_max(const gpu_float8_amax &a)
{
    __shared__ float part[8][W][33];
    unsigned across = (unsigned)((a.columns + 32 * W - 1) / (32 * W)), strip = blockIdx.x / across;
    int64_t first = (int64_t)(blockIdx.x % across) * 32 * W;
    int64_t column = first + (int64_t)threadIdx.x * W, row = strip * a.strip;
    int64_t last = row + a.strip < a.rows ? row + a.strip : a.rows;
    const T *x = (const T *)a.x, *end = x + last * a.columns;
    float most[W] = {0};

    for (row += threadIdx.y; row < last && column < a.columns; row += 8 * BATCH)
        raise<T, W>(most, x + row * a.columns + column, 8 * a.columns, end);
#pragma unroll
    for (int i = 0; i < W; i++)
        part[threadIdx.y][i][threadIdx.x] = most[i];
    __syncthreads();
    for (int c = flat_thread(); c < 32 * W && first + c < a.columns; c += flat_threads()) {
        float whole = 0;

        for (int i = 0; i < 8; i++)
            whole = fmaxf(whole, part[i][c % W][c / W]);
        (a.partial ? a.partial + strip * a.columns : a.amax)[first + c] = whole;
    }
}

/* Blocks of 2^shift numbers of a row, by as many neighbouring lanes as they have vectors. */
template <typename T, int W> DEVICE void row_blocks_max(const gpu_float8_amax &a)
{
    int64_t at = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * W;
    const T *x = (const T *)a.x;
    float most[W] = {0};

    raise<T, W>(most, x + at, a.count, x + a.count);
    for (int i = 1; i < W; i++)
        most[0] = fmaxf(most[0], most[i]);
    for (int step = 1; step * W < 1 << a.shift; step *= 2)
        most[0] = fmaxf(most[0], __shfl_xor_sync(ALL_LANES, most[0], step));
    if (at < a.count && (at & ((1 << a.shift) - 1)) == 0)
        a.amax[at >> a.shift] = most[0];
}

/* Blocks of 2^shift rows of a column: a thread takes one vector of columns. */
template <typename T, int W> DEVICE void column_blocks_max(const gpu_float8_amax &a)
{
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, across = a.columns / W;
    int64_t row = i / across << a.shift, column = i % across * W;
    const T *x = (const T *)a.x + row * a.columns + column;
    float most[W] = {0};

    if (row >= a.rows)
        return;
    for (int r = 0; r < 1 << a.shift; r += BATCH)
        raise<T, W>(most, x + r * a.columns, a.columns, (const T *)a.x + a.rows * a.columns);
    for (int k = 0; k < W; k++)
        a.amax[i / across * a.columns + column + k] = most[k];
}

/* ---- scales ---- */

KERNEL(float8_scales, gpu_float8_scale, 256)
{
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    float scale;

    if (i >= a.count)
        return;
    scale = (float)((double)a.most / fmax((double)a.amax[i], 1e-12));
    if (a.rule == GPU_SCALE_POWER_OF_TWO)
        scale = exp2f(floorf(log2f(scale)));
    else if (a.rule != GPU_SCALE_EXACT)
        scale = mx_scale(a.amax[i], a.most, a.rule == GPU_SCALE_MX_RCEIL);
    a.scale[i] = scale;
}

/* A row of blocks for each operand. */
KERNEL(float8_invert, gpu_float8_invert, 256)
{
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    bool second = blockIdx.y == 1;
    const float *from = second ? a.from[1] : a.from[0];

    if (i < (second ? a.count[1] : a.count[0]))
        (second ? a.to[1] : a.to[0])[i] = 1 / from[(second ? a.one[1] : a.one[0]) ? 0 : i];
}

/* ---- quantising ---- */

DEVICE float factor_of(const gpu_float8_quantise &a, int64_t row, int64_t column)
{
    switch (a.per) {
    case GPU_PER_ROW:
        return a.scale[row];
    case GPU_PER_COLUMN:
        return a.scale[column];
    case GPU_PER_ROW_BLOCK:
        return a.scale[(row * a.columns + column) >> a.shift];
    case GPU_PER_COLUMN_BLOCK:
        return a.scale[(row >> a.shift) * a.columns + column];
    default:
        return a.scale[0];
    }
}

/* Quantises any size: blocks of 32 columns x 8 threads take 32 x 32 tiles. */
template <typename T, bool E5M2> DEVICE void quantise(const gpu_float8_quantise &a)
{
    int64_t row = (int64_t)blockIdx.y * 32, column = (int64_t)blockIdx.x * 32 + threadIdx.x;

    for (int i = threadIdx.y; i < 32 && column < a.columns; i += 8) {
        int64_t at = (row + i) * a.columns + column;

        if (row + i < a.rows)
            a.q[at] =
                narrowed<E5M2>(to_float(((const T *)a.x)[at]) * factor_of(a, row + i, column));
    }
}

/* Blocks of 32 x 8 threads: a thread rounds 8 columns of a row. */
template <typename T, bool E5M2> DEVICE void quantise_vectors(const gpu_float8_quantise &a)
{
    int64_t row = (int64_t)blockIdx.y * blockDim.y + threadIdx.y;
    int64_t column = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * GPU_FLOAT8_VECTOR;
    vector<uint8_t, GPU_FLOAT8_VECTOR> q;
    float x[GPU_FLOAT8_VECTOR];

    if (row >= a.rows || column >= a.columns)
        return;
    load<GPU_FLOAT8_VECTOR>((const T *)a.x + row * a.columns + column, x);
#pragma unroll
    for (int i = 0; i < GPU_FLOAT8_VECTOR; i++)
        q.at[i] = narrowed<E5M2>(x[i] * factor_of(a, row, column + i));
    *(vector<uint8_t, GPU_FLOAT8_VECTOR> *)(a.q + row * a.columns + column) = q;
}

/* ---- transposes ---- */

#define SIDE 4 /* of the squares that a thread turns */
#define SQUARES_DOWN (GPU_FLOAT8_ROWS / SIDE)
#define SQUARES_ACROSS (GPU_FLOAT8_COLUMNS / SIDE)

/* A tile of rows and columns for 256 threads, through shared memory: rows of the transpose are
   written by whole warps. Rows and columns are multiples of SIDE. */
KERNEL(float8_turn, gpu_float8_turn, 256)
{
    __shared__ uint32_t tile[GPU_FLOAT8_COLUMNS][SQUARES_DOWN + 1];
    int64_t row = (int64_t)blockIdx.y * GPU_FLOAT8_ROWS;
    int64_t column = (int64_t)blockIdx.x * GPU_FLOAT8_COLUMNS;
    int across = (int)threadIdx.x % SQUARES_ACROSS;

    for (int down = (int)threadIdx.x / SQUARES_ACROSS; down < SQUARES_DOWN;
         down += (int)blockDim.x / SQUARES_ACROSS) {
        int64_t r = row + down * SIDE, c = column + across * SIDE;
        uint32_t words[SIDE] = {0};

        for (int i = 0; r < a.rows && c < a.columns && i < SIDE; i++) {
            uint32_t four = *(const uint32_t *)(a.from + (r + i) * a.columns + c);

#pragma unroll
            for (int j = 0; j < SIDE; j++)
                words[j] |= (four >> (8 * j) & 255) << (8 * i);
        }
#pragma unroll
        for (int j = 0; j < SIDE; j++)
            tile[across * SIDE + j][down] = words[j];
    }
    __syncthreads();
    for (int i = (int)threadIdx.x; i < GPU_FLOAT8_COLUMNS * SQUARES_DOWN; i += (int)blockDim.x) {
        int64_t c = column + i / SQUARES_DOWN, r = row + i % SQUARES_DOWN * SIDE;

        if (r < a.rows && c < a.columns)
            *(uint32_t *)(a.to + c * a.rows + r) = tile[i / SQUARES_DOWN][i % SQUARES_DOWN];
    }
}

#define FLOAT8_MAXIMA(T, W, suffix)                                                                \
    KERNEL(float8_parts_##suffix, gpu_float8_amax, 256)                                            \
    {                                                                                              \
        parts_max<T, W>(a);                                                                        \
    }                                                                                              \
    KERNEL(float8_rows_##suffix, gpu_float8_amax, 256)                                             \
    {                                                                                              \
        rows_max<T, W>(a);                                                                         \
    }                                                                                              \
    KERNEL(float8_columns_##suffix, gpu_float8_amax, 256)                                          \
    {                                                                                              \
        columns_max<T, W>(a);                                                                      \
    }                                                                                              \
    KERNEL(float8_row_blocks_##suffix, gpu_float8_amax, 256)                                       \
    {                                                                                              \
        row_blocks_max<T, W>(a);                                                                   \
    }                                                                                              \
    KERNEL(float8_column_blocks_##suffix, gpu_float8_amax, 256)                                    \
    {                                                                                              \
        column_blocks_max<T, W>(a);                                                                \
    }
#define FLOAT8(T, dtype)                                                                           \
    FLOAT8_MAXIMA(T, 1, dtype)                                                                     \
    FLOAT8_MAXIMA(T, lanes<T>::of, dtype##_vector)                                                 \
    KERNEL(float8_e4m3_##dtype, gpu_float8_quantise, 256)                                          \
    {                                                                                              \
        quantise<T, false>(a);                                                                     \
    }                                                                                              \
    KERNEL(float8_e5m2_##dtype, gpu_float8_quantise, 256)                                          \
    {                                                                                              \
        quantise<T, true>(a);                                                                      \
    }                                                                                              \
    KERNEL(float8_e4m3_##dtype##_vector, gpu_float8_quantise, 256)                                 \
    {                                                                                              \
        quantise_vectors<T, false>(a);                                                             \
    }                                                                                              \
    KERNEL(float8_e5m2_##dtype##_vector, gpu_float8_quantise, 256)                                 \
    {                                                                                              \
        quantise_vectors<T, true>(a);                                                              \
    }
FOR_DTYPES(FLOAT8)
