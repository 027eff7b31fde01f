/*
 * The mpi communicator's own structures.
 *
 * Every call is made of messages between pairs, begun at once and then waited for together. That is
 * what lets a time-out name the ranks that did not answer, and lets sums be made in rank order, so
 * that results are bitwise those of `local`. The tag of a message says which call it belongs to: a
 * rank that is in another call is recognised by the tags that it sends.
 */
#ifndef CLUSTER_H
#define CLUSTER_H

#include <pthread.h>
#include <stdatomic.h>

#include <mpi.h>

#include <ctitan/device/comm.h>

#define CALLS(X)                                                                                   \
    X(BARRIER, "barrier")                                                                          \
    X(ALL_GATHER, "all_gather")                                                                    \
    X(REDUCE_SCATTER, "reduce_scatter")                                                            \
    X(ALL_REDUCE, "all_reduce")                                                                    \
    X(ALL_TO_ALL, "all_to_all")                                                                    \
    X(BROADCAST, "broadcast")                                                                      \
    X(MESSAGE, "message")

enum call {
#define X(id, name) CALL_##id,
    CALLS(X)
#undef X
};

struct comm {
    struct ct_comm base;
    double timeout;
    bool serialized; /* MPI takes one thread at a time */
    bool owner;      /* MPI was started here, and is ended here */
    pthread_mutex_t lock;
    struct group *groups;
    atomic_int failed; /* 1: the first failure is being written down; 2: it is */
    char failure[512];
};

/* A message under way. */
struct part {
    int peer;
    bool sends;
    size_t bytes;
};

struct group {
    struct ct_group base;
    struct comm *comm;
    struct group *next;
    MPI_Comm mpi;
    int *ranks;
    const void **inputs; /* of a reduction, by position */
    char *scratch;
    size_t scratch_bytes;

    enum call call; /* the current one */
    uint32_t number;
    int tag;
    MPI_Request *requests;
    struct part *parts;
    int count, room;
};

/* transfer.c */
/* Begin a call. CT_EPEER if the communicator is dead. */
int transfer_begin(struct group *g, enum call call, enum ct_dtype dtype,
                   enum ct_reduction reduction, size_t count, int root);
int transfer_begin_message(struct group *g, int tag);
int transfer_send(struct group *g, const void *data, size_t bytes, int peer);
int transfer_receive(struct group *g, void *data, size_t bytes, int peer);
/* Wait for all that was begun. CT_EPEER: the deadline has passed, or a peer is in another call. */
int transfer_finish(struct group *g);
void cluster_lock(struct comm *comm);
void cluster_unlock(struct comm *comm);
/* CT_EPEER, for this call and all later ones. */
int cluster_fail(struct comm *comm, const char *fmt, ...) CT_PRINTF(2, 3);
/* The first failure again; 0: there was none. */
int cluster_failed(struct comm *comm);
/* code is what MPI returned from `what`. */
int cluster_check(struct comm *comm, int code, const char *what);

/* collective.c */
int cluster_barrier(struct ct_group *group);
int cluster_all_gather(struct ct_group *group, const void *in, void *out, size_t count,
                       enum ct_dtype dtype);
int cluster_reduce_scatter(struct ct_group *group, const void *in, void *out, size_t count,
                           enum ct_dtype dtype, enum ct_reduction reduction);
int cluster_all_reduce(struct ct_group *group, const void *in, void *out, size_t count,
                       enum ct_dtype dtype, enum ct_reduction reduction);
int cluster_all_to_all(struct ct_group *group, const void *in, void *out, size_t count,
                       enum ct_dtype dtype);
int cluster_broadcast(struct ct_group *group, void *data, size_t count, enum ct_dtype dtype,
                      int root);
int cluster_send(struct ct_group *group, const void *data, size_t bytes, int peer, int tag);
int cluster_receive(struct ct_group *group, void *data, size_t bytes, int peer, int tag);
int cluster_exchange(struct ct_group *group, const void *out, size_t out_bytes, int to, void *in,
                     size_t in_bytes, int from, int tag);

#endif
