/*
 * How a global tensor lies over the mesh.
 *
 * A sharding has for each dimension an ordered list of axes, major first: {tp, dp_shard} on
 * dimension 0 means that tp splits it, and dp_shard splits each shard again. On the axes in
 * `unreduced` every rank holds a part of the true value, which is the sum of the ranks' parts, or
 * their maximum. On all other axes the value is replicated. An axis appears at most once.
 *
 * The gradient of a value has the dual sharding: replicated becomes unreduced and the reverse;
 * dimensions keep their axes. (Ordered axes per dimension follow Shardy; the unreduced set, JAX.)
 *
 * Text form, as in graph text: `[dp_shard, -, tp.cp]+{dp_replicate}`, or `max{dp_replicate}` for a
 * maximum. The text of a replicated value is empty.
 */
#ifndef CT_SHARDING_H
#define CT_SHARDING_H

#include <ctitan/mesh.h>
#include <ctitan/tensor.h>

CT_BEGIN_DECLS

struct ct_sharding {
    uint8_t count[CT_MAX_DIMS];             /* axes on this dimension */
    uint8_t axis[CT_MAX_DIMS][CT_MAX_AXES]; /* their positions in the mesh, major first */
    ct_axes unreduced;
    enum ct_reduction reduction; /* pending over `unreduced`; meaningless if that is empty */
};

/* An optional sharding; as an attribute, "" if it is not given. */
struct ct_target {
    bool given;
    struct ct_sharding sharding; /* replicated if it is not given */
};

/* True: no axis splits a dimension, and nothing is unreduced. */
CT_API bool ct_sharding_is_replicated(const struct ct_sharding *s);

/* True: the same axes on each dimension, in the same order, and the same pending reductions. */
CT_API bool ct_sharding_equal(const struct ct_sharding *a, const struct ct_sharding *b);
/* Axes that split some dimension. */
CT_API ct_axes ct_sharding_axes(const struct ct_sharding *s);
/* Split dimension dim by axis, inside the axes already there. */
CT_API void ct_sharding_split(struct ct_sharding *s, int dim, int axis);

/* CT_EINVAL names an axis that is used twice or is not in the mesh, or a dimension from ndim on
   that is split. */
CT_API int ct_sharding_check(const struct ct_sharding *s, const struct ct_mesh *mesh, int ndim);

/*
 * The first element of shard `index` of a dimension of `size` that is split into `shards`: their
 * sizes differ by one at most, and the larger ones come first. For index = shards it is `size`.
 */
CT_API int64_t ct_shard_begin(int64_t size, int64_t shards, int64_t index);
/* The shard that element `at` lies in; 0 <= at < size. */
CT_API int64_t ct_shard_of(int64_t size, int64_t shards, int64_t at);

/*
 * The shard of a global shape that a rank holds: its shape and, in offset (may be NULL), where it
 * begins. Each axis of a dimension splits the shard of those before it as ct_shard_begin says, so
 * that rank 0 has a largest shard, and a shard is empty only where shards outnumber the elements.
 */
CT_API void ct_sharding_local(const struct ct_sharding *s, const struct ct_mesh *mesh, int64_t rank,
                              int ndim, const int64_t *global, int64_t *local, int64_t *offset);

/* Print into text; returns the length that it needs, as snprintf does. */
CT_API int ct_sharding_print(const struct ct_sharding *s, const struct ct_mesh *mesh, int ndim,
                             char *text, size_t room);

CT_END_DECLS

#endif
