/*
 * Groups: their blocks in the segment, and the arrivals on which all waits are built.
 *
 * All members add to a single word and poll only that word. If ranks outnumber processors, every
 * further cache line that each of them touched would add its cost serially.
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
                  n * sizeof(struct inbox) + n * n * sizeof(struct channel) + n * sizeof(int);

    return round_up(head, 4096) + 2 * n * SLOT_BYTES + n * n * PACKETS * PACKET_BYTES;
}

int *local_block_layout(struct group *g)
{
    char *at = g->map;
    int *ranks;
    size_t n;

    g->block = g->map;
    n = (size_t)g->block->size;
    g->base.size = g->block->size;
    g->announcements = (struct announcement *)(at += sizeof(struct block));
    g->status = (struct status *)(at += 2 * n * sizeof(struct announcement));
    g->inboxes = (struct inbox *)(at += n * sizeof(struct status));
    g->channels = (struct channel *)(at += n * sizeof(struct inbox));
    ranks = (int *)(at += n * n * sizeof(struct channel));
    at += n * sizeof(int);
    g->slots = (char *)g->map + round_up((size_t)(at - (char *)g->map), 4096);
    g->rings = g->slots + 2 * n * SLOT_BYTES;
    g->ranks = ranks;
    return ranks;
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

/* The same on all members. For the n-th group of these ranks and this name, it is hashed n
   times. */
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

/* Called with the lock held; the first member creates the block. */
static int create_block(struct group *g)
{
    int count = g->base.size;
    struct control *c = g->comm->control;
    struct group_entry *entry = &c->groups[c->group_count];
    int rc;

    if (c->group_count == MAX_GROUPS)
        return ct_fail(CT_ENOMEM, "group '%s': more than %d groups", g->base.name, MAX_GROUPS);
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
    snprintf(g->block->name, sizeof(g->block->name), "%s", g->base.name);
    memcpy(local_block_layout(g), g->base.ranks, (size_t)count * sizeof(int));
    c->group_count++;
    return 0;
}

static int find_block(struct group *g)
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
    return create_block(g);
}

int local_group_attach(struct comm *comm, const int64_t *ranks, int count, const char *name,
                       struct group **group)
{
    struct ct_group *base;
    struct group *g;
    int rc = ct_group_new(&comm->base, ranks, count, name, sizeof(*g), &base);

    if (rc < 0)
        return rc;
    g = (struct group *)base;
    g->comm = comm;
    g->key = make_key(comm, base->ranks, count, name);
    g->missing = calloc((size_t)count, sizeof(*g->missing));
    g->inputs = calloc((size_t)count, sizeof(*g->inputs));
    rc =
        g->missing && g->inputs ? local_segment_lock(comm) : ct_fail(CT_ENOMEM, "group '%s'", name);
    if (rc == 0) {
        rc = find_block(g);
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

static bool all_there(const struct group *g, uint64_t sum)
{
    return (uint16_t)(sum - g->passed[g->arrivals & 1]) == (uint16_t)g->base.size;
}

/* Returns the gate's sum when all members have arrived. The last to arrive wakes the sleepers. */
static int wait_for_all(struct group *g, uint64_t *sum)
{
    struct gate *gate = &g->block->gate;
    struct patience p = {0};
    int rc = 0;

    if (all_there(g, *sum)) {
        local_ring(&gate->bell);
        return 0;
    }
    while (rc == 0) {
        uint32_t seen = atomic_load(&gate->bell.word);

        *sum = atomic_load(&gate->sums[g->arrivals & 1]);
        if (all_there(g, *sum))
            break;
        if (local_pause(g->comm, &p, &gate->bell, seen))
            rc = local_look(g, p.deadline, find_missing);
    }
    local_rest(&p, &gate->bell);
    return rc;
}

/* Wait until all members have arrived. 1: all have this digest; 0: some digest differs. */
static int pass(struct group *g, uint64_t digest)
{
    uint64_t step = (digest << 16) + 1, *passed, sum, expected;
    int rc;

    g->arrivals++;
    atomic_store_explicit(&g->status[g->base.position].arrivals, g->arrivals, memory_order_relaxed);
    sum = atomic_fetch_add(&g->block->gate.sums[g->arrivals & 1], step) + step;
    rc = wait_for_all(g, &sum);
    if (rc < 0)
        return rc;
    passed = &g->passed[g->arrivals & 1];
    expected = *passed + (uint64_t)g->base.size * step;
    *passed = sum;
    return sum == expected;
}

int local_arrive(struct group *g)
{
    int rc = pass(g, 0);

    return rc < 0 ? rc
           : rc   ? 0
                  : local_fail(g->comm, "group '%s': ranks disagree on how call %u runs",
                               g->base.name, g->number);
}

uint64_t local_digest(uint64_t before, const struct announcement *a)
{
    uint64_t what = (uint64_t)a->call << 56 | (uint64_t)a->dtype << 48 |
                    (uint64_t)a->reduction << 40 | (uint32_t)a->root;
    uint64_t h = before;

    h = (h ^ what) * 0x9e3779b97f4a7c15u;
    h = (h ^ h >> 32 ^ (a->call == CALL_RESERVE ? 0 : a->count)) * 0x9e3779b97f4a7c15u;
    h = (h ^ h >> 32 ^ a->parts) * 0x9e3779b97f4a7c15u;
    return h ^ h >> 32;
}

static bool agree(const struct announcement *a, const struct announcement *b)
{
    return a->call == b->call && a->dtype == b->dtype && a->reduction == b->reduction &&
           a->root == b->root && (a->count == b->count || a->call == CALL_RESERVE) &&
           a->parts == b->parts;
}

static int mismatch(struct group *g)
{
    const struct announcement *a = local_announced(g, g->base.position), *b = a;
    char mine[160], theirs[160];
    int other = 0;

    while (other < g->base.size && agree(a, b = local_announced(g, other)))
        other++;
    if (other == g->base.size)
        return local_fail(g->comm, "ranks disagree on call %u of group '%s'", g->number,
                          g->base.name);
    local_describe(a, mine, sizeof(mine));
    local_describe(b, theirs, sizeof(theirs));
    return local_fail(g->comm,
                      "ranks disagree on call %u of group '%s': rank %d calls %s, rank %d %s%s",
                      g->number, g->base.name, g->comm->base.rank, mine, g->ranks[other], theirs,
                      strcmp(mine, theirs) == 0 ? ", divided differently" : "");
}

int local_enter(struct group *g, const struct announcement *a)
{
    int rc = local_failed(g);

    if (rc < 0)
        return rc;
    g->number++;
    local_note(g, a->call, a->root, a->count * ct_dtype_size(a->dtype));
    g->announcements[(size_t)(g->number & 1) * (size_t)g->base.size + (size_t)g->base.position] =
        *a;
    rc = pass(g, local_digest(0, a));
    return rc < 0 ? rc : rc ? 0 : mismatch(g);
}
