/*
 * Communicators: how ranks find each other, and the kernels of collectives.
 *
 * A communicator plugin offers one ct_comm_ops and registers kernels for the collective op types on
 * the devices that it serves, so a program has no second way to run things: a collective is an
 * instruction on a communication stream. A group is the ranks along some axes.
 *
 * Every call blocks the thread that makes it, and has a deadline. A rank that dies, hangs, or
 * enters another collective than its peers becomes CT_EPEER on all others, with the collective, the
 * missing ranks and what they did last. The first such failure ends the communicator: all later
 * calls, in every group, return it.
 *
 * Threads: one thread at a time in a group; different groups may be used by different threads at
 * once. open, close, reserve and group are the main thread's.
 */
#ifndef CT_COMM_H
#define CT_COMM_H

#include <ctitan/mesh.h>
#include <ctitan/tensor.h>

CT_BEGIN_DECLS

struct ct_comm_ops;

/* Common head of every communicator, one per process; plugins put it first in their own struct. */
struct ct_comm {
    const struct ct_comm_ops *ops;
    int rank, world;
};

/* Common head of every group. Lives until its communicator is closed. */
struct ct_group {
    const struct ct_comm_ops *ops;
    const char *name;
    int position, size; /* of this rank among the group's */
    const int *ranks;   /* size of them */
    /* The core's, 0 at first: its number among this rank's groups of the same ranks and name, and
       the calls of programs so far. Both are the same on all members. */
    int instance;
    int64_t calls;
};

struct ct_comm_request {
    int rank, world; /* -1: the communicator knows itself (mpi) */
    int local_rank, local_ranks;
    const char *job; /* unique on this host while the job runs */
    double timeout;  /* seconds for any call, above 0 */
};

/*
 * Counts are in elements of dtype; 0 is a rendezvous without data. Buffers may be anywhere; those
 * inside the symmetric arena take the zero-copy way. Sums are made in rank order; bf16, f16 and
 * float8 accumulate in float32 and round once: the result is bitwise the same on every rank, in
 * every run and in every communicator. All ranks of a group make the same calls in the same order;
 * groups are independent. Input and output are the same or disjoint, except where in may be a slot
 * of out or the reverse.
 */
struct ct_comm_ops {
    size_t size; /* of this struct */
    /* Waits for all ranks. CT_ECONFIG: the communicator cannot serve such a job; CT_EPEER: ranks
       that did not come in time, by number. */
    int (*open)(const struct ct_comm_request *request, struct ct_comm **comm);
    /* Returns at once; peers that still wait for this rank fail. NULL is allowed. */
    void (*close)(struct ct_comm *comm);
    /* A memory segment of at least bytes at the same offset for all ranks of this host: each rank
       gets its own zeroed part, aligned to 4096; peers' parts are mapped. Collective over all
       ranks; the largest request counts. Unmapped by close. */
    int (*reserve)(struct ct_comm *comm, size_t bytes, void **base);
    /* Ranks are distinct, in the same order on all members; this rank is one of them. Repeated
       creation gives independent groups, the n-th on one rank being the n-th on the others. */
    int (*group)(struct ct_comm *comm, const int64_t *ranks, int count, const char *name,
                 struct ct_group **group);

    /* Collectives of this group between the two are one call: they are only noted, and `end` does
       them all, or fails for any of them. No barrier, no messages, none that reads what another
       writes; kinds, dtypes and order are the same on all ranks. NULL: not offered. */
    int (*begin)(struct ct_group *group);
    int (*end)(struct ct_group *group);

    int (*barrier)(struct ct_group *group);
    /* in: count per rank; out: count x ranks, in rank order. in may be its slot of out. */
    int (*all_gather)(struct ct_group *group, const void *in, void *out, size_t count,
                      enum ct_dtype dtype);
    /* in: count x ranks; out: count. out may be its slot of in. */
    int (*reduce_scatter)(struct ct_group *group, const void *in, void *out, size_t count,
                          enum ct_dtype dtype, enum ct_reduction reduction);
    /* in may be out. */
    int (*all_reduce)(struct ct_group *group, const void *in, void *out, size_t count,
                      enum ct_dtype dtype, enum ct_reduction reduction);
    /* in, out: count x ranks; shard i of in goes to rank i. Not in place. */
    int (*all_to_all)(struct ct_group *group, const void *in, void *out, size_t count,
                      enum ct_dtype dtype);
    int (*broadcast)(struct ct_group *group, void *data, size_t count, enum ct_dtype dtype,
                     int root);
    /* Peers are positions in the group. Ordered per pair; tag and bytes must match. send may wait
       for its receive. */
    int (*send)(struct ct_group *group, const void *data, size_t bytes, int peer, int tag);
    int (*receive)(struct ct_group *group, void *data, size_t bytes, int peer, int tag);
    /* Both at once, so that rings and pairs cannot deadlock; equal to them in any other way. */
    int (*exchange)(struct ct_group *group, const void *out, size_t out_bytes, int to, void *in,
                    size_t in_bytes, int from, int tag);

    /* The first failure so far, for communicators with kernels whose calls are only enqueued: asked
       when the device has come to rest, before what it computed is believed. NULL: calls say it
       themselves. */
    int (*check)(struct ct_comm *comm);
};

/* A communicator in use: what kernels of collectives get. */
struct ct_communicator {
    const struct ct_comm_ops *ops;
    struct ct_comm *comm;
    struct ct_communicator_groups *groups; /* the core's */
};

/* What `group` asks of its ranks, for communicators. CT_EINVAL: one is outside of the world, or
   there twice, or this rank is none of them. */
CT_API int ct_comm_check_ranks(const struct ct_comm *comm, const int64_t *ranks, int count,
                               const char *name);

/*
 * out[k] = in[0][k] + in[1][k] + .. for k in [0, count), or their maximum, for communicators that
 * run on the host. Integers wrap. out may be any of in; the result does not depend on the
 * processor.
 */
CT_API void ct_reduce(void *out, const void *const *in, int inputs, size_t count,
                      enum ct_dtype dtype, enum ct_reduction reduction);

CT_END_DECLS

#endif
