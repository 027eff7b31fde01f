/*
 * Sigmoids in float32, decays, and their gradients: small values of a few numbers for each token.
 */
#include <math.h>
#include <omp.h>

#include <ctitan/lib/ops.h>

#include "../cpu.h"
#include "kernels.h"
#include <ctitan/lib/cpu/runs.h>
#include "vector.h"

static float get(const struct ct_tensor *t, int64_t i)
{
    return t->dtype == CT_F32 ? ((const float *)t->data)[i] : (float)ct_tensor_load(t, i);
}

static void put(const struct ct_tensor *t, int64_t i, float value)
{
    if (t->dtype == CT_F32)
        ((float *)t->data)[i] = value;
    else
        ct_tensor_store(t, i, (double)value);
}

static float sigmoid(float x)
{
    return 1 / (1 + expf(-x));
}

static float softplus(float x)
{
    return fmaxf(x, 0) + log1pf(expf(-fabsf(x)));
}

static bool all_compute(const struct ct_prepare *p)
{
    bool all = true;

    for (int i = 0; i < p->ins; i++)
        all &= cpu_is_compute_dtype(p->in[i].dtype);
    for (int i = 0; i < p->outs; i++)
        all &= cpu_is_compute_dtype(p->out[i].dtype);
    return all;
}

#define BLOCK 4096 /* elements of a task */

CPU_INLINE void sigmoid_block(enum ct_dtype dtype, const void *x, float *y, int64_t begin,
                              int64_t end)
{
    for (int64_t i = begin; i < end; i += CPU_LANES)
        v_put(CT_F32, y, i, end, 1.0f / (1.0f + v_exp(-v_get(dtype, x, i, end))));
}

/* dx = dy y (1 - y) */
CPU_INLINE void sigmoid_grad_block(enum ct_dtype dtype, const float *dy, const float *y, void *dx,
                                   int64_t begin, int64_t end)
{
    for (int64_t i = begin; i < end; i += CPU_LANES) {
        vf s = v_get(CT_F32, y, i, end);

        v_put(dtype, dx, i, end, v_get(CT_F32, dy, i, end) * s * (1.0f - s));
    }
}

bool CPU_ISA(cpu_sigmoid_accepts)(const struct ct_prepare *p)
{
    return all_compute(p) && p->out[0].dtype == CT_F32;
}

int CPU_ISA(cpu_sigmoid_run)(const struct ct_launch *l)
{
    int64_t count = ct_tensor_count(l->in);

#pragma omp parallel for if (cpu_worth_threads(count))
    for (int64_t i = 0; i < count; i += BLOCK) {
        int64_t end = i + BLOCK < count ? i + BLOCK : count;

        if (l->in[0].dtype == CT_F32)
            sigmoid_block(CT_F32, l->in[0].data, l->out[0].data, i, end);
        else
            sigmoid_block(CT_BF16, l->in[0].data, l->out[0].data, i, end);
    }
    return 0;
}

bool CPU_ISA(cpu_sigmoid_grad_accepts)(const struct ct_prepare *p)
{
    return all_compute(p) && p->in[0].dtype == CT_F32 && p->in[1].dtype == CT_F32;
}

int CPU_ISA(cpu_sigmoid_grad_run)(const struct ct_launch *l)
{
    int64_t count = ct_tensor_count(l->in);

#pragma omp parallel for if (cpu_worth_threads(count))
    for (int64_t i = 0; i < count; i += BLOCK) {
        int64_t end = i + BLOCK < count ? i + BLOCK : count;

        if (l->out[0].dtype == CT_F32)
            sigmoid_grad_block(CT_F32, l->in[0].data, l->in[1].data, l->out[0].data, i, end);
        else
            sigmoid_grad_block(CT_BF16, l->in[0].data, l->in[1].data, l->out[0].data, i, end);
    }
    return 0;
}

bool CPU_ISA(cpu_decay_accepts)(const struct ct_prepare *p)
{
    return all_compute(p);
}

int CPU_ISA(cpu_decay_run)(const struct ct_launch *l)
{
    int64_t count = ct_tensor_count(l->in), n = l->in[1].shape[0];

#pragma omp parallel for if (cpu_worth_threads(count))
    for (int64_t i = 0; i < count; i++)
        put(l->out, i,
            -expf(get(l->in + 1, i % n)) * softplus(get(l->in, i) + get(l->in + 2, i % n)));
    return 0;
}

bool CPU_ISA(cpu_decay_grad_accepts)(const struct ct_prepare *p)
{
    return all_compute(p);
}

/* A thread has whole columns: each sum is in the order of rows. */
int CPU_ISA(cpu_decay_grad_run)(const struct ct_launch *l)
{
    int64_t n = l->in[2].shape[0], rows = ct_tensor_count(l->in) / n;

#pragma omp parallel for if (cpu_worth_threads(rows * n))
    for (int64_t k = 0; k < n; k++) {
        float a = -expf(get(l->in + 2, k)), bias = get(l->in + 3, k);
        double da = 0, dbias = 0;

        for (int64_t i = k; i < rows * n; i += n) {
            float s = get(l->in + 1, i) + bias, e = a * get(l->in, i), g = e * sigmoid(s);

            put(l->out, i, g);
            da += (double)(e * softplus(s));
            dbias += (double)g;
        }
        put(l->out + 1, k, (float)da);
        put(l->out + 2, k, (float)dbias);
    }
    return 0;
}
