/*
 * Failures: finding which ranks are missing and reporting what they did last.
 *
 * The first failure of any rank is written to the control block. Every other rank that waits finds
 * it there and returns the same message. A rank is dead if its process is (pidfd), and has left if
 * it closed the communicator. A missing rank may be waiting in another group. The message then
 * includes its status there and which rank it waits for, so that it shows the first cause.
 */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <ctitan/error.h>

#include "local.h"

#define DEPTH 3 /* of nested "which waits for" in a message */

static const char *name_of(uint32_t call)
{
    return call == CALL_RESERVE ? "reserve" : ct_call_name((enum ct_call_kind)call);
}

/* ---- text ---- */

struct text {
    char *at;
    size_t used, room;
};

static void CT_PRINTF(2, 3) say(struct text *t, const char *fmt, ...)
{
    va_list args;
    int n;

    va_start(args, fmt);
    n = vsnprintf(t->at + t->used, t->room - t->used, fmt, args);
    va_end(args);
    t->used += n < 0 ? 0 : (size_t)n;
    if (t->used >= t->room)
        t->used = t->room - 1;
}

static uint64_t coarse_now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC_COARSE, &t);
    return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

#define RELAXED memory_order_relaxed

void local_note(struct group *g, enum ct_call_kind call, int peer, uint64_t bytes)
{
    struct status *s = &g->status[g->base.position];

    atomic_store_explicit(&s->call, call, RELAXED);
    atomic_store_explicit(&s->number, g->number, RELAXED);
    atomic_store_explicit(&s->peer, peer, RELAXED);
    atomic_store_explicit(&s->bytes, bytes, RELAXED);
    atomic_store_explicit(&s->time, coarse_now(), RELAXED);
    atomic_store_explicit(&s->inside, 1, RELAXED);
}

void local_note_done(struct group *g)
{
    struct status *s = &g->status[g->base.position];

    atomic_store_explicit(&s->inside, 0, RELAXED);
}

static bool is_message(const struct status *s)
{
    return s->call != CALL_RESERVE && ct_call_is_message((enum ct_call_kind)s->call);
}

/* "all_reduce 12 of group 'dp' (4096 bytes)" */
static void say_call(struct text *t, const struct group *g, const struct status *s)
{
    uint32_t call = s->call;

    say(t, "%s", name_of(call));
    if (!is_message(s))
        say(t, " %u", s->number);
    else
        say(t, " %s rank %d", call == CT_CALL_SEND ? "to" : "from", g->ranks[s->peer]);
    say(t, " of group '%s'", g->block->name);
    if (call != CT_CALL_BARRIER)
        say(t, " (%llu bytes)", (unsigned long long)s->bytes);
}

void local_describe(const struct announcement *a, char *words, size_t room)
{
    struct text t = {.at = words, .room = room};

    say(&t, "%s", name_of(a->call));
    if (a->call == CT_CALL_BARRIER)
        return;
    say(&t, " (%llu x %s", (unsigned long long)a->count, ct_dtype_name(a->dtype));
    if (a->call == CT_CALL_REDUCE_SCATTER || a->call == CT_CALL_ALL_REDUCE)
        say(&t, ", %s", a->reduction == CT_REDUCE_MAX ? "max" : "sum");
    if (a->call == CT_CALL_BROADCAST)
        say(&t, ", root %d", a->root);
    else if (a->root)
        say(&t, ", %d together", a->root);
    say(&t, ")");
}

static bool behind(const struct status *s, const struct status *than)
{
    return (int32_t)(s->arrivals - than->arrivals) < 0;
}

/* ---- other groups ---- */

/* Map a group's block to read it; g is valid until it is unpeeked. */
static bool peek_group(struct comm *comm, const struct group_entry *entry, struct group *g)
{
    *g = (struct group){.comm = comm, .map_bytes = entry->bytes};
    g->map = mmap(NULL, entry->bytes, PROT_READ, MAP_SHARED, comm->fd, (off_t)entry->offset);
    if (g->map == MAP_FAILED)
        return false;
    local_block_layout(g);
    return true;
}

static int position_of(const struct group *g, int rank)
{
    for (int i = 0; i < g->base.size; i++)
        if (g->ranks[i] == rank)
            return i;
    return -1;
}

static void say_rank(struct text *t, struct comm *comm, int rank, int depth);

/* Report the first member that the member at `position` waits for. */
static void say_awaited(struct text *t, struct group *g, int position, int depth)
{
    const struct status *s = &g->status[position];

    for (int i = 0; i < g->base.size; i++) {
        bool awaited = !is_message(s) ? behind(&g->status[i], s) : i == s->peer;

        if (!awaited || i == position)
            continue;
        say(t, ", which waits for ");
        say_rank(t, g->comm, g->ranks[i], depth - 1);
        return;
    }
}

static void say_activity(struct text *t, struct comm *comm, int rank, int depth)
{
    uint32_t count = comm->control->group_count, last = count;
    uint64_t latest = 0;
    bool inside = false;
    struct group g;

    for (uint32_t i = 0; i < count; i++) {
        int position;
        const struct status *s;

        if (!peek_group(comm, &comm->control->groups[i], &g))
            continue;
        position = position_of(&g, rank);
        s = position < 0 ? NULL : &g.status[position];
        if (s && s->time && (s->inside > inside || (s->inside == inside && s->time >= latest))) {
            inside = s->inside;
            latest = s->time;
            last = i;
        }
        munmap(g.map, g.map_bytes);
    }
    if (last == count || !peek_group(comm, &comm->control->groups[last], &g)) {
        say(t, " has called nothing yet");
        return;
    }
    say(t, inside ? " is in " : " was last in ");
    say_call(t, &g, &g.status[position_of(&g, rank)]);
    say(t, inside ? " for %.1f s" : ", %.1f s ago", (double)(coarse_now() - latest) * 1e-9);
    if (inside && depth > 0)
        say_awaited(t, &g, position_of(&g, rank), depth);
    munmap(g.map, g.map_bytes);
}

/* ---- ranks ---- */

static char process_state(int pid)
{
    char path[32], line[256], *at;
    FILE *file;
    bool read;

    snprintf(path, sizeof(path), "/proc/%d/stat", pid);
    file = fopen(path, "re");
    if (!file)
        return 0;
    read = fgets(line, sizeof(line), file) != NULL;
    fclose(file);
    at = read ? strrchr(line, ')') : NULL;
    return at && at[1] ? at[2] : 0;
}

static void say_rank(struct text *t, struct comm *comm, int rank, int depth)
{
    int pid = comm->control->members[rank].pid;
    char state = pid ? process_state(pid) : 0;

    say(t, "rank %d", rank);
    if (!pid) {
        say(t, " (not started)");
        return;
    }
    say(t, " (pid %d%s)", pid, state == 'T' ? ", stopped by a signal" : "");
    say_activity(t, comm, rank, depth);
}

/* Done at startup: later, a dead rank's pid may belong to another process. */
void local_watch_members(struct comm *comm)
{
    for (int r = 0; r < comm->base.world; r++)
        if (r != comm->base.rank)
            comm->pidfd[r] = (int)syscall(SYS_pidfd_open, comm->control->members[r].pid, 0);
}

static bool is_dead(struct comm *comm, int rank)
{
    const struct member *m = &comm->control->members[rank];
    struct pollfd state = {.events = POLLIN};

    if (rank == comm->base.rank || !m->pid || m->left)
        return false;
    if (comm->pidfd[rank] < 0)
        return kill(m->pid, 0) < 0 && errno == ESRCH && !m->left;
    state.fd = comm->pidfd[rank];
    return poll(&state, 1, 0) == 1 && !m->left;
}

/* ---- failing ---- */

int local_fail(struct comm *comm, const char *fmt, ...)
{
    va_list args;
    int rc;

    va_start(args, fmt);
    rc = ct_first_failure_set(&comm->control->failure, fmt, args);
    va_end(args);
    return rc;
}

int local_failed(const struct group *g)
{
    return ct_first_failure_get(&g->comm->control->failure);
}

static int fail_for_rank(struct group *g, int rank, const char *what)
{
    char words[400];
    struct text t = {.at = words, .room = sizeof(words)};

    say_call(&t, g, &g->status[g->base.position]);
    say(&t, ": rank %d (pid %d) %s", rank, g->comm->control->members[rank].pid, what);
    return local_fail(g->comm, "%s", words);
}

static int fail_for_time(struct group *g)
{
    char words[600];
    struct text t = {.at = words, .room = sizeof(words)};
    const char *separator = "";

    say_call(&t, g, &g->status[g->base.position]);
    say(&t, ": no answer within %g s from ", g->comm->timeout);
    for (int i = 0; i < g->base.size; i++) {
        if (!g->missing[i])
            continue;
        say(&t, "%s", separator);
        say_rank(&t, g->comm, g->ranks[i], DEPTH);
        separator = "; ";
    }
    return local_fail(g->comm, "%s", words);
}

int local_look(struct group *g, double deadline, local_find_missing *find_missing)
{
    int rc = local_failed(g);

    if (rc < 0)
        return rc;
    for (int r = 0; r < g->comm->base.world; r++)
        if (is_dead(g->comm, r))
            return fail_for_rank(g, r, "died");
    for (int i = 0; i < g->base.size; i++) {
        if (!g->comm->control->members[g->ranks[i]].left)
            continue;
        find_missing(g); /* the rank may have arrived and left in the meantime */
        if (g->missing[i])
            return fail_for_rank(g, g->ranks[i], "has left");
    }
    return ct_now() >= deadline && find_missing(g) ? fail_for_time(g) : 0;
}
