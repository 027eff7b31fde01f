/*
 * Shared parts of the router (top_k.c) and its gradient (top_k_grad.c).
 */
#ifndef CPU_KERNELS_TOP_K_H
#define CPU_KERNELS_TOP_K_H

#include <ctitan/lib/ops.h>

#include "vector.h"

#define CPU_LEAST_SUM 1e-20 /* as in the reference */

static inline double top_k_scale(const struct ct_top_k *a)
{
    return a->scale > 0 ? a->scale : 1;
}

/* The factor of all weights, given the sum of the chosen scores. */
static inline double top_k_factor(const struct ct_top_k *a, double sum)
{
    if (!a->normalised)
        return top_k_scale(a);
    return top_k_scale(a) / (a->scores == CT_SCORES_SIGMOID ? sum + CPU_LEAST_SUM : sum);
}

/* Logits may be some columns of a matrix, since routers are joined with other products. */
static inline void *top_k_row(const struct ct_tensor *t, int64_t row)
{
    int64_t at = 0;

    for (int d = t->ndim - 2; d >= 0; d--) {
        at += row % t->shape[d] * t->stride[d];
        row /= t->shape[d];
    }
    return (char *)t->data + at * (int64_t)ct_dtype_size(t->dtype);
}

static inline float top_k_logit(enum ct_dtype dtype, const void *x, int64_t i)
{
    return dtype == CT_F32 ? ((const float *)x)[i] : ct_bf16_to_f32(((const uint16_t *)x)[i]);
}

#endif
