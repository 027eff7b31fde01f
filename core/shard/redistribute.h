/*
 * The cheapest chain of collectives from one sharding to another, and its cost.
 */
#ifndef CT_REDISTRIBUTE_H
#define CT_REDISTRIBUTE_H

#include <ctitan/core_ops.h>

struct ct_step {
    const struct ct_op_type *op; /* &ct_op_all_gather, .. */
    enum ct_reduction reduction;
    ct_axes axes;
    uint8_t axis[CT_MAX_AXES]; /* major first */
    int count;
    int dim, to;
    struct ct_sharding after;
};

struct ct_steps {
    struct ct_step step[2 * CT_MAX_AXES + CT_MAX_DIMS];
    int count;
};

/* Find the steps from one sharding to another. `to` may keep axes unreduced that are so in `from`.
   CT_EINVAL: it makes another axis unreduced. */
int ct_redistribute_steps(const struct ct_mesh *mesh, int ndim, const struct ct_sharding *from,
                          const struct ct_sharding *to, struct ct_steps *steps);

/* Bytes that a rank sends, according to the collectives of the steps. */
double ct_redistribute_bytes(const struct ct_mesh *mesh, const struct ct_value *value,
                             const struct ct_sharding *from, const struct ct_steps *steps);

#endif
