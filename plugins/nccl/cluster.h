/*
 * The nccl communicator's own structures.
 *
 * Ranks meet at rank 0's store, a table of short values by key, served over a socket by a thread
 * of rank 0: there they learn that all have come, and the ids of NCCL's communicators. A group is a
 * communicator of NCCL with an id of its own, so ranks of different groups need not make them in
 * the same order.
 *
 * NCCL's communicators are non-blocking: what is still in progress is polled, with a deadline. A
 * watchdog thread looks whether collectives get done; the first that does not within the time-out,
 * or an error of NCCL's own, ends the communicator: all NCCL communicators are aborted, which
 * releases the streams, and every later call returns CT_EPEER with the same words.
 */
#ifndef NCCL_CLUSTER_H
#define NCCL_CLUSTER_H

#include <pthread.h>
#include <stdatomic.h>

#include <ctitan/clock.h>
#include <ctitan/device/collective.h>
#include <ctitan/error.h>
#include <ctitan/op.h>

#include "library.h"

struct config {
    int64_t port;
    bool windows, share_device;
};
extern struct config nccl_config;

struct store;
struct watchdog;

struct comm {
    struct ct_comm base;
    double timeout;
    struct store *store;
    struct watchdog *watchdog;
    CUcontext context;
    struct group *groups;
    pthread_mutex_t lock; /* of NCCL's calls, and of what aborts them */
    _Atomic bool failed;
    struct ct_first_failure failure;
};

struct group {
    struct ct_group base;
    struct comm *comm;
    struct group *next;
    ncclComm_t nccl;
    CUdeviceptr window_base; /* the arena that is registered; 0: none */
    ncclWindow_t window;     /* written by a thread of NCCL's, after the call */
    bool together;           /* calls are one until transport_end; the lock is held */
    uint32_t calls;
    CUstream stream; /* of calls on memory anywhere, and their memory on the device */
    CUdeviceptr staging;
    size_t staging_bytes;
};

/* ---- store.c: rendezvous ---- */

#define STORE_KEY 96
#define STORE_VALUE 128

/* Rank 0 serves it; all wait until every rank is there. CT_EPEER: who is not. */
int nccl_store_open(const struct ct_comm_request *request, struct store **store);
void nccl_store_close(struct store *store);
int nccl_store_set(struct store *store, const char *key, const void *value, size_t bytes);
/* 1: found, within so many seconds; 0: not. */
int nccl_store_get(struct store *store, const char *key, void *value, size_t bytes,
                   double patience);

/* ---- watchdog.c ---- */

int nccl_watchdog_start(struct comm *comm);
void nccl_watchdog_stop(struct comm *comm);
/* A call of the group was enqueued on the stream; it must be done in time. */
int nccl_watch(struct group *group, const char *call, CUstream stream);
/* A call of a step was enqueued, captured or not; or the device has come to rest. */
void nccl_watch_step(struct comm *comm, bool rests);
/* What NCCL itself has noticed by now, and all failures before: CT_EPEER. */
int nccl_look(struct comm *comm);
/* Wait for all that was enqueued up to now. */
int nccl_drain(struct comm *comm);

/* ---- nccl.c ---- */

/* The communicator's first failure, or this one; returns CT_EPEER. Aborts what is under way. */
int nccl_fail(struct comm *comm, const char *fmt, ...) CT_PRINTF(2, 3);
int nccl_failed(struct comm *comm);
/* code is what NCCL returned from `what` in the group: waits while that is in progress. */
int nccl_check(struct group *group, int code, const char *what);
int nccl_check_cuda(struct comm *comm, int code, const char *what);

/* ---- collective.c ---- */

extern const struct ct_transport nccl_transport;
/* Enqueue a call on memory of the device. Messages of a pair are in order: NCCL has no tags. */
int nccl_enqueue(const struct ct_call *call, CUstream stream);

/* ---- host.c ---- */

/* A call on memory anywhere, waited for. */
int nccl_host_call(const struct ct_call *call);

#endif
