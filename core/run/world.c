/*
 * The group of all ranks, for hooks and the run itself. A single rank needs no communicator.
 */
#include <string.h>

#include <ctitan/error.h>
#include <ctitan/run.h>

#include "run/world.h"

/* A rank's call to itself is a copy. */
static int call_alone(const struct ct_call *c)
{
    if (c->in != c->out && c->count)
        memcpy(c->out, c->in, ct_call_out_bytes(c));
    return 0;
}

static const int self[] = {0};
static const struct ct_comm_ops alone = {.size = sizeof(alone), .call = call_alone};

int ct_world_open(struct ct_run *run)
{
    int64_t *ranks = ct_arena_array(&run->arena, int64_t, run->world);

    for (int64_t i = 0; i < run->world; i++)
        ranks[i] = i;
    if (run->communicator.comm)
        return run->communicator.ops->group(run->communicator.comm, ranks, (int)run->world, "world",
                                            &run->world_group);
    run->world_group = ct_arena_new(&run->arena, struct ct_group);
    *run->world_group = (struct ct_group){.ops = &alone, .name = "world", .size = 1, .ranks = self};
    return 0;
}
