/*
 * The choice of experts: a warp for each row of logits.
 *
 * Ids are those of the reference. Without a bias or groups, logits are compared. Otherwise ranks
 * lie in shared memory, in double: score + bias, or the logits of experts that can be chosen. NaN
 * among them stands for an expert that cannot be.
 */
#include <ctitan/lib/cuda/device.cuh>

#include "arguments.h"

#define LEAST_SUM 1e-20 /* added to the sum of sigmoids, as in the reference */

DEVICE float exponential(float x)
{
    return expf(x);
}

DEVICE double exponential(double x)
{
    return exp(x);
}

/* A row, and what its scores need. */
template <typename R> struct row_of_logits {
    const void *x;
    int64_t at, count;
    int kind, lane, sigmoid;
    float largest;
    R sum; /* of the exponentials */
};

template <typename R> DEVICE float logit(const row_of_logits<R> &r, int64_t i)
{
    float x[1];

    load_as<1>(r.kind, r.x, r.at + i, x);
    return x[0];
}

template <typename R> DEVICE R score(const row_of_logits<R> &r, int64_t i)
{
    R x = logit(r, i);

    return r.sigmoid ? 1 / (1 + exponential(-x)) : exponential(x - r.largest) / r.sum;
}

template <typename R> DEVICE row_of_logits<R> read_logits(const gpu_top_k &a, int64_t row)
{
    row_of_logits<R> r = {a.x,       row * a.experts, a.experts, a.kind, (int)threadIdx.x % 32,
                          a.sigmoid, -INFINITY,       0};

    if (a.sigmoid)
        return r;
    for (int64_t i = r.lane; i < r.count; i += 32)
        r.largest = fmaxf(r.largest, logit(r, i));
    r.largest = warp_max(r.largest);
    for (int64_t i = r.lane; i < r.count; i += 32)
        r.sum += exponential((R)logit(r, i) - r.largest);
    r.sum = warp_sum(r.sum);
    return r;
}

DEVICE int64_t row_of_warp()
{
    return ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) / 32;
}

/* ---- in order ---- */

template <typename R> DEVICE bool is_before(R x, int64_t i, R y, int64_t j)
{
    return x > y || (x == y && i < j);
}

template <typename R> DEVICE R number(R x)
{
    return x == x ? x : (R)-INFINITY;
}

/* A number and its place. */
template <typename R> struct ranked {
    R value;
    int64_t index;
};

/* The first one behind `last` of count numbers. */
template <typename R, typename Numbers>
DEVICE ranked<R> next_of(const Numbers &numbers, int64_t count, int lane, ranked<R> last)
{
    ranked<R> best = {(R)-INFINITY, count};

    for (int64_t i = lane; i < count; i += 32) {
        R x = numbers(i);

        if (is_before(last.value, last.index, x, i) &&
            (best.index == count || is_before(x, i, best.value, best.index)))
            best = {x, i};
    }
    for (int step = 16; step; step >>= 1) {
        R x = __shfl_xor_sync(ALL_LANES, best.value, step);
        int64_t i = __shfl_xor_sync(ALL_LANES, best.index, step);

        if (i < count && (best.index == count || is_before(x, i, best.value, best.index)))
            best = {x, i};
    }
    return best;
}

struct logits_of {
    const row_of_logits<float> &row;

    DEVICE_MEMBER float operator()(int64_t i) const
    {
        return number(logit(row, i));
    }
};

struct ranks_of {
    const double *rank;

    DEVICE_MEMBER double operator()(int64_t i) const
    {
        return rank[i];
    }
};

/* ---- the choice ---- */

/* A group ranks by the sum of its two highest ranks: group_rank. */
DEVICE void close_groups(const gpu_top_k &a, double *rank, double *group_rank, int lane)
{
    int64_t each = a.experts / a.groups;
    ranked<double> last = {INFINITY, -1};

    for (int64_t g = lane; g < a.groups; g += 32) {
        double first = -INFINITY, second = -INFINITY;

        for (int64_t i = g * each; i < (g + 1) * each; i++) {
            second = fmax(second, fmin(first, rank[i]));
            first = fmax(first, rank[i]);
        }
        group_rank[g] = number(first + second);
    }
    __syncwarp();
    for (int64_t i = 0; i < a.groups_chosen; i++)
        last = next_of(ranks_of{group_rank}, a.groups, lane, last);
    for (int64_t i = lane; i < a.experts; i += 32)
        if (is_before(last.value, last.index, group_rank[i / each], i / each))
            rank[i] = NAN;
    __syncwarp();
}

/* Logits are ordered as their scores are, but do not round to equal ones. */
DEVICE void rank_experts(const gpu_top_k &a, const row_of_logits<double> &r, double *rank)
{
    for (int64_t i = r.lane; i < a.experts; i += 32)
        rank[i] = number(score(r, i) + (a.bias ? (double)a.bias[i] : 0));
    __syncwarp();
    if (a.groups)
        close_groups(a, rank, rank + a.experts, r.lane);
    for (int64_t i = r.lane; !a.bias && i < a.experts; i += 32)
        if (rank[i] == rank[i])
            rank[i] = number((double)logit(r, i));
    __syncwarp();
}

/* The factor of all weights, given the sum of the chosen scores. */
template <typename R> DEVICE R factor_of(const gpu_top_k &a, R sum)
{
    return !a.normalised ? a.scale : a.scale / (a.sigmoid ? sum + (R)LEAST_SUM : sum);
}

template <typename R, typename Numbers>
DEVICE void choose(const gpu_top_k &a, const row_of_logits<R> &r, const Numbers &numbers,
                   int64_t row)
{
    int32_t *ids = a.ids + row * a.k;
    ranked<R> last = {INFINITY, -1};
    R sum = 0;

    for (int64_t k = 0; k < a.k; k++) {
        last = next_of(numbers, a.experts, r.lane, last);
        sum += score(r, last.index);
        if (r.lane == 0)
            ids[k] = (int32_t)last.index;
    }
    __syncwarp();
    for (int64_t k = r.lane; k < a.k; k += 32)
        a.weights[row * a.k + k] = (float)(score(r, ids[k]) * factor_of(a, sum));
}

KERNEL(top_k, gpu_top_k, 256)
{
    int64_t row = row_of_warp();

    if (row >= a.rows)
        return;
    row_of_logits<float> r = read_logits<float>(a, row);
    choose(a, r, logits_of{r}, row);
}

/* Shared memory: experts + groups doubles for each warp. */
KERNEL(top_k_ranked, gpu_top_k, 256)
{
    DYNAMIC_SHARED(double, memory);
    double *rank = memory + (int64_t)threadIdx.x / 32 * (a.experts + a.groups);
    int64_t row = row_of_warp();

    if (row >= a.rows)
        return;
    row_of_logits<double> r = read_logits<double>(a, row);
    rank_experts(a, r, rank);
    choose(a, r, ranks_of{rank}, row);
}

/* ---- its gradient ---- */

/* The term of the balance loss in the gradient of probability i. */
DEVICE float of_load(const gpu_top_k &a, int64_t row, int64_t i)
{
    return a.load ? a.balance * a.load[row / a.tokens * a.experts + i] : 0;
}

/* The mean of that over the row's probabilities. */
DEVICE float balanced_mean(const gpu_top_k &a, const row_of_logits<float> &r, int64_t row)
{
    float mean = 0;

    for (int64_t i = r.lane; a.load && i < a.experts; i += 32)
        mean += of_load(a, row, i) * score(r, i);
    return warp_sum(mean);
}

/* The chosen experts of a row, the gradients of their weights, and what those need. */
struct chosen_experts {
    const int32_t *ids;
    const float *dw;
    float largest; /* logit of them, for normalised softmax: all scores may be too small */
    float sum, mean;
};

DEVICE float share_of(const gpu_top_k &a, const row_of_logits<float> &r, const chosen_experts &c,
                      int64_t k)
{
    return a.normalised && !a.sigmoid ? expf(logit(r, c.ids[k]) - c.largest) : score(r, c.ids[k]);
}

DEVICE chosen_experts read_chosen(const gpu_top_k &a, const row_of_logits<float> &r, int64_t row)
{
    chosen_experts c = {a.chosen + row * a.k, a.dweights + row * a.k, -INFINITY, 0, 0};

    for (int64_t k = 0; k < a.k; k++)
        c.largest = fmaxf(c.largest, logit(r, c.ids[k]));
    for (int64_t k = 0; k < a.k; k++) {
        float share = share_of(a, r, c, k);

        c.sum += share;
        c.mean += c.dw[k] * share;
    }
    c.sum += a.sigmoid ? (float)LEAST_SUM : 0;
    c.mean /= c.sum;
    return c;
}

/* At choice k: p dp of softmax, dp of sigmoids. */
DEVICE float of_choice(const gpu_top_k &a, const row_of_logits<float> &r, const chosen_experts &c,
                       int64_t k)
{
    float dp = a.scale * (a.normalised ? (c.dw[k] - c.mean) / c.sum : c.dw[k]);

    return a.sigmoid ? dp : dp * share_of(a, r, c, k);
}

/* The derivative of sigmoid(x), without loss on either side. */
DEVICE float slope_of(float x)
{
    float e = expf(-fabsf(x)), s = 1 / (1 + e);

    return e * s * s;
}

KERNEL(top_k_grad, gpu_top_k, 256)
{
    int64_t row = row_of_warp();
    float dot = 0;

    if (row >= a.rows)
        return;
    for (int64_t k = 0; k < a.k; k++)
        if (!in_range(CT_CUDA_FAULT_EXPERT, a.chosen[row * a.k + k], row, a.experts, a.fault))
            return;
    row_of_logits<float> r = read_logits<float>(a, row);
    chosen_experts c = read_chosen(a, r, row);
    for (int64_t k = 0; !a.sigmoid && k < a.k; k++)
        dot += of_choice(a, r, c, k);
    dot += balanced_mean(a, r, row);
    for (int64_t i = r.lane; i < a.experts; i += 32) {
        float chosen = 0, dx[1];

        for (int64_t k = 0; k < a.k; k++)
            if (c.ids[k] == i)
                chosen += of_choice(a, r, c, k);
        dx[0] = a.sigmoid ? slope_of(logit(r, i)) * chosen
                          : score(r, i) * (of_load(a, row, i) - dot) + chosen;
        store_as<1>(a.out_kind, a.dx, row * a.experts + i, dx);
    }
}

/* ---- loads: a block for each expert ---- */

KERNEL(expert_load, gpu_expert_load, 256)
{
    int64_t expert = blockIdx.x, total = 0;

    for (int64_t s = 0; s < a.sequences; s++) {
        const int32_t *ids = a.ids + s * a.choices;
        int64_t count = 0;

        for (int64_t i = threadIdx.x; i < a.choices; i += blockDim.x)
            if (in_range(CT_CUDA_FAULT_EXPERT, ids[i], (s * a.choices + i) / a.k, a.experts,
                         a.fault))
                count += ids[i] == expert;
        count = block_sum(count);
        total += count;
        if (threadIdx.x == 0)
            a.load[s * a.experts + expert] = (float)count;
    }
    if (threadIdx.x == 0)
        a.total[expert] = (float)total;
}

KERNEL(expert_excess, gpu_expert_load, 256)
{
    int64_t expert = blockIdx.x, count = 0;

    for (int64_t i = threadIdx.x; i < a.choices; i += blockDim.x)
        if (in_range(CT_CUDA_FAULT_EXPERT, a.ids[i], i / a.k, a.experts, a.fault))
            count += a.ids[i] == expert;
    count = block_sum(count);
    if (threadIdx.x == 0)
        a.total[expert] = (float)(count * a.experts - a.choices);
}
