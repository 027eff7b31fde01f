/*
 * Collective ops, for devices and communicators that bring kernels of their own.
 *
 * What a collective must send, and how pieces lie in tensors, follows from shardings alone and is
 * found here; a transport says how bytes are copied on the device and how flat, equal pieces
 * travel. Kernels in host memory need none of this: the core has them.
 */
#ifndef CT_COLLECTIVE_PUBLIC_H
#define CT_COLLECTIVE_PUBLIC_H

#include <ctitan/comm.h>
#include <ctitan/op.h>

/* All calls enqueue on the stream of the launch, or have been done when they return. Counts are in
   elements; in and out as in ct_comm_ops. */
struct ct_transport {
    /* Calls up to the matching end are one: begins true, then false. 1 to a beginning: they are; 0:
       they are not, and no end follows. NULL: never. */
    int (*begin)(const struct ct_launch *l, struct ct_group *group, bool begins);
    /* `count` blocks of `bytes`, from blocks `from_stride` bytes apart to blocks `to_stride` apart.
     */
    int (*copy)(const struct ct_launch *l, void *to, size_t to_stride, const void *from,
                size_t from_stride, size_t bytes, int64_t count);
    int (*clear)(const struct ct_launch *l, void *at, size_t bytes);
    int (*all_gather)(const struct ct_launch *l, struct ct_group *group, const void *in, void *out,
                      size_t count, enum ct_dtype dtype);
    int (*reduce_scatter)(const struct ct_launch *l, struct ct_group *group, const void *in,
                          void *out, size_t count, enum ct_dtype dtype);
    int (*all_reduce)(const struct ct_launch *l, struct ct_group *group, const void *in, void *out,
                      size_t count, enum ct_dtype dtype);
    int (*all_to_all)(const struct ct_launch *l, struct ct_group *group, const void *in, void *out,
                      size_t count, enum ct_dtype dtype);
    int (*exchange)(const struct ct_launch *l, struct ct_group *group, const void *out, int to,
                    void *in, int from, size_t bytes, int tag);
    /* Between stages of a pipeline. Groups of two, from position 0 to 1; each direction has its
       own. */
    int (*send)(const struct ct_launch *l, struct ct_group *group, const void *data, size_t bytes,
                int to, int tag);
    int (*receive)(const struct ct_launch *l, struct ct_group *group, void *data, size_t bytes,
                   int from, int tag);
    /* The sum of `count` single numbers, 0 or more of them. NULL: `copy`, `clear` and the device's
       own kernel of `add` do that. */
    int (*sum)(const struct ct_launch *l, const struct ct_tensor *terms, int count,
               const struct ct_tensor *out);
};

/*
 * `prepare` and `run` of a kernel of all_gather, reduce_scatter, all_reduce, all_to_all, permute,
 * slice, send, receive or stage_sum.
 *
 * Where calls are enqueued, and nobody's host waits in them, sends and receives run on streams of
 * their own, and receives are asked for early. A device whose transport waits inside of the calls
 * must say that it is in order (device.h): then ranks meet in the order of the program.
 */
CT_API int ct_collective_prepare(struct ct_prepare *p);
CT_API int ct_collective_run(const struct ct_launch *l, const struct ct_transport *transport);

#endif
