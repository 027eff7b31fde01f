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

#include <mpi.h>

#include <ctitan/device/comm.h>

struct comm {
    struct ct_comm base;
    double timeout;
    bool serialized; /* MPI takes one thread at a time */
    bool owner;      /* MPI was started here, and is ended here */
    pthread_mutex_t lock;
    struct group *groups;
    struct ct_first_failure failure;
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
    const void **inputs; /* of a reduction, by position */
    char *scratch;
    size_t scratch_bytes;

    enum ct_call_kind call; /* the current one */
    uint32_t number;
    int tag;
    MPI_Request *requests;
    struct part *parts;
    int count, room;
};

/* transfer.c */
/* Begin a call. CT_EPEER if the communicator is dead. */
int transfer_begin(struct group *g, const struct ct_call *call);
int transfer_send(struct group *g, const void *data, size_t bytes, int peer);
int transfer_receive(struct group *g, void *data, size_t bytes, int peer);
/* Wait for all that was begun; or, where beginning failed with rc, give it up. CT_EPEER: the
   deadline has passed, or a peer is in another call. No buffer is touched afterwards. */
int transfer_finish(struct group *g, int rc);
void cluster_lock(struct comm *comm);
void cluster_unlock(struct comm *comm);
/* CT_EPEER, for this call and all later ones. */
int cluster_fail(struct comm *comm, const char *fmt, ...) CT_PRINTF(2, 3);
/* code is what MPI returned from `what`. */
int cluster_check(struct comm *comm, int code, const char *what);

/* collective.c */
int cluster_call(const struct ct_call *call);

#endif
