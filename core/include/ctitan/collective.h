/*
 * Collectives: how an op that communicates is prepared, run and counted, and how devices move data.
 *
 * An op type whose `collective` is set needs no kernel for each device. Its kernel here finds the
 * device's transport, prepares the op once while it is lowered, and runs it over that transport. A
 * plugin that brings a collective op writes one ct_collective_ops with CT_COLLECTIVE; a plugin that
 * brings a device or a communicator writes one ct_transport; neither knows the other. A kernel that
 * is registered for the op and the device takes precedence.
 *
 * What a collective must send, and how shards lie in tensors, follows from shardings alone. Devices
 * whose memory the host may read and write (ct_device.host_memory) need no transport of their own.
 */
#ifndef CT_COLLECTIVE_H
#define CT_COLLECTIVE_H

#include <ctitan/comm.h>
#include <ctitan/device/device.h>

CT_BEGIN_DECLS

/* Plugins offer transports as {CT_TRANSPORT, "device's name", &transport}. Of several that do not
   wait, the first is used. CT_EINVAL: a function is missing. */
CT_API int ct_transport_register(const char *device, const struct ct_transport *transport);
/* The transport of a device: the one registered for its name, or the host's. NULL: none. */
CT_API const struct ct_transport *ct_transport_find(const struct ct_device *device);

/* ---- for the ct_collective_ops (op.h) of an op type ---- */

/* Both run on the device, on the stream of the launch. Copy `count` blocks of `bytes`, which are
   `from_stride` and `to_stride` bytes apart; set `bytes` bytes to zero. */
CT_API int ct_launch_copy(const struct ct_launch *l, void *to, size_t to_stride, const void *from,
                          size_t from_stride, size_t bytes, int64_t count);
CT_API int ct_launch_clear(const struct ct_launch *l, void *at, size_t bytes);
/* Check a call and run it on the transport. */
CT_API int ct_transport_call(const struct ct_launch *l, const struct ct_transport *by,
                             const struct ct_call *call);

/* Make the groups that all ranks have to make in one order, before graph is lowered. Sets
   communicator->groups at the first call; lives in arena. */
CT_API int ct_communicator_open(struct ct_communicator *communicator, const struct ct_graph *graph,
                                int64_t rank, struct ct_arena *arena);

/* The kernel of every collective: it runs the type's ct_collective_ops over the device's transport.
   NULL: the device has no transport. */
CT_API const struct ct_kernel *ct_collective_kernel(const struct ct_device *device);

/* CT_COLLECTIVE(prepare, run, sent) */
#define CT_COLLECTIVE(...)                                                                         \
    {                                                                                              \
        sizeof(struct ct_collective_ops), ct_collective_kernel, __VA_ARGS__                        \
    }

/* The struct that `prepare` sets as p->state begins with this one. */
struct ct_collective {
    const struct ct_transport *transport; /* set after `prepare` */
    struct ct_group *group;               /* NULL: only planning, or nothing is sent */
    int64_t ranks, me;                    /* of the group, and this rank's position in it */
    enum ct_dtype dtype;
};

/* For `prepare`: fill *collective from the op's first value and its attribute "axes", with the
   group along these axes on the op's stream. Sets p->state to collective. */
CT_API int ct_collective_prepare_axes(struct ct_prepare *p, struct ct_collective *collective);
/*
 * The same for a group of the given ranks of the mesh, in this order; `name` appears in messages.
 * Calls with the same ranks and name share a group. All ranks must create their common groups in
 * the same order. The order of the ops in the graph will do if ranks have parts of the same graph.
 */
CT_API int ct_collective_prepare_ranks(struct ct_prepare *p, struct ct_collective *collective,
                                       const int64_t *ranks, int count, const char *name);

CT_END_DECLS

#endif
