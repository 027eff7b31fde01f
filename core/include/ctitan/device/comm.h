/*
 * Communicators: how ranks find each other and what they do together.
 *
 * A communicator plugin offers one ct_comm_ops. A group is the ranks along some axes; what its
 * ranks do together is a call, one struct for all kinds. The core checks calls before a
 * communicator sees them, so no communicator does that again.
 *
 * Every call blocks the thread that makes it, and has a deadline. A rank that dies, hangs, or
 * enters another call than its peers becomes CT_EPEER on all others, with the call, the missing
 * ranks and what they did last. The first such failure ends the communicator: all later calls, in
 * every group, return it.
 *
 * Threads: one thread at a time in a group; different groups may be used by different threads at
 * once. open, close, reserve and group are the main thread's.
 */
#ifndef CT_COMM_H
#define CT_COMM_H

#include <stdarg.h>

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

/* ---- calls ---- */

/*
 * kind, name, what `in` and `out` hold: nothing, one count of elements, or one for every rank in
 * rank order; whether it reduces.
 *
 * reduce_scatter gives rank i the i-th count of the reduction; all_to_all moves the i-th count of
 * in to rank i. broadcast: every rank gets what position `from` has at in. exchange, send and
 * receive: in goes to position `to`, out comes from position `from`; they are in order for each
 * pair of ranks, and tag and bytes must match. send may wait for its receive; exchange does both at
 * once, so that rings and pairs cannot deadlock.
 */
#define CT_CALLS(X)                                                                                \
    X(BARRIER, "barrier", NOTHING, NOTHING, false)                                                 \
    X(ALL_GATHER, "all_gather", ONE, EACH, false)                                                  \
    X(REDUCE_SCATTER, "reduce_scatter", EACH, ONE, true)                                           \
    X(ALL_REDUCE, "all_reduce", ONE, ONE, true)                                                    \
    X(ALL_TO_ALL, "all_to_all", EACH, EACH, false)                                                 \
    X(BROADCAST, "broadcast", ONE, ONE, false)                                                     \
    X(EXCHANGE, "exchange", ONE, ONE, false)                                                       \
    X(SEND, "send", ONE, NOTHING, false)                                                           \
    X(RECEIVE, "receive", NOTHING, ONE, false)

enum ct_call_kind {
#define X(id, name, in, out, reduces) CT_CALL_##id,
    CT_CALLS(X)
#undef X
        CT_CALL_KINDS
};

/*
 * Counts are in elements of dtype; 0 is a rendezvous without data. Reductions are made in rank
 * order; bf16, f16 and float8 accumulate in float32 and round once: on the host the result is
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

CT_API const char *ct_call_name(enum ct_call_kind kind);
/* exchange, send or receive: between two ranks, not all. */
CT_API bool ct_call_is_message(enum ct_call_kind kind);
/* Bytes that a call reads at `in` and writes at `out`. */
CT_API size_t ct_call_in_bytes(const struct ct_call *call);
CT_API size_t ct_call_out_bytes(const struct ct_call *call);
/* CT_EINVAL: no such kind, dtype or reduction; a position that is not in the group, or of this rank
   itself; more bytes than can be counted. */
CT_API int ct_call_check(const struct ct_call *call);
/* Check it, and have the group's communicator do it. in and out are host memory. An exchange of a
   rank with itself is a copy. */
CT_API int ct_call_run(const struct ct_call *call);

/* The same, by kind. */
CT_API int ct_group_barrier(struct ct_group *group);
CT_API int ct_group_all_gather(struct ct_group *group, const void *in, void *out, size_t count,
                               enum ct_dtype dtype);
CT_API int ct_group_reduce_scatter(struct ct_group *group, const void *in, void *out, size_t count,
                                   enum ct_dtype dtype, enum ct_reduction reduction);
CT_API int ct_group_all_reduce(struct ct_group *group, const void *in, void *out, size_t count,
                               enum ct_dtype dtype, enum ct_reduction reduction);
CT_API int ct_group_all_to_all(struct ct_group *group, const void *in, void *out, size_t count,
                               enum ct_dtype dtype);
CT_API int ct_group_broadcast(struct ct_group *group, void *data, size_t count, enum ct_dtype dtype,
                              int root);
CT_API int ct_group_send(struct ct_group *group, const void *data, size_t bytes, int to, int tag);
CT_API int ct_group_receive(struct ct_group *group, void *data, size_t bytes, int from, int tag);
CT_API int ct_group_exchange(struct ct_group *group, const void *out, int to, void *in, int from,
                             size_t bytes, int tag);

/* ---- communicators ---- */

struct ct_comm_request {
    int rank, world; /* -1: the communicator knows itself (mpi) */
    int local_rank, local_ranks;
    const char *job; /* unique on this host while the job runs */
    double timeout;  /* seconds for any call, above 0 */
};

struct ct_comm_ops {
    size_t size; /* of this struct */
    /* Waits for all ranks. CT_ECONFIG: the communicator cannot serve such a job; CT_EPEER: ranks
       that did not come in time, by number. */
    int (*open)(const struct ct_comm_request *request, struct ct_comm **comm);
    /* Returns at once; peers that still wait for this rank fail. NULL is allowed. */
    void (*close)(struct ct_comm *comm);
    /* A memory segment of at least bytes at the same offset for all ranks of this host: each rank
       gets its own zeroed part, aligned to 4096; peers' parts are mapped, and calls on it take the
       zero-copy way. Collective over all ranks; the largest request counts. Unmapped by close.
       NULL: not offered. */
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
    /* Do a call that ct_call_check has passed. */
    int (*call)(const struct ct_call *call);

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

/* ---- for those who write communicators ---- */

/* For `open`. CT_EINVAL: no such rank, or no time. */
CT_API int ct_comm_check_request(const struct ct_comm_request *request);

/*
 * For `group`: a zeroed struct of `size` bytes, which begins with a struct ct_group that is filled
 * in; free() releases it with its name and ranks. CT_EINVAL: a rank is outside of the world, or
 * there twice, or this rank is none of them.
 */
CT_API int ct_group_new(const struct ct_comm *comm, const int64_t *ranks, int count,
                        const char *name, size_t size, struct ct_group **group);

/* The share of [0, bytes) that is `position`'s of n, in whole cache lines: its size and beginning.
 */
CT_API size_t ct_comm_share(size_t bytes, int n, int position, size_t *begin);

/*
 * out[k] = in[0][k] + in[1][k] + .. for k in [0, count), or their maximum, for communicators that
 * run on the host. Integers wrap. out may be any of in; the result does not depend on the
 * processor.
 */
CT_API void ct_reduce(void *out, const void *const *in, int inputs, size_t count,
                      enum ct_dtype dtype, enum ct_reduction reduction);

/* The failure that ended a communicator. Zeroed at first; any thread, and, in shared memory, any
   process may write it, and the first does. */
struct ct_first_failure {
    uint32_t state; /* 0: none; 1: being written; 2: written */
    char text[636];
};

/* Note a failure unless there was one. Returns CT_EPEER with the words of the first. */
CT_API int ct_first_failure_set(struct ct_first_failure *failure, const char *words, va_list args);
/* CT_EPEER with the words of the first; 0: there was none. */
CT_API int ct_first_failure_get(const struct ct_first_failure *failure);

CT_END_DECLS

#endif
