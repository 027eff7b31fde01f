/*
 * Mixtures of experts: the choices, rows and sums (experts_rows.c) of experts.c.
 */
#ifndef CPU_EXPERTS_H
#define CPU_EXPERTS_H

#include <ctitan/lib/ops.h>

#include "cpu.h"
#include "loops.h"

/* Inputs of experts: weights, then biases if there are any. */
enum { W_GATE = 3, W_UP, W_DOWN, WEIGHTS, B_GATE = WEIGHTS, B_UP };

/* Functions that tell ops of experts apart. */
static inline bool cpu_experts_is_gradient(const struct ct_op *op)
{
    return op->type != &ct_op_experts && op->type != &ct_op_experts_kept;
}

/* Hidden layers are kept, or were (keep_hidden.c). */
static inline bool cpu_experts_keeps(const struct ct_op *op)
{
    return op->type == &ct_op_experts_kept || op->type == &ct_op_experts_kept_grad;
}

/* The input x, which is behind dy. */
static inline int cpu_experts_x(const struct ct_op *op)
{
    return op->type == &ct_op_experts_kept_grad ? 2 : cpu_experts_is_gradient(op) ? 1 : 0;
}

/* Are there outputs by token: y, or dx and dweights? */
static inline bool cpu_experts_sums_tokens(const struct ct_op *op)
{
    return op->type != &ct_op_experts_dw;
}

/* The first output that is a gradient of the experts' weights; outs: none. */
static inline int cpu_experts_first_gradient(const struct ct_op *op)
{
    bool all = op->type == &ct_op_experts_grad || op->type == &ct_op_experts_kept_grad;

    return op->type == &ct_op_experts_dw ? 0 : all ? 2 : op->outs;
}

struct experts_sizes {
    int64_t tokens, k, n, f, count; /* experts of this rank */
    const struct cpu_gate *gate;    /* NULL: silu(g) u */
    bool biased;
    /* In the workspace: */
    size_t order, first, sum;
};

/* The choices of this rank's experts. */
struct experts_choices {
    const struct experts_sizes *sizes;
    int64_t *order, *first; /* by expert, in the order of tokens; the first of each, and the end */
    const float *weights;
    const int32_t *ids;
};

/* ---- experts_rows.c ---- */

/* CT_EINVAL names an id that is none of the experts. */
int cpu_experts_check(const int32_t *ids, int64_t count, int64_t experts);

bool cpu_experts_accept(const struct ct_prepare *p);
struct experts_sizes cpu_experts_sizes(struct ct_prepare *p);
int cpu_experts_sort(const struct ct_launch *l, const struct experts_sizes *sizes,
                     struct experts_choices *choices);

/* Hidden rows that the forward saves for the gradients: those of the sorted choices, `from` on, of
   the gate or of the other half. The op must be one that saves. */
float *cpu_experts_kept(const struct ct_launch *l, const struct experts_sizes *sizes, bool other,
                        int64_t from);

/* n elements from element i on, widened to float32 if that is the dtype. */
void cpu_experts_copy(const struct ct_tensor *from, int64_t i, int64_t n, enum ct_dtype dtype,
                      void *to);

/* Sums of tokens, in float32. A thread adds some columns of the rows of choices `from` on. */
float *cpu_experts_sums(const struct ct_launch *l, const struct experts_sizes *sizes);
void cpu_experts_add(const struct experts_choices *c, int64_t from, int64_t rows, const float *row,
                     bool weighted, struct cpu_range columns, float *sums);
/* To output 0. */
void cpu_experts_store(const struct ct_launch *l, const struct experts_sizes *sizes);
/* Gradients of the choices' weights, to be added to: 0 for experts of other ranks. */
float *cpu_experts_dweights(const struct ct_launch *l);

/* Gradients of the experts' weights; from D_GATE_BIAS on, of biases. */
enum { D_GATE, D_UP, D_DOWN, D_GATE_BIAS, D_UP_BIAS, GRADIENTS };

/*
 * An expert's part of a gradient is summed in float32: where it is, or in a buffer if the output is
 * bfloat16.
 */
size_t cpu_experts_buffer_bytes(const struct ct_prepare *p, int gradient);
float *cpu_experts_gradient(const struct ct_launch *l, int gradient, int64_t expert, float *buffer);
/* Are products to be added to what is in the output? Else the first one overwrites. */
bool cpu_experts_continues(const struct ct_launch *l, int gradient);
/* Zeros before the first row, unless they are to be added to what is there. */
void cpu_experts_begin_sum(const struct ct_launch *l, int gradient, int64_t expert, float *buffer);
/* The buffer's sums go to the output. */
void cpu_experts_end_sum(const struct ct_launch *l, int gradient, int64_t expert,
                         const float *buffer);
/* All gradients of an expert without rows. */
void cpu_experts_clear(const struct ct_launch *l, int64_t expert);

#endif
