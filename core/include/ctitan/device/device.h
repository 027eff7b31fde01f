/*
 * Devices: memory, streams and events under the programs.
 *
 * A device plugin offers one ct_device_ops and registers kernels for its name. Streams are
 * numbered; work on one stream runs in order, across streams only as events say. Stream 0 computes;
 * see CT_STREAM_*. On the CPU a stream is a thread, on a GPU a CUDA stream; a device may run all
 * streams in order of enqueueing, with the same result.
 *
 * The built-in device "reference" runs every op's reference kernel on plain host memory: slow, any
 * dtype, no plugin needed. Tests measure everything else against it.
 */
#ifndef CT_DEVICE_H
#define CT_DEVICE_H

#include <ctitan/op.h>

CT_BEGIN_DECLS

enum ct_stream {
    CT_STREAM_COMPUTE,
    CT_STREAM_GATHER,
    CT_STREAM_REDUCE,
    CT_STREAM_P2P,     /* rings */
    CT_STREAM_COPY_IN, /* from and to host memory */
    CT_STREAM_COPY_OUT,
    CT_STREAM_SEND, /* to and from other stages of a pipeline */
    CT_STREAM_RECEIVE,
    CT_STREAM_CHUNK, /* exchanges of one chunk beside what computes on another: what they read keeps
                        its memory until the next one begins */
};
#define CT_STREAMS 9

struct ct_device_info {
    char name[96];     /* "Intel(R) Xeon(R) .., 2 threads, AVX-512" */
    size_t memory;     /* bytes in all */
    int threads;       /* that compute */
    double peak_flops; /* per second in the dtype asked for; 0: unknown, `doctor` measures it */
};

struct ct_device_request {
    int local_rank, local_ranks; /* on this host */
};

struct ct_device;

struct ct_device_ops {
    size_t size; /* of this struct */
    /* The device of this rank. CT_ENOENT when there is none: what is missing and the cure. */
    int (*open)(const struct ct_device_request *request, struct ct_device **device);
    void (*close)(struct ct_device *device);
    void (*info)(struct ct_device *device, enum ct_dtype compute, struct ct_device_info *info);

    /* The arena: at least bytes, zeroed, 4096-byte aligned; called once per program. */
    int (*reserve)(struct ct_device *device, size_t bytes, void **base);
    void (*release)(struct ct_device *device, void *base, size_t bytes);
    /* The same of a host memory, larger and slower (CT_SPACE_HOST): while programs run, only
       kernels of ops with CT_OP_SPACES reach it; between programs, the host. NULL: the device has
       none. */
    int (*reserve_host)(struct ct_device *device, size_t bytes, void **base);
    void (*release_host)(struct ct_device *device, void *base, size_t bytes);
    int (*copy_in)(struct ct_device *device, void *to, const void *host, size_t bytes);
    int (*copy_out)(struct ct_device *device, void *host, const void *from, size_t bytes);

    /* Run kernel on stream behind what is there. The launch stays valid until synchronize. */
    int (*enqueue)(struct ct_device *device, int stream, const struct ct_kernel *kernel,
                   const struct ct_launch *launch);
    /* Events are small numbers below the count given to `events`. record: event is set once the
       stream gets here; wait: the stream goes on once it is set. Both since the last `events`. */
    int (*events)(struct ct_device *device, int count);
    int (*record)(struct ct_device *device, int stream, int event);
    int (*wait)(struct ct_device *device, int stream, int event);
    /* Wait for all streams; the first failure of any kernel is returned here. */
    int (*synchronize)(struct ct_device *device);
    /* What the machine has and lacks for this device, a line at a time, for `doctor`; works without
       a device. NULL: nothing to say. */
    void (*diagnose)(void (*say)(const char *line));

    /* Has an event been set since the last `events`? 1: it has; 0: not yet, or it was not recorded;
       negative: it failed, or the device cannot say (it replays a step as one graph). From any
       thread, so that one that watches can say what a step hangs in. NULL: whatever was enqueued
       has been done. */
    int (*query)(struct ct_device *device, int event);

    /* Copy from the device on CT_STREAM_COPY_OUT, after what is there; steps may be run meanwhile.
       Who asks sees to it that nothing writes `from`, and host stays valid, until it is done. Sets
       *ticket, above 0; copies end in the order of their tickets. Main thread only. NULL: not
       offered. */
    int (*copy_out_begin)(struct ct_device *device, void *host, const void *from, size_t bytes,
                          int64_t *ticket);
    /* 1: the copy of that ticket is done; 0: not yet, only if not to `block`. */
    int (*copy_out_wait)(struct ct_device *device, int64_t ticket, bool block);

    /* body for ranges that make up [0, count), on the threads that compute; returns when all are
       done. For kernels in host memory: see ct_parallel (op.h). NULL: there is one thread. */
    void (*parallel)(struct ct_device *device, int64_t count, ct_range_body *body, void *context);

    /* What ct_launch_copy and ct_launch_clear (collective.h) do. NULL: the host does it at once, in
       host_memory. */
    int (*copy)(const struct ct_launch *l, void *to, size_t to_stride, const void *from,
                size_t from_stride, size_t bytes, int64_t count);
    int (*clear)(const struct ct_launch *l, void *at, size_t bytes);
};

/* Common head of every device; plugins put it first in their own struct. */
struct ct_device {
    const struct ct_device_ops *ops;
    const char *name; /* "cpu": the key of its kernels */
    bool host_memory; /* the host may read and write its memory, and reference kernels can run */
    bool enqueues;    /* collectives are only enqueued when their `run` returns: `query` says when
                         they begin and end */
    bool in_order;    /* what ranks send is done in the order of enqueueing: all streams are one, or
                         the host waits in every call that meets other ranks */
};

CT_API extern const struct ct_device_ops ct_device_reference;

CT_END_DECLS

#endif
