/* Groups of ranks. For the sources of this folder. */
#ifndef CT_COLLECTIVE_GROUPS_H
#define CT_COLLECTIVE_GROUPS_H

#include <ctitan/collective.h>

struct ct_known_group {
    const char *key;
    struct ct_group *group;
};

/* One group for each set of axes and stream, because calls on two streams have no common order. */
struct ct_communicator_groups {
    struct ct_arena *arena; /* for the list */
    struct ct_known_group *item;
    size_t count, room;
    double seconds; /* that making them took */
};

/* The group of the ranks along some axes on one stream, and the group of given ranks. */
int ct_communicator_group(const struct ct_communicator *communicator, const struct ct_mesh *mesh,
                          int64_t rank, ct_axes axes, int stream, struct ct_group **group);
int ct_communicator_ranks(const struct ct_communicator *communicator, const int64_t *ranks,
                          int count, const char *name, struct ct_group **group);

/* The group of the ranks at two coordinates along axes, the sender first. */
int ct_communicator_pair(const struct ct_communicator *communicator, const struct ct_mesh *mesh,
                         int64_t rank, ct_axes axes, int64_t from, int64_t to,
                         struct ct_group **group);

#endif
