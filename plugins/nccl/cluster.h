/*
 * The nccl communicator's own structures.
 *
 * Ranks rendezvous at rank 0's store, a table of short values by key, which a thread of rank 0
 * serves over a socket. There they learn that all have arrived, and get the ids of NCCL
 * communicators. A group is an NCCL communicator with an id of its own, so different groups need
 * not be created in one order on all ranks.
 *
 * NCCL communicators are non-blocking: operations in progress are polled, with a deadline. A
 * watchdog thread checks that collectives finish. If one exceeds the time-out, or NCCL reports an
 * error, the communicator fails: all NCCL communicators are aborted by a thread of its own, which
 * releases the streams, and every later call returns CT_EPEER with the same message.
 */
#ifndef NCCL_CLUSTER_H
#define NCCL_CLUSTER_H

#include <pthread.h>
#include <stdatomic.h>

#include <ctitan/clock.h>
#include <ctitan/collective.h>
#include <ctitan/error.h>
#include <ctitan/lib/secret.h>
#include <ctitan/op.h>

#include "library.h"

struct config {
    int64_t port, max_ctas;
    bool windows, share_device;
};
extern struct config nccl_config;

struct store;
struct watchdog;
struct watched;

struct comm {
    struct ct_comm base;
    _Atomic double timeout; /* the watchdog reads it */
    struct store *store;
    struct watchdog *watchdog;
    CUcontext context;
    struct group *groups;
    pthread_mutex_t lock; /* protects NCCL calls and aborts */
    _Atomic bool failed;  /* the communicators are being aborted; set under the lock */
    _Atomic bool told;    /* observers know of the failure */
    _Atomic bool aborted; /* they are gone */
    struct ct_first_failure failure;
};

struct group {
    struct ct_group base;
    struct comm *comm;
    struct group *next;
    ncclComm_t nccl;
    CUdeviceptr window_base; /* of the registered arena; 0: none */
    ncclWindow_t window;     /* written by an NCCL thread, after the call */
    bool together;           /* calls are grouped until transport_end; the lock is held */
    uint32_t calls;
    struct watched *watched; /* the call between nccl_watch_begin and _end; NULL: captured */
    CUstream stream;         /* for host_call; its memory on the device */
    CUdeviceptr staging;
    size_t staging_bytes;
};

/* ---- store.c: rendezvous ---- */

#define STORE_KEY 96
#define STORE_VALUE 128

/* Rank 0 serves it; all wait until every rank has arrived. CT_EPEER lists missing ranks. */
int nccl_store_open(const struct ct_comm_request *request, struct store **store);
void nccl_store_close(struct store *store);
int nccl_store_set(struct store *store, const char *key, const void *value, size_t bytes);
/* 1: found within the given seconds; 0: not found. */
int nccl_store_get(struct store *store, const char *key, void *value, size_t bytes,
                   double patience);

/* ---- greet.c ---- */

struct greeting {
    uint32_t magic;
    uint8_t nonce[CT_CODE_BYTES], code[CT_CODE_BYTES];
    char credential[CT_CREDENTIAL_ROOM]; /* of munge, from rank 0; empty: none */
};

/* One side of a connection; secret, client and munge are set by its owner. */
struct greeter {
    const char *secret; /* empty: none */
    bool client;
    bool munge;               /* rank 0 hands the secret out; a client without one asks for it */
    char key[CT_SECRET_ROOM]; /* the secret that a client got; empty: none */
    int stage;
    uint8_t mine[CT_CODE_BYTES], other[CT_CODE_BYTES]; /* nonces */
};

/* Take a greeting, and put the next one in its place. A client begins with an empty one.
   CT_ECONFIG: the other side has another secret. CT_EIO: munge does not hand it over. */
int nccl_greet(struct greeter *greeter, struct greeting *greeting);
/* Whether the other side has shown that it knows the secret. */
bool nccl_is_known(const struct greeter *greeter);

/* ---- watchdog.c ---- */

int nccl_watchdog_start(struct comm *comm);
void nccl_watchdog_stop(struct comm *comm);
/* Watch a call of the group that is enqueued on the stream in between: once what lies before it has
   finished, it must finish in time. */
int nccl_watch_begin(struct group *group, const char *call, CUstream stream);
int nccl_watch_end(struct group *group);
/* A call of a step was enqueued, captured or not; or, with rests, the device is idle. */
void nccl_watch_step(struct comm *comm, bool rests);
/* CT_EPEER if NCCL has reported an error, or the communicator has failed before. */
int nccl_look(struct comm *comm);
/* Wait for everything enqueued so far. */
int nccl_drain(struct comm *comm);

/* ---- nccl.c ---- */

/* pthread_create, with all signals blocked: they are for the program's other threads. */
int nccl_thread(pthread_t *thread, void *(*work)(void *), void *argument);
/* Record the first failure, of a call in g (NULL: not known), and abort calls in progress. Returns
   CT_EPEER with the first failure. */
int nccl_fail(struct comm *comm, const struct group *g, const char *fmt, ...) CT_PRINTF(3, 4);
int nccl_failed(struct comm *comm);
/* Tell observers that a call has failed, once; before the abort of any rank, which lets calls end
   on the device that failed. */
void nccl_tell(struct comm *comm, const struct group *g, const char *message);
/* code is what the NCCL function `what` returned in the group. Waits while it is in progress. */
int nccl_check(struct group *group, int code, const char *what);
int nccl_check_cuda(struct comm *comm, int code, const char *what);

/* ---- collective.c ---- */

extern const struct ct_transport nccl_transport;
/* Enqueue a call on device memory. Messages of a pair arrive in order: NCCL has no tags. */
int nccl_enqueue(const struct ct_call *call, CUstream stream);

/* ---- host.c ---- */

/* Make a call on memory anywhere, and wait for it. */
int nccl_host_call(const struct ct_call *call);

#endif
