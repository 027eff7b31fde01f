/*
 * Groups: their blocks in the segment, and the arrivals on which everything waits.
 *
 * Each member counts its own arrivals, in a cache line that only it writes; all wait until the
 * others have counted as far. Nothing is ever reset. The first arrival of a call lies in the
 * announcement of the call, which has to be read anyway.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <ctitan/error.h>

#include "local.h"

static size_t round_up(size_t bytes, size_t to)
{
    return (bytes + to - 1) / to * to;
}

static size_t block_bytes(size_t n)
{
    size_t head = sizeof(struct block) +
                  n * (2 * sizeof(struct announcement) + sizeof(struct status)) +
                  n * (sizeof(struct flag) + sizeof(struct doorbell)) +
                  n * n * sizeof(struct channel) + n * sizeof(int);

    return round_up(head, 4096) + 2 * n * SLOT_BYTES + n * n * PACKETS * PACKET_BYTES;
}

void local_block_layout(struct group *g)
{
    char *at = g->map;
    size_t n;

    g->block = g->map;
    n = (size_t)g->block->size;
    g->base.size = g->block->size;
    g->announcements = (struct announcement *)(at += sizeof(struct block));
    g->flags = (struct flag *)(at += 2 * n * sizeof(struct announcement));
    g->status = (struct status *)(at += n * sizeof(struct flag));
    g->bells = (struct doorbell *)(at += n * sizeof(struct status));
    g->channels = (struct channel *)(at += n * sizeof(struct doorbell));
    g->ranks = (int *)(at += n * n * sizeof(struct channel));
    at += n * sizeof(int);
    g->slots = (char *)g->map + round_up((size_t)(at - (char *)g->map), 4096);
    g->rings = g->slots + 2 * n * SLOT_BYTES;
    g->base.ranks = g->ranks;
    g->base.name = g->block->name;
}

static uint64_t hash(uint64_t h, const void *data, size_t bytes)
{
    const unsigned char *p = data;

    for (size_t i = 0; i < bytes; i++)
        h = (h ^ p[i]) * 0x100000001b3u;
    return h;
}

static bool key_taken(const struct comm *comm, uint64_t key)
{
    for (const struct group *g = comm->groups; g; g = g->next)
        if (g->key == key)
            return true;
    return false;
}

/* The same on all members: the n-th group of these ranks and this name is hashed n times. */
static uint64_t make_key(const struct comm *comm, const int *ranks, int count, const char *name)
{
    uint64_t h = hash(0xcbf29ce484222325u, name, strlen(name));

    h = hash(h, ranks, (size_t)count * sizeof(*ranks));
    while (key_taken(comm, h))
        h = hash(h, &h, sizeof(h));
    return h;
}

static int map_block(struct group *g, const struct group_entry *entry)
{
    g->map_bytes = entry->bytes;
    g->map = mmap(NULL, entry->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, g->comm->fd,
                  (off_t)entry->offset);
    if (g->map != MAP_FAILED)
        return 0;
    g->map = NULL;
    return ct_fail(CT_ENOMEM, "mapping a group's block: %s", strerror(errno));
}

/* With the lock held: the first member makes the block. */
static int create_block(struct group *g, const int *ranks, int count, const char *name)
{
    struct control *c = g->comm->control;
    struct group_entry *entry = &c->groups[c->group_count];
    int rc;

    if (c->group_count == MAX_GROUPS)
        return ct_fail(CT_ENOMEM, "group '%s': more than %d groups", name, MAX_GROUPS);
    entry->key = g->key;
    entry->bytes = block_bytes((size_t)count);
    rc = local_segment_extend(g->comm, entry->bytes, 4096, &entry->offset);
    if (rc < 0)
        return rc;
    rc = map_block(g, entry);
    if (rc < 0)
        return rc;
    g->block = g->map;
    g->block->size = count;
    snprintf(g->block->name, sizeof(g->block->name), "%s", name);
    local_block_layout(g);
    memcpy(g->ranks, ranks, (size_t)count * sizeof(*ranks));
    c->group_count++;
    return 0;
}

static int find_block(struct group *g, const int *ranks, int count, const char *name)
{
    struct control *c = g->comm->control;
    int rc;

    for (uint32_t i = 0; i < c->group_count; i++) {
        if (c->groups[i].key != g->key)
            continue;
        rc = map_block(g, &c->groups[i]);
        if (rc == 0)
            local_block_layout(g);
        return rc;
    }
    return create_block(g, ranks, count, name);
}

int local_group_attach(struct comm *comm, const int *ranks, int count, const char *name,
                       struct group **group)
{
    struct group *g = calloc(1, sizeof(*g));
    int rc;

    if (!g)
        return ct_fail(CT_ENOMEM, "group '%s'", name);
    g->comm = comm;
    g->base.ops = comm->base.ops;
    g->key = make_key(comm, ranks, count, name);
    g->missing = calloc((size_t)count, sizeof(*g->missing));
    g->inputs = calloc((size_t)count, sizeof(*g->inputs));
    while (g->base.position < count - 1 && ranks[g->base.position] != comm->base.rank)
        g->base.position++;
    rc =
        g->missing && g->inputs ? local_segment_lock(comm) : ct_fail(CT_ENOMEM, "group '%s'", name);
    if (rc == 0) {
        rc = find_block(g, ranks, count, name);
        local_segment_unlock(comm);
    }
    if (rc < 0) {
        local_group_detach(g);
        return rc;
    }
    *group = g;
    return 0;
}

void local_group_detach(struct group *g)
{
    if (!g)
        return;
    if (g->map)
        munmap(g->map, g->map_bytes);
    free(g->scratch);
    free(g->batch.jobs);
    free(g->missing);
    free(g->inputs);
    free(g);
}

static bool find_missing(struct group *g)
{
    bool any = false;

    for (int i = 0; i < g->base.size; i++)
        any |= g->missing[i] = (int32_t)(g->status[i].arrivals - g->arrivals) < 0;
    return any;
}

/* Arrivals of member i: in its announcement of this call, or in its flag. */
static uint32_t arrivals(const struct group *g, bool announced, int i)
{
    const _Atomic uint32_t *at =
        announced ? &local_announced(g, i)->arrivals : &g->flags[i].arrivals;

    return atomic_load_explicit(at, memory_order_acquire);
}

/* Whoever finds all there rings for those who sleep; the last to arrive does find it. */
static int wait_for_all(struct group *g, bool announced)
{
    struct doorbell *bell = &g->block->bell;
    struct patience p = {0};
    int i = 0, rc = 0;

    while (rc == 0) {
        uint32_t seen = atomic_load_explicit(&bell->word, memory_order_acquire);

        while (i < g->base.size && (int32_t)(arrivals(g, announced, i) - g->arrivals) >= 0)
            i++;
        if (i == g->base.size)
            break;
        if (local_pause(g->comm, &p, bell, seen))
            rc = local_look(g, p.deadline, find_missing);
    }
    local_rest(&p, bell);
    local_ring(bell);
    return rc;
}

int local_arrive(struct group *g)
{
    int me = g->base.position;

    g->arrivals++;
    atomic_store_explicit(&g->status[me].arrivals, g->arrivals, memory_order_relaxed);
    atomic_store_explicit(&g->flags[me].arrivals, g->arrivals, memory_order_release);
    return wait_for_all(g, false);
}

static bool agree(const struct announcement *a, const struct announcement *b)
{
    return a->call == b->call && a->dtype == b->dtype && a->reduction == b->reduction &&
           a->root == b->root && (a->count == b->count || a->call == CALL_RESERVE);
}

static int mismatch(struct group *g, int other)
{
    const struct announcement *a = local_announced(g, g->base.position);
    const struct announcement *b = local_announced(g, other);
    char mine[160], theirs[160];

    local_describe(a, mine, sizeof(mine));
    local_describe(b, theirs, sizeof(theirs));
    return local_fail(g->comm,
                      "ranks disagree on call %u of group '%s': rank %d calls %s, rank %d %s",
                      g->number, g->base.name, g->comm->base.rank, mine, g->ranks[other], theirs);
}

int local_enter(struct group *g, const struct announcement *a)
{
    struct announcement *mine;
    int rc = local_failed(g), me = g->base.position;

    if (rc < 0)
        return rc;
    g->number++;
    g->arrivals++;
    local_note(g, a->call, a->root, a->count * ct_dtype_size(a->dtype));
    atomic_store_explicit(&g->status[me].arrivals, g->arrivals, memory_order_relaxed);
    mine = &g->announcements[(size_t)(g->number & 1) * (size_t)g->base.size + (size_t)me];
    mine->call = a->call;
    mine->dtype = a->dtype;
    mine->reduction = a->reduction;
    mine->root = a->root;
    mine->count = a->count;
    mine->buffers = a->buffers;
    atomic_store_explicit(&mine->arrivals, g->arrivals, memory_order_release);
    rc = wait_for_all(g, true);
    if (rc < 0)
        return rc;
    for (int i = 0; i < g->base.size; i++)
        if (!agree(local_announced(g, i), a))
            return mismatch(g, i);
    return 0;
}
