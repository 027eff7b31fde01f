/*
 * Token cross entropy. A block takes one row of logits: the largest and the sum of exponentials are
 * found in one pass (Milakov and Gimelshein 2018), the gradient is written in a second, in place if
 * asked for; a row is still in the cache then.
 */
#include "device.cuh"

/* A running maximum, and the sum of exp(x - largest). */
struct log_sum {
    float largest, sum;
};

DEVICE log_sum nothing()
{
    return {-INFINITY, 0.0f};
}

DEVICE log_sum merged(log_sum a, log_sum b)
{
    float largest = fmaxf(a.largest, b.largest);

    if (largest == -INFINITY)
        return nothing();
    return {largest, a.sum * expf(a.largest - largest) + b.sum * expf(b.largest - largest)};
}

template <int W> DEVICE log_sum with(log_sum a, const float (&x)[W])
{
    float largest = x[0], sum = 0;

#pragma unroll
    for (int i = 1; i < W; i++)
        largest = fmaxf(largest, x[i]);
    largest = fmaxf(a.largest, largest);
    if (largest == -INFINITY)
        return a;
#pragma unroll
    for (int i = 0; i < W; i++)
        sum += expf(x[i] - largest);
    return {largest, a.sum * expf(a.largest - largest) + sum};
}

/* Of all threads, for all of them. */
DEVICE log_sum block_merged(log_sum x)
{
    __shared__ log_sum of_warp[32];
    log_sum all = nothing();

#pragma unroll
    for (int step = 16; step; step >>= 1)
        x = merged(x, {__shfl_xor_sync(ALL_LANES, x.largest, step),
                       __shfl_xor_sync(ALL_LANES, x.sum, step)});
    __syncthreads();
    if (threadIdx.x % 32 == 0)
        of_warp[threadIdx.x / 32] = x;
    __syncthreads();
    for (unsigned i = 0; i < blockDim.x / 32; i++)
        all = merged(all, of_warp[i]);
    return all;
}

template <typename T, int W> DEVICE log_sum row_log_sum(const T *x, int64_t columns)
{
    log_sum mine = nothing();

    for (int64_t c = (int64_t)threadIdx.x * W; c < columns; c += (int64_t)blockDim.x * W) {
        float v[W];

        load<W>(x + c, v);
        mine = with<W>(mine, v);
    }
    return block_merged(mine);
}

template <typename From, typename To, int W>
DEVICE void write_gradient(const gpu_loss_rows &a, const From *x, To *d, int64_t label, float lse)
{
    bool counts = label != GPU_MASKED;
    float scale = counts ? (float)load_scalar(a.dloss, a.dloss_kind) : 0.0f;

    for (int64_t c = (int64_t)threadIdx.x * W; c < a.columns; c += (int64_t)blockDim.x * W) {
        float v[W];

        load<W>(x + c, v);
#pragma unroll
        for (int i = 0; i < W; i++)
            v[i] = counts ? scale * (expf(v[i] - lse) - (c + i == label ? 1.0f : 0.0f)) : 0.0f;
        store<W>(d + c, v);
    }
}

template <typename From, typename To, int W> DEVICE void loss_rows(const gpu_loss_rows &a)
{
    int64_t row = blockIdx.x, label = a.labels[row];
    const From *x = (const From *)a.logits + row * a.stride;
    float lse;

    if (label != GPU_MASKED &&
        !in_range(GPU_FAULT_LABEL, label, a.first_position + row, a.columns, a.fault))
        label = GPU_MASKED;
    if (a.given_lse) {
        lse = a.given_lse[row];
    } else {
        log_sum all = row_log_sum<From, W>(x, a.columns);

        lse = all.largest + logf(all.sum);
    }
    if (threadIdx.x == 0 && a.lse)
        a.lse[row] = lse;
    if (threadIdx.x == 0 && a.loss)
        a.loss[row] = label == GPU_MASKED ? 0.0f : lse - to_float(x[label]);
    if (!a.dlogits)
        return;
    __syncthreads(); /* x[label] was read: x may be overwritten */
    write_gradient<From, To, W>(a, x, (To *)a.dlogits + row * a.stride, label, lse);
}

#define LOSS_ROWS(From, from, To, to)                                                              \
    KERNEL(loss_rows_##from##_to_##to, gpu_loss_rows, 1024)                                        \
    {                                                                                              \
        loss_rows<From, To, 1>(a);                                                                 \
    }                                                                                              \
    KERNEL(loss_rows_##from##_to_##to##_vector, gpu_loss_rows, 1024)                               \
    {                                                                                              \
        loss_rows<From, To, lanes<From>::of>(a);                                                   \
    }
LOSS_ROWS(float, float32, float, float32)
LOSS_ROWS(float, float32, bfloat16, bfloat16)
LOSS_ROWS(bfloat16, bfloat16, bfloat16, bfloat16)

/* ---- the vocabulary in shards ---- */

enum { LARGEST, SUM, LABEL, STATISTICS };

/* Columns of a shard: the last ones of the vocabulary are shorter, or empty. */
DEVICE int64_t shard_columns(const gpu_shards &a, int64_t shard)
{
    int64_t left = a.row_columns - shard * a.columns;

    return left < 0 ? 0 : left < a.columns ? left : a.columns;
}

/* A block for each shard of a row. */
template <typename T, int W> DEVICE void shard_stats(const gpu_shards &a)
{
    int64_t row = blockIdx.x / a.shards, shard = blockIdx.x % a.shards, label = a.labels[row];
    int64_t columns = shard_columns(a, shard);
    const T *x = (const T *)a.logits + row * a.row_columns + shard * a.columns;
    float *stats = a.stats + blockIdx.x * STATISTICS;
    log_sum all = row_log_sum<T, W>(x, columns);

    if (threadIdx.x)
        return;
    if (label != GPU_MASKED)
        in_range(GPU_FAULT_LABEL, label, row, a.limit, a.fault);
    label -= a.first + shard * a.columns;
    stats[LARGEST] = all.largest;
    stats[SUM] = all.sum;
    stats[LABEL] = label >= 0 && label < columns ? to_float(x[label]) : 0.0f;
}

template <typename T, int W> DEVICE void shard_grad(const gpu_shards &a)
{
    int64_t row = blockIdx.x / a.shards, shard = blockIdx.x % a.shards;
    int64_t label = a.labels[row] - a.first - shard * a.columns;
    int64_t columns = shard_columns(a, shard), begin = row * a.row_columns + shard * a.columns;
    const T *x = (const T *)a.logits + begin;
    T *out = (T *)a.dlogits + begin;
    const float *d = a.dstats + blockIdx.x * STATISTICS, *stats = a.stats + blockIdx.x * STATISTICS;
    float largest = stats[LARGEST], of_sum = d[SUM], of_label = d[LABEL];

    for (int64_t c = (int64_t)threadIdx.x * W; c < columns; c += (int64_t)blockDim.x * W) {
        float v[W];

        load<W>(x + c, v);
#pragma unroll
        for (int i = 0; i < W; i++)
            v[i] = of_sum * expf(v[i] - largest) + (c + i == label ? of_label : 0.0f);
        store<W>(out + c, v);
    }
}

#define LOSS(T, dtype)                                                                             \
    KERNEL(shard_stats_##dtype, gpu_shards, 256)                                                   \
    {                                                                                              \
        shard_stats<T, 1>(a);                                                                      \
    }                                                                                              \
    KERNEL(shard_stats_##dtype##_vector, gpu_shards, 256)                                          \
    {                                                                                              \
        shard_stats<T, lanes<T>::of>(a);                                                           \
    }                                                                                              \
    KERNEL(shard_grad_##dtype, gpu_shards, 256)                                                    \
    {                                                                                              \
        shard_grad<T, 1>(a);                                                                       \
    }                                                                                              \
    KERNEL(shard_grad_##dtype##_vector, gpu_shards, 256)                                           \
    {                                                                                              \
        shard_grad<T, lanes<T>::of>(a);                                                            \
    }
FOR_DTYPES(LOSS)

KERNEL(merge_shards, gpu_merge, 256)
{
    int64_t row = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    const float *stats = a.stats + row * a.shards * STATISTICS;
    log_sum all = nothing();
    float label = 0;

    if (row >= a.rows)
        return;
    for (int64_t p = 0; p < a.shards; p++) {
        all = merged(all, {stats[p * STATISTICS + LARGEST], stats[p * STATISTICS + SUM]});
        label += stats[p * STATISTICS + LABEL];
    }
    a.lse[row] = all.largest + logf(all.sum);
    a.losses[row] = a.labels[row] == GPU_MASKED ? 0.0f : a.lse[row] - label;
}

KERNEL(merge_shards_grad, gpu_merge, 256)
{
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, row = i / a.shards;
    float dloss, *d = a.dstats + i * STATISTICS;

    if (row >= a.rows)
        return;
    dloss = a.labels[row] == GPU_MASKED ? 0.0f : (float)load_scalar(a.dloss, a.dloss_kind);
    d[LARGEST] = 0;
    d[SUM] = dloss == 0 ? 0.0f : dloss * expf(a.stats[i * STATISTICS + LARGEST] - a.given_lse[row]);
    d[LABEL] = -dloss;
}

/* One block: always the same order. */
KERNEL(sum_losses, gpu_loss_sum, 1024)
{
    double sum = 0;

    for (int64_t i = threadIdx.x; i < a.count; i += blockDim.x)
        sum += (double)a.losses[i];
    sum = block_sum(sum);
    if (threadIdx.x == 0)
        store_scalar(a.out, a.kind, sum + (a.accumulate ? load_scalar(a.out, a.kind) : 0.0));
}
