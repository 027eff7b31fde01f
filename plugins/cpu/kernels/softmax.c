/*
 * Softmax over the last dimension, and its gradient.
 */
#include <omp.h>

#include "../cpu.h"
#include "../loops.h"
#include "kernels.h"
#include <ctitan/lib/cpu/runs.h>
#include "vector.h"

static char *run_at(const struct ct_tensor *t, const struct cpu_runs *runs, int operand, int64_t r)
{
    return (char *)t->data + cpu_run_at(runs, operand, r) * (int64_t)ct_dtype_size(t->dtype);
}

static bool accepts(const struct ct_prepare *p)
{
    enum ct_dtype dtype = p->out[0].dtype;

    for (int i = 0; i < p->ins; i++)
        if (p->in[i].dtype != dtype)
            return false;
    return cpu_is_compute_dtype(dtype);
}

/* Relative to the largest, so that large logits lose nothing. */
CPU_INLINE void forward_row(enum ct_dtype dtype, const void *x, void *y, int64_t n)
{
    float largest, sum = CPU_ISA(cpu_sum_exp)(dtype, x, n, &largest), scale = 1.0f / sum;

    for (int64_t i = 0; i < n; i += CPU_LANES)
        v_put(dtype, y, i, n, v_exp(v_get(dtype, x, i, n) - largest) * scale);
}

bool CPU_ISA(cpu_softmax_accepts)(const struct ct_prepare *p)
{
    return accepts(p);
}

int CPU_ISA(cpu_softmax_run)(const struct ct_launch *l)
{
    const struct ct_tensor *x = l->in, *y = l->out;
    struct cpu_runs runs = cpu_rows_of((const struct ct_tensor *const[]){x, y}, 2);

#pragma omp parallel for if (cpu_worth_threads(runs.count * runs.length))
    for (int64_t r = 0; r < runs.count; r++)
        if (x->dtype == CT_F32)
            forward_row(CT_F32, run_at(x, &runs, 0, r), run_at(y, &runs, 1, r), runs.length);
        else
            forward_row(CT_BF16, run_at(x, &runs, 0, r), run_at(y, &runs, 1, r), runs.length);
    return 0;
}

CPU_INLINE void gradient_row(enum ct_dtype dtype, const void *dy, const void *y, void *dx,
                             int64_t n)
{
    vf total = v_set(0);
    float mean;

    for (int64_t i = 0; i < n; i += CPU_LANES)
        total += v_get(dtype, dy, i, n) * v_get(dtype, y, i, n);
    mean = v_sum(total);
    for (int64_t i = 0; i < n; i += CPU_LANES)
        v_put(dtype, dx, i, n, v_get(dtype, y, i, n) * (v_get(dtype, dy, i, n) - mean));
}

bool CPU_ISA(cpu_softmax_grad_accepts)(const struct ct_prepare *p)
{
    return accepts(p);
}

int CPU_ISA(cpu_softmax_grad_run)(const struct ct_launch *l)
{
    const struct ct_tensor *dy = l->in, *y = l->in + 1, *dx = l->out;
    struct cpu_runs runs = cpu_rows_of((const struct ct_tensor *const[]){dy, y, dx}, 3);

#pragma omp parallel for if (cpu_worth_threads(runs.count * runs.length))
    for (int64_t r = 0; r < runs.count; r++) {
        const char *of_dy = run_at(dy, &runs, 0, r), *of_y = run_at(y, &runs, 1, r);

        if (dy->dtype == CT_F32)
            gradient_row(CT_F32, of_dy, of_y, run_at(dx, &runs, 2, r), runs.length);
        else
            gradient_row(CT_BF16, of_dy, of_y, run_at(dx, &runs, 2, r), runs.length);
    }
    return 0;
}
