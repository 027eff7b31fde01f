/*
 * Shared by the two sources of the standard collectives. layout.c finds once where shards lie;
 * collective.c moves them over a transport.
 */
#ifndef CT_COLLECTIVE_LAYOUT_H
#define CT_COLLECTIVE_LAYOUT_H

#include <ctitan/collective.h>
#include <ctitan/core_ops.h>

/* A rank's shard along a dimension. */
struct ct_shard {
    int64_t offset, size;
};

struct ct_layout {
    /* By rank of the group, which may have very many. Nearly always NULL: `length` is split into
       shards for the ranks, as ct_shard_begin says. */
    const struct ct_shard *shard;
    int64_t ranks;
    int64_t outer, length, largest; /* elements before and along the dimension */
    size_t inner;                   /* bytes of those after it */
};

struct ct_shard ct_layout_shard(const struct ct_layout *l, int64_t rank);

/* One of several values gathered or scattered together. */
struct ct_layout_item {
    struct ct_layout whole;
    bool direct;
    size_t at, bytes; /* in the workspace: this rank's shard of `bytes`, then all shards */
};

/* The state of a launch. */
struct ct_moved {
    struct ct_collective head;
    int64_t shift; /* for a permutation */
    struct ct_layout_item *items;
    struct ct_layout in, out; /* of the exchanged whole */
};

int ct_prepare_gather(struct ct_prepare *p);
int ct_prepare_scatter(struct ct_prepare *p);
int ct_prepare_all_reduce(struct ct_prepare *p);
int ct_prepare_exchange(struct ct_prepare *p);
int ct_prepare_permute(struct ct_prepare *p);
int ct_prepare_slice(struct ct_prepare *p);

/* Elements of the largest packet in an exchange of x. A packet is what one rank sends to another: a
   shard along both dimensions. */
size_t ct_collective_packet(const struct ct_moved *m, const struct ct_tensor *x, int dim, int to);

#endif
