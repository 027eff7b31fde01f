/*
 * Rows of a table by token, and their gradient.
 *
 * Backward without atomic additions, so that the result is always the same: the first position of
 * each token is found (the least, by integer atomics), then a block per row of the table looks for
 * the token from that position on and adds up the rows of dy in the order of the positions.
 */
#include "device.cuh"

template <typename From, typename To, int W> DEVICE void embedding(const gpu_embedding &a)
{
    int64_t position = blockIdx.x, token = a.tokens[position], row = token - a.first;
    bool here =
        in_range(GPU_FAULT_TOKEN, token, position, a.limit, a.fault) && row >= 0 && row < a.rows;

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
        a.head[row] = (int32_t)a.count;
}

KERNEL(embedding_heads, gpu_embedding_grad, 256)
{
    int64_t position = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, row;

    if (position >= a.count ||
        !in_range(GPU_FAULT_TOKEN, a.tokens[position], position, a.limit, a.fault))
        return;
    row = a.tokens[position] - a.first;
    if (row >= 0 && row < a.rows)
        atomicMin(&a.head[row], (int)position);
}

#define THREADS 256 /* of a block of the gradient */
#define WINDOW 4096 /* tokens that a block looks at together */
#define LOOKS (WINDOW / THREADS)

/* Which of a window's tokens are `token`: bit i of found[k] for begin + 32 k + i. Is one of them?
   The same answer for all threads. */
DEVICE bool find_positions(const gpu_embedding_grad &a, int64_t token, int64_t begin,
                           uint32_t *found)
{
    bool any = false;

    __syncthreads(); /* found was read */
#pragma unroll 4
    for (int i = 0; i < LOOKS; i++) {
        int64_t at = begin + (int64_t)i * THREADS + threadIdx.x;
        uint32_t bits = __ballot_sync(ALL_LANES, at < a.count && a.tokens[at] == token);

        any |= bits != 0;
        if (threadIdx.x % 32 == 0)
            found[(i * THREADS + threadIdx.x) / 32] = bits;
    }
    return __syncthreads_or(any);
}

/* sum += W columns of the rows of dy that a window found, in order */
template <typename From, int W>
DEVICE void add_rows(const gpu_embedding_grad &a, const uint32_t *found, int64_t begin,
                     int64_t column, float (&sum)[W])
{
    for (int k = 0; k < WINDOW / 32; k++)
        for (uint32_t bits = found[k]; bits; bits &= bits - 1) {
            int64_t position = begin + 32 * k + __ffs((int)bits) - 1;
            float x[W];

            load<W>((const From *)a.dy + position * a.columns + column, x);
#pragma unroll
            for (int i = 0; i < W; i++)
                sum[i] += x[i];
        }
}

template <typename From, typename To, int W> DEVICE void embedding_grad(const gpu_embedding_grad &a)
{
    __shared__ uint32_t found[WINDOW / 32];
    int64_t row = blockIdx.x, head = a.head[row];

    if (a.accumulate && head >= a.count)
        return;
    for (int64_t base = 0; base < a.columns; base += (int64_t)THREADS * W) {
        int64_t column = base + (int64_t)threadIdx.x * W;
        To *out = (To *)a.dtable + row * a.columns + column;
        float sum[W] = {0};

        if (a.accumulate && column < a.columns)
            load<W>(out, sum);
        for (int64_t begin = head; begin < a.count; begin += WINDOW)
            if (find_positions(a, row + a.first, begin, found) && column < a.columns)
                add_rows<From, W>(a, found, begin, column, sum);
        if (column < a.columns)
            store<W>(out, sum);
    }
}

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
