/*
 * y = silu(gate) up and its gradient, where silu(g) = g / (1 + e^-g) (Shazeer 2020).
 */
#include "../products/unit.h"
#include "kernels.h"
#include <ctitan/lib/cpu/runs.h>
#include "vector.h"

CPU_INLINE vf sigmoid(vf g)
{
    return v_rcp(1.0f + v_exp2(v_min(v_set(125), g * -1.44269504f)));
}

CPU_INLINE void forward(enum ct_dtype dtype, void *const *p, int64_t n)
{
    const void *gate = p[0], *up = p[1];
    void *y = p[2];

    for (int64_t i = 0; i < n; i += CPU_LANES) {
        vf g = v_get(dtype, gate, i, n);

        v_put(dtype, y, i, n, g * sigmoid(g) * v_get(dtype, up, i, n));
    }
}

static void forward_f32(void *const *p, int64_t n)
{
    forward(CT_F32, p, n);
}

static void forward_bf16(void *const *p, int64_t n)
{
    forward(CT_BF16, p, n);
}

/* dy, gate, up -> dgate, dup; the outputs may lie on gate and up. */
CPU_INLINE void gradient(enum ct_dtype dtype, void *const *p, int64_t n)
{
    const void *grad = p[0], *gate = p[1], *up = p[2];
    void *dgate = p[3], *dup = p[4];

    for (int64_t i = 0; i < n; i += CPU_LANES) {
        vf dy = v_get(dtype, grad, i, n);
        vf g = v_get(dtype, gate, i, n), u = v_get(dtype, up, i, n);
        vf s = sigmoid(g), silu = g * s;

        v_put(dtype, dgate, i, n, dy * u * (s + silu * (1.0f - s)));
        v_put(dtype, dup, i, n, dy * silu);
    }
}

static void gradient_f32(void *const *p, int64_t n)
{
    gradient(CT_F32, p, n);
}

static void gradient_bf16(void *const *p, int64_t n)
{
    gradient(CT_BF16, p, n);
}

static bool accepts(const struct ct_prepare *prepare)
{
    enum ct_dtype dtype = prepare->in[0].dtype;
    bool same = dtype == CT_F32 || dtype == CT_BF16;

    for (int i = 0; i < prepare->ins; i++)
        same &= prepare->in[i].dtype == dtype;
    for (int i = 0; i < prepare->outs; i++)
        same &= prepare->out[i].dtype == dtype;
    return same;
}

bool CPU_ISA(cpu_swiglu_accepts)(const struct ct_prepare *prepare)
{
    return accepts(prepare);
}

int CPU_ISA(cpu_swiglu_run)(const struct ct_launch *launch)
{
    const struct ct_tensor *t[] = {launch->in, launch->in + 1, launch->out};

    cpu_for_runs(t, 3, launch->out->dtype == CT_F32 ? forward_f32 : forward_bf16);
    return 0;
}

bool CPU_ISA(cpu_swiglu_grad_accepts)(const struct ct_prepare *prepare)
{
    return accepts(prepare);
}

int CPU_ISA(cpu_swiglu_grad_run)(const struct ct_launch *launch)
{
    const struct ct_tensor *in = launch->in, *out = launch->out;
    const struct ct_tensor *t[] = {in, in + 1, in + 2, out, out + 1};

    cpu_for_runs(t, 5, out->dtype == CT_F32 ? gradient_f32 : gradient_bf16);
    return 0;
}
