/*
 * The local communicator: ranks are processes of one host that share memory. This file opens and
 * closes it, and holds the table of its functions.
 */
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include <ctitan/error.h>
#include <ctitan/lib/numa.h>
#include <ctitan/plugin.h>

#include "local.h"

#define PROBE UINT64_C(0x63746974616e2121)

struct config local_config;

static const struct ct_option options[] = {
    CT_OPT_BOOL(struct config, single_copy, "single_copy", "true",
                "Let ranks access each other's memory outside the arena (process_vm_readv)"),
    CT_OPT_INT(struct config, yields, "yields", "100", 0, 1000000,
               "Number of times that a waiting rank yields its processor before it sleeps"),
    CT_OPT_FLOAT(struct config, link, "link", "0", 0, 1e6,
                 "Emulate a link of this many 10^9 bytes per second, as between hosts: calls take "
                 "that much longer, without using a processor. 0: off"),
    {0}};

static int local_open(const struct ct_comm_request *request, struct ct_comm **comm);

static int check_request(const struct ct_comm_request *r)
{
    int rc = ct_comm_check_request(r);

    if (rc < 0)
        return rc;
    if (r->local_ranks != r->world)
        return ct_fail(
            CT_ECONFIG,
            "the local communicator serves one host, and %d of %d ranks are on this one: "
            "load mpi instead",
            r->local_ranks, r->world);
    return r->job && *r->job
               ? 0
               : ct_fail(CT_EINVAL, "the job has no name; the launcher sets CTITAN_JOB");
}

static bool is_crowded(int ranks)
{
    cpu_set_t set;

    return !ct_numa_bound() && sched_getaffinity(0, sizeof(set), &set) == 0 &&
           ranks > CPU_COUNT(&set);
}

static bool can_read(const struct member *m)
{
    uint64_t word = 0;
    struct iovec local = {.iov_base = &word, .iov_len = sizeof(word)};
    struct iovec remote = {.iov_base = (void *)(uintptr_t)m->probe, .iov_len = sizeof(word)};

    return process_vm_readv(m->pid, &local, 1, &remote, 1, 0) == sizeof(word) && word == PROBE;
}

/* Every rank tries to read a word of the next one; single copy is used only if all can. */
static int probe_single_copy(struct comm *comm)
{
    struct member *members = comm->control->members, *me = &members[comm->base.rank];
    bool able = true;
    int rc;

    comm->probe = PROBE;
    me->probe = (uintptr_t)&comm->probe;
    if (local_config.single_copy)
        prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0); /* may fail where not needed */
    rc = local_barrier(comm->world);
    if (rc < 0)
        return rc;
    me->readable =
        local_config.single_copy && can_read(&members[(comm->base.rank + 1) % comm->base.world]);
    rc = local_barrier(comm->world);
    for (int i = 0; i < comm->base.world; i++)
        able &= members[i].readable;
    comm->single_copy = able;
    return rc;
}

static int attach_world(struct comm *comm)
{
    int64_t *ranks = malloc((size_t)comm->base.world * sizeof(*ranks));
    int rc;

    if (!ranks)
        return ct_fail(CT_ENOMEM, "the world's ranks");
    for (int i = 0; i < comm->base.world; i++)
        ranks[i] = i;
    rc = local_group_attach(comm, ranks, comm->base.world, "all ranks", &comm->world);
    free(ranks);
    return rc;
}

static void local_close(struct ct_comm *base)
{
    struct comm *comm = (struct comm *)base;

    if (!comm)
        return;
    for (struct group *g = comm->groups, *next; g; g = next) {
        next = g->next;
        local_group_detach(g);
    }
    local_group_detach(comm->world);
    for (int i = 0; i < comm->region_count; i++)
        munmap(comm->regions[i].base, comm->regions[i].part * (size_t)comm->base.world);
    for (int i = 0; comm->pidfd && i < comm->base.world; i++)
        if (comm->pidfd[i] >= 0)
            close(comm->pidfd[i]);
    free(comm->pidfd);
    if (comm->control) {
        atomic_store(&comm->control->members[comm->base.rank].left, 1);
        munmap(comm->control, comm->control_bytes);
    }
    if (comm->fd >= 0)
        close(comm->fd);
    free(comm);
}

static int start(struct comm *comm, const char *job)
{
    int rc = local_rendezvous(comm, job);

    if (rc == 0)
        local_watch_members(comm);
    if (rc == 0)
        rc = attach_world(comm);
    if (rc == 0)
        rc = probe_single_copy(comm);
    if (rc < 0 && comm->control)
        local_fail(comm, "%s", ct_error_message());
    return rc;
}

/* Rank 0 reserves one part for each rank. */
static int reserve_parts(struct comm *comm, size_t part)
{
    size_t bytes;
    int rc;

    if (__builtin_mul_overflow(part, (size_t)comm->base.world, &bytes) || bytes > PTRDIFF_MAX / 2)
        return local_fail(comm, "no address space for %d x %zu symmetric bytes", comm->base.world,
                          part);
    rc = local_segment_lock(comm);
    if (rc < 0)
        return rc;
    rc = local_segment_extend(comm, bytes, HUGE_PAGE, &comm->control->reserved);
    local_segment_unlock(comm);
    return rc < 0 ? local_fail(comm, "%s", ct_error_message()) : 0;
}

static int local_reserve(struct ct_comm *base, size_t bytes, void **arena)
{
    struct comm *comm = (struct comm *)base;
    struct group *world = comm->world;
    struct announcement a = {.call = CALL_RESERVE, .dtype = CT_U8, .count = bytes};
    size_t part = 1, page;
    int rc = local_enter(world, &a);

    if (rc < 0)
        return rc;
    for (int i = 0; i < base->world; i++)
        part = part > local_announced(world, i)->count ? part : local_announced(world, i)->count;
    page = part < HUGE_PAGE ? 4096 : HUGE_PAGE;
    if (part <= PTRDIFF_MAX)
        part = (part + page - 1) / page * page;
    if (base->rank == 0)
        rc = reserve_parts(comm, part);
    if (rc == 0)
        rc = local_arrive(world);
    local_note_done(world);
    return rc < 0 ? rc : local_region_map(comm, comm->control->reserved, part, arena);
}

static int local_group(struct ct_comm *base, const int64_t *ranks, int count, const char *name,
                       struct ct_group **group)
{
    struct comm *comm = (struct comm *)base;
    struct group *g;
    int rc = local_group_attach(comm, ranks, count, name, &g);

    if (rc < 0)
        return rc;
    g->next = comm->groups;
    comm->groups = g;
    *group = &g->base;
    return 0;
}

/* Bytes that a rank sends by the algorithms that send least. */
static double sent(const struct ct_call *c)
{
    double n = c->group->size, bytes = (double)(c->count * ct_dtype_size(c->dtype));

    switch (c->kind) {
    case CT_CALL_ALL_GATHER:
    case CT_CALL_REDUCE_SCATTER:
    case CT_CALL_ALL_TO_ALL:
        return bytes * (n - 1);
    case CT_CALL_ALL_REDUCE:
        return 2 * bytes * (n - 1) / n;
    default:
        return n > 1 ? bytes : 0;
    }
}

/* Sleep as long as the link of [local] link takes for what was sent. */
static int pass_link(struct group *g, int rc)
{
    double seconds = g->sent / (1e9 * local_config.link);
    struct timespec time = {(time_t)seconds, (long)(1e9 * (seconds - (double)(time_t)seconds))};

    g->sent = 0;
    while (rc == 0 && nanosleep(&time, &time) < 0)
        ;
    return rc;
}

static int call(const struct ct_call *c)
{
    struct group *g = (struct group *)c->group;

    if (g->batch.open && (c->kind == CT_CALL_BARRIER || ct_call_is_message(c->kind)))
        return ct_fail(CT_EINVAL, "group '%s': %s within a batch", ct_call_name(c->kind),
                       g->base.name);
    if (ct_call_is_message(c->kind))
        return local_message(c);
    return c->kind == CT_CALL_BARRIER ? local_barrier(g) : local_collective(c);
}

static int local_call(const struct ct_call *c)
{
    struct group *g = (struct group *)c->group;
    int rc = call(c);

    if (local_config.link <= 0)
        return rc;
    g->sent += sent(c);
    return g->batch.open ? rc : pass_link(g, rc);
}

static int local_end(struct ct_group *group)
{
    int rc = local_batch_end(group);

    return local_config.link > 0 ? pass_link((struct group *)group, rc) : rc;
}

static void set_timeout(struct ct_comm *base, double seconds)
{
    ((struct comm *)base)->timeout = seconds;
}

static const struct ct_comm_ops ops = {.size = sizeof(struct ct_comm_ops),
                                       .open = local_open,
                                       .close = local_close,
                                       .reserve = local_reserve,
                                       .group = local_group,
                                       .begin = local_batch_begin,
                                       .end = local_end,
                                       .call = local_call,
                                       .set_timeout = set_timeout};

static int local_open(const struct ct_comm_request *request, struct ct_comm **out)
{
    struct comm *comm;
    int rc = check_request(request);

    if (rc < 0)
        return rc;
    comm = calloc(1, sizeof(*comm));
    if (!comm)
        return ct_fail(CT_ENOMEM, "the communicator");
    comm->base = (struct ct_comm){.ops = &ops, .rank = request->rank, .world = request->world};
    comm->timeout = request->timeout;
    comm->crowded = is_crowded(request->world);
    comm->fd = -1;
    comm->pidfd = malloc((size_t)request->world * sizeof(*comm->pidfd));
    for (int i = 0; comm->pidfd && i < request->world; i++)
        comm->pidfd[i] = -1;
    rc = comm->pidfd ? start(comm, request->job) : ct_fail(CT_ENOMEM, "the communicator");
    if (rc < 0) {
        local_close(&comm->base);
        return rc;
    }
    *out = &comm->base;
    return 0;
}

CT_PLUGIN(.name = "local", .version = "1.0", .summary = "Ranks of one host, over shared memory",
          .options = options, .config = &local_config, .config_size = sizeof(local_config),
          .offers = CT_OFFERS({CT_COMMUNICATOR, "local", &ops}));
