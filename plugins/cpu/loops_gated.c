/*
 * The hidden layer of an expert, silu(g) u (Shazeer 2020), its gradients; weighted sums of rows.
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

void CPU_ISA(cpu_gated)(enum ct_dtype dtype, void *h, const float *g, const float *u, float factor,
                        int64_t n)
{
    if (dtype == CT_BF16)
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

float CPU_ISA(cpu_gated_grad)(enum ct_dtype dtype, void *dg, void *du, const float *dh,
                              const float *g, const float *u, float factor, int64_t n)
{
    return dtype == CT_BF16 ? gated_grad_of(CT_BF16, dg, du, dh, g, u, factor, n)
                            : gated_grad_of(CT_F32, dg, du, dh, g, u, factor, n);
}

void CPU_ISA(cpu_add_scaled)(float *to, const float *x, float factor, int64_t n)
{
    for (int64_t i = 0; i < n; i += CPU_LANES)
        v_put(CT_F32, to, i, n, v_get(CT_F32, to, i, n) + v_get(CT_F32, x, i, n) * factor);
}
