/*
 * The mesh: named axes whose sizes multiply to the number of ranks.
 *
 * Axes are ordered outermost first; a rank's coordinates are its number written in that mixed
 * radix, the last axis running fastest. Sets of axes are bit masks over their positions. Axes of
 * size 1 are left out: no collective ever names one.
 */
#ifndef CT_MESH_H
#define CT_MESH_H

#include <ctitan/base.h>

CT_BEGIN_DECLS

#define CT_MAX_AXES 8

typedef uint32_t ct_axes; /* bit i: axis i of the mesh */
#define CT_ALL_AXES ((ct_axes)-1)

/* How the values of several ranks are combined. A maximum over a NaN is NaN. */
enum ct_reduction { CT_REDUCE_SUM, CT_REDUCE_MAX };

struct ct_axis {
    const char *name; /* "dp_shard" */
    int64_t size;
};

struct ct_mesh {
    int count;
    struct ct_axis axis[CT_MAX_AXES];
};

/* Position of the axis called name, or -1. Axes of size 1 are not in the mesh. */
CT_API int ct_mesh_find(const struct ct_mesh *mesh, const char *name);
/* Coordinate of rank along an axis. */
CT_API int64_t ct_mesh_coordinate(const struct ct_mesh *mesh, int64_t rank, int axis);
/* Product of the sizes of the axes in a set. */
CT_API int64_t ct_mesh_degree(const struct ct_mesh *mesh, ct_axes axes);
/*
 * The ranks that differ from rank along axes only, in order of their coordinates along those axes
 * (the set's first axis slowest). ranks has room for ct_mesh_degree(); returns their number.
 */
CT_API int64_t ct_mesh_group(const struct ct_mesh *mesh, int64_t rank, ct_axes axes,
                             int64_t *ranks);

CT_END_DECLS

#endif
