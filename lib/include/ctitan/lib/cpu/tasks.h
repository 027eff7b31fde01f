/*
 * For kernels of the cpu (ctitan/lib/cpu.h): tasks of one call, which its threads share. Each
 * begins with an equal range, and takes others' when it has none of its own. At one moment the
 * cores of a machine are not equally fast.
 *
 * A thread takes its own tasks in their order, as what one reads may still be in its caches for
 * the next, and others' from their ends.
 */
#ifndef CT_CPU_TASKS_H
#define CT_CPU_TASKS_H

#include <stdatomic.h>
#include <stdint.h>

#include <ctitan/lib/cpu.h>

/* A thread's tasks that nobody has taken: the first in the upper half, the end in the lower. */
struct cpu_queue {
    _Alignas(CPU_LINE_BYTES) _Atomic uint64_t range;
};

struct cpu_tasks {
    struct cpu_queue *queues; /* one for each thread */
    int threads;
};

static inline size_t cpu_tasks_bytes(int threads)
{
    return sizeof(struct cpu_queue) * (size_t)threads;
}

/* Before the threads run. count: below 2^32. memory: cpu_tasks_bytes(threads), on a line. */
static inline struct cpu_tasks cpu_tasks_begin(void *memory, int64_t count, int threads)
{
    struct cpu_tasks tasks = {memory, threads};

    for (int i = 0; i < threads; i++)
        atomic_init(&tasks.queues[i].range,
                    (uint64_t)(count * i / threads) << 32 | (uint64_t)(count * (i + 1) / threads));
    return tasks;
}

/* The first or the last task of a queue; negative if it is empty. */
static inline int64_t cpu_queue_take(struct cpu_queue *queue, bool last)
{
    uint64_t range = atomic_load_explicit(&queue->range, memory_order_relaxed), first, end, rest;

    do {
        first = range >> 32;
        end = range & UINT32_MAX;
        if (first >= end)
            return -1;
        rest = last ? first << 32 | (end - 1) : (first + 1) << 32 | end;
    } while (!atomic_compare_exchange_weak_explicit(&queue->range, &range, rest,
                                                    memory_order_relaxed, memory_order_relaxed));
    return (int64_t)(last ? end - 1 : first);
}

/* The next task of a thread; negative: none is left. */
static inline int64_t cpu_next_task(const struct cpu_tasks *tasks, int thread)
{
    int64_t task = cpu_queue_take(&tasks->queues[thread], false);

    for (int i = 1; task < 0 && i < tasks->threads; i++)
        task = cpu_queue_take(&tasks->queues[(thread + i) % tasks->threads], true);
    return task;
}

#endif
