/*
 * Messages: rings of all sizes, in the arena and not, streams of small messages longer than any
 * queue, and order under tags.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <ctitan/error.h>

#include "rank.h"

static void fill(unsigned char *data, size_t bytes, uint64_t seed)
{
    for (size_t i = 0; i < bytes; i++)
        data[i] = (unsigned char)mix(seed, i / 8, 7) + (unsigned char)i;
}

static int compare(struct fixture *f, const unsigned char *data, size_t bytes, uint64_t seed,
                   const char *what)
{
    for (size_t i = 0; i < bytes; i++) {
        if (data[i] == (unsigned char)((unsigned char)mix(seed, i / 8, 7) + (unsigned char)i))
            continue;
        fprintf(stderr, "rank %d: %s of %zu bytes: byte %zu is wrong\n", f->comm->rank, what, bytes,
                i);
        return 1;
    }
    return 0;
}

static int failed(struct fixture *f, const char *what)
{
    fprintf(stderr, "rank %d: %s: %s\n", f->comm->rank, what, ct_error_message());
    return 1;
}

static int ring(struct fixture *f, struct ct_group *g, size_t bytes, char *out, char *in, int tag)
{
    int next = (g->position + 1) % g->size, before = (g->position + g->size - 1) % g->size;

    fill((unsigned char *)out, bytes, (uint64_t)g->position);
    memset(in, 0, bytes);
    if (ct_group_exchange(g, out, next, in, before, bytes, tag) < 0)
        return failed(f, "exchange");
    return compare(f, (unsigned char *)in, bytes, (uint64_t)before, "exchange");
}

static int rings(struct fixture *f, struct ct_group *g)
{
    static const size_t sizes[] = {0, 1, 1000, 16384, 16385, 100000, 3000001};
    int bad = 0, tag = 0;

    for (size_t i = 0; i < CT_COUNT(sizes) && !bad; i++) {
        char *heap = malloc(2 * sizes[i] + 1), *arena = f->arena ? f->arena : heap;
        char *far = f->arena ? arena + f->arena_bytes / 2 : heap + sizes[i];

        if (!heap)
            return failed(f, "no memory");
        bad = ring(f, g, sizes[i], heap, heap + sizes[i], tag++) ||
              ring(f, g, sizes[i], arena, far, tag++) ||
              ring(f, g, sizes[i], g->position % 2 ? heap : arena, far, tag++);
        free(heap);
    }
    return bad;
}

/* Rank 0 sends many to each other rank before anybody must answer. */
static int streams(struct fixture *f, struct ct_group *g)
{
    unsigned char data[700];
    int rc = 0, bad = 0;

    for (int i = 0; i < 300 && rc >= 0 && !bad; i++) {
        size_t bytes = (size_t)(i * 7) % sizeof(data);

        if (g->position) {
            rc = ct_group_receive(g, data, bytes, 0, i);
            bad = rc < 0 ? 0 : compare(f, data, bytes, (uint64_t)(g->position + i), "receive");
            continue;
        }
        for (int peer = 1; peer < g->size && rc >= 0; peer++) {
            fill(data, bytes, (uint64_t)(peer + i));
            rc = ct_group_send(g, data, bytes, peer, i);
        }
    }
    return rc < 0 ? failed(f, "a stream of messages") : bad;
}

/* A large one to every other rank in turn, collectives in between. */
static int large(struct fixture *f, struct ct_group *g)
{
    size_t bytes = 500000;
    unsigned char *data = malloc(bytes);
    int rc = 0, bad = 0;

    for (int from = 0; from < g->size && rc >= 0 && data && !bad; from++) {
        int to = (from + 1) % g->size;

        if (g->position == from) {
            fill(data, bytes, (uint64_t)from);
            rc = ct_group_send(g, data, bytes, to, 5);
        } else if (g->position == to) {
            rc = ct_group_receive(g, data, bytes, from, 5);
            bad = rc < 0 ? 0 : compare(f, data, bytes, (uint64_t)from, "send");
        }
        if (rc >= 0)
            rc = ct_group_barrier(g);
    }
    free(data);
    return rc < 0 ? failed(f, "send and receive") : bad;
}

int check_messages(struct fixture *f)
{
    struct ct_group *g;
    int64_t ranks[64];

    for (int i = 0; i < f->comm->world; i++)
        ranks[i] = f->comm->world - 1 - i;
    if (f->ops->group(f->comm, ranks, f->comm->world, "reversed", &g) < 0)
        return failed(f, "group");
    return f->comm->world < 2 ? 0 : rings(f, g) || streams(f, g) || large(f, g);
}
