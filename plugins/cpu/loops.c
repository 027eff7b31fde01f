#include "loops.h"

#include "kernels/double.h"

static void widen(float *to, const uint16_t *from, int64_t n)
{
    for (int64_t i = 0; i < n; i += CPU_LANES)
        v_put(CT_F32, to, i, n, v_get(CT_BF16, from, i, n));
}

static void round_to(uint16_t *to, const float *from, int64_t n)
{
    for (int64_t i = 0; i < n; i += CPU_LANES)
        v_put(CT_BF16, to, i, n, v_get(CT_F32, from, i, n));
}

static void round_add(uint16_t *to, const float *from, int64_t n)
{
    for (int64_t i = 0; i < n; i += CPU_LANES)
        v_put(CT_BF16, to, i, n, v_get(CT_BF16, to, i, n) + v_get(CT_F32, from, i, n));
}

static void truncate_to(float *to, const float *from, int64_t n)
{
    for (int64_t i = 0; i < n; i += CPU_LANES)
        v_put(CT_F32, to, i, n, v_widen(v_narrow(v_get(CT_F32, from, i, n))));
}

CPU_INLINE void dequantise_run(enum ct_dtype dtype, float *to, const uint8_t *from,
                               const float *scale, int each, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        to[i] = (dtype == CT_E4M3 ? ct_e4m3_to_f32(from[i]) : ct_e5m2_to_f32(from[i])) /
                scale[each * i];
}

static void dequantise(enum ct_dtype dtype, float *to, const uint8_t *from, const float *scale,
                       bool each, int64_t n)
{
    if (dtype == CT_E4M3 && each)
        dequantise_run(CT_E4M3, to, from, scale, 1, n);
    else if (dtype == CT_E4M3)
        dequantise_run(CT_E4M3, to, from, scale, 0, n);
    else if (each)
        dequantise_run(CT_E5M2, to, from, scale, 1, n);
    else
        dequantise_run(CT_E5M2, to, from, scale, 0, n);
}

CPU_INLINE double squares_of(enum ct_dtype dtype, const void *x, struct ct_matrix rows)
{
    vd sum[2] = {{0}, {0}};
    double total = 0;

    for (int64_t row = 0; row < rows.rows; row++) {
        const char *at = (const char *)x + (size_t)(row * rows.stride) * ct_dtype_size(dtype);

        for (int64_t i = 0; i < rows.columns; i += CPU_LANES) {
            vf a = v_get(dtype, at, i, rows.columns);

            for (int half = 0; half < 2; half++) {
                vd part = v_double(a, half);

                sum[half] += part * part;
            }
        }
    }
    sum[0] += sum[1];
    for (int i = 0; i < CPU_HALF; i++)
        total += sum[0][i];
    return total;
}

static double squares(enum ct_dtype dtype, const void *x, struct ct_matrix rows)
{
    return dtype == CT_F32 ? squares_of(CT_F32, x, rows) : squares_of(CT_BF16, x, rows);
}

CPU_INLINE void adamw_of(const struct cpu_adamw *a, enum ct_dtype p_type, enum ct_dtype g_type,
                         enum ct_dtype state, void *p, const void *g, void *m, void *v,
                         uint16_t *copy, int64_t n)
{
    vf decay = v_set(a->decay), clip = v_set(a->clip), step = v_set(a->step_size);
    vf beta1 = v_set(a->beta1), beta2 = v_set(a->beta2), root = v_set(a->root_correction);
    vf rest1 = v_set(a->rest1), rest2 = v_set(a->rest2), eps = v_set(a->eps);

    for (int64_t i = 0; i < n; i += CPU_LANES) {
        vf gradient = v_get(g_type, g, i, n) * clip;
        vf mean = v_get(state, m, i, n), square = v_get(state, v, i, n), weight;

        mean = beta1 * mean + rest1 * gradient;
        square = beta2 * square + rest2 * gradient * gradient;
        weight = v_get(p_type, p, i, n) * decay;
        weight -= step * mean / (v_sqrt(square) * root + eps);
        v_put(state, m, i, n, mean);
        v_put(state, v, i, n, square);
        v_put(p_type, p, i, n, weight);
        if (copy)
            v_put(CT_BF16, copy, i, n, weight);
    }
}

/* m and v have the same dtype. A parameter with a copy is float32. */
static void adamw(const struct cpu_adamw *a, void *p, const void *g, void *m, void *v,
                  uint16_t *copy, int64_t n)
{
    if (copy && a->g == CT_F32 && a->m == CT_F32)
        adamw_of(a, CT_F32, CT_F32, CT_F32, p, g, m, v, copy, n);
    else if (copy && a->m == CT_F32)
        adamw_of(a, CT_F32, CT_BF16, CT_F32, p, g, m, v, copy, n);
    else if (copy)
        adamw_of(a, CT_F32, a->g, a->m, p, g, m, v, copy, n);
    else if (a->p == CT_F32 && a->g == CT_F32 && a->m == CT_F32)
        adamw_of(a, CT_F32, CT_F32, CT_F32, p, g, m, v, NULL, n);
    else if (a->p == CT_F32 && a->m == CT_F32)
        adamw_of(a, CT_F32, CT_BF16, CT_F32, p, g, m, v, NULL, n);
    else if (a->p == CT_BF16 && a->g == CT_BF16 && a->m == CT_BF16)
        adamw_of(a, CT_BF16, CT_BF16, CT_BF16, p, g, m, v, NULL, n);
    else
        adamw_of(a, a->p, a->g, a->m, p, g, m, v, NULL, n);
}

const struct cpu_loops CPU_ISA(cpu_loops) = {
    .widen = widen,
    .round = round_to,
    .round_add = round_add,
    .truncate = truncate_to,
    .dequantise = dequantise,
    .squares = squares,
    .adamw = adamw,
    .log_sum_exp = CPU_ISA(cpu_log_sum_exp),
    .sum_exp = CPU_ISA(cpu_sum_exp),
    .softmax = CPU_ISA(cpu_softmax),
    .softmax_consume = CPU_ISA(cpu_softmax_consume),
    .gated = CPU_ISA(cpu_gated),
    .gated_grad = CPU_ISA(cpu_gated_grad),
    .add_scaled = CPU_ISA(cpu_add_scaled),
    .multiply_few = CPU_ISA(cpu_multiply_few),
    .momentum = CPU_ISA(cpu_momentum),
    .blend = CPU_ISA(cpu_blend),
    .scaled = CPU_ISA(cpu_scaled),
    .normal = CPU_ISA(cpu_normal),
};
