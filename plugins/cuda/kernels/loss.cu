/*
 * Token cross entropy. A block takes one row of logits: the largest and the sum of exponentials are
 * found in one pass (Milakov and Gimelshein 2018), the gradient is written in a second, in place if
 * asked for.
 *
 * Logits are read from memory once. The first pass keeps as much of the row as shared memory holds;
 * there are few blocks on the device (loss.c), so that the rest of their rows stays in the L2
 * cache. What nobody reads again is loaded and stored past that.
 */
#include <ctitan/lib/cuda/device.cuh>

#include "arguments.h"

/* A running maximum, and the sum of exp(x - largest). */
struct log_sum {
    float largest, sum;
};

DEVICE log_sum nothing()
{
    return {-INFINITY, 0.0f};
}

/* The number that is subtracted from exponents. A maximum has lost a NaN, which is then in the sum:
   so that it stays there, nothing returns before the sum is made. */
DEVICE float offset(float largest)
{
    return largest == -INFINITY ? 0.0f : largest;
}

DEVICE log_sum merged(log_sum a, log_sum b)
{
    float largest = fmaxf(a.largest, b.largest), off = offset(largest);

    return {largest, a.sum * expf(a.largest - off) + b.sum * expf(b.largest - off)};
}

template <int W> DEVICE log_sum with(log_sum a, const float (&x)[W])
{
    float largest = x[0], sum = 0, off;

#pragma unroll
    for (int i = 1; i < W; i++)
        largest = fmaxf(largest, x[i]);
    largest = fmaxf(a.largest, largest);
    off = offset(largest);
#pragma unroll
    for (int i = 0; i < W; i++)
        sum += expf(x[i] - off);
    return {largest, a.sum * expf(a.largest - off) + sum};
}

/* The merged sum of all threads, for all of them. */
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

/* Vectors of a row that a thread has under way at a time. */
template <int W> struct at_once {
    enum { vectors = W > 1 ? 16 / W : 4 };
};

DEVICE float power_of_e(float x, float minus)
{
    return exp2f(fmaf(x, 1.44269504f, minus)); /* minus: -1.44269504 times what is taken off */
}

template <int W> DEVICE log_sum with_powers(log_sum a, const float (&x)[W])
{
    float largest = x[0], sum = 0, minus;

#pragma unroll
    for (int i = 1; i < W; i++)
        largest = fmaxf(largest, x[i]);
    largest = fmaxf(a.largest, largest);
    minus = -1.44269504f * offset(largest);
#pragma unroll
    for (int i = 0; i < W; i++)
        sum += power_of_e(x[i], minus);
    return {largest, a.sum * expf(a.largest - offset(largest)) + sum};
}

/* The largest and the sum of a row; its first `kept` vectors go to shared memory. */
template <typename T, int W>
DEVICE log_sum first_pass(const T *x, int32_t vectors, int32_t kept, vector<T, W> *shared)
{
    enum { N = at_once<W>::vectors };
    log_sum mine = nothing();

    for (int32_t v = (int32_t)threadIdx.x; v < vectors; v += N * (int32_t)blockDim.x) {
        vector<T, W> raw[N];
        float row[W];

#pragma unroll
        for (int i = 0; i < N; i++) {
            int32_t at = v + i * (int32_t)blockDim.x;

            if (at < vectors)
                raw[i] = at < kept ? load_streaming((const vector<T, W> *)x + at)
                                   : ((const vector<T, W> *)x)[at];
        }
#pragma unroll
        for (int i = 0; i < N; i++) {
            int32_t at = v + i * (int32_t)blockDim.x;

            if (at >= vectors)
                break;
            if (at < kept)
                shared[at] = raw[i];
            widen<W>(raw[i], row);
            mine = with_powers<W>(mine, row);
        }
    }
    return block_merged(mine);
}

/* A thread reads of shared memory what it has written itself. */
template <typename From, typename To, int W>
DEVICE void write_gradient(const gpu_loss_rows &a, const From *x, const vector<From, W> *shared,
                           To *d, int32_t label, float lse)
{
    bool counts = label != CT_CUDA_TOKEN_MASKED;
    float scale = counts ? (float)load_scalar(a.dloss, a.dloss_kind) : 0.0f;
    float minus = -1.44269504f * lse;
    int32_t vectors = (int32_t)(a.columns / W);

#pragma unroll 2
    for (int32_t at = (int32_t)threadIdx.x; at < vectors; at += (int32_t)blockDim.x) {
        vector<From, W> raw = at < a.kept ? shared[at] : ((const vector<From, W> *)x)[at];
        float v[W];

        widen<W>(raw, v);
#pragma unroll
        for (int i = 0; i < W; i++)
            v[i] = counts ? scale * (power_of_e(v[i], minus) - (at * W + i == label ? 1.0f : 0.0f))
                          : 0.0f;
        store_streaming<W>(d + (int64_t)at * W, v);
    }
}

template <typename From, typename To, int W> DEVICE void loss_rows(const gpu_loss_rows &a)
{
    DYNAMIC_SHARED(vector<From COMMA W>, shared);
    /* The rows of the last product may be in the cache still. */
    int64_t row = gridDim.x - 1 - blockIdx.x, label = a.labels[row];
    const From *x = (const From *)a.logits + row * a.stride;
    float lse;

    if (label != CT_CUDA_TOKEN_MASKED &&
        !in_range(CT_CUDA_FAULT_LABEL, label, a.first_position + row, a.columns, a.fault))
        label = CT_CUDA_TOKEN_MASKED;
    if (a.given_lse) {
        lse = a.given_lse[row];
    } else {
        log_sum all = first_pass<From, W>(x, (int32_t)(a.columns / W), a.kept, shared);

        lse = all.largest + logf(all.sum);
    }
    if (threadIdx.x == 0 && a.lse)
        a.lse[row] = lse;
    if (threadIdx.x == 0 && a.loss)
        a.loss[row] = label == CT_CUDA_TOKEN_MASKED ? 0.0f : lse - to_float(x[label]);
    if (!a.dlogits)
        return;
    __syncthreads(); /* x[label] was read: x may be overwritten */
    write_gradient<From, To, W>(a, x, shared, (To *)a.dlogits + row * a.stride, (int32_t)label,
                                lse);
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

/* The first of this rank's columns in a shard that lies here, as ct_shard_begin says. */
DEVICE int64_t shard_begin(const gpu_shards &a, int64_t shard)
{
    int64_t larger = a.limit % a.all_shards;

    shard += a.shard;
    return a.limit / a.all_shards * shard + (shard < larger ? shard : larger) - a.first;
}

/* A block for each shard of a row. */
template <typename T, int W> DEVICE void shard_stats(const gpu_shards &a)
{
    int64_t row = blockIdx.x / a.shards, shard = blockIdx.x % a.shards, label = a.labels[row];
    int64_t begin = shard_begin(a, shard), columns = shard_begin(a, shard + 1) - begin;
    const T *x = (const T *)a.logits + row * a.row_columns + begin;
    float *stats = a.stats + blockIdx.x * STATISTICS;
    log_sum all = row_log_sum<T, W>(x, columns);

    if (threadIdx.x)
        return;
    if (label != CT_CUDA_TOKEN_MASKED)
        in_range(CT_CUDA_FAULT_LABEL, label, row, a.limit, a.fault);
    label -= a.first + begin;
    stats[LARGEST] = all.largest;
    stats[SUM] = all.sum;
    stats[LABEL] = label >= 0 && label < columns ? to_float(x[label]) : 0.0f;
}

template <typename T, int W> DEVICE void shard_grad(const gpu_shards &a)
{
    int64_t row = blockIdx.x / a.shards, shard = blockIdx.x % a.shards;
    int64_t begin = shard_begin(a, shard), columns = shard_begin(a, shard + 1) - begin;
    int64_t label = a.labels[row] - a.first - begin;
    const T *x = (const T *)a.logits + row * a.row_columns + begin;
    T *out = (T *)a.dlogits + row * a.row_columns + begin;
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
    a.losses[row] = a.labels[row] == CT_CUDA_TOKEN_MASKED ? 0.0f : a.lse[row] - label;
}

KERNEL(merge_shards_grad, gpu_merge, 256)
{
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, row = i / a.shards;
    float dloss, *d = a.dstats + i * STATISTICS;

    if (row >= a.rows)
        return;
    dloss =
        a.labels[row] == CT_CUDA_TOKEN_MASKED ? 0.0f : (float)load_scalar(a.dloss, a.dloss_kind);
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
