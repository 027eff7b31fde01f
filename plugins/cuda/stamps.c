/*
 * Times of a step's instructions, for profiles: CUDA events, and the host's clock at the first.
 *
 * A step that is timed is never replayed from the graph of other steps: where steps are captured,
 * it is captured anew, with its events as nodes, and launched once (graph.c). The first stamp comes
 * before the launch that decides whether the step is captured, so it waits for that.
 */
#include <stdlib.h>

#include <ctitan/clock.h>

#include "graph.h"

struct gpu_stamps {
    struct gpu_events events;
    CUevent base;
    double time;        /* of base, seconds of CLOCK_MONOTONIC */
    int waiting, where; /* number and stream of a stamp that waits for the first launch; -1: none */
};

void gpu_stamps_destroy(struct gpu_stamps *s)
{
    if (!s)
        return;
    gpu_events_destroy(&s->events);
    if (s->base)
        gpu_driver.cuEventDestroy(s->base);
    free(s);
}

/* Where the clocks of device and host meet. Nothing else is enqueued then. */
static int record_base(struct gpu *gpu, struct gpu_stamps *s)
{
    int rc = s->base ? 0 : gpu_check(gpu_driver.cuEventCreate(&s->base, 0), "an event");

    if (rc == 0)
        rc = gpu_check(gpu_driver.cuEventRecord(s->base, gpu->stream[0]), "an event");
    if (rc == 0)
        rc = gpu_check(gpu_driver.cuEventSynchronize(s->base), "an event");
    s->time = ct_now();
    return rc;
}

int gpu_stamps_begin(struct ct_device *device, int count)
{
    struct gpu *gpu = gpu_of(device);
    int rc;

    if (!gpu->stamps)
        gpu->stamps = calloc(1, sizeof(*gpu->stamps));
    if (!gpu->stamps)
        return ct_fail(CT_ENOMEM, "times of a step");
    rc = gpu_events_begin(&gpu->stamps->events, count, 0);
    gpu->stamps->waiting = -1;
    if (rc == 0)
        rc = record_base(gpu, gpu->stamps);
    if (rc == 0)
        gpu_graph_time(gpu);
    return rc;
}

static int note(struct gpu *gpu, int stream, int number)
{
    struct gpu_stamps *s = gpu->stamps;
    unsigned flags = gpu_graph_is_plain(gpu) ? 0 : CU_EVENT_RECORD_EXTERNAL;

    s->events.recorded[number] = 1;
    return gpu_check(
        gpu_driver.cuEventRecordWithFlags(s->events.event[number], gpu->stream[stream], flags),
        "the time of an instruction");
}

int gpu_stamp(struct ct_device *device, int stream, int number)
{
    struct gpu *gpu = gpu_of(device);

    if (!gpu_graph_is_undecided(gpu))
        return note(gpu, stream, number);
    gpu->stamps->waiting = number;
    gpu->stamps->where = stream;
    return 0;
}

int gpu_stamp_waiting(struct gpu *gpu)
{
    struct gpu_stamps *s = gpu->stamps;
    int number = s ? s->waiting : -1;

    if (number < 0)
        return 0;
    s->waiting = -1;
    return note(gpu, s->where, number);
}

double gpu_stamped(struct ct_device *device, int number)
{
    const struct gpu_stamps *s = gpu_of(device)->stamps;
    float milliseconds;

    if (!s->events.recorded[number] ||
        gpu_driver.cuEventElapsedTime(&milliseconds, s->base, s->events.event[number]))
        return 0;
    return s->time + (double)milliseconds * 1e-3;
}

size_t gpu_used(struct ct_device *device)
{
    size_t available = 0, total = 0;

    (void)device;
    return gpu_driver.cuMemGetInfo(&available, &total) ? 0 : total - available;
}
