/*
 * The language of rows (lib/compiler.h) for one thread of the processor. Functions of vectors are
 * within 4 units in the last place (tanh, erf: of the larger of the result and 0.3), or are the C
 * library's.
 *
 * The text of this header is also a part of kernels that are compiled while a graph is lowered
 * (CT_VECTOR_ALONE, as in vector.h), where ROW_KERNEL begins the function `fused`. In a file of
 * several kernels, each defines ROW_KERNEL before: static ROW_FUNCTION(name).
 */
#ifndef CT_CPU_ROWS_H
#define CT_CPU_ROWS_H

#ifdef CT_VECTOR_ALONE
struct ct_compiled_operand {
    void *data;
    int64_t stride;
};
#define ROW_KERNEL ROW_FUNCTION(fused)
#else
#include <float.h>

#include <ctitan/lib/cpu.h>
#include <ctitan/lib/rows.h>
#include <ctitan/lib/vector.h>
#endif

#define UNUSED __attribute__((unused))
#define ROW_FUNCTION(name)                                                                         \
    void name(const struct ct_compiled_operand *in UNUSED,                                         \
              const struct ct_compiled_operand *out UNUSED, int64_t row, int64_t row_end,          \
              int64_t column UNUSED, int64_t column_end, float *scratch UNUSED,                    \
              float *sums UNUSED, uint32_t add UNUSED)
#define ADDS(i) (add >> (i)&1)
#define FOR_ROWS(i) for (int64_t i = row; i < row_end; i++)
#define FOR_COLUMNS(j) for (int64_t j = column; j < column_end; j += CPU_LANES)
#define STEPS 4 /* partial results, which do not wait for each other */
#define FOR_STEPS(j, s)                                                                            \
    for (int64_t j = column; j < column_end;)                                                      \
        for (int s = 0; s < STEPS && j < column_end; s++, j += CPU_LANES)
#define PARTS(name, x) vf name[STEPS] = {v_set(x), v_set(x), v_set(x), v_set(x)}
#define SUM(k) (sums + (k)*columns)
#define ROW_RESULTS

#define f_columns() ((float)columns)
#define f_exp expf
#define f_log logf
#define f_log1p log1pf
#define f_tanh tanhf
#define f_erf erff
#define f_sin sinf
#define f_cos cosf
#define f_sqrt sqrtf
#define f_abs fabsf
#define f_pow powf

CPU_INLINE float f_min(float a, float b)
{
    return a < b ? a : b;
}

CPU_INLINE float f_max(float a, float b)
{
    return a > b ? a : b;
}

CPU_INLINE float f_sigmoid(float a)
{
    return 1.0f / (1.0f + expf(-a));
}

CPU_INLINE float widen(uint16_t h)
{
    return v_widen(h - (vh){0})[0];
}

CPU_INLINE uint16_t narrow(float x)
{
    return v_narrow(v_set(x))[0];
}

CPU_INLINE float f_bfloat16(float x)
{
    return widen(narrow(x));
}

#define w_bfloat16(x) v_widen(v_narrow(x))
#define w_exp v_exp
#define w_sqrt v_sqrt
#define w_min v_min
#define w_max v_max

CPU_INLINE vf w_select(vf condition, vf yes, vf no)
{
    return v_select(condition != 0.0f, yes, no);
}

CPU_INLINE vf w_less(vf a, vf b)
{
    return v_select(a < b, v_set(1), v_set(0));
}

CPU_INLINE vf w_greater(vf a, vf b)
{
    return w_less(b, a);
}

/* The error grows with |a|, as that of a / log(2). */
CPU_INLINE vf w_sigmoid(vf a)
{
    return 1.0f / (1.0f + v_exp2(v_min(v_set(125), a * -1.44269504f)));
}

CPU_INLINE vf w_abs(vf a)
{
    return (vf)((vi)a & 0x7fffffff);
}

CPU_INLINE vf w_log(vf a)
{
    vf y = v_select(a > FLT_MAX, a, v_log(a));

    return v_select(a < 0.0f, v_set(NAN), v_select(a < FLT_MIN, v_set(-INFINITY), y));
}

/* The rounding of u = 1 + a is undone by a / (u - 1). */
CPU_INLINE vf w_log1p(vf a)
{
    vf u = 1.0f + a, y = v_select(u > FLT_MAX, u, w_log(u) * (a / (u - 1.0f)));

    return v_select(u == 1.0f, a, y);
}

/* Near 0 Taylor's series, else by exp. */
CPU_INLINE vf w_tanh(vf a)
{
    vf z = a * a, far = 1.0f - 2.0f / (v_exp(2.0f * w_abs(a)) + 1.0f);
    vf near = 62.0f / 2835 - z * (1382.0f / 155925);

    near = a - a * z * (1.0f / 3 - z * (2.0f / 15 - z * (17.0f / 315 - z * near)));
    return v_select(z < 0.09f, near, v_select(a < 0.0f, -far, far));
}

/* Polynomials: below 1 in a^2, above 1 in 1 / (1 + a / 2), times exp(-a^2). */
CPU_INLINE vf w_erf(vf a)
{
    vf z = a * a, size = w_abs(a), t = 1.0f / (1.0f + 0.5f * size);
    vf near = 7.87587507e-05f * z - 0.000801686429f, far = 0.120390737f * t - 0.474831869f;

    near = near * z + 0.00518908742f;
    near = near * z - 0.026854212f;
    near = near * z + 0.112835947f;
    near = near * z - 0.376126267f;
    near = near * z + 1.12837917f;
    far = far * t + 0.568621674f;
    far = far * t - 0.107932638f;
    far = far * t + 0.349864193f;
    far = far * t + 0.259106898f;
    far = far * t + 0.285001936f;
    far = 1.0f - v_exp(-z) * (far * t - 0.000159982596f);
    return v_select(size < 1.0f, a * near, v_select(a < 0.0f, -far, far));
}

#define LANE_BY_LANE(name, function)                                                               \
    CPU_INLINE vf w_##name(vf a)                                                                   \
    {                                                                                              \
        for (int i = 0; i < CPU_LANES; i++)                                                        \
            a[i] = function(a[i]);                                                                 \
        return a;                                                                                  \
    }
LANE_BY_LANE(sin, sinf)
LANE_BY_LANE(cos, cosf)

CPU_INLINE vf w_pow(vf a, vf b)
{
    for (int i = 0; i < CPU_LANES; i++)
        a[i] = powf(a[i], b[i]);
    return a;
}

/* The first n elements of a vector; the others become `rest`. */
CPU_INLINE vf first(vf a, int64_t n, float rest)
{
    if (__builtin_expect(n >= CPU_LANES, 1))
        return a;
    return v_select(v_iota() < (int32_t)n, a, v_set(rest));
}

/* Results that are rounded already. */
CPU_INLINE void put_narrow(uint16_t *p, int64_t i, int64_t n, vh h)
{
    if (__builtin_expect(n - i >= CPU_LANES, 1))
        memcpy(p + i, &h, sizeof(h));
    else
        v_put_part(CT_BF16, p + i, n - i, v_widen(h));
}

CPU_INLINE float total(const vf *part)
{
    return v_sum((part[0] + part[1]) + (part[2] + part[3]));
}

CPU_INLINE float largest(const vf *part)
{
    return v_largest(v_max(v_max(part[0], part[1]), v_max(part[2], part[3])));
}

#endif
