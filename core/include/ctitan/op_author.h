/*
 * For authors of op types: the frame of a reference kernel, and helpers for gradients.
 */
#ifndef CT_OP_AUTHOR_H
#define CT_OP_AUTHOR_H

#include <ctitan/error.h>
#include <ctitan/op.h>

CT_BEGIN_DECLS

/*
 * The frame of a reference kernel. Inputs are dense arrays of doubles (NULL: absent). Outputs are
 * zeroed arrays, which ct_reference_end stores, rounds and accumulates. The arithmetic in between
 * need not handle strides, dtypes, or outputs in the memory of inputs.
 */
struct ct_reference {
    const struct ct_launch *launch;
    struct ct_arena arena;
    double **in, **out;
};

/* Read the inputs and allocate the outputs; ct_reference_end must follow. */
CT_API struct ct_reference ct_reference_begin(const struct ct_launch *launch);
/* Store the outputs if rc is 0; returns rc. */
CT_API int ct_reference_end(struct ct_reference *r, int rc);

/* Size of the last dimension, and number of rows of that size. */
CT_API int64_t ct_columns(const struct ct_tensor *t);
CT_API int64_t ct_rows(const struct ct_tensor *t);

/* value rounded to dtype */
CT_API double ct_rounded(enum ct_dtype dtype, double value);

/* log of the sum of exp(x[i]), for any magnitudes */
CT_API double ct_log_sum_exp(const double *x, int64_t n);

/* "d.<name>": the name of the gradient of an input. */
CT_API const char *ct_gradient_name(const struct ct_vjp *v, int input);
/* Emit a gradient op, and set din of the listed inputs to its outputs, in order. Does nothing if
   none of them is wanted. */
CT_API int ct_emit_gradients(struct ct_vjp *v, const struct ct_op_type *type,
                             struct ct_value *const *in, int ins, const void *attrs,
                             const int *inputs, int count);

CT_END_DECLS

#endif
