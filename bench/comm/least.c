/*
 * The least that a collective over shared memory can be: one counter that all add to, a generation
 * that the last to come raises, up to 100 sched_yield and then a futex, and two slots for each
 * rank, used in turn. It cannot time out, name a culprit, or notice that ranks disagree; what a
 * communicator that can takes longer than this is what those cost.
 */
#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "bench.h"

#define YIELDS 100
#define SLOT ((size_t)64 << 10)

struct shared {
    _Alignas(64) _Atomic unsigned count, generation, sleepers;
    _Alignas(64) char slots[];
};

struct least {
    struct shared *shared;
    int rank, world;
    unsigned turn;
    float *in, *out;
};

struct shared *least_create(int world)
{
    void *at = mmap(NULL, sizeof(struct shared) + 2 * (size_t)world * SLOT, PROT_READ | PROT_WRITE,
                    MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    return at == MAP_FAILED ? NULL : at;
}

static void arrive(struct least *l)
{
    struct shared *s = l->shared;
    unsigned generation = s->generation;

    if (atomic_fetch_add(&s->count, 1) == (unsigned)l->world - 1) {
        s->count = 0;
        s->generation++;
        if (s->sleepers)
            syscall(SYS_futex, &s->generation, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
        return;
    }
    for (int i = 0; s->generation == generation; i++)
        if (i < YIELDS)
            sched_yield();
        else {
            s->sleepers++;
            syscall(SYS_futex, &s->generation, FUTEX_WAIT, generation, NULL, NULL, 0);
            s->sleepers--;
        }
}

static float *slot(const struct least *l, int rank)
{
    return (float *)(l->shared->slots +
                     ((size_t)(l->turn & 1) * (size_t)l->world + (size_t)rank) * SLOT);
}

/* Everyone's part of count floats, from offset floats on, summed up in the order of ranks. */
static void sum(const struct least *l, size_t offset, size_t count)
{
    for (size_t k = 0; k < count; k++)
        l->out[k] = slot(l, 0)[offset + k];
    for (int i = 1; i < l->world; i++)
        for (size_t k = 0; k < count; k++)
            l->out[k] += slot(l, i)[offset + k];
}

static void call(void *context, enum kind kind, size_t bytes)
{
    struct least *l = context;
    size_t n = (size_t)l->world, me = (size_t)l->rank, part = bytes / n / sizeof(float);

    if (kind == ALL_GATHER)
        memcpy(slot(l, l->rank), l->in, part * sizeof(float));
    else if (kind != BARRIER && (kind != BROADCAST || me == 0))
        memcpy(slot(l, l->rank), l->in, bytes);
    arrive(l);
    if (kind == ALL_REDUCE)
        sum(l, 0, bytes / sizeof(float));
    else if (kind == REDUCE_SCATTER)
        sum(l, me * part, part);
    else if (kind == BROADCAST)
        memcpy(l->out, slot(l, 0), bytes);
    else if (kind == EXCHANGE)
        memcpy(l->out, slot(l, (int)((me + n - 1) % n)), bytes);
    for (size_t i = 0; i < n && (kind == ALL_GATHER || kind == ALL_TO_ALL); i++)
        memcpy(l->out + i * part, slot(l, (int)i) + (kind == ALL_GATHER ? 0 : me * part),
               part * sizeof(float));
    l->turn++;
}

static double slowest(void *context, double seconds)
{
    struct least *l = context;
    double all = 0;

    memcpy(slot(l, l->rank), &seconds, sizeof(seconds));
    arrive(l);
    for (int i = 0; i < l->world; i++) {
        memcpy(&seconds, slot(l, i), sizeof(seconds));
        all = seconds > all ? seconds : all;
    }
    l->turn++;
    return all;
}

void least_round(struct shared *shared, int rank, int world)
{
    struct least l = {.shared = shared, .rank = rank, .world = world};

    l.in = calloc(2, SLOT);
    if (!l.in)
        exit(1);
    l.out = l.in + SLOT / sizeof(float);
    bench_round(&(struct subject){&l, rank, world, call, slowest, ",least", SLOT});
}
