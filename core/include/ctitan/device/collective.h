/*
 * Collectives: how an op that communicates is prepared, run and counted, and how devices carry it.
 *
 * An op type whose `collective` is set needs no kernel for each device. The core finds the device's
 * transport, prepares the op once while it is lowered, and runs it over that transport. A plugin
 * that brings a collective op writes one ct_collective_ops with CT_COLLECTIVE; a plugin that brings
 * a device or a communicator writes one ct_transport; neither knows the other. A kernel that is
 * registered for the op and the device goes first.
 *
 * What a collective must send, and how shards lie in tensors, follows from shardings alone. Devices
 * whose memory the host may read and write (ct_device.host_memory) need no transport of their own.
 */
#ifndef CT_COLLECTIVE_PUBLIC_H
#define CT_COLLECTIVE_PUBLIC_H

#include <ctitan/device/comm.h>
#include <ctitan/device/device.h>

CT_BEGIN_DECLS

/*
 * How flat memory travels from and to a device. All functions enqueue on the stream of the launch,
 * or have done their work when they return.
 *
 * Where calls are enqueued, and nobody's host waits in them, sends and receives run on streams of
 * their own, and receives are asked for early. A device whose transport waits inside of the calls
 * must say that it is in order (device.h): then ranks meet in the order of the program.
 */
struct ct_transport {
    size_t size;      /* of this struct */
    const char *name; /* of its kernels, in plans: "nccl" */
    bool waits;       /* the host waits in each call: used only if the device has no other */
    /* Calls between the two are one. begin: 1: they are, and `end` follows whatever they return; 0:
       not in this group. NULL: never. */
    int (*begin)(const struct ct_launch *l, struct ct_group *group);
    int (*end)(const struct ct_launch *l, struct ct_group *group);
    /* Do a call that ct_call_check has passed. Groups of SEND and RECEIVE have two ranks, the
       sender first; each direction has its own. */
    int (*call)(const struct ct_launch *l, const struct ct_call *call);
};

/* Plugins offer transports as {CT_TRANSPORT, "device's name", &transport}. Of two that do not wait,
   the first serves the device. CT_EINVAL: a function is missing. */
CT_API int ct_transport_register(const char *device, const struct ct_transport *transport);
/* The one that serves a device: registered for its name, or the host's. NULL: there is none. */
CT_API const struct ct_transport *ct_transport_find(const struct ct_device *device);

/* ---- for the ct_collective_ops (op.h) of an op type ---- */

/* `count` blocks of `bytes`, the blocks `from_stride` and `to_stride` bytes apart; `bytes` zeroes:
   on the device, on the stream of the launch. */
CT_API int ct_launch_copy(const struct ct_launch *l, void *to, size_t to_stride, const void *from,
                          size_t from_stride, size_t bytes, int64_t count);
CT_API int ct_launch_clear(const struct ct_launch *l, void *at, size_t bytes);
/* Check a call, and have the transport do it. */
CT_API int ct_transport_call(const struct ct_launch *l, const struct ct_transport *by,
                             const struct ct_call *call);

/* The kernel of every collective: it runs the type's ct_collective_ops over the device's transport.
   NULL: there is none. */
CT_API const struct ct_kernel *ct_collective_kernel(const struct ct_device *device);

/* CT_COLLECTIVE(prepare, run, sent) */
#define CT_COLLECTIVE(...)                                                                         \
    {                                                                                              \
        sizeof(struct ct_collective_ops), ct_collective_kernel, __VA_ARGS__                        \
    }

/* What `prepare` leaves in p->state begins with this. */
struct ct_collective {
    const struct ct_transport *transport; /* set behind `prepare` */
    struct ct_group *group;               /* NULL: only planning, or nothing is sent */
    int64_t ranks, me;                    /* of the group, and this rank's position in it */
    enum ct_dtype dtype;
};

/* For `prepare`: the common head of *collective, from the op's first value and its attribute
   "axes"; the group along them on the op's stream. collective is p->state from then on. */
CT_API int ct_collective_prepare_axes(struct ct_prepare *p, struct ct_collective *collective);
/*
 * The same for a group of the given ranks of the mesh, in this order, `name` in messages. Calls
 * with the same ranks and name share a group. All ranks must first ask for their common groups in
 * one order: that of the ops in the graph is one, if ranks have parts of the same graph.
 */
CT_API int ct_collective_prepare_ranks(struct ct_prepare *p, struct ct_collective *collective,
                                       const int64_t *ranks, int count, const char *name);

CT_END_DECLS

#endif
