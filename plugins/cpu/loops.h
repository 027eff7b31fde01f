/*
 * Vector loops used by the kernels of this folder: one table per instruction set (kernels/isa.h).
 *
 * All run on the calling thread, on contiguous elements. dtypes are float32 or bfloat16; arithmetic
 * is float32 unless stated otherwise.
 */
#ifndef CPU_LOOPS_H
#define CPU_LOOPS_H

#include <ctitan/tensor.h>

#include <ctitan/lib/cpu.h>

struct cpu_adamw {
    float decay;                      /* 1 - lr * weight_decay */
    float beta1, rest1, beta2, rest2; /* rest: 1 - beta */
    float step_size;                  /* lr / (1 - beta1^t) */
    float root_correction, eps;       /* 1 / sqrt(1 - beta2^t) */
    float clip;                       /* factor applied to the gradient */
    enum ct_dtype p, g, m, v;
};

struct cpu_normal {
    uint64_t seed, stream;
    float std, truncate; /* truncate 0: no truncation */
};

/* The gated layer of experts (struct ct_experts). */
struct cpu_gate {
    float alpha, limit, offset; /* limit: infinite where there is none */
};

/* C[rows, n] = A[rows, k] B[n, k]^T, of few rows. A and B are dense; B is float32 or bfloat16,
   A as well or float32. */
struct cpu_few_rows {
    enum ct_dtype a_type, b_type;
    int64_t rows, k;
    const void *a, *b;
    float *c;
    int64_t c_row; /* elements */
};

struct cpu_loops {
    void (*widen)(float *to, const uint16_t *from, int64_t n);
    void (*round)(uint16_t *to, const float *from, int64_t n);
    void (*round_add)(uint16_t *to, const float *from, int64_t n); /* to += from, rounded once */
    /* to = from, rounded to bfloat16 but kept as float32 */
    void (*truncate)(float *to, const float *from, int64_t n);

    /* Float8 divided by scale[0], or by a scale for each. */
    void (*dequantise)(enum ct_dtype dtype, float *to, const uint8_t *from, const float *scale,
                       bool each, int64_t n);

    /* Sum of squares in float64, row by row. */
    double (*squares)(enum ct_dtype dtype, const void *x, struct ct_matrix rows);

    /* copy: p rounded to bfloat16, or NULL. */
    void (*adamw)(const struct cpu_adamw *a, void *p, const void *g, void *m, void *v,
                  uint16_t *copy, int64_t n);

    /* log sum exp of a row of logits. */
    float (*log_sum_exp)(enum ct_dtype dtype, const void *logits, int64_t n);
    /* Store the largest of n logits; returns the sum of e^(logit - largest). */
    float (*sum_exp)(enum ct_dtype dtype, const void *logits, int64_t n, float *largest);
    /* out = softmax(logits) * scale, given the row's log sum exp; add: out += it. out may be logits
       if the dtypes are equal. */
    void (*softmax)(enum ct_dtype out_dtype, void *out, enum ct_dtype dtype, const void *logits,
                    int64_t n, float log_sum, float scale, bool add);
    /* Both steps at once, destroying the row of logits, which may be out: out = softmax * scale;
       returns log sum exp. */
    float (*softmax_consume)(enum ct_dtype out_dtype, void *out, float *logits, int64_t n,
                             float scale);

    /* h = factor silu(g) u, in dtype, or the gated layer that `how` says, if it is not NULL; h may
       be g in float32. */
    void (*gated)(enum ct_dtype dtype, void *h, const float *g, const float *u,
                  const struct cpu_gate *how, float factor, int64_t n);
    /* Its gradients in dtype, from factor dh; they may be g and u in float32. Returns the sum of
       dh times the layer, in a fixed order. */
    float (*gated_grad)(enum ct_dtype dtype, void *dg, void *du, const float *dh, const float *g,
                        const float *u, const struct cpu_gate *how, float factor, int64_t n);
    /* to += factor x */
    void (*add_scaled)(float *to, enum ct_dtype dtype, const void *x, float factor, int64_t n);

    /* Columns begin .. end of C. */
    void (*multiply_few)(const struct cpu_few_rows *gemm, int64_t begin, int64_t end);

    /* m = keep m + rest clip g; direction = rest clip g + keep m. */
    void (*momentum)(enum ct_dtype dtype, void *direction, void *m, const void *g, float keep,
                     float rest, float clip, int64_t n);
    /* to = of_to to + of_x x; to = factor x. x may be to. */
    void (*blend)(enum ct_dtype to_type, void *to, float of_to, enum ct_dtype x_type, const void *x,
                  float of_x, int64_t n);
    void (*scaled)(enum ct_dtype to_type, void *to, enum ct_dtype x_type, const void *x,
                   float factor, int64_t n);

    /* Elements first .. first + n of the stream defined in rng.h, times std. */
    void (*normal)(const struct cpu_normal *normal, enum ct_dtype dtype, void *out, uint64_t first,
                   int64_t n);
};

extern const struct cpu_loops cpu_loops_portable, cpu_loops_avx2, cpu_loops_avx512;

static inline const struct cpu_loops *cpu_loops(void)
{
    static const struct cpu_loops *const all[] = {&cpu_loops_portable, &cpu_loops_avx2,
                                                  &cpu_loops_avx512};

    return all[ct_cpu_isa()];
}

/* The parts of the tables, grouped by source. */
float CPU_ISA(cpu_log_sum_exp)(enum ct_dtype dtype, const void *logits, int64_t n);
float CPU_ISA(cpu_sum_exp)(enum ct_dtype dtype, const void *logits, int64_t n, float *largest);
void CPU_ISA(cpu_softmax)(enum ct_dtype out_dtype, void *out, enum ct_dtype dtype,
                          const void *logits, int64_t n, float log_sum, float scale, bool add);
float CPU_ISA(cpu_softmax_consume)(enum ct_dtype out_dtype, void *out, float *logits, int64_t n,
                                   float scale);
void CPU_ISA(cpu_gated)(enum ct_dtype dtype, void *h, const float *g, const float *u,
                        const struct cpu_gate *how, float factor, int64_t n);
float CPU_ISA(cpu_gated_grad)(enum ct_dtype dtype, void *dg, void *du, const float *dh,
                              const float *g, const float *u, const struct cpu_gate *how,
                              float factor, int64_t n);
void CPU_ISA(cpu_add_scaled)(float *to, enum ct_dtype dtype, const void *x, float factor,
                             int64_t n);
void CPU_ISA(cpu_multiply_few)(const struct cpu_few_rows *g, int64_t begin, int64_t end);
void CPU_ISA(cpu_momentum)(enum ct_dtype dtype, void *direction, void *m, const void *g, float keep,
                           float rest, float clip, int64_t n);
void CPU_ISA(cpu_blend)(enum ct_dtype to_type, void *to, float of_to, enum ct_dtype x_type,
                        const void *x, float of_x, int64_t n);
void CPU_ISA(cpu_scaled)(enum ct_dtype to_type, void *to, enum ct_dtype x_type, const void *x,
                         float factor, int64_t n);
void CPU_ISA(cpu_normal)(const struct cpu_normal *normal, enum ct_dtype dtype, void *out,
                         uint64_t first, int64_t n);

#endif
