/* Groups of ranks. Private to the core. */
#ifndef CT_COLLECTIVE_H
#define CT_COLLECTIVE_H

#include <ctitan/device/collective.h>

struct ct_known_group {
    const char *key;
    struct ct_group *group;
};

/* One group for each set of axes and stream: calls on two streams have no common order. */
struct ct_communicator_groups {
    struct ct_arena *arena; /* where the list grows */
    struct ct_known_group *item;
    size_t count, room;
};

/* The ranks along some axes, on one stream; the ranks that are given. */
int ct_communicator_group(const struct ct_communicator *communicator, const struct ct_mesh *mesh,
                          int64_t rank, ct_axes axes, int stream, struct ct_group **group);
int ct_communicator_ranks(const struct ct_communicator *communicator, const int64_t *ranks,
                          int count, const char *name, struct ct_group **group);

/* Of the ranks at two coordinates along axes, the sender first. */
int ct_communicator_pair(const struct ct_communicator *communicator, const struct ct_mesh *mesh,
                         int64_t rank, ct_axes axes, int64_t from, int64_t to,
                         struct ct_group **group);
/* Make the groups of all pairs that the graph's sends and receives name. */
int ct_communicator_pairs(const struct ct_communicator *communicator, const struct ct_graph *graph,
                          int64_t rank);

#endif
