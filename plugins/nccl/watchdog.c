/*
 * The watchdog: it records an event before and after each call. Calls of one stream finish in
 * order, those of different streams in any order: a receive that is posted early finishes after
 * many later calls. The host enqueues a whole step ahead, so a call may have a long computation in
 * front of it: it is waited for only once it has begun. The clock restarts whenever a call begins
 * or finishes. The oldest call that has begun and not finished is the one to report.
 *
 * Calls inside a captured step have no events that can be queried. The whole step is watched
 * instead. Its limit is the duration of the longest earlier step plus the time-out.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cluster.h"

#define RING 4096
#define STREAMS 16
#define NAP 0.02 /* seconds between polls */

struct watched {
    const struct group *group;
    const char *call;
    uint32_t number;
    CUevent before, after;
    CUstream stream;
    bool enqueued, begun, over;
};

/* Streams whose oldest call is unfinished; later calls on them are unfinished too. */
struct busy {
    CUstream stream[STREAMS];
    int count;
};

struct watchdog {
    struct comm *comm;
    pthread_t thread;
    bool started;
    _Atomic bool stop;
    _Atomic uint32_t written, done;        /* calls below done have finished */
    _Atomic double progress;               /* time when a call last began or finished */
    const struct watched *_Atomic waiting; /* the oldest that has begun and not finished, or NULL */
    _Atomic bool captured;                 /* a step was captured */
    _Atomic double enqueued;               /* time of the step's last call; 0: the device is idle */
    _Atomic double longest;                /* seconds from that call until the device was idle */
    struct watched ring[RING];
};

static bool is_busy(const struct busy *b, CUstream stream)
{
    for (int i = 0; i < b->count; i++)
        if (b->stream[i] == stream)
            return true;
    return false;
}

/* True if the call has begun or finished since the last look. */
static bool look(struct watched *call, struct busy *b)
{
    bool begun = call->begun;

    if (call->over || is_busy(b, call->stream))
        return false;
    call->begun = begun || nccl.cuEventQuery(call->before) == 0;
    call->over = call->begun && call->enqueued && nccl.cuEventQuery(call->after) == 0;
    if (!call->over && b->count < STREAMS)
        b->stream[b->count++] = call->stream;
    return call->over || call->begun != begun;
}

static const struct watched *find_waiting(const struct watchdog *w)
{
    for (uint32_t i = w->done; i != w->written; i++)
        if (w->ring[i % RING].begun && !w->ring[i % RING].over)
            return &w->ring[i % RING];
    return NULL;
}

/* Skip calls that have finished; true if any call has begun or finished. */
static bool advance(struct watchdog *w)
{
    struct busy busy = {.count = 0};
    bool more = false;

    pthread_mutex_lock(&w->comm->lock);
    for (uint32_t i = w->done; i != w->written; i++)
        more |= look(&w->ring[i % RING], &busy);
    while (w->done != w->written && w->ring[w->done % RING].over)
        w->done++;
    w->waiting = find_waiting(w);
    if (more || !w->waiting)
        w->progress = ct_now();
    pthread_mutex_unlock(&w->comm->lock);
    return more;
}

/* List the ranks that noticed no time-out: they hang or died. ranks NULL: check all ranks. */
static void find_silent(const struct comm *comm, const int *ranks, int count, char *list,
                        size_t room)
{
    char key[STORE_KEY];
    size_t used = 0;
    int one = 1;

    list[0] = '\0';
    snprintf(key, sizeof(key), "late/%d", comm->base.rank);
    if (nccl_store_set(comm->store, key, &one, sizeof(one)) < 0) {
        snprintf(list, room, "0"); /* rank 0 has the store */
        return;
    }
    ct_nap(0.9);
    for (int i = 0; i < count && used + 16 < room; i++) {
        int rank = ranks ? ranks[i] : i;

        snprintf(key, sizeof(key), "late/%d", rank);
        if (nccl_store_get(comm->store, key, &one, sizeof(one), 0) == 0)
            used += (size_t)snprintf(list + used, room - used, "%s%d", used ? ", " : "", rank);
    }
}

static void time_out(struct watchdog *w, const struct watched *late)
{
    const struct ct_group *group = &late->group->base;
    char silent[128];

    nccl_tell(w->comm, late->group, "a time-out");
    find_silent(w->comm, group->ranks, group->size, silent, sizeof(silent));
    nccl_fail(w->comm, late->group, "%s %u of group '%s' did not end within %g s%s%s", late->call,
              late->number, group->name, w->comm->timeout,
              *silent ? "; no sign of life from rank " : "", silent);
}

static void time_out_step(struct watchdog *w, double limit)
{
    char silent[128];

    nccl_tell(w->comm, NULL, "a time-out");
    find_silent(w->comm, NULL, w->comm->base.world, silent, sizeof(silent));
    nccl_fail(w->comm, NULL, "a captured step did not end within %.3g s%s%s", limit,
              *silent ? "; no sign of life from rank " : "", silent);
}

static void watch_step(struct watchdog *w)
{
    double limit = w->longest + w->comm->timeout, enqueued = w->enqueued;

    if (w->captured && enqueued > 0 && ct_now() - enqueued > limit)
        time_out_step(w, limit);
}

void nccl_watch_step(struct comm *comm, bool rests)
{
    struct watchdog *w = comm->watchdog;
    double took = w->enqueued > 0 ? ct_now() - w->enqueued : 0;

    if (rests && took > w->longest)
        w->longest = took;
    w->enqueued = rests ? 0 : ct_now();
}

int nccl_look(struct comm *comm)
{
    const struct group *bad = NULL;
    int error = ncclSuccess;

    pthread_mutex_lock(&comm->lock);
    for (const struct group *g = comm->failed ? NULL : comm->groups; g && !bad; g = g->next) {
        nccl.ncclCommGetAsyncError(g->nccl, &error);
        if (error != ncclSuccess && error != ncclInProgress)
            bad = g;
    }
    pthread_mutex_unlock(&comm->lock);
    if (bad)
        nccl_fail(comm, bad, "group '%s': NCCL: %s", bad->base.name,
                  nccl.ncclGetErrorString(error));
    return nccl_failed(comm);
}

static void *work(void *argument)
{
    struct watchdog *w = argument;

    nccl.cuCtxSetCurrent(w->comm->context);
    while (!w->stop && !w->comm->failed) {
        const struct watched *waiting;

        advance(w);
        waiting = w->waiting;
        if (waiting && ct_now() - w->progress > w->comm->timeout)
            time_out(w, waiting);
        watch_step(w);
        if (!w->comm->failed)
            nccl_look(w->comm);
        ct_nap(NAP);
    }
    return NULL;
}

int nccl_watchdog_start(struct comm *comm)
{
    struct watchdog *w = calloc(1, sizeof(*w));

    if (!w)
        return ct_fail(CT_ENOMEM, "the watchdog");
    w->comm = comm;
    comm->watchdog = w;
    if (nccl_thread(&w->thread, work, w))
        return ct_fail(CT_ENOMEM, "no thread for the watchdog");
    w->started = true;
    return 0;
}

void nccl_watchdog_stop(struct comm *comm)
{
    struct watchdog *w = comm->watchdog;

    if (!w)
        return;
    w->stop = true;
    if (w->started)
        pthread_join(w->thread, NULL);
    for (int i = 0; i < RING; i++) {
        if (w->ring[i].before)
            nccl.cuEventDestroy(w->ring[i].before);
        if (w->ring[i].after)
            nccl.cuEventDestroy(w->ring[i].after);
    }
    free(w);
    comm->watchdog = NULL;
}

static int make_events(struct watched *call)
{
    int code = call->before ? 0 : nccl.cuEventCreate(&call->before, CU_EVENT_DISABLE_TIMING);

    if (code == 0 && !call->after)
        code = nccl.cuEventCreate(&call->after, CU_EVENT_DISABLE_TIMING);
    return code;
}

static int note(struct watchdog *w, struct group *g, const char *call, CUstream stream)
{
    struct watched *next = &w->ring[w->written % RING];
    int code = make_events(next);

    *next = (struct watched){.group = g,
                             .call = call,
                             .number = g->calls,
                             .before = next->before,
                             .after = next->after,
                             .stream = stream};
    if (code == 0)
        code = nccl.cuEventRecord(next->before, stream);
    if (code == 0) {
        g->watched = next;
        w->written++;
    }
    return code;
}

/* Captured calls are skipped: their events belong to the graph and cannot be queried. */
int nccl_watch_begin(struct group *g, const char *call, CUstream stream)
{
    struct watchdog *w = g->comm->watchdog;
    int capturing = 0, code;

    g->calls++;
    g->watched = NULL;
    nccl.cuStreamIsCapturing(stream, &capturing);
    w->captured |= capturing != 0;
    if (capturing)
        return 0;
    while (w->written - w->done >= RING - 1 && !g->comm->failed)
        ct_nap(1e-4);
    pthread_mutex_lock(&g->comm->lock);
    code = note(w, g, call, stream);
    pthread_mutex_unlock(&g->comm->lock);
    return nccl_check_cuda(g->comm, code, "an event");
}

int nccl_watch_end(struct group *g)
{
    struct watched *call = g->watched;
    int code;

    if (!call)
        return 0;
    pthread_mutex_lock(&g->comm->lock);
    code = nccl.cuEventRecord(call->after, call->stream);
    call->enqueued = true;
    pthread_mutex_unlock(&g->comm->lock);
    return nccl_check_cuda(g->comm, code, "an event");
}

int nccl_drain(struct comm *comm)
{
    uint32_t last = comm->watchdog->written;

    while ((int32_t)(comm->watchdog->done - last) < 0) {
        int rc = nccl_failed(comm);

        if (rc < 0)
            return rc;
        if (!advance(comm->watchdog))
            ct_nap(5e-5);
    }
    return nccl_look(comm); /* a call that NCCL gave up is over, too */
}
