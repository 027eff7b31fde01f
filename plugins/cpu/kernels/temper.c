/*
 * Queries times a factor of their positions.
 */
#include <math.h>

#include <ctitan/lib/ops.h>
#include <ctitan/op_author.h>

#include "../cpu.h"
#include "kernels.h"
#include <ctitan/lib/cpu/runs.h>
#include "vector.h"

CPU_INLINE void scale_row(enum ct_dtype dtype, const void *x, float w, void *y, int64_t n)
{
    for (int64_t i = 0; i < n; i += CPU_LANES)
        v_put(dtype, y, i, n, v_get(dtype, x, i, n) * w);
}

bool CPU_ISA(cpu_temper_accepts)(const struct ct_prepare *p)
{
    bool positions = p->ins > 1 && p->present[1];

    return cpu_is_compute_dtype(p->in->dtype) && p->out->dtype == p->in->dtype &&
           (!positions || p->in[1].dtype == CT_I32);
}

/* first: position of token 0 where positions are counted. */
CPU_INLINE void temper_token(enum ct_dtype dtype, const struct ct_launch *l, int64_t b, int64_t t,
                             int64_t first)
{
    const struct ct_tensor *x = l->in, *y = l->out, *p = x + 1;
    const struct ct_temper *how = l->op->attrs;
    bool positions = l->ins > 1 && p->data;
    int64_t size = (int64_t)ct_dtype_size(dtype);
    int64_t position =
        positions ? ((const int32_t *)p->data)[b * p->stride[0] + t * p->stride[1]] : first + t;
    float factor = (float)(1 + how->scale * log1p((double)((position + how->added) / how->every)));
    const char *from = (const char *)x->data + (b * x->stride[0] + t * x->stride[1]) * size;
    char *to = (char *)y->data + (b * y->stride[0] + t * y->stride[1]) * size;

    for (int64_t h = 0; h < x->shape[2]; h++)
        scale_row(dtype, from + h * x->stride[2] * size, factor, to + h * y->stride[2] * size,
                  x->shape[3]);
}

int CPU_ISA(cpu_temper_run)(const struct ct_launch *l)
{
    const struct ct_tensor *x = l->in;
    int64_t tokens = x->shape[1], first = ct_launch_offset(l, l->op->in[0], 1);

#pragma omp parallel for schedule(static) if (cpu_worth_threads(ct_tensor_count(x)))
    for (int64_t i = 0; i < x->shape[0] * tokens; i++)
        if (x->dtype == CT_F32)
            temper_token(CT_F32, l, i / tokens, i % tokens, first);
        else
            temper_token(CT_BF16, l, i / tokens, i % tokens, first);
    return 0;
}
