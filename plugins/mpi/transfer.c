/* Messages in flight: started one by one, waited for together, with a deadline. */
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <ctitan/clock.h>
#include <ctitan/error.h>

#include "cluster.h"

#define CHUNK ((size_t)1 << 30) /* MPI counts in int */
#define YIELDS 1000             /* polls before it starts to sleep */
#define NAP 50e-6               /* seconds */
#define LOOK_AROUND 0.1         /* seconds between checks for peers in another call */

/* Tags of collectives: 11 bits hash of count and root, 10 call number, 1 reduction, 4 dtype, 3 call
 * kind. */
#define MESSAGE_TAG (1 << 29)

void cluster_lock(struct comm *comm)
{
    if (comm->serialized)
        pthread_mutex_lock(&comm->lock);
}

void cluster_unlock(struct comm *comm)
{
    if (comm->serialized)
        pthread_mutex_unlock(&comm->lock);
}

int cluster_fail(struct comm *comm, const char *fmt, ...)
{
    va_list args;
    int rc;

    va_start(args, fmt);
    rc = ct_first_failure_set(&comm->failure, fmt, args);
    va_end(args);
    return rc;
}

int cluster_check(struct comm *comm, int code, const char *what)
{
    char text[MPI_MAX_ERROR_STRING];
    int length = 0;

    if (code == MPI_SUCCESS)
        return 0;
    MPI_Error_string(code, text, &length);
    return cluster_fail(comm, "%s: %s", what, text);
}

/* The tag of the call that a message belongs to. */
static int tag_of(const struct group *g, const struct ct_call *c)
{
    int root = c->kind == CT_CALL_BROADCAST ? c->from : 0;
    uint64_t hash = (c->count * 64 + (uint64_t)root + 1) * 0x9E3779B97F4A7C15u >> 53;

    return (int)(hash | (g->number & 1023u) << 11 |
                 (uint32_t)(c->reduction == CT_REDUCE_MAX) << 21 | (uint32_t)c->dtype << 22 |
                 (uint32_t)c->kind << 26);
}

int transfer_begin(struct group *g, const struct ct_call *c)
{
    int rc = ct_first_failure_get(&g->comm->failure);

    if (rc < 0)
        return rc;
    g->call = c->kind;
    g->count = 0;
    if (ct_call_is_message(c->kind)) {
        g->tag = MESSAGE_TAG | (c->tag & (MESSAGE_TAG - 1));
    } else {
        g->number++;
        g->tag = tag_of(g, c);
    }
    return 0;
}

static int make_room(struct group *g)
{
    int room = g->room ? 2 * g->room : 64;
    void *requests, *parts;

    if (g->count < g->room)
        return 0;
    requests = realloc(g->requests, (size_t)room * sizeof(*g->requests));
    if (requests)
        g->requests = requests;
    parts = realloc(g->parts, (size_t)room * sizeof(*g->parts));
    if (parts)
        g->parts = parts;
    if (!requests || !parts)
        return ct_fail(CT_ENOMEM, "%d messages", room);
    g->room = room;
    return 0;
}

static int begin_chunk(struct group *g, void *data, struct part part)
{
    int rc = make_room(g), code;
    MPI_Request *request;

    if (rc < 0)
        return rc;
    request = &g->requests[g->count];
    g->parts[g->count] = part;
    cluster_lock(g->comm);
    if (part.sends)
        code = MPI_Isend(data, (int)part.bytes, MPI_BYTE, part.peer, g->tag, g->mpi, request);
    else
        code = MPI_Irecv(data, (int)part.bytes, MPI_BYTE, part.peer, g->tag, g->mpi, request);
    cluster_unlock(g->comm);
    g->count += code == MPI_SUCCESS;
    return cluster_check(g->comm, code, part.sends ? "MPI_Isend" : "MPI_Irecv");
}

static int begin_part(struct group *g, char *data, struct part part)
{
    size_t left = part.bytes;
    int rc;

    do {
        part.bytes = left < CHUNK ? left : CHUNK;
        rc = begin_chunk(g, data, part);
        data += part.bytes;
        left -= part.bytes;
    } while (rc == 0 && left);
    return rc;
}

int transfer_send(struct group *g, const void *data, size_t bytes, int peer)
{
    return begin_part(g, (char *)(uintptr_t)data,
                      (struct part){.peer = peer, .sends = true, .bytes = bytes});
}

int transfer_receive(struct group *g, void *data, size_t bytes, int peer)
{
    return begin_part(g, data, (struct part){.peer = peer, .bytes = bytes});
}

/* ---- failures ---- */

static void describe(const struct group *g, char *text, size_t room)
{
    if (ct_call_is_message(g->call))
        snprintf(text, room, "%s in group '%s' (tag %d)", ct_call_name(g->call), g->base.name,
                 g->tag & (MESSAGE_TAG - 1));
    else
        snprintf(text, room, "%s %u of group '%s'", ct_call_name(g->call), g->number, g->base.name);
}

/* List each rank with an unfinished message once. */
static int time_out(struct group *g)
{
    char what[160], list[200];
    size_t used = 0;

    list[0] = '\0';
    for (int p = 0; p < g->base.size; p++)
        for (int i = 0; i < g->count && used + 16 < sizeof(list); i++) {
            if (g->parts[i].peer != p || g->requests[i] == MPI_REQUEST_NULL)
                continue;
            used += (size_t)snprintf(list + used, sizeof(list) - used, "%s%d", used ? ", " : "",
                                     g->base.ranks[p]);
            break;
        }
    describe(g, what, sizeof(what));
    return cluster_fail(g->comm, "%s: no answer within %g s from rank %s", what, g->comm->timeout,
                        list);
}

static int disagreement(struct group *g, int peer, int tag)
{
    enum ct_call_kind call = (enum ct_call_kind)(tag >> 26 & 7);
    char what[160];

    describe(g, what, sizeof(what));
    if (call != g->call)
        return cluster_fail(g->comm, "ranks disagree: rank %d is in %s, rank %d in %s",
                            g->comm->base.rank, what, g->base.ranks[peer], ct_call_name(call));
    return cluster_fail(g->comm,
                        "ranks disagree: rank %d is in %s, and so is rank %d, but with another "
                        "count, dtype, reduction or root (its dtype: %s)",
                        g->comm->base.rank, what, g->base.ranks[peer],
                        ct_dtype_name((enum ct_dtype)((tag >> 22 & 15) % CT_DTYPE_COUNT)));
}

/* The call number of a collective's tag. */
static uint32_t number_of(int tag)
{
    return (uint32_t)tag >> 11 & 1023;
}

/* A peer that sends a message of a collective with this number, but another tag, is in another
   call. One with a later number has ended the awaited call: its part is still on the way, or has
   just come. */
static int look_around(struct group *g)
{
    for (int i = 0; i < g->count; i++) {
        int there = 0, tag;
        MPI_Status status;

        if (g->requests[i] == MPI_REQUEST_NULL || g->parts[i].sends || ct_call_is_message(g->call))
            continue;
        cluster_lock(g->comm);
        MPI_Iprobe(g->parts[i].peer, MPI_ANY_TAG, g->mpi, &there, &status);
        cluster_unlock(g->comm);
        tag = there ? status.MPI_TAG : g->tag;
        if (tag != g->tag && tag < MESSAGE_TAG && number_of(tag) == number_of(g->tag))
            return disagreement(g, g->parts[i].peer, tag);
    }
    return 0;
}

static int check_size(struct group *g, int index, const MPI_Status *status)
{
    const struct part *p = &g->parts[index];
    char what[160];
    int bytes = 0;

    if (p->sends || MPI_Get_count(status, MPI_BYTE, &bytes) != MPI_SUCCESS ||
        (size_t)bytes == p->bytes)
        return 0;
    describe(g, what, sizeof(what));
    return cluster_fail(g->comm, "%s: rank %d sends %d bytes, rank %d receives %zu", what,
                        g->base.ranks[p->peer], bytes, g->comm->base.rank, p->bytes);
}

/* Completed requests become MPI_REQUEST_NULL. Returns the number of remaining ones. */
static int poll_requests(struct group *g)
{
    int left = 0;

    for (int i = 0; i < g->count; i++) {
        int done = 0, code, rc;
        MPI_Status status;

        if (g->requests[i] == MPI_REQUEST_NULL)
            continue;
        cluster_lock(g->comm);
        code = MPI_Test(&g->requests[i], &done, &status);
        cluster_unlock(g->comm);
        rc = cluster_check(g->comm, code, ct_call_name(g->call));
        if (rc == 0 && done)
            rc = check_size(g, i, &status);
        if (rc < 0)
            return rc;
        left += !done;
    }
    return left;
}

static int wait_for_all(struct group *g)
{
    double begin = 0, looked = 0;

    for (int turn = 0;; turn++) {
        int left = poll_requests(g);

        if (left <= 0)
            return left;
        sched_yield();
        if (turn < YIELDS)
            continue;
        ct_nap(NAP);
        if (begin == 0)
            begin = looked = ct_now();
        if (ct_now() - looked > LOOK_AROUND) {
            looked = ct_now();
            left = look_around(g);
            if (left == 0 && looked - begin > g->comm->timeout)
                left = time_out(g);
            if (left < 0)
                return left;
        }
    }
}

/* Messages in flight must not write into memory that the owner takes back. */
static void give_up(struct group *g)
{
    cluster_lock(g->comm);
    for (int i = 0; i < g->count; i++) {
        if (g->requests[i] == MPI_REQUEST_NULL)
            continue;
        if (!g->parts[i].sends)
            MPI_Cancel(&g->requests[i]);
        MPI_Request_free(&g->requests[i]);
    }
    cluster_unlock(g->comm);
}

int transfer_finish(struct group *g, int rc)
{
    if (rc == 0)
        rc = wait_for_all(g);
    else
        rc = cluster_fail(g->comm, "%s", ct_error_message());
    if (rc < 0)
        give_up(g);
    g->count = 0;
    return rc;
}
