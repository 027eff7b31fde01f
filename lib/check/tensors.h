/* Operands, and whole tensors in row-major order of their elements; strides are honoured. */
#ifndef CHECK_TENSORS_H
#define CHECK_TENSORS_H

#include <ctitan/graph.h>
#include <ctitan/tensor.h>

struct ct_arena;

/* Operand i of an op: outputs come first. NULL: an input that is absent. */
const struct ct_value *tensor_operand(const struct ct_op *op, int i);
/* Bits; both have the same dtype and shape. */
void tensor_copy(const struct ct_tensor *to, const struct ct_tensor *from);
/* The elements as numbers: their own memory if they are dense and in float64, else in arena. */
const double *tensor_numbers(const struct ct_tensor *t, struct ct_arena *arena);
/* The largest finite element, by size; the largest difference of two elements in the same place. */
double tensor_largest(const struct ct_tensor *t, struct ct_arena *arena);
double tensor_difference(const struct ct_tensor *a, const struct ct_tensor *b,
                         struct ct_arena *arena);

#endif
