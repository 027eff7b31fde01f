/*
 * Streams, events and captured graphs of the simulated device. What is enqueued on a stream is done
 * at once, by the caller, as long as nothing there waits. Calls that wait for other ranks, and
 * streams that wait for an event that has not happened, go on in a thread of the stream, and all
 * that is enqueued behind them follows there, while the host goes on. One kernel runs at a time.
 *
 * A graph is a list of what was enqueued while it was captured, and is enqueued again in that
 * order.
 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "streams.h"

#define cuStreamDestroy cuStreamDestroy_v2
#define cuStreamBeginCapture cuStreamBeginCapture_v2
#define cuGraphInstantiate cuGraphInstantiateWithFlags
#define cuEventDestroy cuEventDestroy_v2
#define CUDA_ERROR_INVALID_HANDLE 400
#define CUDA_ERROR_STREAM_CAPTURE_ISOLATION 905
#define CUDA_ERROR_CAPTURED_EVENT 907

/* One call of cuEventRecord. A wait is for the last one before it. */
struct moment {
    bool happened;
    bool inner; /* of a graph, which orders by it: its time is not kept */
    double time;
    int users; /* the event, and tasks */
};

struct CUevent_st {
    struct moment *last; /* NULL: never recorded */
    bool untimed;
    uint64_t capture; /* number of the one that it was recorded in last; 0: in none */
};

struct task {
    enum { CALL, RECORD, WAIT } kind;
    int (*call)(const void *arguments);
    void *arguments;
    bool waits, owns;     /* for other ranks; its arguments */
    bool inner;           /* as in struct moment */
    _Atomic int *holders; /* counts the queues and graphs that hold this task; NULL: not counted */
    CUevent event;
    struct moment *moment; /* NULL: nothing to wait for */
};

struct CUstream_st {
    struct task *queue; /* the first one is under way */
    size_t count, room;
    bool started, stop;
};

struct captured {
    CUstream stream;
    struct task task;
};

struct CUgraph_st {
    uint64_t number; /* of the capture */
    struct captured *item;
    size_t count, room;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of queues and events */
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static pthread_mutex_t processor = PTHREAD_MUTEX_INITIALIZER;
static _Thread_local CUgraph capture; /* NULL: nothing is being captured by this thread */

/* ---- doing ---- */

static double now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

static int do_call(const struct task *t)
{
    int rc;

    if (!t->waits)
        pthread_mutex_lock(&processor);
    simulated_memory_open(1);
    rc = t->call(t->arguments);
    simulated_memory_open(-1);
    if (!t->waits)
        pthread_mutex_unlock(&processor);
    return rc;
}

static void drop(struct moment *m)
{
    if (m && --m->users == 0)
        free(m);
}

static int perform(const struct task *t)
{
    if (t->kind == CALL)
        return do_call(t);
    pthread_mutex_lock(&lock);
    if (t->kind == RECORD) {
        t->moment->time = now();
        t->moment->happened = true;
        pthread_cond_broadcast(&changed);
    }
    while (t->moment && !t->moment->happened)
        pthread_cond_wait(&changed, &lock);
    drop(t->moment);
    pthread_mutex_unlock(&lock);
    return CUDA_SUCCESS;
}

static void hold(const struct task *t)
{
    if (t->holders)
        ++*t->holders;
}

static void let_go(const struct task *t)
{
    if (t->owns)
        free(t->arguments);
    if (t->holders)
        --*t->holders;
}

static void *work(void *argument)
{
    CUstream s = argument;

    pthread_mutex_lock(&lock);
    for (;;) {
        struct task t;

        while (!s->count && !s->stop)
            pthread_cond_wait(&changed, &lock);
        if (!s->count)
            break;
        t = s->queue[0];
        pthread_mutex_unlock(&lock);
        perform(&t);
        pthread_mutex_lock(&lock);
        let_go(&t);
        memmove(s->queue, s->queue + 1, --s->count * sizeof(*s->queue));
        pthread_cond_broadcast(&changed);
    }
    pthread_mutex_unlock(&lock);
    free(s->queue);
    free(s);
    return NULL;
}

static void start(CUstream s)
{
    pthread_t thread;

    if (!s->started && pthread_create(&thread, NULL, work, s))
        abort();
    if (!s->started)
        pthread_detach(thread);
    s->started = true;
}

static struct task with_own_arguments(struct task t, size_t bytes)
{
    t.arguments = memcpy(malloc(bytes + 1), t.arguments, bytes);
    t.owns = true;
    return t;
}

static void append(CUstream s, struct task t)
{
    if (s->count == s->room) {
        s->room = s->room ? 2 * s->room : 64;
        s->queue = realloc(s->queue, s->room * sizeof(*s->queue));
    }
    hold(&t);
    s->queue[s->count++] = t;
    start(s);
    pthread_cond_broadcast(&changed);
}

static struct moment *moment_of(const struct task *t)
{
    struct moment *m = t->event->last;

    if (t->kind == RECORD) {
        drop(m);
        m = t->event->last = calloc(1, sizeof(*m));
        m->users = 1;
        m->inner = t->inner;
    }
    if (m)
        m->users++;
    return m;
}

/* bytes: of arguments that do not last; 0: they do, or there are none. */
static int push(CUstream s, struct task t, size_t bytes)
{
    bool at_once;

    pthread_mutex_lock(&lock);
    if (t.kind != CALL)
        t.moment = moment_of(&t);
    at_once = !s->count && !t.waits && (t.kind != WAIT || !t.moment || t.moment->happened);
    if (!at_once)
        append(s, bytes ? with_own_arguments(t, bytes) : t);
    pthread_mutex_unlock(&lock);
    return at_once ? perform(&t) : CUDA_SUCCESS;
}

static int submit(CUstream s, struct task t, size_t bytes)
{
    if (!capture)
        return push(s, t, bytes);
    if (capture->count == capture->room) {
        capture->room = capture->room ? 2 * capture->room : 64;
        capture->item = realloc(capture->item, capture->room * sizeof(*capture->item));
    }
    hold(&t);
    capture->item[capture->count++] =
        (struct captured){s, bytes ? with_own_arguments(t, bytes) : t};
    return CUDA_SUCCESS;
}

int simulated_submit(void *stream, int (*call)(const void *arguments), const void *arguments,
                     size_t bytes)
{
    return submit(stream, (struct task){.call = call, .arguments = (void *)(uintptr_t)arguments},
                  bytes);
}

int simulated_submit_waiting(void *stream, int (*call)(const void *arguments),
                             const void *arguments, size_t bytes, _Atomic int *holders)
{
    return submit(stream,
                  (struct task){.call = call,
                                .arguments = (void *)(uintptr_t)arguments,
                                .waits = true,
                                .holders = holders},
                  bytes);
}

/* ---- streams ---- */

int cuStreamCreateWithPriority(CUstream *stream, unsigned flags, int priority)
{
    (void)flags;
    (void)priority;
    *stream = calloc(1, sizeof(**stream));
    return *stream ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

int cuStreamCreate(CUstream *stream, unsigned flags)
{
    return cuStreamCreateWithPriority(stream, flags, 0);
}

/* Work that is enqueued is still done. */
int cuStreamDestroy(CUstream stream)
{
    bool started;

    pthread_mutex_lock(&lock);
    started = stream->started;
    stream->stop = true;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    if (!started)
        free(stream);
    return CUDA_SUCCESS;
}

int cuStreamSynchronize(CUstream stream)
{
    if (capture)
        return CUDA_ERROR_NOT_READY;
    pthread_mutex_lock(&lock);
    while (stream->count)
        pthread_cond_wait(&changed, &lock);
    pthread_mutex_unlock(&lock);
    return CUDA_SUCCESS;
}

/* A captured call waits for what the same capture has, and no other call does. */
int cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags)
{
    (void)flags;
    if (capture && event->capture != capture->number && (event->capture || event->last))
        return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
    if (!capture && event->capture)
        return CUDA_ERROR_CAPTURED_EVENT;
    return submit(stream, (struct task){.kind = WAIT, .event = event}, 0);
}

int cuStreamIsCapturing(CUstream stream, int *status)
{
    (void)stream;
    *status = capture != NULL;
    return CUDA_SUCCESS;
}

/* ---- events ---- */

int cuEventCreate(CUevent *event, unsigned flags)
{
    *event = calloc(1, sizeof(**event));
    if (!*event)
        return CUDA_ERROR_OUT_OF_MEMORY;
    (*event)->untimed = flags & CU_EVENT_DISABLE_TIMING;
    return CUDA_SUCCESS;
}

int cuEventDestroy(CUevent event)
{
    pthread_mutex_lock(&lock);
    drop(event->last);
    pthread_mutex_unlock(&lock);
    free(event);
    return CUDA_SUCCESS;
}

int cuEventRecord(CUevent event, CUstream stream)
{
    event->capture = capture ? capture->number : 0;
    return submit(stream, (struct task){.kind = RECORD, .event = event, .inner = capture != NULL},
                  0);
}

int cuEventRecordWithFlags(CUevent event, CUstream stream, unsigned flags)
{
    if (!(flags & CU_EVENT_RECORD_EXTERNAL))
        return cuEventRecord(event, stream);
    if (!capture)
        return CUDA_ERROR_INVALID_VALUE;
    return submit(stream, (struct task){.kind = RECORD, .event = event}, 0);
}

int cuEventQuery(CUevent event)
{
    bool happened;

    pthread_mutex_lock(&lock);
    happened = !event->last || event->last->happened;
    pthread_mutex_unlock(&lock);
    return happened ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

int cuEventSynchronize(CUevent event)
{
    pthread_mutex_lock(&lock);
    while (event->last && !event->last->happened)
        pthread_cond_wait(&changed, &lock);
    pthread_mutex_unlock(&lock);
    return CUDA_SUCCESS;
}

int cuEventElapsedTime(float *milliseconds, CUevent begin, CUevent end)
{
    simulated_count("cuEventElapsedTime");
    if (begin->untimed || end->untimed || !begin->last || !end->last || begin->last->inner ||
        end->last->inner)
        return CUDA_ERROR_INVALID_HANDLE;
    *milliseconds = (float)(end->last->time - begin->last->time);
    return CUDA_SUCCESS;
}

/* ---- graphs ---- */

int cuStreamBeginCapture(CUstream stream, int mode)
{
    static _Atomic uint64_t captures;

    (void)stream;
    (void)mode;
    capture = calloc(1, sizeof(*capture));
    if (!capture)
        return CUDA_ERROR_OUT_OF_MEMORY;
    capture->number = ++captures;
    return CUDA_SUCCESS;
}

int cuStreamEndCapture(CUstream stream, CUgraph *graph)
{
    (void)stream;
    *graph = capture;
    capture = NULL;
    return CUDA_SUCCESS;
}

int cuGraphInstantiate(CUgraphExec *exec, CUgraph graph, unsigned long long flags)
{
    (void)flags;
    *exec = (CUgraphExec)(void *)graph;
    return CUDA_SUCCESS;
}

int cuGraphLaunch(CUgraphExec exec, CUstream stream)
{
    CUgraph graph = (CUgraph)(void *)exec;

    (void)stream;
    for (size_t i = 0; i < graph->count; i++) {
        struct task t = graph->item[i].task;

        t.owns = false;
        push(graph->item[i].stream, t, 0);
    }
    return CUDA_SUCCESS;
}

/* The instance is the graph: it is freed with that. */
int cuGraphDestroy(CUgraph graph)
{
    (void)graph;
    return CUDA_SUCCESS;
}

int cuGraphExecDestroy(CUgraphExec exec)
{
    CUgraph graph = (CUgraph)(void *)exec;

    for (size_t i = 0; i < graph->count; i++)
        let_go(&graph->item[i].task);
    free(graph->item);
    free(graph);
    return CUDA_SUCCESS;
}
