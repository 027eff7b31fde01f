/*
 * Rows times a number each, its gradient, and queries times a factor of their positions.
 */
#include <math.h>

#include <ctitan/lib/ops.h>
#include <ctitan/op_author.h>

#include "../cpu.h"
#include "kernels.h"
#include <ctitan/lib/cpu/runs.h>
#include "vector.h"

static char *run_at(const struct ct_tensor *t, const struct cpu_runs *runs, int operand, int64_t r)
{
    return (char *)t->data + cpu_run_at(runs, operand, r) * (int64_t)ct_dtype_size(t->dtype);
}

CPU_INLINE void scale_row(enum ct_dtype dtype, const void *x, float w, void *y, int64_t n)
{
    for (int64_t i = 0; i < n; i += CPU_LANES)
        v_put(dtype, y, i, n, v_get(dtype, x, i, n) * w);
}

/* Rows of one number, without gaps: as vectors of rows. */
static bool are_numbers(const struct ct_tensor *const *t, int count)
{
    for (int i = 0; i < count; i++) {
        int64_t step = 1;

        for (int d = t[i]->ndim - 1; d >= 0; d--) {
            if (t[i]->shape[d] > 1 && t[i]->stride[d] != step)
                return false;
            step *= t[i]->shape[d];
        }
    }
    return ct_columns(t[0]) == 1;
}

#define BLOCK 4096 /* elements of a task */

CPU_INLINE void scale_numbers(enum ct_dtype dtype, const struct ct_launch *l, int64_t i,
                              int64_t end)
{
    const float *w = l->in[1].data;

    for (; i < end; i += CPU_LANES)
        v_put(dtype, l->out[0].data, i, end,
              v_get(dtype, l->in[0].data, i, end) * v_get(CT_F32, w, i, end));
}

/* dx = w dy and dw = x dy */
CPU_INLINE void gradient_numbers(enum ct_dtype dtype, const struct ct_launch *l, int64_t i,
                                 int64_t end)
{
    bool add = l->accumulate & 1, add_dw = l->accumulate >> 1 & 1;
    void *dx = l->out[0].data, *dw = l->out[1].data;

    for (; i < end; i += CPU_LANES) {
        vf dy = v_get(dtype, l->in[0].data, i, end), x = v_get(dtype, l->in[1].data, i, end);
        vf old = add ? v_get(dtype, dx, i, end) : v_set(0);
        vf old_dw = add_dw ? v_get(CT_F32, dw, i, end) : v_set(0);

        v_put(dtype, dx, i, end, old + dy * v_get(CT_F32, l->in[2].data, i, end));
        v_put(CT_F32, dw, i, end, old_dw + dy * x);
    }
}

static int run_numbers(const struct ct_launch *l, bool gradient)
{
    int64_t count = ct_tensor_count(l->in);
    bool narrow = l->in[0].dtype == CT_BF16;

#pragma omp parallel for if (cpu_worth_threads(count))
    for (int64_t i = 0; i < count; i += BLOCK) {
        int64_t end = i + BLOCK < count ? i + BLOCK : count;

        if (gradient && narrow)
            gradient_numbers(CT_BF16, l, i, end);
        else if (gradient)
            gradient_numbers(CT_F32, l, i, end);
        else if (narrow)
            scale_numbers(CT_BF16, l, i, end);
        else
            scale_numbers(CT_F32, l, i, end);
    }
    return 0;
}

bool CPU_ISA(cpu_scale_rows_accepts)(const struct ct_prepare *p)
{
    enum ct_dtype dtype = p->in[0].dtype;

    return cpu_is_compute_dtype(dtype) && p->in[1].dtype == CT_F32 && p->out[0].dtype == dtype;
}

int CPU_ISA(cpu_scale_rows_run)(const struct ct_launch *l)
{
    const struct ct_tensor *x = l->in, *w = l->in + 1, *y = l->out;
    struct cpu_runs runs;

    if (are_numbers((const struct ct_tensor *const[]){x, w, y}, 3))
        return run_numbers(l, false);
    runs = cpu_rows_of((const struct ct_tensor *const[]){x, w, y}, 3);

#pragma omp parallel for if (cpu_worth_threads(runs.count * runs.length))
    for (int64_t r = 0; r < runs.count; r++) {
        float factor = *(const float *)run_at(w, &runs, 1, r);

        if (x->dtype == CT_F32)
            scale_row(CT_F32, run_at(x, &runs, 0, r), factor, run_at(y, &runs, 2, r), runs.length);
        else
            scale_row(CT_BF16, run_at(x, &runs, 0, r), factor, run_at(y, &runs, 2, r), runs.length);
    }
    return 0;
}

/* ---- its gradient ---- */

/* dx = w dy, or dx + w dy; returns dy . x. */
CPU_INLINE float gradient_row(enum ct_dtype dtype, const void *dy, const void *x, float w, void *dx,
                              bool add, int64_t n)
{
    vf sum = {0};

    for (int64_t i = 0; i < n; i += CPU_LANES) {
        vf d = v_get(dtype, dy, i, n), old = add ? v_get(dtype, dx, i, n) : v_set(0);

        sum += d * v_get(dtype, x, i, n);
        v_put(dtype, dx, i, n, old + d * w);
    }
    return v_sum(sum);
}

bool CPU_ISA(cpu_scale_rows_grad_accepts)(const struct ct_prepare *p)
{
    enum ct_dtype dtype = p->in[0].dtype;

    return cpu_is_compute_dtype(dtype) && p->in[1].dtype == dtype && p->in[2].dtype == CT_F32 &&
           p->out[0].dtype == dtype && p->out[1].dtype == CT_F32;
}

int CPU_ISA(cpu_scale_rows_grad_run)(const struct ct_launch *l)
{
    const struct ct_tensor *dy = l->in, *x = l->in + 1, *w = l->in + 2;
    const struct ct_tensor *dx = l->out, *dw = l->out + 1;
    bool add = l->accumulate & 1, add_dw = l->accumulate >> 1 & 1;
    struct cpu_runs runs;

    if (are_numbers((const struct ct_tensor *const[]){dy, x, w, dx, dw}, 5))
        return run_numbers(l, true);
    runs = cpu_rows_of((const struct ct_tensor *const[]){dy, x, w, dx, dw}, 5);

#pragma omp parallel for if (cpu_worth_threads(runs.count * runs.length))
    for (int64_t r = 0; r < runs.count; r++) {
        const char *from = run_at(dy, &runs, 0, r), *of_x = run_at(x, &runs, 1, r);
        float factor = *(const float *)run_at(w, &runs, 2, r), dot;
        float *to = (float *)run_at(dw, &runs, 4, r);

        if (x->dtype == CT_F32)
            dot =
                gradient_row(CT_F32, from, of_x, factor, run_at(dx, &runs, 3, r), add, runs.length);
        else
            dot = gradient_row(CT_BF16, from, of_x, factor, run_at(dx, &runs, 3, r), add,
                               runs.length);
        *to = add_dw ? *to + dot : dot;
    }
    return 0;
}

/* ---- by position ---- */

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
    float factor = (float)(1 + how->scale * log1p((double)((position + 1) / how->every)));
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
