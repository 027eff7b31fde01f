/*
 * Softmax of rows. It makes three passes over a row: the largest element, the exponentials and
 * their sum, the result. The row stays in the second-level cache between passes.
 */
#include "loops.h"

#include "kernels/vector.h"

/* v_get for the maximum: lanes past the end repeat the first element. */
CPU_INLINE float largest_of(enum ct_dtype dtype, const void *x, int64_t n)
{
    float first = dtype == CT_F32 ? *(const float *)x : ct_bf16_to_f32(*(const uint16_t *)x), last;
    vf most[4] = {v_set(first), v_set(first), v_set(first), v_set(first)};
    int64_t i = 0;

    for (; i + 4 * CPU_LANES <= n; i += 4 * CPU_LANES)
        for (int j = 0; j < 4; j++)
            most[j] = v_max(v_get(dtype, x, i + j * CPU_LANES, n), most[j]);
    for (; i + CPU_LANES <= n; i += CPU_LANES)
        most[0] = v_max(v_get(dtype, x, i, n), most[0]);
    first = v_largest(v_max(v_max(most[0], most[1]), v_max(most[2], most[3])));
    for (; i < n; i++) {
        last = dtype == CT_F32 ? ((const float *)x)[i] : ct_bf16_to_f32(((const uint16_t *)x)[i]);
        first = last > first ? last : first;
    }
    return first;
}

/* Sum of e^(x - most); stores the exponentials over x if requested. */
CPU_INLINE float exponentials(enum ct_dtype dtype, const void *x, float *store, int64_t n,
                              float most)
{
    vf sum[4] = {{0}, {0}, {0}, {0}}, shift = v_set(most);
    int64_t i = 0;
    float total;

    for (; i + 4 * CPU_LANES <= n; i += 4 * CPU_LANES)
        for (int j = 0; j < 4; j++) {
            vf e = v_exp(v_get(dtype, x, i + j * CPU_LANES, n) - shift);

            sum[j] += e;
            if (store)
                v_store(store + i + j * CPU_LANES, e);
        }
    total = v_sum((sum[0] + sum[1]) + (sum[2] + sum[3]));
    for (; i < n; i += CPU_LANES) {
        vf e = v_exp(v_get(dtype, x, i, n) - shift);

        for (int lane = 0; lane < CPU_LANES && i + lane < n; lane++)
            total += e[lane];
        if (store)
            v_put(CT_F32, store, i, n, e);
    }
    return total;
}

CPU_INLINE float sum_exp_of(enum ct_dtype dtype, const void *logits, int64_t n, float *largest)
{
    *largest = largest_of(dtype, logits, n);
    return exponentials(dtype, logits, NULL, n, *largest);
}

float CPU_ISA(cpu_sum_exp)(enum ct_dtype dtype, const void *logits, int64_t n, float *largest)
{
    return dtype == CT_F32 ? sum_exp_of(CT_F32, logits, n, largest)
                           : sum_exp_of(CT_BF16, logits, n, largest);
}

float CPU_ISA(cpu_log_sum_exp)(enum ct_dtype dtype, const void *logits, int64_t n)
{
    float largest, sum = CPU_ISA(cpu_sum_exp)(dtype, logits, n, &largest);

    return largest + logf(sum);
}

CPU_INLINE void softmax_of(enum ct_dtype out_dtype, void *out, enum ct_dtype dtype,
                           const void *logits, int64_t n, float log_sum, float scale, bool add)
{
    vf shift = v_set(log_sum), factor = v_set(scale);

    for (int64_t i = 0; i < n; i += CPU_LANES) {
        vf y = v_exp(v_get(dtype, logits, i, n) - shift) * factor;

        if (add)
            y += v_get(out_dtype, out, i, n);
        v_put(out_dtype, out, i, n, y);
    }
}

void CPU_ISA(cpu_softmax)(enum ct_dtype out_dtype, void *out, enum ct_dtype dtype,
                          const void *logits, int64_t n, float log_sum, float scale, bool add)
{
    if (dtype == CT_F32 && out_dtype == CT_F32 && !add)
        softmax_of(CT_F32, out, CT_F32, logits, n, log_sum, scale, false);
    else if (dtype == CT_BF16 && out_dtype == CT_BF16 && !add)
        softmax_of(CT_BF16, out, CT_BF16, logits, n, log_sum, scale, false);
    else
        softmax_of(out_dtype, out, dtype, logits, n, log_sum, scale, add);
}

CPU_INLINE void scale_of(enum ct_dtype out_dtype, void *out, const float *x, int64_t n, float scale)
{
    vf factor = v_set(scale);

    for (int64_t i = 0; i < n; i += CPU_LANES)
        v_put(out_dtype, out, i, n, v_get(CT_F32, x, i, n) * factor);
}

float CPU_ISA(cpu_softmax_consume)(enum ct_dtype out_dtype, void *out, float *logits, int64_t n,
                                   float scale)
{
    float most = largest_of(CT_F32, logits, n);
    float sum = exponentials(CT_F32, logits, logits, n, most);

    if (out_dtype == CT_F32)
        scale_of(CT_F32, out, logits, n, scale / sum);
    else
        scale_of(CT_BF16, out, logits, n, scale / sum);
    return most + logf(sum);
}
