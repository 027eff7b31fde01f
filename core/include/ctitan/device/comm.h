/*
 * Communicators: how ranks find each other and what they do together.
 *
 * A communicator plugin offers one ct_comm_ops. A group is the ranks along some axes. What its
 * ranks do together is a call; one struct describes calls of all kinds. <ctitan/comm.h> makes
 * calls, and checks them before a communicator gets them, so communicators need not.
 *
 * Every call blocks the thread that makes it, and has a deadline. If a rank dies, hangs, or makes
 * another call than its peers, all others get CT_EPEER with the call, the missing ranks and what
 * they did last. The first such failure ends the communicator: all later calls, in every group,
 * return it.
 *
 * Threads: a group is used by one thread at a time; different groups may be used by different
 * threads at once. Only the main thread calls open, close, reserve and group.
 */
#ifndef CT_DEVICE_COMM_H
#define CT_DEVICE_COMM_H

#include <ctitan/mesh.h>
#include <ctitan/tensor.h>

CT_BEGIN_DECLS

struct ct_launch; /* op.h */

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
    /* Not set by the communicator, 0 at first: the group's number among this rank's groups of the
       same ranks and name, and the number of calls so far, without the host's messages between two
       ranks. Both are the same on all members. */
    int instance;
    int64_t calls;
};

/* ---- calls ---- */

/*
 * `in` and `out` hold nothing, `count` elements, or, where "each" is said, `count` elements for
 * every rank in rank order.
 */
enum ct_call_kind {
    CT_CALL_BARRIER,
    CT_CALL_ALL_GATHER,     /* out: each */
    CT_CALL_REDUCE_SCATTER, /* in: each; rank i gets the i-th `count` elements of the reduction */
    CT_CALL_ALL_REDUCE,
    CT_CALL_ALL_TO_ALL, /* in and out: each; rank i gets the i-th `count` elements of in */
    CT_CALL_BROADCAST,  /* every rank gets what position `from` has at in */
    /* in goes to position `to`, out comes from position `from`. They stay in order for each pair of
       ranks, and tag and bytes must match. SEND may wait for its RECEIVE; EXCHANGE does both at
       once, so that rings and pairs cannot deadlock. */
    CT_CALL_EXCHANGE,
    CT_CALL_SEND,    /* out: nothing */
    CT_CALL_RECEIVE, /* in: nothing */
    CT_CALL_KINDS
};

/*
 * Counts are in elements of dtype; 0 is a rendezvous without data. Reductions run in rank
 * order; bf16, f16 and float8 accumulate in float32 and round once. So on the host the result is
 * bitwise the same on every rank, in every run and in every communicator. (NCCL has its own order
 * and rounding.) A maximum with a NaN is NaN.
 *
 * All ranks of a group make the same calls in the same order; groups are independent. in and out
 * are the same (all_reduce, broadcast) or disjoint, except that in of all_gather may be its slot of
 * out, and out of reduce_scatter its slot of in.
 */
struct ct_call {
    enum ct_call_kind kind;
    struct ct_group *group;
    const void *in;
    void *out;
    size_t count;
    enum ct_dtype dtype;
    enum ct_reduction reduction;
    int to, from; /* positions in the group */
    int tag;
};

/* ---- communicators ---- */

struct ct_comm_request {
    int rank, world; /* -1: the communicator determines them (mpi) */
    int local_rank, local_ranks;
    const char *job;       /* unique on this host while the job runs */
    double timeout;        /* seconds for any call, above 0; set_timeout may change it */
    const char *interface; /* for traffic between hosts; empty: any */
};

struct ct_comm_ops {
    size_t size; /* of this struct */
    /* Wait for all ranks. CT_ECONFIG: the communicator cannot serve such a job; CT_EPEER: some
       ranks did not join in time; the message numbers them. */
    int (*open)(const struct ct_comm_request *request, struct ct_comm **comm);
    /* Returns at once; peers that still wait for this rank fail. comm may be NULL. */
    void (*close)(struct ct_comm *comm);
    /* Reserve a memory segment of at least bytes at the same offset for all ranks of this host.
       Each rank gets its own zeroed part, aligned to 4096. Peers' parts are mapped, and calls on
       the segment are zero-copy. Collective over all ranks; the largest request counts. close
       unmaps it. NULL: not offered. */
    int (*reserve)(struct ct_comm *comm, size_t bytes, void **base);
    /* Create a group. Ranks are distinct, in the same order on all members; this rank is one of
       them. Repeated creation gives independent groups: the n-th on one rank is the n-th on the
       others. */
    int (*group)(struct ct_comm *comm, const int64_t *ranks, int count, const char *name,
                 struct ct_group **group);

    /* Collectives of this group between begin and end are batched: they are only recorded, and
       `end` runs them all, or fails for any of them. No barrier, no messages, no call that reads
       what another one writes. Kinds, dtypes and order are the same on all ranks. NULL: not
       offered. */
    int (*begin)(struct ct_group *group);
    int (*end)(struct ct_group *group);
    /* Run a call that ct_call_check has accepted. */
    int (*call)(const struct ct_call *call);

    /* The first failure so far, for communicators with kernels whose calls are only enqueued.
       Called when the device has finished, before its results are used. NULL: the calls themselves
       return failures. */
    int (*check)(struct ct_comm *comm);

    size_t group_memory; /* bytes of the device's memory that a group needs beside arenas, about */
    const char *starter; /* the program that has to start its ranks: "mpirun"; NULL: any does */

    /* Seconds for calls from now on, in the place of the request's. No call is in progress. Every
       rank calls it after the same call. NULL: not offered. */
    void (*set_timeout)(struct ct_comm *comm, double seconds);
};

/* A communicator in use: what kernels of collectives get. */
struct ct_communicator {
    const struct ct_comm_ops *ops;
    struct ct_comm *comm;
    struct ct_communicator_groups *groups; /* what collective.h has made */
};

/*
 * How flat memory is moved from and to a device. All functions enqueue on the stream of the launch,
 * or have done their work when they return.
 *
 * Where calls are enqueued and no host waits in them, sends and receives run on streams of their
 * own, and receives are enqueued early. A device whose transport waits inside calls must set
 * in_order (device.h): then ranks communicate in the order of the program.
 */
struct ct_transport {
    size_t size;      /* of this struct */
    const char *name; /* of its kernels, in plans: "nccl" */
    bool waits;       /* the host waits in each call: used only if the device has no other */
    /* Calls between begin and end are batched into one. begin returns 1: they are, and `end` must
       follow whatever they return; 0: not in this group. NULL: they never are. */
    int (*begin)(const struct ct_launch *l, struct ct_group *group);
    int (*end)(const struct ct_launch *l, struct ct_group *group);
    /* Run a call that ct_call_check has accepted. A group for SEND and RECEIVE has two ranks, the
       sender first; each direction has its own group. */
    int (*call)(const struct ct_launch *l, const struct ct_call *call);
};

CT_END_DECLS

#endif
