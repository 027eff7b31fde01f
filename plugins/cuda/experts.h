/*
 * Calls of experts and of their gradients: what plain kernels (experts.c) and those on tensor cores
 * (experts_tensor.c) share. Sorted choices, and sums of their rows: expert_bias.c and
 * experts_float8.c, too.
 */
#ifndef GPU_EXPERTS_H
#define GPU_EXPERTS_H

#include <ctitan/lib/ops.h>

#include "gpu.h"

#define THREADS 256
/* As many tiles as a grid has blocks in its second dimension, less those that are not full. */
#define GPU_MOST_CHOICES ((int64_t)60000 * GPU_EXPERTS_TILE)

enum { X, WEIGHTS, IDS, GATE, UP, DOWN, GATE_BIAS, UP_BIAS };

/* Functions that tell ops of experts apart: whether hidden layers are saved, or were; whether it
   is a gradient; its input x, which is behind dy and the saved values. */
static inline bool gpu_experts_keeps(const struct ct_op *op)
{
    return op->type == &ct_op_experts_kept || op->type == &ct_op_experts_kept_grad;
}

static inline bool gpu_experts_is_gradient(const struct ct_op *op)
{
    return op->type != &ct_op_experts && op->type != &ct_op_experts_kept;
}

static inline int gpu_experts_x(const struct ct_op *op)
{
    return gpu_experts_is_gradient(op) + (op->type == &ct_op_experts_kept_grad);
}

/* Functions that sort choices, and sum rows by expert. */
struct gpu_choices {
    struct ct_cuda_function *sort[3];
    struct gpu_widths sum;
};

/* Functions of plain kernels, or of those on tensor cores. TURNED: PRODUCT by transposes. */
enum { PRODUCT, TURNED, OUTER, HIDDEN, HIDDEN_GRAD, COMBINE, EXPERTS_FUNCTIONS };

/* Functions, and offsets in the workspace. */
struct experts_state {
    struct gpu_choices choices;
    struct ct_cuda_function *f[EXPERTS_FUNCTIONS];
    size_t counts, order, tokens, place, g, u, dh, rows;
};

/* One call. Inner values, [choices][..] by expert: float32, or bfloat16 on tensor cores. */
struct experts_call {
    const struct ct_launch *l;
    const struct experts_state *state;
    const struct ct_tensor *in; /* in[X] and so on */
    struct gpu_experts all;
    struct gpu_gate how;
    const void *gate_bias, *up_bias; /* NULL: none */
    int64_t tokens, n, f;
    void *g, *u, *dh, *rows;
    void *kept_g, *kept_u;     /* where the hidden layers are kept, else g and u */
    const struct tiles *tiles; /* on tensor cores */
};

bool gpu_experts_accept(const struct ct_prepare *p);
/* element: bytes of an inner value; functions: names of EXPERTS_FUNCTIONS. */
int gpu_experts_prepare(struct ct_prepare *p, size_t element, const char *const *functions);
struct experts_call gpu_experts_call(const struct ct_launch *l, size_t element);

struct gpu_gate gpu_gate_of(const struct ct_experts *how);
int gpu_find_choices(const struct ct_prepare *p, struct gpu_choices *f);
int gpu_sort_choices(const struct ct_launch *l, const struct gpu_choices *f,
                     const struct gpu_experts *all);
/* A tensor's rows, those of the choices' tokens. */
struct gpu_expert_rows gpu_rows_of_tokens(const struct ct_tensor *t);
/* A warp for each row. */
int gpu_launch_rows(const struct ct_launch *l, struct ct_cuda_function *f, int64_t rows,
                    const void *arguments);
/* The gradients of the choices' weights, output 1 where dx is output 0; else NULL. */
float *gpu_dweights(const struct ct_launch *l);
/* Output 0: sums of c->rows by token. Weighted where it is y; where it is dx,
   gradients of choices' weights that other ranks compute become 0. */
int gpu_combine_rows(const struct experts_call *c);
/* The first output that is a gradient of the experts' weights. */
int gpu_first_gradient(const struct ct_op *op);

/* Output `out`: sums of rows by expert, weighted where weights are given. */
int gpu_sum_experts(const struct ct_launch *l, const struct gpu_choices *f,
                    const struct gpu_experts *all, struct gpu_expert_rows rows,
                    const float *weights, int out);
/* The gradients of the biases, from dg and du; nothing without biases. */
int gpu_sum_biases(const struct experts_call *c, struct gpu_expert_rows dg,
                   struct gpu_expert_rows du);

/* ---- experts_tensor.c ---- */

/* Do sizes, of a gate's shape, suit the kernels on tensor cores? */
bool gpu_experts_fit_tiles(const int64_t *gate);
/* Are all operands in bfloat16, of such sizes? */
bool gpu_experts_in_tiles(const struct ct_prepare *p);
/* Does the device have wgmma, and may it be used? */
bool gpu_has_wgmma(const struct ct_prepare *p);

#endif
