/*
 * Rows of a table by token, and their gradient.
 *
 * Backward without atomic additions, so that the result is always the same: the first position of
 * each token is found (the least, by integer atomics), then a block per row of the table looks for
 * the token from there on and adds up the rows of dy in the order of the positions.
 */
#include "device.cuh"

DEVICE bool in_range(int64_t token, int64_t position, int64_t limit, gpu_fault *fault)
{
    if (token >= 0 && token < limit)
        return true;
    fault->value = token;
    fault->position = position;
    fault->limit = limit;
    fault->kind = GPU_FAULT_TOKEN;
    return false;
}

template <typename From, typename To> DEVICE void embedding(const gpu_embedding &a)
{
    int64_t position = blockIdx.x, token = a.tokens[position], row = token - a.first;
    bool here = in_range(token, position, a.limit, a.fault) && row >= 0 && row < a.rows;
    const From *from = (const From *)a.table + row * a.columns;

    for (int64_t column = threadIdx.x; column < a.columns; column += blockDim.x)
        ((To *)a.y)[position * a.columns + column] =
            from_float<To>(here ? to_float(from[column]) : 0.0f);
}

#define EMBEDDING(From, from, To, to)                                                              \
    KERNEL(embedding_##from##_to_##to, gpu_embedding, 256)                                         \
    {                                                                                              \
        embedding<From, To>(a);                                                                    \
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

    if (position >= a.count || !in_range(a.tokens[position], position, a.limit, a.fault))
        return;
    row = a.tokens[position] - a.first;
    if (row >= 0 && row < a.rows)
        atomicMin(&a.head[row], (int)position);
}

#define COLUMNS 8 /* of a thread in one pass */
#define WINDOW 1024

/* The positions of token in a window of the sequence, in order, in found; returns how many. */
DEVICE int find_positions(const gpu_embedding_grad &a, int64_t token, int64_t begin, int32_t *found,
                          int *counts)
{
    int thread = (int)threadIdx.x, per = WINDOW / (int)blockDim.x, mine = 0, before = 0, all = 0;
    int64_t first = begin + (int64_t)thread * per;

    for (int i = 0; i < per; i++)
        mine += first + i < a.count && a.tokens[first + i] == token;
    __syncthreads();
    counts[thread] = mine;
    __syncthreads();
    for (int t = 0; t < (int)blockDim.x; t++) {
        before += t < thread ? counts[t] : 0;
        all += counts[t];
    }
    for (int i = 0; mine && i < per; i++)
        if (first + i < a.count && a.tokens[first + i] == token)
            found[before++] = (int32_t)(first + i);
    __syncthreads();
    return all;
}

template <typename From>
DEVICE void add_rows(const gpu_embedding_grad &a, const int32_t *found, int count, int64_t column,
                     float (&sum)[COLUMNS])
{
#pragma unroll 1
    for (int n = 0; n < count; n++) {
        const From *dy = (const From *)a.dy + found[n] * a.columns;

#pragma unroll
        for (int i = 0; i < COLUMNS; i++)
            if (column + i * blockDim.x < a.columns)
                sum[i] += to_float(dy[column + i * blockDim.x]);
    }
}

template <typename From, typename To> DEVICE void embedding_grad(const gpu_embedding_grad &a)
{
    __shared__ int32_t found[WINDOW];
    __shared__ int counts[128];
    int64_t row = blockIdx.x, head = a.head[row];
    To *out = (To *)a.dtable + row * a.columns;

    if (a.accumulate && head >= a.count)
        return;
    for (int64_t base = 0; base < a.columns; base += (int64_t)COLUMNS * blockDim.x) {
        int64_t column = base + threadIdx.x;
        float sum[COLUMNS] = {0};

        for (int64_t begin = head; begin < a.count; begin += WINDOW) {
            int count = find_positions(a, row + a.first, begin, found, counts);

            add_rows<From>(a, found, count, column, sum);
        }
#pragma unroll
        for (int i = 0; i < COLUMNS; i++) {
            int64_t at = column + i * blockDim.x;

            if (at < a.columns)
                out[at] = from_float<To>(sum[i] + (a.accumulate ? to_float(out[at]) : 0.0f));
        }
    }
}

#define EMBEDDING_GRAD(From, from, To, to)                                                         \
    KERNEL(embedding_grad_##from##_to_##to, gpu_embedding_grad, 128)                               \
    {                                                                                              \
        embedding_grad<From, To>(a);                                                               \
    }
EMBEDDING_GRAD(float, float32, float, float32)
EMBEDDING_GRAD(float, float32, bfloat16, bfloat16)
EMBEDDING_GRAD(bfloat16, bfloat16, float, float32)
EMBEDDING_GRAD(bfloat16, bfloat16, bfloat16, bfloat16)
