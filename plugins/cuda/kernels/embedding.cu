/*
 * Rows of a table by token, and their gradient.
 *
 * Backward without atomic additions of floating-point numbers, so that the result is always the
 * same: positions are sorted by token (the rank of a position among those of its token is counted),
 * and a block per row of the table adds up its rows of dy in the order of the positions. Those of a
 * frequent token are summed in chunks of GPU_EMBEDDING_CHUNK by a block each, and then the chunks.
 */
#include <ctitan/lib/cuda/device.cuh>

#include "arguments.h"

template <typename From, typename To, int W> DEVICE void embedding(const gpu_embedding &a)
{
    int64_t position = blockIdx.x, token = a.tokens[position], row = token - a.first;
    bool here = in_range(CT_CUDA_FAULT_TOKEN, token, position, a.limit, a.fault) && row >= 0 &&
                row < a.rows;

    for (int64_t column = (int64_t)threadIdx.x * W; column < a.columns;
         column += (int64_t)blockDim.x * W) {
        float x[W] = {0};

        if (here)
            load<W>((const From *)a.table + row * a.columns + column, x);
        store<W>((To *)a.y + position * a.columns + column, x);
    }
}

#define EMBEDDING(From, from, To, to)                                                              \
    KERNEL(embedding_##from##_to_##to, gpu_embedding, 256)                                         \
    {                                                                                              \
        embedding<From, To, 1>(a);                                                                 \
    }                                                                                              \
    KERNEL(embedding_##from##_to_##to##_vector, gpu_embedding, 256)                                \
    {                                                                                              \
        embedding<From, To, GPU_EMBEDDING_VECTOR>(a);                                              \
    }
EMBEDDING(float, float32, float, float32)
EMBEDDING(float, float32, bfloat16, bfloat16)
EMBEDDING(bfloat16, bfloat16, float, float32)
EMBEDDING(bfloat16, bfloat16, bfloat16, bfloat16)

KERNEL(embedding_clear, gpu_embedding_grad, 256)
{
    int64_t row = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;

    if (row < a.rows)
        a.counts[row] = 0;
}

#define THREADS 256

/* rank = earlier positions of the same token; -1: its row is not here, or is the padding's.
   Blocks of THREADS. */
KERNEL(embedding_rank, gpu_embedding_grad, THREADS)
{
    __shared__ int32_t earlier[THREADS];
    int64_t first = (int64_t)blockIdx.x * THREADS, position = first + threadIdx.x, row = -1;
    int32_t token = -1, rank = 0;

    if (position < a.count) {
        token = a.tokens[position];
        if (in_range(CT_CUDA_FAULT_TOKEN, token, position, a.limit, a.fault) && token != a.padding)
            row = token - a.first;
    }
    for (int64_t from = 0; from <= first; from += THREADS) {
        int most = from < first ? THREADS : (int)threadIdx.x;

        __syncthreads();
        earlier[threadIdx.x] =
            from + threadIdx.x < a.count ? a.tokens[from + threadIdx.x] : INT32_MIN;
        __syncthreads();
#pragma unroll 8
        for (int i = 0; i < most; i++)
            rank += earlier[i] == token;
    }
    if (position >= a.count)
        return;
    if (row < 0 || row >= a.rows)
        rank = -1;
    else
        atomicAdd(&a.counts[row], 1);
    a.rank[position] = rank;
}

DEVICE int32_t chunks_of(int32_t count)
{
    return count > GPU_EMBEDDING_CHUNK ? (count + GPU_EMBEDDING_CHUNK - 1) / GPU_EMBEDDING_CHUNK
                                       : 0;
}

/* totals = the counts of each GPU_EMBEDDING_SPAN rows, and their chunks; a block for each. */
KERNEL(embedding_totals, gpu_embedding_grad, GPU_EMBEDDING_SPAN)
{
    int64_t row = (int64_t)blockIdx.x * GPU_EMBEDDING_SPAN + threadIdx.x;
    int32_t count = row < a.rows ? a.counts[row] : 0;
    int32_t counts = block_sum(count), chunks = block_sum(chunks_of(count));

    if (threadIdx.x)
        return;
    a.totals[2 * blockIdx.x] = counts;
    a.totals[2 * blockIdx.x + 1] = chunks;
}

/* The sum of every second total of the blocks before this one, from `which` on, for all threads. */
DEVICE int32_t total_before(const gpu_embedding_grad &a, int which)
{
    int32_t sum = 0;

    for (unsigned i = threadIdx.x; i < blockIdx.x; i += blockDim.x)
        sum += a.totals[2 * i + which];
    return block_sum(sum);
}

/* begin and chunk = sums of the counts, and of their chunks, of all rows before; of the row behind
   the last one, too. */
KERNEL(embedding_scan, gpu_embedding_grad, GPU_EMBEDDING_SPAN)
{
    int64_t row = (int64_t)blockIdx.x * GPU_EMBEDDING_SPAN + threadIdx.x;
    int32_t count = row < a.rows ? a.counts[row] : 0, all;
    int32_t counts = total_before(a, 0) + sum_before_thread(count, &all);
    int32_t chunks = total_before(a, 1) + sum_before_thread(chunks_of(count), &all);

    if (row > a.rows)
        return;
    a.begin[row] = counts;
    a.chunk[row] = chunks;
}

KERNEL(embedding_sort, gpu_embedding_grad, 256)
{
    int64_t position = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;

    if (position < a.count && a.rank[position] >= 0)
        a.sorted[a.begin[a.tokens[position] - a.first] + a.rank[position]] = (int32_t)position;
}

/* sum += W columns of rows of dy, in order */
template <typename From, int W>
DEVICE void add_rows(const gpu_embedding_grad &a, const int32_t *positions, int32_t count,
                     int64_t column, float (&sum)[W])
{
#pragma unroll 4
    for (int32_t k = 0; k < count; k++) {
        float x[W];

        load<W>((const From *)a.dy + positions[k] * a.columns + column, x);
#pragma unroll
        for (int i = 0; i < W; i++)
            sum[i] += x[i];
    }
}

/* The row that a chunk is of. */
DEVICE int64_t row_of_chunk(const gpu_embedding_grad &a, int32_t chunk)
{
    int64_t low = 0, high = a.rows;

    while (high - low > 1) {
        int64_t middle = (low + high) / 2;

        if (a.chunk[middle] <= chunk)
            low = middle;
        else
            high = middle;
    }
    return low;
}

template <typename From, int W> DEVICE void embedding_chunks(const gpu_embedding_grad &a)
{
    int32_t chunk = (int32_t)blockIdx.x, first, count;
    int64_t row;

    if (chunk >= a.chunk[a.rows])
        return;
    row = row_of_chunk(a, chunk);
    first = (chunk - a.chunk[row]) * GPU_EMBEDDING_CHUNK;
    count = a.counts[row] - first;
    count = count < GPU_EMBEDDING_CHUNK ? count : GPU_EMBEDDING_CHUNK;
    for (int64_t column = (int64_t)threadIdx.x * W; column < a.columns;
         column += (int64_t)blockDim.x * W) {
        float sum[W] = {0};

        add_rows<From, W>(a, a.sorted + a.begin[row] + first, count, column, sum);
        store<W>(a.partial + chunk * a.columns + column, sum);
    }
}

template <typename From, typename To, int W> DEVICE void embedding_grad(const gpu_embedding_grad &a)
{
    int64_t row = blockIdx.x;
    int32_t count = a.counts[row], chunks = chunks_of(count);

    if (a.accumulate && !count)
        return;
    for (int64_t column = (int64_t)threadIdx.x * W; column < a.columns;
         column += (int64_t)blockDim.x * W) {
        To *out = (To *)a.dtable + row * a.columns + column;
        float sum[W] = {0};

        if (a.accumulate)
            load<W>(out, sum);
        if (!chunks)
            add_rows<From, W>(a, a.sorted + a.begin[row], count, column, sum);
        for (int32_t c = 0; c < chunks; c++) {
            float x[W];

            load<W>(a.partial + (a.chunk[row] + c) * a.columns + column, x);
#pragma unroll
            for (int i = 0; i < W; i++)
                sum[i] += x[i];
        }
        store<W>(out, sum);
    }
}

#define EMBEDDING_CHUNKS(From, from)                                                               \
    KERNEL(embedding_chunks_##from, gpu_embedding_grad, THREADS)                                   \
    {                                                                                              \
        embedding_chunks<From, 1>(a);                                                              \
    }                                                                                              \
    KERNEL(embedding_chunks_##from##_vector, gpu_embedding_grad, THREADS)                          \
    {                                                                                              \
        embedding_chunks<From, GPU_EMBEDDING_VECTOR>(a);                                           \
    }
FOR_DTYPES(EMBEDDING_CHUNKS)

#define EMBEDDING_GRAD(From, from, To, to)                                                         \
    KERNEL(embedding_grad_##from##_to_##to, gpu_embedding_grad, THREADS)                           \
    {                                                                                              \
        embedding_grad<From, To, 1>(a);                                                            \
    }                                                                                              \
    KERNEL(embedding_grad_##from##_to_##to##_vector, gpu_embedding_grad, THREADS)                  \
    {                                                                                              \
        embedding_grad<From, To, GPU_EMBEDDING_VECTOR>(a);                                         \
    }
EMBEDDING_GRAD(float, float32, float, float32)
EMBEDDING_GRAD(float, float32, bfloat16, bfloat16)
EMBEDDING_GRAD(bfloat16, bfloat16, float, float32)
EMBEDDING_GRAD(bfloat16, bfloat16, bfloat16, bfloat16)
