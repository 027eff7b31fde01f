/*
 * cast: one pass over memory. add in float64, and reciprocal.
 */
#include "kernels.h"
#include <ctitan/core_ops.h>
#include <ctitan/lib/cpu/runs.h>
#include "vector.h"

/* Scalars of a step; in other dtypes add is its formula. */
bool CPU_ISA(cpu_add_accepts)(const struct ct_prepare *prepare)
{
    return prepare->out[0].dtype == CT_F64 && prepare->in[0].dtype == CT_F64 &&
           prepare->in[1].dtype == CT_F64;
}

int CPU_ISA(cpu_add_run)(const struct ct_launch *launch)
{
    const double *x = launch->in[0].data, *y = launch->in[1].data;
    double *z = launch->out[0].data;

    for (int64_t i = 0; i < ct_tensor_count(&launch->out[0]); i++)
        z[i] = x[i] + y[i];
    return 0;
}

bool CPU_ISA(cpu_reciprocal_accepts)(const struct ct_prepare *prepare)
{
    enum ct_dtype dtype = prepare->out->dtype;

    return (dtype == CT_F32 || dtype == CT_F64) && prepare->in->dtype == dtype;
}

int CPU_ISA(cpu_reciprocal_run)(const struct ct_launch *launch)
{
    double numerator = ((const struct ct_reciprocal *)launch->op->attrs)->numerator;
    const struct ct_tensor *x = &launch->in[0], *y = &launch->out[0];

    for (int64_t i = 0; i < ct_tensor_count(y); i++)
        if (y->dtype == CT_F32)
            ((float *)y->data)[i] = (float)numerator / ((const float *)x->data)[i];
        else
            ((double *)y->data)[i] = numerator / ((const double *)x->data)[i];
    return 0;
}

CPU_INLINE void convert(enum ct_dtype from, enum ct_dtype to, void *const *p, int64_t n)
{
    const void *x = p[0];
    void *y = p[1];

    for (int64_t i = 0; i < n; i += CPU_LANES)
        v_put(to, y, i, n, v_get(from, x, i, n));
}

static void f32_to_bf16(void *const *p, int64_t n)
{
    convert(CT_F32, CT_BF16, p, n);
}

static void bf16_to_f32(void *const *p, int64_t n)
{
    convert(CT_BF16, CT_F32, p, n);
}

static void f32_to_f64(void *const *p, int64_t n)
{
    const float *x = p[0];
    double *y = p[1];

    for (int64_t i = 0; i < n; i++)
        y[i] = x[i];
}

static void f64_to_f32(void *const *p, int64_t n)
{
    const double *x = p[0];
    float *y = p[1];

    for (int64_t i = 0; i < n; i++)
        y[i] = (float)x[i];
}

static void bf16_to_f64(void *const *p, int64_t n)
{
    const uint16_t *x = p[0];
    double *y = p[1];

    for (int64_t i = 0; i < n; i++)
        y[i] = ct_bf16_to_f32(x[i]);
}

static void f64_to_bf16(void *const *p, int64_t n)
{
    const double *x = p[0];
    uint16_t *y = p[1];

    for (int64_t i = 0; i < n; i++)
        y[i] = ct_f32_to_bf16(ct_f64_to_odd_f32(x[i]));
}

static void copy_2(void *const *p, int64_t n)
{
    memcpy(p[1], p[0], (size_t)n * 2);
}

static void copy_4(void *const *p, int64_t n)
{
    memcpy(p[1], p[0], (size_t)n * 4);
}

static void copy_8(void *const *p, int64_t n)
{
    memcpy(p[1], p[0], (size_t)n * 8);
}

/* [from][to] */
static cpu_run_body *const casts[CT_DTYPE_COUNT][CT_DTYPE_COUNT] = {
    [CT_F32] = {[CT_F32] = copy_4, [CT_BF16] = f32_to_bf16, [CT_F64] = f32_to_f64},
    [CT_BF16] = {[CT_F32] = bf16_to_f32, [CT_BF16] = copy_2, [CT_F64] = bf16_to_f64},
    [CT_F64] = {[CT_F32] = f64_to_f32, [CT_BF16] = f64_to_bf16, [CT_F64] = copy_8},
};

bool CPU_ISA(cpu_cast_accepts)(const struct ct_prepare *prepare)
{
    return casts[prepare->in->dtype][prepare->out->dtype];
}

int CPU_ISA(cpu_cast_run)(const struct ct_launch *launch)
{
    const struct ct_tensor *t[] = {launch->in, launch->out};

    cpu_for_runs(t, 2, casts[launch->in->dtype][launch->out->dtype]);
    return 0;
}
