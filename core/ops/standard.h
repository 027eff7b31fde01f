/*
 * What the sources of the standard ops share: the list of them, and the frame of a reference
 * kernel.
 */
#ifndef CT_OPS_STANDARD_H
#define CT_OPS_STANDARD_H

#include <ctitan/error.h>
#include <ctitan/op.h>
#include <ctitan/ops.h>

#define CT_STANDARD_OPS(X)                                                                         \
    X(embedding)                                                                                   \
    X(embedding_grad)                                                                              \
    X(linear)                                                                                      \
    X(linear_dx)                                                                                   \
    X(linear_dw)                                                                                   \
    X(rms_norm)                                                                                    \
    X(add_rms_norm)                                                                                \
    X(rms_norm_grad)                                                                               \
    X(add)                                                                                         \
    X(rope)                                                                                        \
    X(attention)                                                                                   \
    X(attention_grad)                                                                              \
    X(attention_merge)                                                                             \
    X(swiglu)                                                                                      \
    X(swiglu_grad)                                                                                 \
    X(view)                                                                                        \
    X(cast)                                                                                        \
    X(linear_cross_entropy)                                                                        \
    X(linear_cross_entropy_grad)                                                                   \
    X(cross_entropy)                                                                               \
    X(cross_entropy_grad)                                                                          \
    X(cross_entropy_partial)                                                                       \
    X(cross_entropy_partial_grad)                                                                  \
    X(cross_entropy_merge)                                                                         \
    X(cross_entropy_merge_grad)                                                                    \
    X(squared_norm)                                                                                \
    X(clip_coefficient)                                                                            \
    X(reciprocal)                                                                                  \
    X(redistribute)                                                                                \
    X(all_gather)                                                                                  \
    X(reduce_scatter)                                                                              \
    X(all_reduce)                                                                                  \
    X(all_to_all)                                                                                  \
    X(permute)                                                                                     \
    X(slice)                                                                                       \
    X(send)                                                                                        \
    X(receive)                                                                                     \
    X(stage_sum)                                                                                   \
    X(load)                                                                                        \
    X(store)                                                                                       \
    X(offload)                                                                                     \
    X(init_normal)                                                                                 \
    X(init_constant)                                                                               \
    X(float8_scale)                                                                                \
    X(float8_quantise)                                                                             \
    X(float8_linear)

#define X(id) extern const struct ct_op_type ct_op_##id;
CT_STANDARD_OPS(X)
#undef X

/* "8,256": sizes with commas between. */
int ct_shape_parse(const char *text, int *rank, int64_t *shape);

/* All of the above; NULL ends it. */
extern const struct ct_op_type *const ct_standard_ops[];

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

struct ct_reference ct_reference_begin(const struct ct_launch *launch);
/* Stores the outputs if rc is 0; returns rc. */
int ct_reference_end(struct ct_reference *r, int rc);

/* value as dtype would hold it */
double ct_rounded(enum ct_dtype dtype, double value);

/* Size of the last dimension, and number of rows of that size. */
int64_t ct_columns(const struct ct_tensor *t);
int64_t ct_rows(const struct ct_tensor *t);

/* Label or token i as an index below limit. CT_EINVAL names one that is outside. */
int ct_checked_index(const double *indices, int64_t i, int64_t limit, const char *what);
#define CT_MASKED (-100)

/* "d.<name>" of an input: what its gradient is called. */
const char *ct_gradient_name(const struct ct_vjp *v, int input);
/* ct_emit of a gradient op: din of the inputs listed gets the outputs in order. */
int ct_emit_gradients(struct ct_vjp *v, const char *type, struct ct_value *const *in, int ins,
                      const void *attrs, const int *inputs, int count);

#endif
