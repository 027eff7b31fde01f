#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include <ctitan/error.h>

#include "comm/groups.h"
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

/* `bytes` from `at` on of what each member shows. */
static void gather(const struct group *g, char *result, size_t at, size_t bytes)
{
    for (int i = 0; i < g->base.size; i++)
        memcpy(result + (size_t)i * bytes, shown(g, i) + at, bytes);
}

static void reduce(const struct group *g, const struct ct_call *c, char *result, size_t at)
{
    const void *shards[MOST];

    for (int i = 0; i < g->base.size; i++)
        shards[i] = shown(g, i) + at;
    ct_reduce(result, shards, g->base.size, c->count, c->dtype, c->reduction);
}

/* Members of a group shift in one direction, so the sender's buffer is enough to know. */
static int call(const struct ct_call *c)
{
    const struct group *g = (const struct group *)c->group;
    size_t bytes = c->count * ct_dtype_size(c->dtype), own = (size_t)g->base.position * bytes;
    char *result = malloc(ct_call_out_bytes(c) + 1);

    show(g, c->in);
    if (c->kind == CT_CALL_ALL_GATHER || c->kind == CT_CALL_ALL_TO_ALL)
        gather(g, result, c->kind == CT_CALL_ALL_TO_ALL ? own : 0, bytes);
    else if (c->kind == CT_CALL_EXCHANGE)
        memcpy(result, shown(g, c->from), bytes);
    else
        reduce(g, c, result, c->kind == CT_CALL_REDUCE_SCATTER ? own : 0);
    return settle(g, c->out, result, ct_call_out_bytes(c));
}

static const struct ct_comm_ops ops = {
    .size = sizeof(struct ct_comm_ops), .group = group_new, .call = call};

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
