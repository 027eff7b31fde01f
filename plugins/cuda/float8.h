/* Products of Float8 operands, and the grids of their scales. */
#ifndef GPU_FLOAT8_H
#define GPU_FLOAT8_H

#include "blas.h"

static inline int64_t gpu_rows_of(const struct ct_tensor *t)
{
    return ct_shape_count(t->ndim - 1, t->shape);
}

static inline int64_t gpu_columns_of(const struct ct_tensor *t)
{
    return t->shape[t->ndim - 1];
}

/* The parts of x that have a number each in the grid, GPU_PER_*, -1: others. Of blocks, which have
   8, 16 or 32 numbers, *shift is the power of two. */
int gpu_float8_per(const struct ct_tensor *x, const struct ct_tensor *grid, int32_t *shift);

/* An operand as the product needs it: rows of its matrix, or of its transpose, are summed over. */
struct gpu_operand {
    int input;
    bool stored, turned;   /* stored transposed; to be transposed */
    int64_t rows, columns; /* after transposing */
    size_t at, scale_at;   /* in the workspace: what the product reads, if it is not the input;
                              factors */
};

struct gpu_operands {
    struct gpu_operand a, b; /* c = a b^T */
};

/* Operands of linear_float8 and its gradients: y = x w^T, dx = dy (w^T)^T, dw = dy^T (x^T)^T. */
struct gpu_operands gpu_linear_operands(const struct ct_prepare *p);
struct gpu_operands gpu_dx_operands(const struct ct_prepare *p);
struct gpu_operands gpu_dw_operands(const struct ct_prepare *p);

/* Transposes the operand's codes to its place in the workspace, by function float8_turn. */
int gpu_turn(const struct ct_launch *l, struct ct_cuda_function *turn, const struct gpu_operand *o);

/* `accepts` and `prepare` of the three products, by accept(p, operands), prepare(p, operands). */
#define GPU_FLOAT8_PRODUCTS(name, accept, prepare)                                                 \
    GPU_FLOAT8_PRODUCT(name, linear, accept, prepare)                                              \
    GPU_FLOAT8_PRODUCT(name, dx, accept, prepare)                                                  \
    GPU_FLOAT8_PRODUCT(name, dw, accept, prepare)
#define GPU_FLOAT8_PRODUCT(name, which, accept, prepare)                                           \
    static bool accepts_##name##_##which(const struct ct_prepare *p)                               \
    {                                                                                              \
        struct gpu_operands operands = gpu_##which##_operands(p);                                  \
                                                                                                   \
        return accept(p, &operands);                                                               \
    }                                                                                              \
    static int prepare_##name##_##which(struct ct_prepare *p)                                      \
    {                                                                                              \
        return prepare(p, gpu_##which##_operands(p));                                              \
    }

#endif
