/* Collectives on the device: NCCL calls, enqueued on the stream of the launch. */
#include <ctitan/collective.h>

#include "cluster.h"

#define UINT8 1
#define FLOAT8_SUMS 22400 /* first version that reduces float8 */

static const int types[] = {
    [CT_F32] = 7,   [CT_BF16] = 9, [CT_F64] = 8, [CT_F16] = 6,    [CT_E4M3] = 10,
    [CT_E5M2] = 11, [CT_I32] = 2,  [CT_I64] = 4, [CT_U8] = UINT8, [CT_U4] = UINT8, /* in bytes */
};
_Static_assert(CT_COUNT(types) == CT_DTYPE_COUNT && CT_DTYPE_COUNT == 10, "a type for each dtype");

static int check_reduction(const struct ct_call *c)
{
    bool reduces = c->kind == CT_CALL_ALL_REDUCE || c->kind == CT_CALL_REDUCE_SCATTER;
    int version = FLOAT8_SUMS;

    if (reduces && (c->dtype == CT_E4M3 || c->dtype == CT_E5M2))
        nccl.ncclGetVersion(&version);
    return version >= FLOAT8_SUMS
               ? 0
               : ct_fail(CT_EINVAL, "%s of %s in group '%s': NCCL 2.24 is needed, this is 2.%d",
                         ct_call_name(c->kind), ct_dtype_name(c->dtype), c->group->name,
                         version / 100 % 100);
}

/* Take the lock, so that the watchdog does not abort NCCL during a call. */
static int lock(struct group *g)
{
    pthread_mutex_lock(&g->comm->lock);
    if (!g->comm->failed)
        return 0;
    pthread_mutex_unlock(&g->comm->lock);
    return nccl_failed(g->comm);
}

static int begin(struct group *g, const char *what, CUstream stream)
{
    int rc = g->together ? 0 : nccl_watch_begin(g, what, stream);

    return rc < 0 || g->together ? rc : lock(g);
}

static int end(struct group *g, int code, const char *what)
{
    int rc;

    if (g->together)
        return code == ncclSuccess || code == ncclInProgress
                   ? 0
                   : ct_fail(CT_EPEER, "%s in group '%s': NCCL: %s", what, g->base.name,
                             nccl.ncclGetErrorString(code));
    pthread_mutex_unlock(&g->comm->lock);
    rc = nccl_check(g, code, what);
    return rc < 0 ? rc : nccl_watch_end(g);
}

/* End an NCCL group that was begun, whatever its calls returned. */
static int end_group(int code)
{
    int ended = nccl.ncclGroupEnd();

    return code == ncclSuccess ? ended : code;
}

/* Register the arena, which holds what ops gather, once per group. All ranks gather from the same
   offset in their arenas. */
static int register_window(struct group *g, const void *data)
{
    CUdeviceptr base;
    size_t bytes;

    if (g->window_base)
        return ncclSuccess;
    if (nccl.cuMemGetAddressRange(&base, &bytes, (uintptr_t)data))
        return ncclSuccess;
    g->window_base = base;
    return nccl.ncclCommWindowRegister(g->nccl, (void *)(uintptr_t)base, bytes, &g->window,
                                       NCCL_WIN_COLL_SYMMETRIC);
}

static int ready_window(struct ct_group *group, const void *data)
{
    struct group *g = (struct group *)group;
    int rc = nccl_config.windows ? lock(g) : 0, code;

    if (!nccl_config.windows)
        return 0;

    if (rc < 0)
        return rc;
    code = register_window(g, data);
    pthread_mutex_unlock(&g->comm->lock);
    return nccl_check(g, code, "registering memory");
}

static int all_to_all(const struct ct_call *c, ncclComm_t comm, size_t bytes, CUstream stream)
{
    int code = nccl.ncclGroupStart();

    if (code != ncclSuccess)
        return code;
    for (int i = 0; code == ncclSuccess && i < c->group->size; i++) {
        size_t at = (size_t)i * bytes;

        code = nccl.ncclSend((const char *)c->in + at, bytes, UINT8, i, comm, stream);
        if (code == ncclSuccess)
            code = nccl.ncclRecv((char *)c->out + at, bytes, UINT8, i, comm, stream);
    }
    return end_group(code);
}

static int message(const struct ct_call *c, ncclComm_t comm, size_t bytes, CUstream stream)
{
    int code = nccl.ncclGroupStart();

    if (code != ncclSuccess)
        return code;
    if (c->kind != CT_CALL_RECEIVE)
        code = nccl.ncclSend(c->in, bytes, UINT8, c->to, comm, stream);
    if (code == ncclSuccess && c->kind != CT_CALL_SEND)
        code = nccl.ncclRecv(c->out, bytes, UINT8, c->from, comm, stream);
    return end_group(code);
}

static int submit(const struct ct_call *c, CUstream stream)
{
    ncclComm_t comm = ((struct group *)c->group)->nccl;
    size_t bytes = c->count * ct_dtype_size(c->dtype);
    int type = types[c->dtype], op = c->reduction == CT_REDUCE_MAX ? ncclMax : ncclSum;

    switch (c->kind) {
    case CT_CALL_ALL_GATHER:
        return nccl.ncclAllGather(c->in, c->out, bytes, UINT8, comm, stream);
    case CT_CALL_REDUCE_SCATTER:
        return nccl.ncclReduceScatter(c->in, c->out, c->count, type, op, comm, stream);
    case CT_CALL_ALL_REDUCE:
        return nccl.ncclAllReduce(c->in, c->out, c->count, type, op, comm, stream);
    case CT_CALL_ALL_TO_ALL:
        return all_to_all(c, comm, bytes, stream);
    case CT_CALL_BROADCAST:
        return nccl.ncclBroadcast(c->in, c->out, bytes, UINT8, c->from, comm, stream);
    default:
        return message(c, comm, bytes, stream);
    }
}

int nccl_enqueue(const struct ct_call *c, CUstream stream)
{
    struct group *g = (struct group *)c->group;
    const char *name = ct_call_name(c->kind);
    int rc = check_reduction(c);

    if (rc == 0)
        rc = begin(g, name, stream);
    return rc < 0 ? rc : end(g, submit(c, stream), name);
}

/* ---- the transport ---- */

static int call(const struct ct_launch *l, const struct ct_call *c)
{
    bool alone = !((struct group *)c->group)->together;
    int rc = alone && c->kind == CT_CALL_ALL_GATHER ? ready_window(c->group, c->out) : 0;

    return rc < 0 ? rc : nccl_enqueue(c, l->stream);
}

/* One NCCL group for all values of an op. Memory is registered before, as that is a call alone. */
static int begin_together(const struct ct_launch *l, struct ct_group *group)
{
    struct group *g = (struct group *)group;
    bool gathers = l->op->type->collective == &ct_collective_all_gather;
    int rc = gathers ? ready_window(group, l->out[0].data) : 0, code;

    if (rc == 0)
        rc = begin(g, l->op->type->name, l->stream);
    if (rc < 0)
        return rc;
    code = nccl.ncclGroupStart();
    if (code != ncclSuccess)
        return end(g, code, "calls together");
    g->together = true;
    return 1;
}

static int end_together(const struct ct_launch *l, struct ct_group *group)
{
    struct group *g = (struct group *)group;

    g->together = false;
    return end(g, nccl.ncclGroupEnd(), l->op->type->name);
}

const struct ct_transport nccl_transport = {
    .size = sizeof(nccl_transport),
    .name = "nccl",
    .begin = begin_together,
    .end = end_together,
    .call = call,
};
