#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include <ctitan/error.h>

#include "comm/collective.h"
#include "team.h"

#define MOST 64 /* ranks */

struct team {
    pthread_barrier_t barrier;
    const void *in[MOST];
    int64_t ranks;
    int (*body)(int64_t, const struct ct_communicator *, void *);
    void *context;
};

struct mate {
    struct ct_comm comm;
    struct team *team;
    pthread_t thread;
    struct ct_arena arena;
    int rc;
    char message[512];
};

struct group {
    struct ct_group base;
    struct mate *mate;
    int ranks[MOST];
};

static const struct ct_comm_ops ops;

static int group_new(struct ct_comm *comm, const int64_t *ranks, int count, const char *name,
                     struct ct_group **group)
{
    struct mate *mate = (struct mate *)comm;
    struct group *g = ct_arena_new(&mate->arena, struct group);

    g->mate = mate;
    g->base = (struct ct_group){&ops, ct_arena_strdup(&mate->arena, name), 0, count, g->ranks};
    for (int i = 0; i < count; i++) {
        g->ranks[i] = (int)ranks[i];
        if (ranks[i] == comm->rank)
            g->base.position = i;
    }
    *group = &g->base;
    return 0;
}

/* Show the others where in lies, and wait until all have. */
static void show(const struct group *g, const void *in)
{
    g->mate->team->in[g->mate->comm.rank] = in;
    pthread_barrier_wait(&g->mate->team->barrier);
}

/* The others are done with what was shown: copy the result to its place. */
static int settle(const struct group *g, void *out, void *result, size_t bytes)
{
    pthread_barrier_wait(&g->mate->team->barrier);
    memcpy(out, result, bytes);
    free(result);
    return 0;
}

static const char *shown(const struct group *g, int position)
{
    return g->mate->team->in[g->ranks[position]];
}

static int all_gather(struct ct_group *group, const void *in, void *out, size_t count,
                      enum ct_dtype dtype)
{
    const struct group *g = (const struct group *)group;
    size_t bytes = count * ct_dtype_size(dtype);
    char *result = malloc(bytes * (size_t)group->size + 1);

    show(g, in);
    for (int i = 0; i < group->size; i++)
        memcpy(result + (size_t)i * bytes, shown(g, i), bytes);
    return settle(g, out, result, bytes * (size_t)group->size);
}

/* The sum of everybody's elements from `first` on. */
static int sum(struct ct_group *group, const void *in, void *out, size_t first, size_t count,
               enum ct_dtype dtype, enum ct_reduction reduction)
{
    const struct group *g = (const struct group *)group;
    void *result = malloc(count * ct_dtype_size(dtype) + 1);
    const void *shards[MOST];

    show(g, in);
    for (int i = 0; i < group->size; i++)
        shards[i] = shown(g, i) + first * ct_dtype_size(dtype);
    ct_reduce(result, shards, group->size, count, dtype, reduction);
    return settle(g, out, result, count * ct_dtype_size(dtype));
}

static int reduce_scatter(struct ct_group *group, const void *in, void *out, size_t count,
                          enum ct_dtype dtype, enum ct_reduction reduction)
{
    return sum(group, in, out, (size_t)group->position * count, count, dtype, reduction);
}

static int all_reduce(struct ct_group *group, const void *in, void *out, size_t count,
                      enum ct_dtype dtype, enum ct_reduction reduction)
{
    return sum(group, in, out, 0, count, dtype, reduction);
}

static int all_to_all(struct ct_group *group, const void *in, void *out, size_t count,
                      enum ct_dtype dtype)
{
    const struct group *g = (const struct group *)group;
    size_t bytes = count * ct_dtype_size(dtype);
    char *result = malloc(bytes * (size_t)group->size + 1);

    show(g, in);
    for (int i = 0; i < group->size; i++)
        memcpy(result + (size_t)i * bytes, shown(g, i) + (size_t)group->position * bytes, bytes);
    return settle(g, out, result, bytes * (size_t)group->size);
}

/* Members of a group shift in one direction, so the sender's buffer is enough to know. */
static int exchange(struct ct_group *group, const void *out, size_t out_bytes, int to, void *in,
                    size_t in_bytes, int from, int tag)
{
    const struct group *g = (const struct group *)group;
    char *result = malloc(in_bytes + 1);

    (void)out_bytes;
    (void)to;
    (void)tag;
    show(g, out);
    memcpy(result, shown(g, from), in_bytes);
    return settle(g, in, result, in_bytes);
}

static const struct ct_comm_ops ops = {
    .size = sizeof(struct ct_comm_ops),
    .group = group_new,
    .all_gather = all_gather,
    .reduce_scatter = reduce_scatter,
    .all_reduce = all_reduce,
    .all_to_all = all_to_all,
    .exchange = exchange,
};

static void *run_mate(void *argument)
{
    struct mate *mate = argument;
    struct ct_communicator_groups groups = {.arena = &mate->arena};
    struct ct_communicator communicator = {&ops, &mate->comm, &groups};

    mate->rc = mate->team->body(mate->comm.rank, &communicator, mate->team->context);
    strncpy(mate->message, ct_error_message(), sizeof(mate->message) - 1);
    return NULL;
}

int team_run(int64_t ranks, int (*body)(int64_t, const struct ct_communicator *, void *),
             void *context)
{
    struct team team = {.ranks = ranks, .body = body, .context = context};
    struct mate mates[MOST] = {0};
    int rc = 0;

    pthread_barrier_init(&team.barrier, NULL, (unsigned)ranks);
    for (int64_t i = 0; i < ranks; i++) {
        mates[i].team = &team;
        mates[i].comm = (struct ct_comm){&ops, (int)i, (int)ranks};
        if (pthread_create(&mates[i].thread, NULL, run_mate, &mates[i]))
            abort();
    }
    for (int64_t i = 0; i < ranks; i++) {
        pthread_join(mates[i].thread, NULL);
        if (rc == 0 && mates[i].rc < 0)
            rc = ct_fail(mates[i].rc, "rank %lld: %s", (long long)i, mates[i].message);
        ct_arena_finish(&mates[i].arena);
    }
    pthread_barrier_destroy(&team.barrier);
    return rc;
}
