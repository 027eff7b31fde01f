/* The op and its gradient for CPUs, in vectors; built once per instruction set. */
#include <ctitan/lib/cpu.h>
#include <ctitan/lib/cpu/runs.h>
#include <ctitan/lib/vector.h>

/* 1 / (1 + |x|) */
CPU_INLINE vf share(vf x)
{
    return 1.0f / (1.0f + (vf)((vu)x & 0x7fffffffu));
}

/* dtype is a constant where these are called, so the loops have no branches. */
CPU_INLINE void forward(enum ct_dtype dtype, void *const *p, int64_t n)
{
    for (int64_t i = 0; i < n; i += CPU_LANES) {
        vf x = v_get(dtype, p[0], i, n);

        v_put(dtype, p[1], i, n, x * share(x));
    }
}

CPU_INLINE void backward(enum ct_dtype dtype, void *const *p, int64_t n)
{
    for (int64_t i = 0; i < n; i += CPU_LANES) {
        vf of_x = share(v_get(dtype, p[1], i, n));

        v_put(dtype, p[2], i, n, v_get(dtype, p[0], i, n) * of_x * of_x);
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

static void backward_f32(void *const *p, int64_t n)
{
    backward(CT_F32, p, n);
}

static void backward_bf16(void *const *p, int64_t n)
{
    backward(CT_BF16, p, n);
}

/* ---- the kernels: the list in softsign.c has a line for each ---- */

/* The signature gives all operands one dtype. */
bool CPU_ACCEPTS(softsign)(const struct ct_prepare *p)
{
    return cpu_is_compute_dtype(p->out[0].dtype);
}

int CPU_RUN(softsign)(const struct ct_launch *l)
{
    const struct ct_tensor *operands[] = {&l->in[0], &l->out[0]};

    cpu_for_runs(operands, 2, l->out[0].dtype == CT_F32 ? forward_f32 : forward_bf16);
    return 0;
}

bool CPU_ACCEPTS(softsign_grad)(const struct ct_prepare *p)
{
    return cpu_is_compute_dtype(p->out[0].dtype);
}

int CPU_RUN(softsign_grad)(const struct ct_launch *l)
{
    const struct ct_tensor *operands[] = {&l->in[0], &l->in[1], &l->out[0]};

    cpu_for_runs(operands, 3, l->out[0].dtype == CT_F32 ? backward_f32 : backward_bf16);
    return 0;
}
