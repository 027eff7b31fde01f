/*
 * The mpi communicator's own structures.
 *
 * Every call consists of messages between pairs, which are all started at once and then waited for
 * together. A time-out can therefore name the ranks that did not answer. Sums are made in rank
 * order, so results are bitwise equal to those of `local`. The tag of a message identifies its
 * call, so tags reveal a rank that is in another call.
 */
#ifndef CLUSTER_H
#define CLUSTER_H

#include <pthread.h>

#include <mpi.h>

#include <ctitan/comm.h>

struct comm {
    struct ct_comm base;
    double timeout;
    bool serialized; /* MPI allows one thread at a time */
    bool owner;      /* this plugin started MPI, and finalizes it */
    pthread_mutex_t lock;
    struct group *groups;
    struct ct_first_failure failure;
};

/* A message in flight. */
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
    const void **inputs; /* inputs of a reduction, by position */
    char *scratch;
    size_t scratch_bytes;

    enum ct_call_kind call; /* of the current call */
    uint32_t number;
    int tag;
    MPI_Request *requests;
    struct part *parts;
    int count, room;
};

/* transfer.c */
/* Begin a call. CT_EPEER if the communicator has failed. */
int transfer_begin(struct group *g, const struct ct_call *call);
int transfer_send(struct group *g, const void *data, size_t bytes, int peer);
int transfer_receive(struct group *g, void *data, size_t bytes, int peer);
/* Wait for all messages of the call, or cancel them if starting them failed with rc. CT_EPEER: the
   deadline has passed, or a peer is in another call. Buffers are not touched afterwards. */
int transfer_finish(struct group *g, int rc);
void cluster_lock(struct comm *comm);
void cluster_unlock(struct comm *comm);
/* Returns CT_EPEER, for this call and all later ones. */
int cluster_fail(struct comm *comm, const char *fmt, ...) CT_PRINTF(2, 3);
/* code is the return value of the MPI function `what`. */
int cluster_check(struct comm *comm, int code, const char *what);

/* collective.c */
int cluster_call(const struct ct_call *call);

#endif
