/*
 * Quantising to 8 bits: largest magnitudes, scales, and the rounding. Before products, transposes
 * and the inverses of scales.
 */
#include "float8.cuh"

/* ---- scales ---- */

DEVICE void put_scale(const gpu_float8_scale &a, int64_t i, float amax)
{
    float scale = (float)((double)a.most / fmax((double)amax, 1e-12));

    if (a.rule == GPU_SCALE_POWER_OF_TWO)
        scale = exp2f(floorf(log2f(scale)));
    else if (a.rule != GPU_SCALE_EXACT)
        scale = mx_scale(amax, a.most, a.rule == GPU_SCALE_MX_RCEIL);
    a.scale[i] = scale;
    if (a.inverse)
        a.inverse[i] = 1 / scale;
}

KERNEL(float8_scales, gpu_float8_scale, 256)
{
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;

    if (i < a.count)
        put_scale(a, i, a.amax[i]);
}

/* ---- largest magnitudes ---- */

DEVICE void put_amax(const gpu_float8_amax &a, int64_t i, float most)
{
    if (a.made.scale)
        put_scale(a.made, i, most);
    else
        a.amax[i] = most;
}

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
        put_amax(a, 0, most);
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
        put_amax(a, row, most);
}

/* As raise, of rows 8 apart, each of which a warp takes: to[row * across] is the largest of it. */
template <typename T, int W>
DEVICE void raise_rows(float (&most)[W], const gpu_float8_amax &a, int64_t row, int64_t last,
                       int64_t column, unsigned across, float *to)
{
    vector<T, W> v[BATCH] = {};

#pragma unroll
    for (int k = 0; k < BATCH; k++)
        if (row + 8 * k < last && column < a.columns)
            v[k] = *(const vector<T, W> *)((const T *)a.x + (row + 8 * k) * a.columns + column);
#pragma unroll
    for (int k = 0; k < BATCH; k++) {
        float own = 0;

#pragma unroll
        for (int i = 0; i < W; i++) {
            float size = fabsf(to_float(v[k].at[i]));

            most[i] = fmaxf(most[i], size);
            own = fmaxf(own, size);
        }
        own = warp_max(own);
        if (threadIdx.x == 0 && row + 8 * k < last)
            to[(row + 8 * k) * across] = own;
    }
}

/* Blocks of 32 x 8 threads take a.strip rows of 32 vectors. The whole is found from all strips' by
   the same kernel. ROWS: also the largest of each row of the block. */
template <typename T, int W, bool ROWS = false> DEVICE void columns_max(const gpu_float8_amax &a)
{
    __shared__ float part[8][W][33];
    unsigned across = (unsigned)((a.columns + 32 * W - 1) / (32 * W)), strip = blockIdx.x / across;
    int64_t first = (int64_t)(blockIdx.x % across) * 32 * W;
    int64_t column = first + (int64_t)threadIdx.x * W, row = strip * a.strip;
    int64_t last = row + a.strip < a.rows ? row + a.strip : a.rows;
    const T *x = (const T *)a.x, *end = x + last * a.columns;
    float most[W] = {0};

    for (row += threadIdx.y; row < last && (ROWS || column < a.columns); row += 8 * BATCH)
        if (ROWS)
            raise_rows<T, W>(most, a, row, last, column, across, a.rows_of + blockIdx.x % across);
        else
            raise<T, W>(most, x + row * a.columns + column, 8 * a.columns, end);
#pragma unroll
    for (int i = 0; i < W; i++)
        part[threadIdx.y][i][threadIdx.x] = most[i];
    __syncthreads();
    for (int c = flat_thread(); c < 32 * W && first + c < a.columns; c += flat_threads()) {
        float whole = 0;

        for (int i = 0; i < 8; i++)
            whole = fmaxf(whole, part[i][c % W][c / W]);
        if (a.partial)
            a.partial[strip * a.columns + first + c] = whole;
        else
            put_amax(a, first + c, whole);
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

/* ---- inverses ---- */

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

DEVICE float factor_of(const gpu_float8_cells &of, int64_t columns, int64_t row, int64_t column)
{
    switch (of.per) {
    case GPU_PER_ROW:
        return of.scale[row];
    case GPU_PER_COLUMN:
        return of.scale[column];
    case GPU_PER_ROW_BLOCK:
        return of.scale[(row * columns + column) >> of.shift];
    case GPU_PER_COLUMN_BLOCK:
        return of.scale[(row >> of.shift) * columns + column];
    default:
        return of.scale[0];
    }
}

/* Quantises any size: blocks of 32 columns x 8 threads take 32 x 32 tiles. */
template <typename T, bool E5M2> DEVICE void quantise(const gpu_float8_quantise &a)
{
    int64_t row = (int64_t)blockIdx.y * 32, column = (int64_t)blockIdx.x * 32 + threadIdx.x;

    for (int i = threadIdx.y; i < 32 && column < a.columns; i += 8) {
        int64_t at = (row + i) * a.columns + column;

        if (row + i < a.rows)
            a.q[at] = narrowed<E5M2>(to_float(((const T *)a.x)[at]) *
                                     factor_of(a.of_q, a.columns, row + i, column));
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
        q.at[i] = narrowed<E5M2>(x[i] * factor_of(a.of_q, a.columns, row, column + i));
    *(vector<uint8_t, GPU_FLOAT8_VECTOR> *)(a.q + row * a.columns + column) = q;
}

/* ---- transposes ---- */

#define SIDE 4 /* of the squares that a thread turns */
#define SQUARES_DOWN (GPU_FLOAT8_ROWS / SIDE)
#define SQUARES_ACROSS (GPU_FLOAT8_COLUMNS / SIDE)

/* Codes of a tile by column, four rows in a word. */
typedef uint32_t tile_of_words[GPU_FLOAT8_COLUMNS][SQUARES_DOWN + 1];

/* The tile that begins at (row, column), to its place in to[columns, rows]: whole warps write rows
   of the transpose. */
DEVICE void put_transposed(const tile_of_words &tile, uint8_t *to, int64_t rows, int64_t columns,
                           int64_t row, int64_t column)
{
    __syncthreads();
    for (int i = (int)threadIdx.x; i < GPU_FLOAT8_COLUMNS * SQUARES_DOWN; i += (int)blockDim.x) {
        int64_t c = column + i / SQUARES_DOWN, r = row + i % SQUARES_DOWN * SIDE;

        if (r < rows && c < columns)
            *(uint32_t *)(to + c * rows + r) = tile[i / SQUARES_DOWN][i % SQUARES_DOWN];
    }
}

/* A tile of rows and columns for 256 threads, through shared memory. Rows and columns are multiples
   of SIDE. */
KERNEL(float8_turn, gpu_float8_turn, 256)
{
    __shared__ tile_of_words tile;
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
    put_transposed(tile, a.to, a.rows, a.columns, row, column);
}

/* ---- quantising with the transpose ---- */

/* Any size: blocks of 32 x 8 threads take 32 x 32 tiles. */
template <typename T, bool E5M2> DEVICE void quantise_transposed(const gpu_float8_quantise &a)
{
    __shared__ uint8_t tile[32][33];
    int64_t row = (int64_t)blockIdx.y * 32, column = (int64_t)blockIdx.x * 32;
    int64_t c = column + threadIdx.x;

    for (int i = threadIdx.y; i < 32 && row + i < a.rows && c < a.columns; i += 8) {
        int64_t r = row + i, at = r * a.columns + c;
        float x = to_float(((const T *)a.x)[at]);

        if (a.q)
            a.q[at] = narrowed<E5M2>(x * factor_of(a.of_q, a.columns, r, c));
        tile[threadIdx.x][i] = narrowed<E5M2>(x * factor_of(a.of_transposed, a.columns, r, c));
    }
    __syncthreads();
    for (int i = threadIdx.y; i < 32; i += 8)
        if (column + i < a.columns && row + threadIdx.x < a.rows)
            a.transposed[(column + i) * a.rows + row + threadIdx.x] = tile[i][threadIdx.x];
}

/* Factors of SIDE rows of 8 columns, of which rows or columns share one. */
struct square_factors {
    bool by_row;
    float row[SIDE], column[GPU_FLOAT8_VECTOR];
};

DEVICE square_factors factors_at(const gpu_float8_cells &of, int64_t row, int64_t column)
{
    square_factors f;

    f.by_row = of.per == GPU_PER_ROW;
#pragma unroll
    for (int i = 0; i < SIDE; i++)
        f.row[i] = of.scale[f.by_row ? row + i : 0];
#pragma unroll
    for (int j = 0; j < GPU_FLOAT8_VECTOR; j++)
        f.column[j] = of.scale[of.per == GPU_PER_COLUMN ? column + j : 0];
    return f;
}

DEVICE float factor_in(const square_factors &f, int i, int j)
{
    return f.by_row ? f.row[i] : f.column[j];
}

/* A thread rounds SIDE rows of 8 columns; words: codes of the transpose. OWN: it has other scales
   than q. */
template <typename T, bool E5M2, bool OWN>
DEVICE void quantise_square(const gpu_float8_quantise &a, int64_t row, int64_t column,
                            uint32_t (&words)[GPU_FLOAT8_VECTOR])
{
    square_factors of_q = factors_at(a.of_q, row, column);
    square_factors own = OWN ? factors_at(a.of_transposed, row, column) : of_q;
    float x[SIDE][GPU_FLOAT8_VECTOR];

#pragma unroll
    for (int i = 0; i < SIDE; i++)
        load<GPU_FLOAT8_VECTOR>((const T *)a.x + (row + i) * a.columns + column, x[i]);
#pragma unroll
    for (int i = 0; i < SIDE; i++) {
        vector<uint8_t, GPU_FLOAT8_VECTOR> q;

#pragma unroll
        for (int j = 0; j < GPU_FLOAT8_VECTOR; j++) {
            q.at[j] = narrowed<E5M2>(x[i][j] * factor_in(of_q, i, j));
            words[j] |= (uint32_t)(OWN ? narrowed<E5M2>(x[i][j] * factor_in(own, i, j)) : q.at[j])
                        << (8 * i);
        }
        if (a.q)
            *(vector<uint8_t, GPU_FLOAT8_VECTOR> *)(a.q + (row + i) * a.columns + column) = q;
    }
}

/* 256 threads take a tile. Rows are multiples of SIDE, and columns of 8. */
template <typename T, bool E5M2, bool OWN>
DEVICE void quantise_transposed_vectors(const gpu_float8_quantise &a)
{
    __shared__ tile_of_words tile;
    int64_t row = (int64_t)blockIdx.y * GPU_FLOAT8_ROWS;
    int64_t column = (int64_t)blockIdx.x * GPU_FLOAT8_COLUMNS;
    int across = (int)threadIdx.x % (GPU_FLOAT8_COLUMNS / GPU_FLOAT8_VECTOR);
    int down = (int)threadIdx.x / (GPU_FLOAT8_COLUMNS / GPU_FLOAT8_VECTOR);
    int64_t r = row + down * SIDE, c = column + across * GPU_FLOAT8_VECTOR;
    uint32_t words[GPU_FLOAT8_VECTOR] = {0};

    if (r < a.rows && c < a.columns)
        quantise_square<T, E5M2, OWN>(a, r, c, words);
#pragma unroll
    for (int j = 0; j < GPU_FLOAT8_VECTOR; j++)
        tile[across * GPU_FLOAT8_VECTOR + j][down] = words[j];
    put_transposed(tile, a.transposed, a.rows, a.columns, row, column);
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
    KERNEL(float8_both_##suffix, gpu_float8_amax, 256)                                             \
    {                                                                                              \
        columns_max<T, W, true>(a);                                                                \
    }                                                                                              \
    KERNEL(float8_row_blocks_##suffix, gpu_float8_amax, 256)                                       \
    {                                                                                              \
        row_blocks_max<T, W>(a);                                                                   \
    }                                                                                              \
    KERNEL(float8_column_blocks_##suffix, gpu_float8_amax, 256)                                    \
    {                                                                                              \
        column_blocks_max<T, W>(a);                                                                \
    }
#define FLOAT8_TRANSPOSED(T, code, E5M2, dtype)                                                    \
    KERNEL(float8_##code##_##dtype##_transposed, gpu_float8_quantise, 256)                         \
    {                                                                                              \
        quantise_transposed<T, E5M2>(a);                                                           \
    }                                                                                              \
    KERNEL(float8_##code##_##dtype##_transposed_vector, gpu_float8_quantise, 256)                  \
    {                                                                                              \
        quantise_transposed_vectors<T, E5M2, false>(a);                                            \
    }                                                                                              \
    KERNEL(float8_##code##_##dtype##_transposed_own, gpu_float8_quantise, 256)                     \
    {                                                                                              \
        quantise_transposed_vectors<T, E5M2, true>(a);                                             \
    }
#define FLOAT8(T, dtype)                                                                           \
    FLOAT8_MAXIMA(T, 1, dtype)                                                                     \
    FLOAT8_MAXIMA(T, lanes<T>::of, dtype##_vector)                                                 \
    FLOAT8_TRANSPOSED(T, e4m3, false, dtype)                                                       \
    FLOAT8_TRANSPOSED(T, e5m2, true, dtype)                                                        \
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
