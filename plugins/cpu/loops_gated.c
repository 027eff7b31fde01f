/*
 * The hidden layer of an expert, silu(g) u (Shazeer 2020) or one with limits (OpenAI 2025), its
 * gradients; weighted sums of rows.
 */
#include "loops.h"

#include "kernels/vector.h"

CPU_INLINE vf sigmoid(vf g)
{
    return v_rcp(1.0f + v_exp2(v_min(v_set(125), g * -1.44269504f)));
}

CPU_INLINE void gated_of(enum ct_dtype dtype, void *h, const float *g, const float *u, float factor,
                         int64_t n)
{
    for (int64_t i = 0; i < n; i += CPU_LANES) {
        vf x = v_get(CT_F32, g, i, n);

        v_put(dtype, h, i, n, x * sigmoid(x) * v_get(CT_F32, u, i, n) * factor);
    }
}

/* NaN stays NaN. */
CPU_INLINE vf at_most(vf x, float limit)
{
    return v_min(v_set(limit), x);
}

CPU_INLINE vf within(vf x, float limit)
{
    return v_max(v_set(-limit), at_most(x, limit));
}

CPU_INLINE void limited_of(enum ct_dtype dtype, void *h, const float *g, const float *u,
                           const struct cpu_gate *how, float factor, int64_t n)
{
    for (int64_t i = 0; i < n; i += CPU_LANES) {
        vf x = at_most(v_get(CT_F32, g, i, n), how->limit);
        vf y = within(v_get(CT_F32, u, i, n), how->limit) + how->offset;

        v_put(dtype, h, i, n, x * sigmoid(how->alpha * x) * y * factor);
    }
}

void CPU_ISA(cpu_gated)(enum ct_dtype dtype, void *h, const float *g, const float *u,
                        const struct cpu_gate *how, float factor, int64_t n)
{
    if (how && dtype == CT_BF16)
        limited_of(CT_BF16, h, g, u, how, factor, n);
    else if (how)
        limited_of(CT_F32, h, g, u, how, factor, n);
    else if (dtype == CT_BF16)
        gated_of(CT_BF16, h, g, u, factor, n);
    else
        gated_of(CT_F32, h, g, u, factor, n);
}

CPU_INLINE float gated_grad_of(enum ct_dtype dtype, void *dg, void *du, const float *dh,
                               const float *g, const float *u, float factor, int64_t n)
{
    vf sum = {0};

    for (int64_t i = 0; i < n; i += CPU_LANES) {
        vf x = v_get(CT_F32, g, i, n), y = v_get(CT_F32, u, i, n), d = v_get(CT_F32, dh, i, n);
        vf s = sigmoid(x), silu = x * s;

        sum += d * silu * y; /* lanes past the end are zero */
        d *= factor;
        v_put(dtype, dg, i, n, d * y * (s + silu * (1.0f - s)));
        v_put(dtype, du, i, n, d * silu);
    }
    return v_sum(sum);
}

CPU_INLINE float limited_grad_of(enum ct_dtype dtype, void *dg, void *du, const float *dh,
                                 const float *g, const float *u, const struct cpu_gate *how,
                                 float factor, int64_t n)
{
    vf sum = {0};

    for (int64_t i = 0; i < n; i += CPU_LANES) {
        vf wide_x = v_get(CT_F32, g, i, n), wide_y = v_get(CT_F32, u, i, n);
        vf x = at_most(wide_x, how->limit), y = within(wide_y, how->limit) + how->offset;
        vf d = v_get(CT_F32, dh, i, n), s = sigmoid(how->alpha * x), a = x * s;

        sum += d * a * y; /* d is zero past the end */
        d *= factor;
        v_put(dtype, dg, i, n,
              v_select(wide_x > how->limit, v_set(0), d * y * (s + how->alpha * a * (1.0f - s))));
        v_put(dtype, du, i, n,
              v_select((wide_y > how->limit) | (wide_y < -how->limit), v_set(0), d * a));
    }
    return v_sum(sum);
}

float CPU_ISA(cpu_gated_grad)(enum ct_dtype dtype, void *dg, void *du, const float *dh,
                              const float *g, const float *u, const struct cpu_gate *how,
                              float factor, int64_t n)
{
    if (how)
        return dtype == CT_BF16 ? limited_grad_of(CT_BF16, dg, du, dh, g, u, how, factor, n)
                                : limited_grad_of(CT_F32, dg, du, dh, g, u, how, factor, n);
    return dtype == CT_BF16 ? gated_grad_of(CT_BF16, dg, du, dh, g, u, factor, n)
                            : gated_grad_of(CT_F32, dg, du, dh, g, u, factor, n);
}

CPU_INLINE void add_of(float *to, enum ct_dtype dtype, const void *x, float factor, int64_t n)
{
    for (int64_t i = 0; i < n; i += CPU_LANES)
        v_put(CT_F32, to, i, n, v_get(CT_F32, to, i, n) + v_get(dtype, x, i, n) * factor);
}

void CPU_ISA(cpu_add_scaled)(float *to, enum ct_dtype dtype, const void *x, float factor, int64_t n)
{
    if (dtype == CT_BF16)
        add_of(to, CT_BF16, x, factor, n);
    else
        add_of(to, CT_F32, x, factor, n);
}
