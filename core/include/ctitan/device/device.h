/*
 * Devices: the memory, streams and events that programs use.
 *
 * A device plugin offers one ct_device_ops and registers kernels for its name. It has CT_STREAMS
 * streams (stream.h): on the CPU a stream is a thread, on a GPU a CUDA stream. A device may also
 * run all streams in order of enqueueing, with the same result.
 */
#ifndef CT_DEVICE_H
#define CT_DEVICE_H

#include <ctitan/op.h>
#include <ctitan/stream.h>

CT_BEGIN_DECLS

struct ct_device_info {
    char name[96];     /* "Intel(R) Xeon(R) .., 2 threads, AVX-512" */
    size_t memory;     /* bytes, in total */
    int threads;       /* that compute */
    double peak_flops; /* per second in the dtype asked for; 0: unknown, `doctor` measures it */
    size_t beside;     /* bytes of memory that the device's libraries need beside arenas, about */
};

struct ct_device_request {
    int local_rank, local_ranks; /* on this host */
};

struct ct_device;

struct ct_device_ops {
    size_t size; /* of this struct */
    /* Open this rank's device. CT_ENOENT: there is none; says what is missing, and a remedy. */
    int (*open)(const struct ct_device_request *request, struct ct_device **device);
    void (*close)(struct ct_device *device);
    void (*info)(struct ct_device *device, enum ct_dtype compute, struct ct_device_info *info);

    /* Reserve the arena: at least bytes, zeroed, 4096-byte aligned. Called once per program. */
    int (*reserve)(struct ct_device *device, size_t bytes, void **base);
    void (*release)(struct ct_device *device, void *base, size_t bytes);
    /* The same for host memory, which is larger and slower (CT_SPACE_HOST). While programs run,
       only kernels of ops with CT_OP_SPACES access it; between programs, the host. NULL: the device
       has none. */
    int (*reserve_host)(struct ct_device *device, size_t bytes, void **base);
    void (*release_host)(struct ct_device *device, void *base, size_t bytes);
    int (*copy_in)(struct ct_device *device, void *to, const void *host, size_t bytes);
    int (*copy_out)(struct ct_device *device, void *host, const void *from, size_t bytes);

    /* Run kernel on stream after the work there. The launch is the caller's again when this
       returns: a device that runs the kernel later does so on a copy (ct_launch_dup). Its address
       is the same in every step for the same op of a program. */
    int (*enqueue)(struct ct_device *device, int stream, const struct ct_kernel *kernel,
                   const struct ct_launch *launch);
    /* Events are numbers below the count given to `events`. record: set event once the stream gets
       here. wait: the stream continues once event is set. Only records since the last `events`
       count. */
    int (*events)(struct ct_device *device, int count);
    int (*record)(struct ct_device *device, int stream, int event);
    int (*wait)(struct ct_device *device, int stream, int event);
    /* Wait for all streams. Returns the first failure of any kernel. */
    int (*synchronize)(struct ct_device *device);
    /* Say what the machine has and lacks for this device, line by line, for `doctor`. Works without
       a device. NULL: nothing to say. */
    void (*diagnose)(void (*say)(const char *line));

    /* Whether an event has been set since the last `events`. 1: it has; 0: not yet, or it was not
       recorded; negative: it failed, or the device cannot tell (it replays a step as one graph).
       From any thread, so that a watching thread can tell where a step hangs. NULL: whatever was
       enqueued has been done. */
    int (*query)(struct ct_device *device, int event);

    /* Copy from the device while steps run; returns when it is done. The caller makes sure that
       nothing writes `from` meanwhile. Called from any thread, by one thread at a time. NULL: not
       offered. */
    int (*copy_aside)(struct ct_device *device, void *host, const void *from, size_t bytes);

    /* Call body for ranges that cover [0, count), on the threads that compute; return when all are
       done. For kernels in host memory: see ct_parallel (op.h). NULL: there is one thread. */
    void (*parallel)(struct ct_device *device, int64_t count, ct_range_body *body, void *context);

    /* The work of ct_launch_copy and ct_launch_clear (collective.h). NULL: the host does it at
       once, in host_memory. */
    int (*copy)(const struct ct_launch *l, void *to, size_t to_stride, const void *from,
                size_t from_stride, size_t bytes, int64_t count);
    int (*clear)(const struct ct_launch *l, void *at, size_t bytes);

    /* Stamps time a step for profiles. stamps: called between `events` and the first launch of a
       step that is timed; numbers below count are used in it. stamp: note the time once the stream
       gets here. stamped: that time, in seconds of CLOCK_MONOTONIC, after `synchronize`; 0: the
       stream did not get there. NULL, all three: the device does not time. */
    int (*stamps)(struct ct_device *device, int count);
    int (*stamp)(struct ct_device *device, int stream, int number);
    double (*stamped)(struct ct_device *device, int number);
    /* Bytes of the device's memory in use: in host memory, by this process; elsewhere by all. NULL,
       or 0: unknown. */
    size_t (*used)(struct ct_device *device);
};

/* Common head of every device; plugins put it first in their own struct. */
struct ct_device {
    const struct ct_device_ops *ops;
    const char *name; /* "cpu": the key of its kernels */
    bool host_memory; /* the host may read and write its memory, and reference kernels can run */
    bool enqueues;    /* collectives are only enqueued when their `run` returns: `query` says when
                         they begin and end */
    bool in_order;    /* ranks communicate in the order of enqueueing: all streams are one, or the
                         host waits in every call to other ranks */
    bool described;   /* nothing runs on it, it is only planned for: so are ops without a kernel */
};

CT_END_DECLS

#endif
