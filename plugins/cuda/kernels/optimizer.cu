/*
 * What runs over all parameters: the sum of squares of the gradients, clipping, AdamW. Many tensors
 * are one launch: a block works on GPU_GRAIN elements of one of them.
 */
#include "device.cuh"

#define W 4

DEVICE int tensor_of(const int32_t *first_block, int tensors)
{
    int low = 0, high = tensors;

    while (high - low > 1) {
        int middle = (low + high) / 2;

        if (first_block[middle] <= (int)blockIdx.x)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* Elements [begin, end) of a tensor, for this block. */
struct part {
    int64_t begin, end;
};

DEVICE part part_of(int32_t first_block, int64_t count)
{
    int64_t begin = (int64_t)((int)blockIdx.x - first_block) * GPU_GRAIN;
    int64_t end = begin + GPU_GRAIN;

    return {begin, end < count ? end : count};
}

DEVICE bool is_aligned(const void *p)
{
    return (uintptr_t)p % 16 == 0;
}

/* ---- the sum of squares ---- */

template <int V> DEVICE double squares(const void *p, int kind, part range)
{
    double sum = 0;

    for (int64_t i = range.begin + (int64_t)threadIdx.x * V; i + V <= range.end;
         i += (int64_t)blockDim.x * V) {
        float x[V];

        load_as<V>(kind, p, i, x);
#pragma unroll
        for (int k = 0; k < V; k++)
            sum += (double)x[k] * (double)x[k];
    }
    return sum;
}

KERNEL(sum_squares, gpu_squares, 256)
{
    int t = tensor_of(a.first_block, a.tensors);
    part range = part_of(a.first_block[t], a.count[t]), rest = range;
    double sum = 0;

    if (is_aligned(a.tensor[t])) {
        sum = squares<W>(a.tensor[t], a.kind[t], range);
        rest.begin = range.end - (range.end - range.begin) % W;
    }
    sum = block_sum(sum + squares<1>(a.tensor[t], a.kind[t], rest));
    if (threadIdx.x == 0)
        a.sums[blockIdx.x] = sum;
}

KERNEL(add_doubles, gpu_add_doubles, 1024)
{
    double sum = 0;

    for (int64_t i = threadIdx.x; i < a.count; i += blockDim.x)
        sum += a.in[i];
    sum = block_sum(sum);
    if (threadIdx.x == 0)
        *a.out = sum + (a.accumulate ? *a.out : 0.0);
}

KERNEL(clip_coefficient, gpu_clip, 32)
{
    double sum = 0, norm, coefficient = 1;

    if (threadIdx.x)
        return;
    for (int i = 0; i < a.count; i++)
        sum += *a.in[i];
    norm = sqrt(sum);
    if (!isfinite(norm))
        coefficient = -1;
    else if (a.max_norm > 0)
        coefficient = fmin(1.0, a.max_norm / (norm + 1e-6));
    *a.norm = (float)norm;
    *a.coefficient = (float)coefficient;
}

/* ---- AdamW ---- */

KERNEL(adamw_begin, gpu_adamw_begin, 32)
{
    if (threadIdx.x)
        return;
    a.step->decay = (float)(1 - *a.lr * a.weight_decay);
    a.step->step_size = (float)(*a.lr / (1 - pow(a.beta1, *a.number)));
    a.step->root_correction = (float)(1 / sqrt(1 - pow(a.beta2, *a.number)));
    a.step->clip = *a.clip;
}

template <int V>
DEVICE void update(const gpu_adamw &a, const gpu_adamw_step &step, int t, int64_t at)
{
    const uint8_t *kind = a.kind[t];
    float p[V], g[V], m[V], v[V];

    load_as<V>(kind[0], a.tensor[t][0], at, p);
    load_as<V>(kind[1], a.tensor[t][1], at, g);
    load_as<V>(kind[2], a.tensor[t][2], at, m);
    load_as<V>(kind[3], a.tensor[t][3], at, v);
#pragma unroll
    for (int i = 0; i < V; i++) {
        float grad = g[i] * step.clip;

        m[i] = a.beta1 * m[i] + a.rest1 * grad;
        v[i] = a.beta2 * v[i] + a.rest2 * grad * grad;
        p[i] = p[i] * step.decay -
               step.step_size * m[i] / (sqrtf(v[i]) * step.root_correction + a.eps);
    }
    store_as<V>(kind[0], a.tensor[t][0], at, p);
    store_as<V>(kind[2], a.tensor[t][2], at, m);
    store_as<V>(kind[3], a.tensor[t][3], at, v);
}

template <int V>
DEVICE void update_part(const gpu_adamw &a, const gpu_adamw_step &step, int t, part range)
{
    for (int64_t i = range.begin + (int64_t)threadIdx.x * V; i + V <= range.end;
         i += (int64_t)blockDim.x * V)
        update<V>(a, step, t, i);
}

KERNEL(adamw, gpu_adamw, 256)
{
    gpu_adamw_step step = *a.step;
    int t = tensor_of(a.first_block, a.tensors);
    part range = part_of(a.first_block[t], a.count[t]), rest = range;

    if (step.clip < 0)
        return;
    if (is_aligned(a.tensor[t][0]) && is_aligned(a.tensor[t][1]) && is_aligned(a.tensor[t][2]) &&
        is_aligned(a.tensor[t][3])) {
        update_part<W>(a, step, t, range);
        rest.begin = range.end - (range.end - range.begin) % W;
    }
    update_part<1>(a, step, t, rest);
}
