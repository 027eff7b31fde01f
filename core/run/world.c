/*
 * The group of all ranks, for hooks and the run itself; of one rank alone it needs no communicator.
 */
#include <string.h>

#include <ctitan/error.h>
#include <ctitan/run.h>

#include "run/world.h"

/* ---- one rank ---- */

static int barrier(struct ct_group *group)
{
    (void)group;
    return 0;
}

static int copy(const void *in, void *out, size_t count, enum ct_dtype dtype)
{
    if (in != out)
        memcpy(out, in, count * ct_dtype_size(dtype));
    return 0;
}

static int gather(struct ct_group *group, const void *in, void *out, size_t count,
                  enum ct_dtype dtype)
{
    (void)group;
    return copy(in, out, count, dtype);
}

static int reduce(struct ct_group *group, const void *in, void *out, size_t count,
                  enum ct_dtype dtype, enum ct_reduction reduction)
{
    (void)group;
    (void)reduction;
    return copy(in, out, count, dtype);
}

static int broadcast(struct ct_group *group, void *data, size_t count, enum ct_dtype dtype,
                     int root)
{
    (void)group;
    (void)data;
    (void)count;
    (void)dtype;
    return root == 0 ? 0 : ct_fail(CT_EINVAL, "a broadcast from rank %d of 1", root);
}

static int no_peer(int peer)
{
    return ct_fail(CT_EINVAL, "a message between rank 0 and rank %d of 1", peer);
}

static int send(struct ct_group *group, const void *data, size_t bytes, int peer, int tag)
{
    (void)group;
    (void)data;
    (void)bytes;
    (void)tag;
    return no_peer(peer);
}

static int receive(struct ct_group *group, void *data, size_t bytes, int peer, int tag)
{
    (void)group;
    (void)data;
    (void)bytes;
    (void)tag;
    return no_peer(peer);
}

static int exchange(struct ct_group *group, const void *out, size_t out_bytes, int to, void *in,
                    size_t in_bytes, int from, int tag)
{
    (void)group;
    (void)tag;
    if (to || from || out_bytes != in_bytes)
        return no_peer(to ? to : from);
    return copy(out, in, in_bytes, CT_U8);
}

static const struct ct_comm_ops alone_ops = {.barrier = barrier,
                                             .all_gather = gather,
                                             .reduce_scatter = reduce,
                                             .all_reduce = reduce,
                                             .all_to_all = gather,
                                             .broadcast = broadcast,
                                             .send = send,
                                             .receive = receive,
                                             .exchange = exchange};

/* ---- all ---- */

int ct_world_open(struct ct_run *run)
{
    int64_t *ranks = ct_arena_array(&run->arena, int64_t, run->world);

    for (int64_t i = 0; i < run->world; i++)
        ranks[i] = i;
    if (run->communicator.comm)
        return run->communicator.ops->group(run->communicator.comm, ranks, (int)run->world, "world",
                                            &run->world_group);
    run->world_group = ct_arena_new(&run->arena, struct ct_group);
    *run->world_group =
        (struct ct_group){.ops = &alone_ops, .name = "world", .size = 1, .ranks = (const int[]){0}};
    return 0;
}
