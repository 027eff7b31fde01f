/*
 * Several collectives in one. Members record the calls, exchange the lists of their buffers through
 * the slots, arrive once, make all transfers, and arrive again. This requires buffers in the
 * symmetric arena; calls on other buffers are made one by one.
 */
#include <stdlib.h>

#include <ctitan/error.h>

#include "local.h"

int local_batch_begin(struct ct_group *group)
{
    struct batch *b = &((struct group *)group)->batch;

    if (b->open)
        return ct_fail(CT_EINVAL, "group '%s': a batch begins within a batch", group->name);
    b->open = true;
    b->count = 0;
    return 0;
}

int local_batch_add(const struct job *j)
{
    struct batch *b = &j->g->batch;

    if (b->count == SLOT_BYTES / sizeof(struct buffers))
        return ct_fail(CT_EINVAL, "more than %zu collectives in a batch", b->count);
    if (b->count == b->room) {
        size_t room = b->room ? 2 * b->room : 16;
        struct job *jobs = realloc(b->jobs, room * sizeof(*jobs));

        if (!jobs)
            return ct_fail(CT_ENOMEM, "a batch of group '%s'", j->g->base.name);
        b->jobs = jobs;
        b->room = room;
    }
    b->jobs[b->count] = *j;
    b->jobs[b->count].number = (int)b->count;
    b->count++;
    return 0;
}

static int run_alone(const struct batch *b)
{
    int rc = 0;

    for (size_t i = 0; i < b->count && rc == 0; i++) {
        b->jobs[i].number = -1;
        rc = local_run(&b->jobs[i]);
    }
    return rc;
}

/* The announcement on which all members must agree: the first call, the number of calls, the number
   of elements. */
static struct announcement announce(const struct batch *b)
{
    struct announcement a = b->jobs[0].a;

    a.root = (int32_t)b->count;
    for (size_t i = 0; i < b->count; i++)
        a.parts = local_digest(a.parts, &b->jobs[i].a);
    for (size_t i = 1; i < b->count; i++)
        a.count += b->jobs[i].a.count;
    return a;
}

static bool all_in_arena(const struct batch *b)
{
    for (size_t i = 0; i < b->count; i++)
        if (!local_all_in_arena(&b->jobs[i]))
            return false;
    return true;
}

static int run_together(struct group *g)
{
    struct buffers *mine = (struct buffers *)local_slot(g, g->base.position);
    const struct batch *b = &g->batch;
    struct announcement a = announce(b);
    bool direct;
    int rc;

    for (size_t i = 0; i < b->count; i++)
        mine[i] = local_buffers(&b->jobs[i]);
    rc = local_enter(g, &a);
    direct = rc == 0 && all_in_arena(b);
    for (size_t i = 0; direct && i < b->count && rc == 0; i++)
        rc = local_run_direct(&b->jobs[i]);
    if (rc == 0)
        rc = local_arrive(g);
    g->staged++;
    local_note_done(g);
    return rc < 0 || direct ? rc : run_alone(b);
}

int local_batch_end(struct ct_group *group)
{
    struct group *g = (struct group *)group;

    g->batch.open = false;
    return g->batch.count > 1 ? run_together(g) : run_alone(&g->batch);
}
