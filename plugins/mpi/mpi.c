/*
 * The mpi communicator: ranks on many hosts, over MPI. Opening, closing, groups.
 *
 * MPI itself cannot tell which rank did not start, and ends all ranks when one dies. After the
 * start, failures are handled here (transfer.c). Closing waits for the others, as MPI_Finalize
 * does, unless the communicator has failed. In that case the process should end, and mpirun ends
 * the rest.
 */
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include <ctitan/clock.h>
#include <ctitan/error.h>
#include <ctitan/plugin.h>

#include "cluster.h"

#define TAGS (1 << 30)

/* When a peer dies, a write to its connection fails. MPI reports that; the process goes on. */
static void ignore_broken_pipes(void)
{
    struct sigaction now;

    if (sigaction(SIGPIPE, NULL, &now) == 0 && now.sa_handler == SIG_DFL)
        signal(SIGPIPE, SIG_IGN);
}

/*
 * Open MPI reads both when it starts; what the user has set stays.
 *
 * Over TCP, messages longer than the eager limit (64 KiB by default) wait for an answer, which
 * waits behind what its sender sends itself, and the link idles. Receivers are there when senders
 * come, or soon after, so there is no need to ask.
 */
static void set_up_tcp(const char *interface)
{
    if (interface && *interface)
        setenv("OMPI_MCA_btl_tcp_if_include", interface, 0);
    setenv("OMPI_MCA_btl_tcp_eager_limit", "67108864", 0);
}

static int start_mpi(struct comm *comm)
{
    int started = 0, ended = 0, level = MPI_THREAD_SINGLE, code = MPI_SUCCESS;

    MPI_Finalized(&ended);
    if (ended)
        return ct_fail(CT_EINVAL, "MPI can be started once in a process");
    MPI_Initialized(&started);
    if (started)
        MPI_Query_thread(&level);
    else
        code = MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, &level);
    ignore_broken_pipes();
    comm->owner = !started;
    comm->serialized = level < MPI_THREAD_MULTIPLE;
    if (code == MPI_SUCCESS && level < MPI_THREAD_SERIALIZED)
        return ct_fail(
            CT_ECONFIG,
            "this MPI allows calls from its first thread only: MPI_THREAD_MULTIPLE is needed");
    return cluster_check(comm, code, "MPI_Init_thread");
}

static int identify(struct comm *comm, const struct ct_comm_request *request)
{
    int *bound, found = 0;

    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm_rank(MPI_COMM_WORLD, &comm->base.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &comm->base.world);
    MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, &bound, &found);
    if (found && *bound < TAGS - 1)
        return ct_fail(CT_ECONFIG, "this MPI has tags up to %d only, %d are needed", *bound, TAGS);
    if (request->world >= 0 && request->world != comm->base.world)
        return ct_fail(
            CT_ECONFIG, "MPI started %d rank%s, the job has %d: start it with mpirun -n %d",
            comm->base.world, ct_plural(comm->base.world), request->world, request->world);
    if (request->rank >= 0 && request->rank != comm->base.rank)
        return ct_fail(CT_ECONFIG, "rank %d of the job is rank %d of MPI", request->rank,
                       comm->base.rank);
    return 0;
}

static void free_group(struct group *g)
{
    free(g->inputs);
    free(g->scratch);
    free(g->requests);
    free(g->parts);
    free(g);
}

static void mpi_close(struct ct_comm *base)
{
    struct comm *comm = (struct comm *)base;

    if (!comm)
        return;
    for (struct group *g = comm->groups, *next; g; g = next) {
        next = g->next;
        if (!comm->failure.state)
            MPI_Comm_free(&g->mpi);
        free_group(g);
    }
    if (comm->owner && !comm->failure.state)
        MPI_Finalize();
    pthread_mutex_destroy(&comm->lock);
    free(comm);
}

/* The first member whose message has not come; -1: all have. */
static int missing(struct group *g, MPI_Request *requests)
{
    int code = MPI_SUCCESS, done = 1, first = -1;

    cluster_lock(g->comm);
    for (int i = 0; i < 2 * g->base.size && code == MPI_SUCCESS && first < 0; i++) {
        code = MPI_Test(&requests[i], &done, MPI_STATUS_IGNORE);
        first = done ? -1 : i / 2;
    }
    cluster_unlock(g->comm);
    return code == MPI_SUCCESS ? first : cluster_check(g->comm, code, "MPI_Test") - 1;
}

/* Creating a communicator waits for all members without a time-out, so wait for them before. */
static int await_members(struct group *g, int tag)
{
    MPI_Request *requests = calloc(2 * (size_t)g->base.size, sizeof(*requests));
    double end = ct_now() + g->comm->timeout;
    int first = 0, code = MPI_SUCCESS, rc;

    if (!requests)
        return ct_fail(CT_ENOMEM, "group '%s'", g->base.name);
    cluster_lock(g->comm);
    for (int i = 0; i < g->base.size; i++) {
        int rank = i == g->base.position ? MPI_PROC_NULL : g->base.ranks[i];

        code |= MPI_Irecv(NULL, 0, MPI_BYTE, rank, tag, MPI_COMM_WORLD, &requests[2 * i]);
        code |= MPI_Isend(NULL, 0, MPI_BYTE, rank, tag, MPI_COMM_WORLD, &requests[2 * i + 1]);
    }
    cluster_unlock(g->comm);
    rc = cluster_check(g->comm, code, "MPI_Isend");
    while (rc == 0 && (first = missing(g, requests)) >= 0 && ct_now() < end)
        ct_nap(1e-4);
    if (rc == 0 && first >= 0)
        rc = cluster_fail(g->comm, "group '%s': rank %d did not create it within %g s",
                          g->base.name, g->base.ranks[first], g->comm->timeout);
    else if (rc == 0 && first < -1)
        rc = first + 1;
    free(requests);
    return rc;
}

static int make_mpi_group(struct group *g)
{
    MPI_Group world = MPI_GROUP_NULL, own = MPI_GROUP_NULL;
    uint32_t tag = 0;
    int code, rc;

    for (const char *c = g->base.name; *c; c++)
        tag = tag * 31 + (unsigned char)*c;
    rc = await_members(g, (int)(tag & 0x7fff));
    if (rc < 0)
        return rc;
    cluster_lock(g->comm);
    code = MPI_Comm_group(MPI_COMM_WORLD, &world);
    if (code == MPI_SUCCESS)
        code = MPI_Group_incl(world, g->base.size, g->base.ranks, &own);
    if (code == MPI_SUCCESS)
        code = MPI_Comm_create_group(MPI_COMM_WORLD, own, (int)(tag & 0x7fff), &g->mpi);
    if (code == MPI_SUCCESS)
        code = MPI_Comm_set_errhandler(g->mpi, MPI_ERRORS_RETURN);
    if (own != MPI_GROUP_NULL)
        MPI_Group_free(&own);
    if (world != MPI_GROUP_NULL)
        MPI_Group_free(&world);
    cluster_unlock(g->comm);
    return cluster_check(g->comm, code, "MPI_Comm_create_group");
}

static int mpi_group(struct ct_comm *base, const int64_t *ranks, int count, const char *name,
                     struct ct_group **group)
{
    struct comm *comm = (struct comm *)base;
    struct group *g;
    int rc = ct_group_new(base, ranks, count, name, sizeof(*g), group);

    if (rc < 0)
        return rc;
    g = (struct group *)*group;
    g->comm = comm;
    g->inputs = calloc((size_t)count, sizeof(*g->inputs));
    rc = g->inputs ? make_mpi_group(g) : ct_fail(CT_ENOMEM, "group '%s'", name);
    if (rc < 0) {
        free_group(g);
        return rc;
    }
    g->next = comm->groups;
    comm->groups = g;
    return 0;
}

static int mpi_open(const struct ct_comm_request *request, struct ct_comm **comm);

static void set_timeout(struct ct_comm *base, double seconds)
{
    ((struct comm *)base)->timeout = seconds;
}

static const struct ct_comm_ops ops = {.size = sizeof(struct ct_comm_ops),
                                       .open = mpi_open,
                                       .close = mpi_close,
                                       .group = mpi_group,
                                       .call = cluster_call,
                                       .starter = "mpirun",
                                       .set_timeout = set_timeout};

static int mpi_open(const struct ct_comm_request *request, struct ct_comm **out)
{
    struct comm *comm;
    int rc;

    if (!(request->timeout > 0))
        return ct_fail(CT_EINVAL, "a time-out of %g s", request->timeout);
    comm = calloc(1, sizeof(*comm));
    if (!comm)
        return ct_fail(CT_ENOMEM, "the communicator");
    comm->base.ops = &ops;
    comm->timeout = request->timeout;
    pthread_mutex_init(&comm->lock, NULL);
    set_up_tcp(request->interface);
    rc = start_mpi(comm);
    if (rc == 0)
        rc = identify(comm, request);
    if (rc < 0) {
        mpi_close(&comm->base);
        return rc;
    }
    *out = &comm->base;
    return 0;
}

CT_PLUGIN(.name = "mpi", .version = "1.0", .summary = "Ranks of many hosts, over MPI",
          .offers = CT_OFFERS({CT_COMMUNICATOR, "mpi", &ops}));
