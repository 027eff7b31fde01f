/*
 * Loops of Muon: its momentum, and sums of two arrays.
 */
#include "loops.h"

#include "kernels/vector.h"

CPU_INLINE void momentum_of(enum ct_dtype dtype, void *direction, void *m, const void *g,
                            float keep, float rest, float clip, int64_t n)
{
    for (int64_t i = 0; i < n; i += CPU_LANES) {
        vf gradient = v_get(dtype, g, i, n) * clip * rest;
        vf mean = v_get(dtype, m, i, n) * keep + gradient;

        v_put(dtype, m, i, n, mean);
        v_put(dtype, direction, i, n, gradient + mean * keep);
    }
}

void CPU_ISA(cpu_momentum)(enum ct_dtype dtype, void *direction, void *m, const void *g, float keep,
                           float rest, float clip, int64_t n)
{
    if (dtype == CT_F32)
        momentum_of(CT_F32, direction, m, g, keep, rest, clip, n);
    else
        momentum_of(CT_BF16, direction, m, g, keep, rest, clip, n);
}

CPU_INLINE void blend_of(enum ct_dtype to_type, void *to, float of_to, enum ct_dtype x_type,
                         const void *x, float of_x, int64_t n)
{
    for (int64_t i = 0; i < n; i += CPU_LANES)
        v_put(to_type, to, i, n, v_get(to_type, to, i, n) * of_to + v_get(x_type, x, i, n) * of_x);
}

void CPU_ISA(cpu_blend)(enum ct_dtype to_type, void *to, float of_to, enum ct_dtype x_type,
                        const void *x, float of_x, int64_t n)
{
    if (to_type == CT_F32 && x_type == CT_F32)
        blend_of(CT_F32, to, of_to, CT_F32, x, of_x, n);
    else
        blend_of(to_type, to, of_to, x_type, x, of_x, n);
}

CPU_INLINE void scaled_of(enum ct_dtype to_type, void *to, enum ct_dtype x_type, const void *x,
                          float factor, int64_t n)
{
    for (int64_t i = 0; i < n; i += CPU_LANES)
        v_put(to_type, to, i, n, v_get(x_type, x, i, n) * factor);
}

void CPU_ISA(cpu_scaled)(enum ct_dtype to_type, void *to, enum ct_dtype x_type, const void *x,
                         float factor, int64_t n)
{
    if (to_type == CT_F32 && x_type == CT_F32)
        scaled_of(CT_F32, to, CT_F32, x, factor, n);
    else if (to_type == CT_BF16 && x_type == CT_F32)
        scaled_of(CT_BF16, to, CT_F32, x, factor, n);
    else
        scaled_of(to_type, to, x_type, x, factor, n);
}
