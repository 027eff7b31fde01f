/*
 * The op types that the core itself emits: their attributes, and functions that add one to a graph.
 *
 * A struct has the name of its op. Functions return the op's (first) output. All accept NULL inputs
 * and return NULL once the builder has failed.
 */
#ifndef CT_CORE_OPS_H
#define CT_CORE_OPS_H

#include <ctitan/op.h>

CT_BEGIN_DECLS

#define CT_CORE_OPS(X)                                                                             \
    X(add)                                                                                         \
    X(view)                                                                                        \
    X(narrow)                                                                                      \
    X(pad)                                                                                         \
    X(concat)                                                                                      \
    X(cast)                                                                                        \
    X(reciprocal)                                                                                  \
    X(redistribute)                                                                                \
    X(all_gather)                                                                                  \
    X(reduce_scatter)                                                                              \
    X(all_reduce)                                                                                  \
    X(all_to_all)                                                                                  \
    X(permute)                                                                                     \
    X(slice)                                                                                       \
    X(squared_norm)                                                                                \
    X(clip_coefficient)                                                                            \
    X(send)                                                                                        \
    X(receive)                                                                                     \
    X(contribution)

#define X(id) extern CT_API const struct ct_op_type ct_op_##id;
CT_CORE_OPS(X)
#undef X

/* ---- elements ---- */

/* x + y, elementwise. Both have the same shape and dtype. */
CT_API struct ct_value *ct_add(struct ct_builder *b, const char *name, struct ct_value *x,
                               struct ct_value *y);

struct ct_reciprocal { /* numerator / x */
    double numerator;
};

struct ct_cast {
    enum ct_dtype dtype;
};
/* The same numbers in another floating-point dtype. */
CT_API struct ct_value *ct_cast(struct ct_builder *b, const char *name, struct ct_value *x,
                                enum ct_dtype dtype);

struct ct_view {
    struct ct_shape shape;
};
/* The same elements in another shape; at most one run of dimensions is split or merged. */
CT_API struct ct_value *ct_view(struct ct_builder *b, const char *name, struct ct_value *x,
                                int ndim, const int64_t *shape);

/* These three work on a dimension that no axis splits. They copy, and take any strides. */
struct ct_narrow {
    int64_t dim, from, size;
};
/* Indices [from, from + size) of a dimension. */
CT_API struct ct_value *ct_narrow(struct ct_builder *b, const char *name, struct ct_value *x,
                                  int dim, int64_t from, int64_t size);
struct ct_pad {
    int64_t dim, from, size;
};
/* The dimension with `size` indices: x from index `from` on, zeros before and behind it. */
CT_API struct ct_value *ct_pad(struct ct_builder *b, const char *name, struct ct_value *x, int dim,
                               int64_t from, int64_t size);
struct ct_concat {
    int64_t dim;
};
/* Concatenate values along a dimension; their other dimensions are equal. */
CT_API struct ct_value *ct_concat(struct ct_builder *b, const char *name, struct ct_value *const *x,
                                  int count, int dim);

/* A builder for ops that fill parameters. It adds them behind the other init ops, in front of all
   other ops. */
CT_API struct ct_builder ct_init_builder(struct ct_graph *graph);

/* A builder for ops that run once a step, before the microbatches. It adds them in front of all
   ops that do not fill parameters. */
CT_API struct ct_builder ct_pre_builder(struct ct_graph *graph);

/* ---- shardings ---- */

struct ct_redistribute {
    struct ct_target to;       /* not given: replicated */
    struct ct_target gradient; /* of the gradient in each microbatch; not given: left as it is */
};
/* The same value in the sharding `to`. gradient NULL: not given. */
CT_API struct ct_value *ct_redistribute(struct ct_builder *b, const char *name, struct ct_value *x,
                                        const struct ct_sharding *to,
                                        const struct ct_sharding *gradient);

/* Attributes of all collectives, and of slice. Each op reads those that it needs. */
struct ct_collective_attrs {
    ct_axes axes;                /* of the group */
    int64_t dim;                 /* split before the op (all_gather, all_to_all) or after it */
    int64_t to;                  /* all_to_all: split after the op */
    int64_t shift;               /* permute: a shard moves by this many ranks, round the group */
    enum ct_reduction reduction; /* all_reduce, reduce_scatter */
};

/* These take `count` values in one call. Output i is the result for x[i]: its reduction over the
   group, on every rank. lib/ops.h has the other collectives. */
CT_API struct ct_op *ct_all_reduce(struct ct_builder *b, const char *name,
                                   struct ct_value *const *x, int count, ct_axes axes,
                                   enum ct_reduction reduction);
/* Each rank's shard moves to the rank `shift` places further in the group; the last ones wrap
   round. */
CT_API struct ct_op *ct_permute(struct ct_builder *b, const char *name, struct ct_value *const *x,
                                int count, ct_axes axes, int shift);

/* ---- the gradient's norm ---- */

/* Sum of the squares of all elements, float64. */
CT_API struct ct_value *ct_squared_norm(struct ct_builder *b, const char *name,
                                        struct ct_value *const *x, int count);

struct ct_clip_coefficient {
    double max_norm; /* 0 or less: no limit */
};
/* Outputs: the norm from sums of squares; the factor that clips it, -1 if that is not finite. */
CT_API struct ct_op *ct_clip_coefficient(struct ct_builder *b, const char *name,
                                         struct ct_value *const *sums, int count, double max_norm);

/* ---- values that only some ranks along the graph's partition_axis have ---- */

struct ct_transfer {     /* send, receive */
    ct_axes axes;        /* ranks are numbered along these */
    enum ct_dtype dtype; /* receive: of the value, and its shape */
    struct ct_shape shape;
    int64_t from, to, tag;
};
/* `origin` is the value in the graph that all ranks share: its id is the tag, and it has the dtype,
   shape and sharding of what is sent. */
CT_API int ct_send(struct ct_builder *b, const struct ct_value *origin, struct ct_value *value,
                   int from, int to);
CT_API struct ct_value *ct_receive(struct ct_builder *b, const char *name,
                                   const struct ct_value *origin, int from, int to);

struct ct_contribution { /* dtype and shape: for an absent input */
    ct_axes axes;
    enum ct_dtype dtype;
    struct ct_shape shape;
};
/* x as a pending sum over partition_axis: the first rank that has x gives it, all others zeros. */
CT_API struct ct_value *ct_contribution(struct ct_builder *b, const char *name, struct ct_value *x);

CT_END_DECLS

#endif
