/*
 * Collectives, each in two ways.
 *
 * Staged: every member copies its data into its slot, all arrive once, and every member copies what
 * it needs from the slots. This costs one wait and two copies. It is used for small data, and, slot
 * by slot, for memory that other ranks cannot access.
 *
 * Direct: all arrive, then members read each other's inputs in place (all_reduce also writes each
 * other's outputs). All arrive again, so that no rank reuses a buffer that is still being read.
 *
 * All ranks must choose the same way. They decide by size, which is the same everywhere, and then
 * by the announcements, which tell whose memory is accessible.
 */
#include <stdlib.h>
#include <string.h>

#include <ctitan/error.h>

#include "local.h"

#define DIRECT_BLOCK ((size_t)16 << 10)
#define KERNEL_BLOCK ((size_t)64 << 10)
#define KERNEL_LEAST ((size_t)16 << 10)

static char *slot(const struct job *j, int position)
{
    return local_slot(j->g, position);
}

static void copy(void *to, const void *from, size_t bytes)
{
    if (bytes && to != from)
        memcpy(to, from, bytes);
}

static int reduce(const struct job *j, void *out, size_t bytes)
{
    ct_reduce(out, j->g->inputs, j->n, bytes / j->size, (enum ct_dtype)j->a.dtype,
              (enum ct_reduction)j->a.reduction);
    return 0;
}

static const struct buffers *buffers_of(const struct job *j, int position)
{
    if (j->number < 0)
        return &local_announced(j->g, position)->buffers;
    return (const struct buffers *)local_slot(j->g, position) + j->number;
}

static struct place in_of(const struct job *j, int position)
{
    return buffers_of(j, position)->in;
}

static struct place out_of(const struct job *j, int position)
{
    return buffers_of(j, position)->out;
}

/* The input of every member, at + [0, bytes), copied only if it cannot be read in place. */
static int peek_inputs(const struct job *j, size_t at, size_t bytes)
{
    for (int i = 0; i < j->n; i++) {
        j->g->inputs[i] =
            local_peek(j->g, i, in_of(j, i), at, bytes, j->g->scratch + (size_t)i * KERNEL_BLOCK);
        if (!j->g->inputs[i])
            return CT_EPEER;
    }
    return 0;
}

static size_t block_bytes(const struct job *j)
{
    for (int i = 0; i < j->n; i++)
        if (in_of(j, i).region < 0)
            return KERNEL_BLOCK;
    return DIRECT_BLOCK;
}

/* ---- all_gather ---- */

static void gather_put(const struct job *j, char *to, size_t at, size_t bytes)
{
    copy(to, j->in + at, bytes);
}

static int gather_take(const struct job *j, size_t at, size_t bytes)
{
    for (int i = 0; i < j->n; i++)
        copy(j->out + (size_t)i * j->shard + at, i == j->me ? j->in + at : slot(j, i), bytes);
    return 0;
}

static int gather_direct(const struct job *j)
{
    int rc = 0;

    copy(j->out + (size_t)j->me * j->shard, j->in, j->shard);
    for (int k = 1; k < j->n && rc == 0; k++) {
        int i = (j->me + k) % j->n;

        rc = local_read(j->g, i, in_of(j, i), 0, j->shard, j->out + (size_t)i * j->shard);
    }
    return rc;
}

/* ---- reduce_scatter ---- */

static void split_put(const struct job *j, char *to, size_t at, size_t bytes)
{
    for (int i = 0; i < j->n; i++)
        if (i != j->me)
            copy(to + (size_t)i * bytes, j->in + (size_t)i * j->shard + at, bytes);
}

static const char *split_part(const struct job *j, int i, size_t at, size_t bytes)
{
    return i == j->me ? j->in + (size_t)i * j->shard + at : slot(j, i) + (size_t)j->me * bytes;
}

static int scatter_take(const struct job *j, size_t at, size_t bytes)
{
    for (int i = 0; i < j->n; i++)
        j->g->inputs[i] = split_part(j, i, at, bytes);
    return reduce(j, j->out + at, bytes);
}

static int scatter_direct(const struct job *j)
{
    size_t block = block_bytes(j);

    for (size_t at = 0; at < j->shard; at += block) {
        size_t bytes = j->shard - at < block ? j->shard - at : block;
        int rc = peek_inputs(j, (size_t)j->me * j->shard + at, bytes);

        if (rc < 0)
            return rc;
        reduce(j, j->out + at, bytes);
    }
    return 0;
}

/* ---- all_reduce ---- */

/* Every member reduces the whole range by itself. */
static int reduce_alone(const struct job *j, size_t at, size_t bytes)
{
    for (int i = 0; i < j->n; i++)
        j->g->inputs[i] = i == j->me ? j->in + at : slot(j, i);
    return reduce(j, j->out + at, bytes);
}

/* Each member reduces a slice into its slot, and the others copy it from there. */
static int reduce_together(const struct job *j, size_t at, size_t bytes)
{
    size_t begin, length = ct_comm_share(bytes, j->n, j->me, &begin);
    int rc;

    for (int i = 0; i < j->n; i++)
        j->g->inputs[i] = slot(j, i) + begin;
    reduce(j, slot(j, j->me) + begin, length);
    rc = local_arrive(j->g);
    for (int i = 0; i < j->n && rc == 0; i++) {
        length = ct_comm_share(bytes, j->n, i, &begin);
        copy(j->out + at + begin, slot(j, i) + begin, length);
    }
    return rc;
}

static int all_reduce_take(const struct job *j, size_t at, size_t bytes)
{
    return bytes <= j->method->small ? reduce_alone(j, at, bytes) : reduce_together(j, at, bytes);
}

static int push(const struct job *j, size_t at, size_t bytes)
{
    int rc = 0;

    for (int k = 1; k < j->n && rc == 0; k++) {
        int i = (j->me + k) % j->n;

        rc = local_write(j->g, i, out_of(j, i), at, bytes, j->out + at);
    }
    return rc;
}

/* Nobody else touches this member's slice of any buffer, so inputs may alias outputs. */
static int all_reduce_direct(const struct job *j)
{
    size_t block = block_bytes(j), begin, length = ct_comm_share(j->shard, j->n, j->me, &begin);

    for (size_t at = begin; at < begin + length; at += block) {
        size_t left = begin + length - at, bytes = left < block ? left : block;
        int rc = peek_inputs(j, at, bytes);

        if (rc < 0)
            return rc;
        reduce(j, j->out + at, bytes);
        rc = push(j, at, bytes);
        if (rc < 0)
            return rc;
    }
    return 0;
}

/* ---- all_to_all ---- */

static int exchange_take(const struct job *j, size_t at, size_t bytes)
{
    for (int i = 0; i < j->n; i++)
        copy(j->out + (size_t)i * j->shard + at, split_part(j, i, at, bytes), bytes);
    return 0;
}

static int exchange_direct(const struct job *j)
{
    int rc = 0;

    for (int k = 0; k < j->n && rc == 0; k++) {
        int i = (j->me + k) % j->n;

        rc = local_read(j->g, i, in_of(j, i), (size_t)j->me * j->shard, j->shard,
                        j->out + (size_t)i * j->shard);
    }
    return rc;
}

/* ---- broadcast ---- */

static void broadcast_put(const struct job *j, char *to, size_t at, size_t bytes)
{
    if (j->me == j->a.root)
        copy(to, j->in + at, bytes);
}

static int broadcast_take(const struct job *j, size_t at, size_t bytes)
{
    if (j->me != j->a.root)
        copy(j->out + at, slot(j, j->a.root), bytes);
    return 0;
}

/* The receivers read. To use the root as well, it writes the last n-th for them. */
static int broadcast_direct(const struct job *j)
{
    size_t tail = j->shard / (size_t)j->n / LINE * LINE, rest = j->shard - tail;
    int rc = 0;

    if (j->me != j->a.root)
        return local_read(j->g, j->a.root, in_of(j, j->a.root), 0, rest, j->out);
    for (int k = 1; k < j->n && rc == 0; k++) {
        int i = (j->me + k) % j->n;

        rc = local_write(j->g, i, out_of(j, i), rest, tail, j->in + rest);
    }
    return rc;
}

/* ---- all ---- */

static const struct method methods[CT_CALL_KINDS] = {
    [CT_CALL_ALL_GATHER] = {.small = 16 << 10,
                            .put = gather_put,
                            .take = gather_take,
                            .direct = gather_direct},
    [CT_CALL_REDUCE_SCATTER] = {.split = true,
                                .small = 16 << 10,
                                .put = split_put,
                                .take = scatter_take,
                                .direct = scatter_direct},
    [CT_CALL_ALL_REDUCE] = {.pushes = true,
                            .sliced = true,
                            .small = 4 << 10,
                            .put = gather_put,
                            .take = all_reduce_take,
                            .direct = all_reduce_direct},
    [CT_CALL_ALL_TO_ALL] = {.split = true,
                            .small = 16 << 10,
                            .put = split_put,
                            .take = exchange_take,
                            .direct = exchange_direct},
    [CT_CALL_BROADCAST] = {.pushes = true,
                           .sliced = true,
                           .small = 16 << 10,
                           .put = broadcast_put,
                           .take = broadcast_take,
                           .direct = broadcast_direct},
};

bool local_all_in_arena(const struct job *j)
{
    for (int i = 0; i < j->n; i++)
        if (in_of(j, i).region < 0 || (j->method->pushes && out_of(j, i).region < 0))
            return false;
    return true;
}

/* Access through the kernel is faster only from a certain size on. */
static bool is_direct(const struct job *j)
{
    size_t unit = j->shard / (j->method->sliced ? (size_t)j->n : 1);

    return local_all_in_arena(j) || (j->g->comm->single_copy && unit >= KERNEL_LEAST);
}

/* Run one staged step per slotful; announced: all members have already arrived for the call. */
static int run_staged(struct job *j, bool announced)
{
    size_t parts = j->method->split ? (size_t)j->n : 1;
    size_t step = SLOT_BYTES / parts / LINE * LINE;

    for (size_t at = 0; at < j->shard || !announced; at += step) {
        size_t bytes = j->shard - at < step ? j->shard - at : step;
        int rc;

        j->method->put(j, slot(j, j->me), at, bytes);
        rc = announced ? local_arrive(j->g) : local_enter(j->g, &j->a);
        if (rc == 0)
            rc = j->method->take(j, at, bytes);
        if (rc < 0)
            return rc;
        j->g->staged++;
        announced = true;
    }
    return 0;
}

int local_run_direct(struct job *j)
{
    if (j->g->comm->single_copy && !j->g->scratch) {
        j->g->scratch = malloc((size_t)j->n * KERNEL_BLOCK);
        if (!j->g->scratch)
            return ct_fail(CT_ENOMEM, "buffers of group '%s'", j->g->base.name);
    }
    return j->method->direct(j);
}

static int run_large(struct job *j)
{
    int rc;

    j->a.buffers = local_buffers(j);
    rc = local_enter(j->g, &j->a);
    if (rc < 0)
        return rc;
    if (!is_direct(j))
        return run_staged(j, true);
    rc = local_run_direct(j);
    return rc < 0 ? rc : local_arrive(j->g);
}

struct buffers local_buffers(const struct job *j)
{
    size_t parts = j->method->split ? (size_t)j->n : 1;
    const struct comm *comm = j->g->comm;

    return (struct buffers){local_place(comm, j->in, j->shard * parts),
                            local_place(comm, j->out, j->shard)};
}

int local_run(struct job *j)
{
    size_t parts = j->method->split ? (size_t)j->n : 1;
    int rc = j->shard * parts <= j->method->small ? run_staged(j, false) : run_large(j);

    local_note_done(j->g);
    return rc;
}

int local_collective(const struct ct_call *c)
{
    struct group *g = (struct group *)c->group;
    size_t size = ct_dtype_size(c->dtype);
    struct job j = {.g = g,
                    .method = &methods[c->kind],
                    .a = {.call = (uint8_t)c->kind,
                          .dtype = (uint8_t)c->dtype,
                          .reduction = (uint8_t)c->reduction,
                          .root = c->kind == CT_CALL_BROADCAST ? c->from : 0,
                          .count = c->count},
                    .in = c->in,
                    .out = c->out,
                    .shard = c->count * size,
                    .size = size,
                    .number = -1,
                    .n = g->base.size,
                    .me = g->base.position};

    return g->batch.open ? local_batch_add(&j) : local_run(&j);
}

int local_barrier(struct group *g)
{
    struct announcement a = {.call = CT_CALL_BARRIER};
    int rc = local_enter(g, &a);

    local_note_done(g);
    return rc;
}
