/* Collectives: kernels in host memory, groups, and what is sent. Private to the core. */
#ifndef CT_COLLECTIVE_H
#define CT_COLLECTIVE_H

#include <ctitan/comm.h>
#include <ctitan/program.h>

struct ct_communicator_group {
    ct_axes axes;
    int stream;
    struct ct_group *group;
};

struct ct_communicator_pair {
    struct ct_peers peers;
    struct ct_group *group;
};

/* One group for each set of axes and stream: calls on two streams have no common order. One for
   each directed pair of pipeline ranks: both directions are in use at once. */
struct ct_communicator_groups {
    struct ct_communicator_group item[64];
    size_t count;
    struct ct_communicator_pair pair[64];
    size_t pair_count;
};

/* For every device in host memory; {0} ends. */
extern const struct ct_kernel ct_collective_kernels[];

/* "dp_shard.tp" as a set. */
ct_axes ct_mesh_axes(const struct ct_mesh *mesh, const char *text);

int ct_communicator_group(const struct ct_communicator *communicator, const struct ct_mesh *mesh,
                          int64_t rank, ct_axes axes, int stream, struct ct_group **group);

/* Make the groups of all pairs that this rank is in. All ranks have the same list, in one order. */
int ct_communicator_pairs(const struct ct_communicator *communicator, const struct ct_mesh *mesh,
                          int64_t rank, const struct ct_peers *pairs, size_t count);
/* The one made before; CT_EINVAL if it was not. */
int ct_communicator_pair(const struct ct_communicator *communicator, int64_t from, int64_t to,
                         struct ct_group **group);

/* What a rank sends, by the algorithms that send least. */
double ct_collective_bytes(const struct ct_op *op, const struct ct_mesh *mesh,
                           const struct ct_tensor *in, const struct ct_tensor *out);

#endif
