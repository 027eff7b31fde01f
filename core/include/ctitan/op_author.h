/*
 * For authors of op types: the frame of a reference kernel, and what gradients need.
 */
#ifndef CT_OP_AUTHOR_H
#define CT_OP_AUTHOR_H

#include <ctitan/error.h>
#include <ctitan/op.h>

CT_BEGIN_DECLS

/*
 * The frame of a reference kernel: inputs as dense arrays of doubles (NULL: absent), outputs as
 * zeroed ones, which ct_reference_end stores, rounds and accumulates. Strides, dtypes and outputs
 * in the memory of inputs are thus no concern of the arithmetic in between.
 */
struct ct_reference {
    const struct ct_launch *launch;
    struct ct_arena arena;
    double **in, **out;
};

CT_API struct ct_reference ct_reference_begin(const struct ct_launch *launch);
/* Stores the outputs if rc is 0; returns rc. */
CT_API int ct_reference_end(struct ct_reference *r, int rc);

/* value as dtype would hold it */
CT_API double ct_rounded(enum ct_dtype dtype, double value);

/* Size of the last dimension, and number of rows of that size. */
CT_API int64_t ct_columns(const struct ct_tensor *t);
CT_API int64_t ct_rows(const struct ct_tensor *t);

/* Label or token i as an index below limit. CT_EINVAL names one that is outside. */
CT_API int ct_checked_index(const double *indices, int64_t i, int64_t limit, const char *what);
#define CT_MASKED (-100) /* a label that does not count */

/* "d.<name>" of an input: what its gradient is called. */
CT_API const char *ct_gradient_name(const struct ct_vjp *v, int input);
/* Emits a gradient op: din of the inputs listed gets the outputs in order. Nothing, where none of
   them is wanted. */
CT_API int ct_emit_gradients(struct ct_vjp *v, const struct ct_op_type *type,
                             struct ct_value *const *in, int ins, const void *attrs,
                             const int *inputs, int count);

CT_END_DECLS

#endif
