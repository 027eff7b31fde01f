/*
 * mul, scale, silu, gelu and their gradients: one pass over memory.
 */
#include <omp.h>

#include <ctitan/lib/ops.h>

#include "../cpu.h"
#include "kernels.h"
#include <ctitan/lib/cpu/runs.h>
#include "vector.h"

/* 1 / (1 + e^-x) */
CPU_INLINE vf sigmoid(vf x)
{
    return v_rcp(1.0f + v_exp2(v_min(v_set(125), x * -1.44269504f)));
}

/* The normal distribution function and its density: Phi(-z) = e^(-z^2/2) t p(t) / 2 with
   t = 1 / (1 + z / root 8), where p interpolates to 5e-8. */
CPU_INLINE vf normal(vf x, vf *density)
{
    vf z = v_select(x < 0.0f, -x, x), t = 1.0f / (1.0f + z * 0.353553391f);
    vf bell = v_exp(x * x * -0.5f), p = t * -5.971491899e-2f + 2.877683097e-1f;

    p = p * t - 4.938636490e-1f;
    p = p * t + 2.856977106e-1f;
    p = p * t - 3.184175762e-2f;
    p = p * t + 2.048536552e-1f;
    p = p * t + 2.425728929e-1f;
    p = p * t + 2.824450420e-1f;
    p = p * t + 2.820826737e-1f;
    p = 0.5f * bell * t * p;
    *density = bell * 0.398942280f;
    return v_select(x < 0.0f, p, 1.0f - p);
}

CPU_INLINE vf silu(vf x)
{
    return x * sigmoid(x);
}

CPU_INLINE vf silu_slope(vf x)
{
    vf s = sigmoid(x);

    return s + x * s * (1.0f - s);
}

CPU_INLINE vf gelu(vf x)
{
    vf density;

    return x * normal(x, &density);
}

CPU_INLINE vf gelu_slope(vf x)
{
    vf density, phi = normal(x, &density);

    return phi + x * density;
}

/* (1 + tanh(u)) / 2 = sigmoid(2 u) */
CPU_INLINE vf gelu_tanh(vf x)
{
    return x * sigmoid(x * (1.59576912f + 0.0713548163f * x * x));
}

CPU_INLINE vf gelu_tanh_slope(vf x)
{
    vf s = sigmoid(x * (1.59576912f + 0.0713548163f * x * x));

    return s + x * s * (1.0f - s) * (1.59576912f + 0.214064449f * x * x);
}

/* ---- loops ---- */

/* x -> f(x) */
CPU_INLINE void apply(enum ct_dtype dtype, vf (*f)(vf), void *const *p, int64_t n)
{
    for (int64_t i = 0; i < n; i += CPU_LANES)
        v_put(dtype, p[1], i, n, f(v_get(dtype, p[0], i, n)));
}

/* dy, x -> dy f(x) */
CPU_INLINE void apply_slope(enum ct_dtype dtype, vf (*f)(vf), void *const *p, int64_t n)
{
    for (int64_t i = 0; i < n; i += CPU_LANES)
        v_put(dtype, p[2], i, n, v_get(dtype, p[0], i, n) * f(v_get(dtype, p[1], i, n)));
}

CPU_INLINE vf identity(vf x)
{
    return x;
}

#define BODIES(name, loop, f)                                                                      \
    static void name##_f32(void *const *p, int64_t n)                                              \
    {                                                                                              \
        loop(CT_F32, f, p, n);                                                                     \
    }                                                                                              \
    static void name##_bf16(void *const *p, int64_t n)                                             \
    {                                                                                              \
        loop(CT_BF16, f, p, n);                                                                    \
    }                                                                                              \
    static cpu_run_body *const name##_bodies[CT_DTYPE_COUNT] = {                                   \
        [CT_F32] = name##_f32, [CT_BF16] = name##_bf16};

BODIES(mul, apply_slope, identity)
BODIES(silu, apply, silu)
BODIES(silu_grad, apply_slope, silu_slope)
BODIES(gelu, apply, gelu)
BODIES(gelu_grad, apply_slope, gelu_slope)
BODIES(gelu_tanh, apply, gelu_tanh)
BODIES(gelu_tanh_grad, apply_slope, gelu_tanh_slope)

static bool accepts(const struct ct_prepare *p)
{
    enum ct_dtype dtype = p->out[0].dtype;

    for (int i = 0; i < p->ins; i++)
        if (p->in[i].dtype != dtype)
            return false;
    return cpu_is_compute_dtype(dtype);
}

static int run(const struct ct_launch *l, cpu_run_body *const *bodies)
{
    const struct ct_tensor *t[3];

    for (int i = 0; i < l->ins; i++)
        t[i] = &l->in[i];
    t[l->ins] = &l->out[0];
    cpu_for_runs(t, l->ins + 1, bodies[l->out[0].dtype]);
    return 0;
}

static bool by_tanh(const struct ct_launch *l)
{
    return ct_op_enum(l->op, "approximate") == CT_GELU_TANH;
}

/* ---- kernels ---- */

bool CPU_ISA(cpu_mul_accepts)(const struct ct_prepare *p)
{
    return accepts(p);
}

int CPU_ISA(cpu_mul_run)(const struct ct_launch *l)
{
    return run(l, mul_bodies);
}

bool CPU_ISA(cpu_silu_accepts)(const struct ct_prepare *p)
{
    return accepts(p);
}

int CPU_ISA(cpu_silu_run)(const struct ct_launch *l)
{
    return run(l, silu_bodies);
}

bool CPU_ISA(cpu_silu_grad_accepts)(const struct ct_prepare *p)
{
    return accepts(p);
}

int CPU_ISA(cpu_silu_grad_run)(const struct ct_launch *l)
{
    return run(l, silu_grad_bodies);
}

bool CPU_ISA(cpu_gelu_accepts)(const struct ct_prepare *p)
{
    return accepts(p);
}

int CPU_ISA(cpu_gelu_run)(const struct ct_launch *l)
{
    return run(l, by_tanh(l) ? gelu_tanh_bodies : gelu_bodies);
}

bool CPU_ISA(cpu_gelu_grad_accepts)(const struct ct_prepare *p)
{
    return accepts(p);
}

int CPU_ISA(cpu_gelu_grad_run)(const struct ct_launch *l)
{
    return run(l, by_tanh(l) ? gelu_tanh_grad_bodies : gelu_grad_bodies);
}

/* ---- scale ---- */

CPU_INLINE void scale_row(enum ct_dtype dtype, const void *x, void *y, int64_t n, float factor)
{
    for (int64_t i = 0; i < n; i += CPU_LANES)
        v_put(dtype, y, i, n, v_get(dtype, x, i, n) * factor);
}

bool CPU_ISA(cpu_scale_accepts)(const struct ct_prepare *p)
{
    return accepts(p) && p->in[0].ndim > 0;
}

int CPU_ISA(cpu_scale_run)(const struct ct_launch *l)
{
    const struct ct_tensor *x = l->in, *y = l->out;
    struct cpu_runs runs = cpu_rows_of((const struct ct_tensor *const[]){x, y}, 2);
    float factor = (float)ct_op_float(l->op, "factor");
    int64_t size = (int64_t)ct_dtype_size(x->dtype);

#pragma omp parallel for if (cpu_worth_threads(runs.count * runs.length))
    for (int64_t r = 0; r < runs.count; r++) {
        const char *from = (const char *)x->data + cpu_run_at(&runs, 0, r) * size;
        char *to = (char *)y->data + cpu_run_at(&runs, 1, r) * size;

        if (x->dtype == CT_F32)
            scale_row(CT_F32, from, to, runs.length, factor);
        else
            scale_row(CT_BF16, from, to, runs.length, factor);
    }
    return 0;
}
