/*
 * Kernels that run over all parameters: the sum of squares of the gradients, clipping, AdamW, Muon,
 * the moving average. A block works on GPU_GRAIN elements of one tensor; of the first three many
 * tensors are one launch.
 */
#include "float8.cuh"

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

KERNEL(withhold, gpu_withhold, 32)
{
    double loss;

    if (threadIdx.x)
        return;
    loss = a.wide ? *(const double *)a.loss : *(const float *)a.loss;
    *a.out = *a.norm > *a.norm_limit || loss / *a.count > *a.loss_limit ? -1.0f : *a.coefficient;
}

/* ---- AdamW ---- */

KERNEL(adamw_begin, gpu_adamw_begin, 32)
{
    double lr = *a.lr * a.lr_factor;

    if (threadIdx.x)
        return;
    a.step->decay = (float)(1 - lr * a.weight_decay);
    a.step->step_size = (float)(lr / (1 - pow(a.beta1, *a.number)));
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
    if (a.tensor[t][4])
        store_as<V>(kind[4], a.tensor[t][4], at, p);
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
        is_aligned(a.tensor[t][3]) && is_aligned(a.tensor[t][4])) {
        update_part<W>(a, step, t, range);
        rest.begin = range.end - (range.end - range.begin) % W;
    }
    update_part<1>(a, step, t, rest);
}

/* ---- AdamW with moments of 8 bits: a warp for each block of codes with one scale ---- */

#define CODES 256 /* of a block, at most */
#define EACH (CODES / 32)
#define LARGEST_CODE 448.0f

/* 23 random bits of an element in a step, as those of the adamw plugin. */
DEVICE uint32_t random_bits(uint32_t index, uint32_t step)
{
    uint32_t h = index * 0x9e3779b1u ^ step;

    h = (h ^ h >> 16) * 0x85ebca6bu;
    h = (h ^ h >> 13) * 0xc2b2ae35u;
    return (h ^ h >> 16) >> 9;
}

/* Rounded up or down to the value of a code, nearer ones with higher probability. NaN stays. */
DEVICE float rounded_randomly(float x, uint32_t random)
{
    uint32_t bits = __float_as_uint(x), magnitude = bits & 0x7fffffffu;
    float small = (float)(int32_t)(__uint_as_float(magnitude) / 0x1p-9f + (float)random * 0x1p-23f);
    uint32_t normal = (magnitude + (random >> 3)) & ~0xfffffu;

    if (magnitude < __float_as_uint(0x1p-6f))
        normal = __float_as_uint(small * 0x1p-9f);
    if (magnitude > __float_as_uint(LARGEST_CODE)) /* a GPU's NaN would overflow */
        normal = magnitude;
    return __uint_as_float(normal | (bits & 0x80000000u));
}

DEVICE float load_moment(const void *p, int coded, int64_t at)
{
    return coded ? from_e4m3(((const uint8_t *)p)[at]) : ((const float *)p)[at];
}

DEVICE void store_moment(void *p, int coded, int64_t at, float x)
{
    if (coded)
        ((uint8_t *)p)[at] = by_hand<false>(x);
    else
        ((float *)p)[at] = x;
}

/* x becomes values of codes; returns their scale. Elements i of this lane: lane + 32 i. */
DEVICE float quantised(float (&x)[EACH], int64_t count, uint32_t index, uint32_t step)
{
    float most = 0, scale, by;

#pragma unroll
    for (int i = 0; i < EACH; i++)
        if ((int)threadIdx.x % 32 + 32 * i < count)
            most = fmaxf(most, fabsf(x[i]));
    for (int lanes = 16; lanes; lanes >>= 1)
        most = fmaxf(most, __shfl_xor_sync(ALL_LANES, most, lanes));
    scale = most / LARGEST_CODE;
    by = scale > 0 ? 1 / scale : 0;
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        float y = x[i] * by;

        y = y > LARGEST_CODE ? LARGEST_CODE : y < -LARGEST_CODE ? -LARGEST_CODE : y; /* NaN stays */
        x[i] = rounded_randomly(y, random_bits(index + threadIdx.x % 32 + 32u * i, step));
    }
    return scale;
}

/* The index in the whole tensor, in 32 bits, of the first element of block `at`. */
DEVICE uint32_t whole_index(const gpu_adamw_codes &a, int64_t at)
{
    int64_t row = at / a.blocks;
    uint64_t index = (uint64_t)(at % a.blocks * a.count), stride = 1;

    for (int d = a.dims - 1; d >= 0; d--) {
        index += (uint64_t)a.offset[d] * stride;
        if (d < a.dims - 1) {
            index += (uint64_t)(row % a.size[d]) * stride;
            row /= a.size[d];
        }
        stride *= (uint64_t)a.global[d];
    }
    /* the adamw plugin folds the index of a row's first element before it adds the block's */
    index -= (uint64_t)(at % a.blocks * a.count);
    return (uint32_t)(index ^ index >> 32) + (uint32_t)(at % a.blocks * a.count);
}

KERNEL(adamw_codes, gpu_adamw_codes, 256)
{
    int64_t at = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) / 32, base = at * a.count;
    gpu_adamw_step step = *a.step;
    uint32_t number = (uint32_t)(int64_t)*a.number * 0x632be5abu, index;
    float m[EACH] = {0}, v[EACH] = {0}, m_scale, v_scale;

    if (at >= a.rows * a.blocks || step.clip < 0)
        return;
    index = whole_index(a, at);
    m_scale = a.m_scale[at];
    v_scale = a.v_scale[at];
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        int64_t element = base + threadIdx.x % 32 + 32 * i;
        float p[1], g[1], grad, root;

        if (element >= base + a.count)
            continue;
        load_as<1>(a.p_kind, a.p, element, p);
        load_as<1>(a.g_kind, a.g, element, g);
        grad = g[0] * step.clip;
        root = load_moment(a.v, a.coded, element) * v_scale;
        m[i] = a.beta1 * (load_moment(a.m, a.coded, element) * m_scale) + a.rest1 * grad;
        v[i] = sqrtf(a.beta2 * root * root + a.rest2 * grad * grad);
        p[0] = p[0] * step.decay - step.step_size * m[i] / (v[i] * step.root_correction + a.eps);
        store_as<1>(a.p_kind, a.p, element, p);
    }
    m_scale = quantised(m, a.count, index, number);
    v_scale = quantised(v, a.count, index, ~number);
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        int64_t element = base + threadIdx.x % 32 + 32 * i;

        if (element >= base + a.count)
            continue;
        store_moment(a.m, a.coded, element, m[i]);
        store_moment(a.v, a.coded, element, v[i]);
    }
    __syncwarp(); /* all lanes have the scales before */
    if (threadIdx.x % 32 == 0) {
        a.m_scale[at] = m_scale;
        a.v_scale[at] = v_scale;
    }
}

/* ---- over the elements of one tensor ---- */

/* op.at<V>(i) for every element i of this block, V of them at once where `vectors`. */
template <typename Op> DEVICE void over_elements(const Op &op, int64_t count, bool vectors)
{
    part range = part_of(0, count), rest = range;

    if (vectors) {
        for (int64_t i = range.begin + (int64_t)threadIdx.x * W; i + W <= range.end;
             i += (int64_t)blockDim.x * W)
            op.template at<W>(i);
        rest.begin = range.end - (range.end - range.begin) % W;
    }
    for (int64_t i = rest.begin + threadIdx.x; i < rest.end; i += blockDim.x)
        op.template at<1>(i);
}

/* ---- the moving average ---- */

struct averaged {
    const gpu_average &a;
    float keep;

    template <int V> DEVICE_MEMBER void at(int64_t i) const
    {
        float p[V], average[V];

        load_as<V>(a.kind, a.p, i, p);
        load<V>(a.average + i, average);
#pragma unroll
        for (int k = 0; k < V; k++)
            average[k] = (keep > 0 ? keep * average[k] : 0.0f) + (1 - keep) * p[k];
        store<V>(a.average + i, average);
    }
};

/* The first step takes the weights as they are. */
KERNEL(moving_average, gpu_average, 256)
{
    double step = *a.step, first = (1 + step) / (10 + step);
    double keep = step <= 1 ? 0 : first < a.decay ? first : a.decay;

    over_elements(averaged{a, (float)keep}, a.count, is_aligned(a.p) && is_aligned(a.average));
}

/* ---- descent by the sign ---- */

struct sign_stepped {
    const gpu_sign_step &a;

    template <int V> DEVICE_MEMBER void at(int64_t i) const
    {
        float p[V], g[V];

        load_as<V>(a.kind[0], a.p, i, p);
        load_as<V>(a.kind[1], a.g, i, g);
#pragma unroll
        for (int k = 0; k < V; k++)
            p[k] -= a.rate * (float)((g[k] > 0) - (g[k] < 0));
        store_as<V>(a.kind[0], a.p, i, p);
    }
};

KERNEL(sign_step, gpu_sign_step, 256)
{
    if (*a.clip >= 0)
        over_elements(sign_stepped{a}, a.count, is_aligned(a.p) && is_aligned(a.g));
}

/* ---- Muon ---- */

struct with_momentum {
    const gpu_muon &a;
    float clip;

    template <int V> DEVICE_MEMBER void at(int64_t i) const
    {
        float g[V], m[V], y[V];

        load_as<V>(a.kind[1], a.x, i, g);
        load_as<V>(a.kind[2], a.m, i, m);
#pragma unroll
        for (int k = 0; k < V; k++) {
            m[k] = a.keep * m[k] + a.rest * (clip * g[k]);
            y[k] = a.rest * (clip * g[k]) + a.keep * m[k];
        }
        store_as<V>(a.kind[2], a.m, i, m);
        store_as<V>(a.kind[0], a.y, i, y);
    }
};

/* m = keep m + rest clip x; y = rest clip x + keep m */
KERNEL(muon_momentum, gpu_muon, 256)
{
    if (*a.clip >= 0)
        over_elements(with_momentum{a, *a.clip}, a.count,
                      is_aligned(a.x) && is_aligned(a.m) && is_aligned(a.y));
}

struct updated {
    const gpu_muon &a;
    float keep, step;

    template <int V> DEVICE_MEMBER void at(int64_t i) const
    {
        float x[V], p[V];

        load_as<V>(a.kind[1], a.x, i, x);
        load_as<V>(a.kind[2], a.m, i, p);
#pragma unroll
        for (int k = 0; k < V; k++)
            p[k] = p[k] * keep - step * x[k];
        store_as<V>(a.kind[2], a.m, i, p);
    }
};

/* m = (1 - lr rest) m - lr keep x */
KERNEL(muon_update, gpu_muon, 256)
{
    if (*a.clip >= 0)
        over_elements(
            updated{a, (float)(1 - *a.lr * (double)a.rest), (float)(*a.lr * (double)a.keep)},
            a.count, is_aligned(a.x) && is_aligned(a.m));
}

struct scaled_copy {
    const gpu_muon &a;
    float by;

    template <int V> DEVICE_MEMBER void at(int64_t i) const
    {
        float x[V];

        load_as<V>(a.kind[1], a.x, i, x);
#pragma unroll
        for (int k = 0; k < V; k++)
            x[k] *= by;
        store_as<V>(a.kind[0], a.y, i, x);
    }
};

/* y = x over the root of *squares */
KERNEL(muon_normalise, gpu_muon, 256)
{
    double by = 1 / fmax(sqrt(*a.squares), 1e-7);

    over_elements(scaled_copy{a, (float)by}, a.count, is_aligned(a.x) && is_aligned(a.y));
}

/* y = keep x */
KERNEL(muon_scale, gpu_muon, 256)
{
    over_elements(scaled_copy{a, a.keep}, a.count, is_aligned(a.x) && is_aligned(a.y));
}

KERNEL(muon_polynomial, gpu_muon_polynomial, 256)
{
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < a.count;
         i += (int64_t)gridDim.x * blockDim.x) {
        float sum[1] = {a.of_x * a.x[i] + a.of_y * a.y[i]};

        store_as<1>(a.kind, a.to, i, sum);
    }
}
