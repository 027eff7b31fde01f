/*
 * Calls on groups of ranks: how they are made and checked, and what communicators have in common.
 * <ctitan/device/comm.h> says what a call is.
 */
#ifndef CT_COMM_H
#define CT_COMM_H

#include <stdarg.h>

#include <ctitan/device/comm.h>

CT_BEGIN_DECLS

/* ---- calls ---- */

/* "all_gather" and so on. */
CT_API const char *ct_call_name(enum ct_call_kind kind);
/* Whether kind is exchange, send or receive: between two ranks, not all. */
CT_API bool ct_call_is_message(enum ct_call_kind kind);
/* Bytes that a call reads at `in` and writes at `out`. */
CT_API size_t ct_call_in_bytes(const struct ct_call *call);
CT_API size_t ct_call_out_bytes(const struct ct_call *call);
/* CT_EINVAL: no such kind, dtype or reduction; a position that is not in the group, or of this rank
   itself; more bytes than can be counted. */
CT_API int ct_call_check(const struct ct_call *call);
/* Check a call and run it on the group's communicator. in and out are host memory. An exchange of a
   rank with itself is a copy, and so is every call in the world of a run of one rank. */
CT_API int ct_call_run(const struct ct_call *call);

/* ct_call_run for each kind of call. */
CT_API int ct_group_barrier(struct ct_group *group);
CT_API int ct_group_all_gather(struct ct_group *group, const void *in, void *out, size_t count,
                               enum ct_dtype dtype);
CT_API int ct_group_reduce_scatter(struct ct_group *group, const void *in, void *out, size_t count,
                                   enum ct_dtype dtype, enum ct_reduction reduction);
CT_API int ct_group_all_reduce(struct ct_group *group, const void *in, void *out, size_t count,
                               enum ct_dtype dtype, enum ct_reduction reduction);
CT_API int ct_group_all_to_all(struct ct_group *group, const void *in, void *out, size_t count,
                               enum ct_dtype dtype);
CT_API int ct_group_broadcast(struct ct_group *group, void *data, size_t count, enum ct_dtype dtype,
                              int root);
CT_API int ct_group_send(struct ct_group *group, const void *data, size_t bytes, int to, int tag);
CT_API int ct_group_receive(struct ct_group *group, void *data, size_t bytes, int from, int tag);
CT_API int ct_group_exchange(struct ct_group *group, const void *out, int to, void *in, int from,
                             size_t bytes, int tag);

/* A failure of one rank is one of all: rc where it is negative, with this rank's message, and
   CT_EPEER where only another rank's is. All ranks of the group call it. */
CT_API int ct_group_agree(struct ct_group *group, int rc);

/* ---- for those who write communicators ---- */

/* For `open`. CT_EINVAL: the rank is not in the world, or the timeout is not above 0. */
CT_API int ct_comm_check_request(const struct ct_comm_request *request);

/*
 * For `group`: allocate a zeroed struct of `size` bytes, which begins with a struct ct_group, and
 * fill that in. free() releases it with its name and ranks. CT_EINVAL: a rank is outside the world
 * or listed twice, or this rank is not listed.
 */
CT_API int ct_group_new(const struct ct_comm *comm, const int64_t *ranks, int count,
                        const char *name, size_t size, struct ct_group **group);

/* The share of [0, bytes) of `position` among n, in whole cache lines: returns its size, sets
   *begin. */
CT_API size_t ct_comm_share(size_t bytes, int n, int position, size_t *begin);

/*
 * out[k] = in[0][k] + in[1][k] + .. for k in [0, count), or their maximum, for communicators that
 * run on the host. Integers wrap. out may be any of in; the result does not depend on the
 * processor.
 */
CT_API void ct_reduce(void *out, const void *const *in, int inputs, size_t count,
                      enum ct_dtype dtype, enum ct_reduction reduction);

/* The failure that ended a communicator. Zeroed at first. Any thread may set it, and in shared
   memory any process; only the first one does. */
struct ct_first_failure {
    uint32_t state; /* 0: none; 1: being written; 2: written */
    char text[636];
};

/* Record a failure unless there is one already. Returns CT_EPEER with the message of the first. */
CT_API int ct_first_failure_set(struct ct_first_failure *failure, const char *words, va_list args);
/* CT_EPEER with the message of the first failure; 0: there is none. */
CT_API int ct_first_failure_get(const struct ct_first_failure *failure);

CT_END_DECLS

#endif
