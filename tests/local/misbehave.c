/*
 * Ranks that die, stop, leave, or call something else. The guilty one is the last rank ("keeper":
 * rank 0); the others call until they get a failure, which they print.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <ctitan/error.h>

#include "rank.h"

#define CALLS 50

static void become_guilty(const char *act)
{
    if (!strcmp(act, "die"))
        raise(SIGKILL);
    if (!strcmp(act, "exit"))
        _exit(0);
    if (!strcmp(act, "stop") || !strcmp(act, "keeper"))
        raise(SIGSTOP);
}

static int other_call(struct ct_group *g, const char *act, float *data)
{
    if (!strcmp(act, "other"))
        return ct_group_all_gather(g, data, data, 1, CT_F32);
    if (!strcmp(act, "count"))
        return ct_group_all_reduce(g, data, data, 5, CT_F32, CT_REDUCE_SUM);
    if (!strcmp(act, "dtype"))
        return ct_group_all_reduce(g, data, data, 4, CT_I32, CT_REDUCE_SUM);
    if (!strcmp(act, "max"))
        return ct_group_all_reduce(g, data, data, 4, CT_F32, CT_REDUCE_MAX);
    return ct_group_barrier(g);
}

/* Two calls as one, of as many elements together on all ranks, but split otherwise. */
static int batch(struct ct_group *g, float *data, bool guilty)
{
    int rc = g->ops->begin(g);

    if (rc == 0)
        rc = ct_group_all_gather(g, data, data + 16, guilty ? 1 : 2, CT_F32);
    if (rc == 0)
        rc = ct_group_all_gather(g, data, data + 32, guilty ? 2 : 1, CT_F32);
    return rc < 0 ? rc : g->ops->end(g);
}

static int calls(struct ct_group *g, const char *act, bool guilty)
{
    float data[64] = {0};
    int rc = 0;

    for (int i = 0; i < 2 * CALLS && rc == 0; i++) {
        if (!strcmp(act, "batch") && i == CALLS)
            rc = batch(g, data, guilty);
        else if (guilty && i == CALLS) {
            become_guilty(act);
            rc = other_call(g, act, data);
        } else
            rc = ct_group_all_reduce(g, data, data, 4, CT_F32, CT_REDUCE_SUM);
    }
    return rc;
}

/* Rank 0 waits for 1, 1 for 2, and so on; nobody but the last but one calls with the guilty one. */
static int chain(struct fixture *f, bool guilty)
{
    struct ct_group *up = NULL, *down = NULL;
    int64_t pair[2];
    char name[32];
    int rc = 0;

    if (guilty)
        raise(SIGSTOP);
    for (int end = 0; end < 2 && rc == 0; end++) {
        int first = f->comm->rank - 1 + end;

        if (first < 0 || first + 1 >= f->comm->world)
            continue;
        pair[0] = first;
        pair[1] = first + 1;
        snprintf(name, sizeof(name), "pair %d", first);
        rc = f->ops->group(f->comm, pair, 2, name, end ? &up : &down);
    }
    if (rc == 0 && up)
        rc = ct_group_barrier(up);
    if (rc == 0 && down)
        rc = ct_group_barrier(down);
    return rc;
}

/* A message that never comes, or one of another size. */
static int message(struct ct_group *g, const char *act, bool guilty)
{
    char data[128] = {0};

    if (guilty && !strcmp(act, "tag"))
        return ct_group_send(g, data, 64, 0, 8) < 0 ? CT_EPEER : ct_group_barrier(g);
    if (guilty)
        raise(SIGSTOP);
    if (g->position == 0)
        return ct_group_receive(g, data, 64, g->size - 1, 7);
    return ct_group_barrier(g);
}

int misbehave(struct fixture *f, const char *act)
{
    bool guilty = f->comm->rank == (strcmp(act, "keeper") ? f->comm->world - 1 : 0);
    struct ct_group *world;
    int64_t ranks[64];
    int rc;

    for (int i = 0; i < f->comm->world; i++)
        ranks[i] = i;
    rc = f->ops->group(f->comm, ranks, f->comm->world, "world", &world);
    if (rc == 0 && guilty && !strcmp(act, "leave")) {
        f->ops->close(f->comm);
        f->comm = NULL;
        sleep(1);
        return 0;
    }
    if (rc == 0 && !strcmp(act, "huge"))
        rc = f->ops->reserve(f->comm, guilty ? (size_t)1 << 62 : 4096, &(void *){NULL});
    else if (rc == 0 && !strcmp(act, "chain"))
        rc = chain(f, guilty);
    else if (rc == 0 && (!strcmp(act, "tag") || !strcmp(act, "silence")))
        rc = message(world, act, guilty);
    else if (rc == 0)
        rc = calls(world, act, guilty);
    if (rc == 0) {
        fprintf(stderr, "rank %d: no failure\n", f->comm->rank);
        return 1;
    }
    if (rc == 0 || calls(world, act, false) == 0) {
        fprintf(stderr, "rank %d: the communicator works after a failure\n", f->comm->rank);
        return 1;
    }
    printf("%s\n", ct_error_message());
    fflush(stdout);
    return rc == CT_EPEER ? 0 : 1;
}
