/* Collectives on host devices: kernels, groups, and what they send. Private to the core. */
#ifndef CT_COLLECTIVE_H
#define CT_COLLECTIVE_H

#include <ctitan/comm.h>
#include <ctitan/program.h>

struct ct_communicator_group {
    ct_axes axes;
    int stream;
    struct ct_group *group;
};

/* One group for each set of axes and stream: calls on two streams have no common order. */
struct ct_communicator_groups {
    struct ct_communicator_group item[64];
    size_t count;
};

/* For every device in host memory; {0} ends. */
extern const struct ct_kernel ct_collective_kernels[];

int ct_communicator_group(const struct ct_communicator *communicator, const struct ct_mesh *mesh,
                          int64_t rank, ct_axes axes, int stream, struct ct_group **group);

/* What a rank sends, by the algorithms that send least. */
double ct_collective_bytes(const struct ct_op *op, const struct ct_mesh *mesh,
                           const struct ct_tensor *in, const struct ct_tensor *out);

#endif
