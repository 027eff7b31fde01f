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
};

/* `prepare` and `run` of a kernel of all_gather, reduce_scatter, all_reduce, all_to_all, permute
   or slice. */
CT_API int ct_collective_prepare(struct ct_prepare *p);
CT_API int ct_collective_run(const struct ct_launch *l, const struct ct_transport *transport);

#endif
