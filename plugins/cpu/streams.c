/*
 * Streams and events.
 *
 * Stream 0 is the thread that drives the run: its tasks have run when enqueue returns. Every other
 * stream is a thread started on first use and fed through a single-producer, single-consumer ring.
 * An event is a word that becomes 1. A waiter yields a hundred times, then sleeps on a futex. This
 * is prompt when cores are free. Where a yield let another thread compute, the waiter sleeps at
 * once: a sleeper that is woken runs before that thread's slice ends; one that yields does not.
 *
 * After the first failure kernels are skipped, but events still complete, so that nothing hangs.
 */
#include <linux/futex.h>
#include <omp.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <ctitan/calling.h>
#include <ctitan/clock.h>
#include <ctitan/error.h>

#include "cpu.h"

#define RING 1024u
#define YIELDS 100
#define YIELD_SECONDS 20e-6 /* a yield that takes longer gave the core to a thread that needs it */
#define SLICE 100000        /* nanoseconds: the shortest that Linux grants */

enum task_kind { TASK_RUN, TASK_RECORD, TASK_WAIT, TASK_STAMP, TASK_STOP };

struct task {
    enum task_kind kind;
    int event; /* or stamp */
    const struct ct_kernel *kernel;
    const struct ct_launch *launch; /* on streams other than 0: a copy of the task's own */
};

struct stream {
    struct cpu_streams *all;
    pthread_t thread;
    bool started;
    _Atomic uint32_t written, done; /* tasks since the start; modulo RING they index the ring */
    struct task ring[RING];
};

struct cpu_streams {
    bool in_order;
    struct stream stream[CT_STREAMS];
    _Atomic uint32_t *events;
    int event_count;
    double *stamps; /* each is written by the thread of its stream */
    int stamp_count;
    _Atomic int failure;
    pthread_mutex_t lock; /* protects message */
    struct ct_error_kept message;
};

static void sleep_while(_Atomic uint32_t *word, uint32_t value)
{
    double before, after = ct_now();

    for (int i = 0; i < YIELDS; i++) {
        if (atomic_load_explicit(word, memory_order_acquire) != value)
            return;
        before = after;
        sched_yield();
        after = ct_now();
        if (after - before > YIELD_SECONDS)
            break;
    }
    while (atomic_load_explicit(word, memory_order_acquire) == value)
        syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, NULL, NULL, 0);
}

static void publish(_Atomic uint32_t *word, uint32_t value)
{
    atomic_store_explicit(word, value, memory_order_release);
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL, NULL, 0);
}

static void keep_failure(struct cpu_streams *s, const struct task *task, int rc)
{
    const struct ct_op *op = task->launch->op;

    pthread_mutex_lock(&s->lock);
    if (!s->failure) {
        ct_context(rc, "%s, %s (%s)", op->outs ? op->out[0]->name : op->region, op->type->name,
                   task->kernel->name);
        s->message = ct_error_keep();
        s->failure = rc;
    }
    pthread_mutex_unlock(&s->lock);
}

static void perform(struct cpu_streams *s, const struct task *task)
{
    struct ct_calling before;
    int rc;

    switch (task->kind) {
    case TASK_RUN:
        if (s->failure)
            break;
        before = ct_calling_begin("op", NULL);
        if (!before.kind)
            ct_calling()->microbatch = -1; /* a thread of its own */
        ct_calling()->op = task->launch->op;
        ct_calling()->kernel = task->kernel;
        ct_calling_wait(ct_calling(), task->launch->op->type->flags & CT_OP_COLLECTIVE);
        rc = task->kernel->run(task->launch);
        ct_calling_end(&before);
        if (rc < 0)
            keep_failure(s, task, rc);
        break;
    case TASK_RECORD:
        publish(&s->events[task->event], 1);
        break;
    case TASK_WAIT:
        sleep_while(&s->events[task->event], 0);
        break;
    case TASK_STAMP:
        s->stamps[task->event] = ct_now();
        break;
    case TASK_STOP:
        break;
    }
}

/* Ask the scheduler for the shortest time slices. From Linux 6.12 on, a thread that wakes then runs
   at once on a core that computes, instead of after the 3 ms slice of the computing thread. Older
   kernels ignore it. It needs no privilege, and changes nothing of a thread's share. */
static void ask_for_short_slices(void)
{
    struct {
        uint32_t size, policy;
        uint64_t flags;
        int32_t nice;
        uint32_t priority;
        uint64_t runtime, deadline, period;
    } attributes = {.size = sizeof(attributes), .runtime = SLICE};

    if (sched_getscheduler(0) != SCHED_OTHER)
        return;
    attributes.nice = getpriority(PRIO_PROCESS, 0);
    syscall(SYS_sched_setattr, 0, &attributes, 0);
}

static void *work(void *argument)
{
    struct stream *stream = argument;
    enum task_kind kind;

    omp_set_num_threads(1);
    cpu_flush_denormals();
    ask_for_short_slices();
    do {
        uint32_t next = stream->done;
        const struct task *task = &stream->ring[next % RING];

        sleep_while(&stream->written, next);
        kind = task->kind;
        perform(stream->all, task);
        free((void *)task->launch);
        publish(&stream->done, next + 1);
    } while (kind != TASK_STOP);
    return NULL;
}

static int start(struct stream *stream)
{
    int error = 0;

    if (stream->started)
        return 0;
    error = pthread_create(&stream->thread, NULL, work, stream);
    if (error)
        return ct_fail(CT_ENOMEM, "a thread for a stream of the cpu device: %s", strerror(error));
    stream->started = true;
    return 0;
}

static void push(struct stream *stream, const struct task *task)
{
    uint32_t next = stream->written;

    while (next - atomic_load_explicit(&stream->done, memory_order_acquire) == RING)
        sleep_while(&stream->done, next - RING);
    stream->ring[next % RING] = *task;
    publish(&stream->written, next + 1);
}

static int submit(struct cpu_streams *s, int number, struct task task)
{
    int rc;

    if (number == CT_STREAM_COMPUTE || s->in_order) {
        perform(s, &task);
        return 0;
    }
    rc = start(&s->stream[number]);
    if (rc < 0)
        return rc;
    if (task.kind == TASK_RUN && !(task.launch = ct_launch_dup(task.launch)))
        return ct_fail(CT_ENOMEM, "no memory for a call on stream %d", number);
    push(&s->stream[number], &task);
    return 0;
}

int cpu_streams_enqueue(struct cpu_streams *s, int stream, const struct ct_kernel *kernel,
                        const struct ct_launch *launch)
{
    return submit(s, stream, (struct task){.kind = TASK_RUN, .kernel = kernel, .launch = launch});
}

int cpu_streams_record(struct cpu_streams *s, int stream, int event)
{
    return submit(s, stream, (struct task){.kind = TASK_RECORD, .event = event});
}

int cpu_streams_wait(struct cpu_streams *s, int stream, int event)
{
    if (s->in_order && !s->events[event])
        return ct_fail(CT_EINVAL, "event %d is waited for before it is recorded", event);
    return submit(s, stream, (struct task){.kind = TASK_WAIT, .event = event});
}

int cpu_streams_events(struct cpu_streams *s, int count)
{
    if (count > s->event_count) {
        free(s->events);
        s->events = calloc((size_t)count, sizeof(*s->events));
        s->event_count = s->events ? count : 0;
        return s->events ? 0 : ct_fail(CT_ENOMEM, "no memory for %d events", count);
    }
    for (int i = 0; i < s->event_count; i++)
        s->events[i] = 0;
    return 0;
}

int cpu_streams_query(const struct cpu_streams *s, int event)
{
    return (int)atomic_load_explicit(&s->events[event], memory_order_acquire);
}

int cpu_streams_stamps(struct cpu_streams *s, int count)
{
    if (count > s->stamp_count) {
        free(s->stamps);
        s->stamps = malloc((size_t)count * sizeof(*s->stamps));
        s->stamp_count = s->stamps ? count : 0;
        if (!s->stamps)
            return ct_fail(CT_ENOMEM, "no memory for %d stamps", count);
    }
    for (int i = 0; i < s->stamp_count; i++)
        s->stamps[i] = 0;
    return 0;
}

int cpu_streams_stamp(struct cpu_streams *s, int stream, int number)
{
    return submit(s, stream, (struct task){.kind = TASK_STAMP, .event = number});
}

double cpu_streams_stamped(const struct cpu_streams *s, int number)
{
    return s->stamps[number];
}

static void drain(struct stream *stream)
{
    uint32_t done;

    while ((done = atomic_load_explicit(&stream->done, memory_order_acquire)) != stream->written)
        sleep_while(&stream->done, done);
}

int cpu_streams_synchronize(struct cpu_streams *s)
{
    int rc;

    for (int i = 0; i < CT_STREAMS; i++)
        if (s->stream[i].started)
            drain(&s->stream[i]);
    rc = s->failure;
    if (!rc)
        return 0;
    s->failure = 0;
    return ct_error_restore(rc, &s->message);
}

int cpu_streams_create(bool in_order, struct cpu_streams **streams)
{
    struct cpu_streams *s = calloc(1, sizeof(*s));

    if (!s)
        return ct_fail(CT_ENOMEM, "no memory for streams");
    s->in_order = in_order;
    pthread_mutex_init(&s->lock, NULL);
    for (int i = 0; i < CT_STREAMS; i++)
        s->stream[i].all = s;
    *streams = s;
    return 0;
}

void cpu_streams_destroy(struct cpu_streams *s)
{
    if (!s)
        return;
    for (int i = 0; i < CT_STREAMS; i++) {
        if (!s->stream[i].started)
            continue;
        push(&s->stream[i], &(struct task){.kind = TASK_STOP});
        pthread_join(s->stream[i].thread, NULL);
    }
    pthread_mutex_destroy(&s->lock);
    free(s->events);
    free(s->stamps);
    free(s);
}
