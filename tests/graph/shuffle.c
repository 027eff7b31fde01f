#include <stdlib.h>
#include <string.h>

#include <ctitan/error.h>
#include <ctitan/rng.h>

#include "shuffle.h"
#include "reference.h"

enum { ROOM = 4096 };

enum what { RUN, RECORD, WAIT };

struct item {
    enum what what;
    int event;
    const struct ct_kernel *kernel;
    struct ct_launch *launch;
};

static struct {
    struct ct_device device;
    uint64_t seed, draws;
    struct item item[CT_STREAMS][ROOM];
    size_t count[CT_STREAMS], done[CT_STREAMS];
    bool set[ROOM];
    char *base;
} shuffle;

static int put(int stream, struct item item)
{
    if (shuffle.count[stream] == ROOM)
        return ct_fail(CT_EINVAL, "more than %d instructions on one stream", ROOM);
    shuffle.item[stream][shuffle.count[stream]++] = item;
    return 0;
}

static bool may_go_on(int stream)
{
    const struct item *next = &shuffle.item[stream][shuffle.done[stream]];

    return shuffle.done[stream] < shuffle.count[stream] &&
           (next->what != WAIT || shuffle.set[next->event]);
}

/* Any stream whose next item can run now; -1: none. */
static int pick(void)
{
    int ready[CT_STREAMS], count = 0;

    for (int s = 0; s < CT_STREAMS; s++)
        if (may_go_on(s))
            ready[count++] = s;
    if (!count)
        return -1;
    return ready[ct_philox(shuffle.seed, 0, shuffle.draws++).v[0] % (uint32_t)count];
}

static int run_one(int stream)
{
    const struct item *next = &shuffle.item[stream][shuffle.done[stream]++];

    if (next->what == RECORD)
        shuffle.set[next->event] = true;
    return next->what == RUN ? next->kernel->run(next->launch) : 0;
}

static void drop_launches(void)
{
    for (int s = 0; s < CT_STREAMS; s++)
        for (size_t i = 0; i < shuffle.count[s]; i++)
            free(shuffle.item[s][i].launch);
}

static int synchronize(struct ct_device *device)
{
    int rc = 0, stream;

    (void)device;
    while (rc == 0 && (stream = pick()) >= 0)
        rc = run_one(stream);
    for (int s = 0; rc == 0 && s < CT_STREAMS; s++)
        if (shuffle.done[s] < shuffle.count[s])
            rc = ct_fail(CT_EINVAL, "stream %d waits for event %d for ever", s,
                         shuffle.item[s][shuffle.done[s]].event);
    drop_launches();
    memset(shuffle.count, 0, sizeof(shuffle.count));
    memset(shuffle.done, 0, sizeof(shuffle.done));
    return rc;
}

static int enqueue(struct ct_device *device, int stream, const struct ct_kernel *kernel,
                   const struct ct_launch *launch)
{
    (void)device;
    return put(stream,
               (struct item){.what = RUN, .kernel = kernel, .launch = ct_launch_dup(launch)});
}

static int events(struct ct_device *device, int count)
{
    (void)device;
    memset(shuffle.set, 0, sizeof(shuffle.set));
    return count <= ROOM ? 0 : ct_fail(CT_EINVAL, "%d events", count);
}

static int record(struct ct_device *device, int stream, int event)
{
    (void)device;
    return put(stream, (struct item){.what = RECORD, .event = event});
}

static int wait(struct ct_device *device, int stream, int event)
{
    (void)device;
    return put(stream, (struct item){.what = WAIT, .event = event});
}

static int reserve(struct ct_device *device, size_t bytes, void **base)
{
    int rc = ct_device_reference.reserve(device, bytes, base);

    shuffle.base = rc == 0 ? *base : NULL;
    return rc;
}

static int reserve_host(struct ct_device *device, size_t bytes, void **base)
{
    return ct_device_reference.reserve(device, bytes, base);
}

static void release(struct ct_device *device, void *base, size_t bytes)
{
    ct_device_reference.release(device, base, bytes);
}

static int copy(struct ct_device *device, void *to, const void *from, size_t bytes)
{
    (void)device;
    memcpy(to, from, bytes);
    return 0;
}

static const struct ct_device_ops ops = {
    .size = sizeof(struct ct_device_ops),
    .reserve = reserve,
    .release = release,
    .reserve_host = reserve_host,
    .release_host = release,
    .copy_in = copy,
    .copy_out = copy,
    .enqueue = enqueue,
    .events = events,
    .record = record,
    .wait = wait,
    .synchronize = synchronize,
};

struct ct_device *shuffle_device(uint64_t seed)
{
    shuffle.device = (struct ct_device){.ops = &ops, .name = "shuffle", .host_memory = true};
    shuffle.seed = seed;
    shuffle.draws = 0;
    return &shuffle.device;
}

void shuffle_poison(size_t from, size_t to)
{
    memset(shuffle.base + from, 0xff, to - from);
}
