/* Operands along sequences, as kernels take them. */
#ifndef GPU_SEQUENCES_H
#define GPU_SEQUENCES_H

#include "gpu.h"
#include "kernels/sequences.h"

/* An operand with `dims` dimensions behind one or two of the batch. */
static inline struct gpu_sequence gpu_sequence_of(const struct ct_tensor *t, int dims)
{
    int first = t->ndim - dims;

    if (!t->data)
        return (struct gpu_sequence){NULL};
    return (struct gpu_sequence){.data = t->data,
                                 .first = t->stride[0],
                                 .second = first > 1 ? t->stride[1] : 0,
                                 .token = t->stride[first],
                                 .head = dims > 1 ? t->stride[first + 1] : 0,
                                 .size = t->shape[t->ndim - 1],
                                 .kind = ct_cuda_float_of(t->dtype)};
}

static inline struct gpu_sequence gpu_sequence_of_input(const struct ct_launch *l, int i, int dims)
{
    return i >= 0 && i < l->ins ? gpu_sequence_of(&l->in[i], dims) : (struct gpu_sequence){NULL};
}

/* Sequences of the second dimension of the batch; 1: there is none. */
static inline int64_t gpu_inner(const struct ct_tensor *t, int dims)
{
    return t->ndim - dims > 1 ? t->shape[1] : 1;
}

static inline int64_t gpu_sequences(const struct ct_tensor *t, int dims)
{
    return ct_shape_count(t->ndim - dims, t->shape);
}

/* Whether the batch has a dimension or two. */
static inline bool gpu_is_batch(const struct ct_tensor *t, int dims)
{
    return t->ndim - dims == 1 || t->ndim - dims == 2;
}

#endif
