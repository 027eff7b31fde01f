/*
 * Collectives as messages between pairs. Reductions: every rank gets all contributions to its shard
 * and adds them in rank order; all_reduce then gathers the shards.
 */
#include <stdlib.h>
#include <string.h>

#include <ctitan/error.h>

#include "cluster.h"

#define SMALL ((size_t)4 << 10)  /* all_reduce: everybody gets everything */
#define BLOCK ((size_t)32 << 20) /* bytes reduced at once, which bounds the scratch memory */
#define LINE 64

static void copy(void *to, const void *from, size_t bytes)
{
    if (bytes && to != from)
        memcpy(to, from, bytes);
}

static int need_scratch(struct group *g, size_t bytes)
{
    void *scratch;

    if (bytes <= g->scratch_bytes)
        return 0;
    scratch = realloc(g->scratch, bytes);
    if (!scratch)
        return ct_fail(CT_ENOMEM, "%zu bytes for group '%s'", bytes, g->base.name);
    g->scratch = scratch;
    g->scratch_bytes = bytes;
    return 0;
}

/* Shards to and from all others, the nearest first. A shard lies at stride x position. */
static int all_pairs(struct group *g, const char *in, size_t in_stride, char *out,
                     size_t out_stride, size_t bytes)
{
    int n = g->base.size, rc = 0;

    for (int k = 1; k < n && rc == 0; k++) {
        int from = (g->base.position + n - k) % n;

        rc = transfer_receive(g, out + (size_t)from * out_stride, bytes, from);
    }
    for (int k = 1; k < n && rc == 0; k++) {
        int to = (g->base.position + k) % n;

        rc = transfer_send(g, in + (size_t)to * in_stride, bytes, to);
    }
    return rc < 0 ? rc : transfer_finish(g);
}

/* Rounds of doubling distance (Hensgen, Finkel and Manber 1988). */
int cluster_barrier(struct ct_group *group)
{
    struct group *g = (struct group *)group;
    int n = group->size, me = group->position;
    int rc = transfer_begin(g, CALL_BARRIER, CT_U8, CT_REDUCE_SUM, 0, 0);

    for (int distance = 1; distance < n && rc == 0; distance *= 2) {
        rc = transfer_receive(g, NULL, 0, (me + n - distance) % n);
        if (rc == 0)
            rc = transfer_send(g, NULL, 0, (me + distance) % n);
        if (rc == 0)
            rc = transfer_finish(g);
    }
    return rc;
}

int cluster_all_gather(struct ct_group *group, const void *in, void *out, size_t count,
                       enum ct_dtype dtype)
{
    struct group *g = (struct group *)group;
    size_t bytes = count * ct_dtype_size(dtype);
    int rc = transfer_begin(g, CALL_ALL_GATHER, dtype, CT_REDUCE_SUM, count, 0);

    if (rc < 0)
        return rc;
    copy((char *)out + (size_t)group->position * bytes, in, bytes);
    return all_pairs(g, in, 0, out, bytes, bytes);
}

int cluster_all_to_all(struct ct_group *group, const void *in, void *out, size_t count,
                       enum ct_dtype dtype)
{
    struct group *g = (struct group *)group;
    size_t bytes = count * ct_dtype_size(dtype), own = (size_t)group->position * bytes;
    int rc = transfer_begin(g, CALL_ALL_TO_ALL, dtype, CT_REDUCE_SUM, count, 0);

    if (rc < 0)
        return rc;
    copy((char *)out + own, (const char *)in + own, bytes);
    return all_pairs(g, in, bytes, out, bytes, bytes);
}

/* Contributions to this rank's shard come into the scratch memory, one after the other. */
static void reduce(struct group *g, const void *own, void *out, size_t bytes, enum ct_dtype dtype,
                   enum ct_reduction reduction)
{
    for (int i = 0; i < g->base.size; i++)
        g->inputs[i] = i == g->base.position ? own : g->scratch + (size_t)i * bytes;
    ct_reduce(out, g->inputs, g->base.size, bytes / ct_dtype_size(dtype), dtype, reduction);
}

int cluster_reduce_scatter(struct ct_group *group, const void *in, void *out, size_t count,
                           enum ct_dtype dtype, enum ct_reduction reduction)
{
    struct group *g = (struct group *)group;
    size_t n = (size_t)group->size, me = (size_t)group->position;
    size_t bytes = count * ct_dtype_size(dtype), block = (BLOCK / n + LINE) / LINE * LINE;
    int rc = transfer_begin(g, CALL_REDUCE_SCATTER, dtype, reduction, count, 0);

    if (rc == 0)
        rc = need_scratch(g, n * (bytes < block ? bytes : block));
    for (size_t at = 0; rc == 0 && (at < bytes || at == 0); at += block) {
        size_t step = bytes - at < block ? bytes - at : block;
        const char *from = (const char *)in + at;

        rc = all_pairs(g, from, bytes, g->scratch, step, step);
        if (rc == 0)
            reduce(g, from + me * bytes, (char *)out + at, step, dtype, reduction);
    }
    return rc;
}

/* ---- all_reduce ---- */

static size_t slice(size_t bytes, size_t n, int position, size_t *begin)
{
    size_t step = ((bytes + n - 1) / n + LINE - 1) / LINE * LINE, at = (size_t)position * step;

    *begin = at < bytes ? at : bytes;
    return bytes - *begin < step ? bytes - *begin : step;
}

/* Slices to their owners, contributions to this rank's slice into the scratch memory. */
static int scatter(struct group *g, const char *in, size_t bytes, size_t mine)
{
    size_t n = (size_t)g->base.size, at;
    int rc = 0;

    for (int k = 1; k < g->base.size && rc == 0; k++) {
        int from = (g->base.position + g->base.size - k) % g->base.size;

        rc = transfer_receive(g, g->scratch + (size_t)from * mine, mine, from);
    }
    for (int k = 1; k < g->base.size && rc == 0; k++) {
        int to = (g->base.position + k) % g->base.size;
        size_t length = slice(bytes, n, to, &at);

        rc = transfer_send(g, in + at, length, to);
    }
    return rc < 0 ? rc : transfer_finish(g);
}

static int gather(struct group *g, char *out, size_t bytes)
{
    size_t n = (size_t)g->base.size, at, mine = slice(bytes, n, g->base.position, &at);
    const char *own = out + at;
    int rc = 0;

    for (int k = 1; k < g->base.size && rc == 0; k++) {
        int from = (g->base.position + g->base.size - k) % g->base.size;
        size_t length = slice(bytes, n, from, &at);

        rc = transfer_receive(g, out + at, length, from);
    }
    for (int k = 1; k < g->base.size && rc == 0; k++)
        rc = transfer_send(g, own, mine, (g->base.position + k) % g->base.size);
    return rc < 0 ? rc : transfer_finish(g);
}

static int all_reduce_block(struct group *g, const char *in, char *out, size_t bytes,
                            enum ct_dtype dtype, enum ct_reduction reduction)
{
    size_t n = (size_t)g->base.size, begin, mine = slice(bytes, n, g->base.position, &begin);
    int rc;

    if (bytes <= SMALL) {
        rc = all_pairs(g, in, 0, g->scratch, bytes, bytes);
        if (rc == 0)
            reduce(g, in, out, bytes, dtype, reduction);
        return rc;
    }
    rc = scatter(g, in, bytes, mine);
    if (rc < 0)
        return rc;
    reduce(g, in + begin, out + begin, mine, dtype, reduction);
    return gather(g, out, bytes);
}

int cluster_all_reduce(struct ct_group *group, const void *in, void *out, size_t count,
                       enum ct_dtype dtype, enum ct_reduction reduction)
{
    struct group *g = (struct group *)group;
    size_t n = (size_t)group->size, bytes = count * ct_dtype_size(dtype);
    size_t block = bytes < BLOCK ? bytes : BLOCK, unused;
    int rc = transfer_begin(g, CALL_ALL_REDUCE, dtype, reduction, count, 0);

    if (rc == 0)
        rc = need_scratch(g, n * (bytes <= SMALL ? bytes : slice(block, n, 0, &unused)));
    for (size_t at = 0; rc == 0 && (at < bytes || at == 0); at += BLOCK) {
        size_t step = bytes - at < BLOCK ? bytes - at : BLOCK;

        rc = all_reduce_block(g, (const char *)in + at, (char *)out + at, step, dtype, reduction);
    }
    return rc;
}

/* A binomial tree: who has the data passes them on to who is 1, 2, 4, .. positions away. */
int cluster_broadcast(struct ct_group *group, void *data, size_t count, enum ct_dtype dtype,
                      int root)
{
    struct group *g = (struct group *)group;
    int n = group->size, away = (group->position - root + n) % n, distance = 1, rc;
    size_t bytes = count * ct_dtype_size(dtype);

    if (root < 0 || root >= n)
        return ct_fail(CT_EINVAL, "broadcast from position %d in group '%s' of %d", root,
                       group->name, n);
    rc = transfer_begin(g, CALL_BROADCAST, dtype, CT_REDUCE_SUM, count, root);
    while (distance < n && !(away & distance))
        distance *= 2;
    if (rc == 0 && away) {
        rc = transfer_receive(g, data, bytes, (away - distance + root) % n);
        if (rc == 0)
            rc = transfer_finish(g);
    }
    for (distance /= 2; distance > 0 && rc == 0; distance /= 2)
        if (away + distance < n)
            rc = transfer_send(g, data, bytes, (away + distance + root) % n);
    return rc < 0 ? rc : transfer_finish(g);
}

/* ---- messages ---- */

static int check_peer(const struct ct_group *group, int peer)
{
    if (peer >= 0 && peer < group->size && peer != group->position)
        return 0;
    return ct_fail(CT_EINVAL, "a message between positions %d and %d of group '%s' of %d",
                   group->position, peer, group->name, group->size);
}

int cluster_send(struct ct_group *group, const void *data, size_t bytes, int peer, int tag)
{
    struct group *g = (struct group *)group;
    int rc = check_peer(group, peer);

    if (rc == 0)
        rc = transfer_begin_message(g, tag);
    if (rc == 0)
        rc = transfer_send(g, data, bytes, peer);
    return rc < 0 ? rc : transfer_finish(g);
}

int cluster_receive(struct ct_group *group, void *data, size_t bytes, int peer, int tag)
{
    struct group *g = (struct group *)group;
    int rc = check_peer(group, peer);

    if (rc == 0)
        rc = transfer_begin_message(g, tag);
    if (rc == 0)
        rc = transfer_receive(g, data, bytes, peer);
    return rc < 0 ? rc : transfer_finish(g);
}

int cluster_exchange(struct ct_group *group, const void *out, size_t out_bytes, int to, void *in,
                     size_t in_bytes, int from, int tag)
{
    struct group *g = (struct group *)group;
    int rc = check_peer(group, to);

    if (rc == 0)
        rc = check_peer(group, from);
    if (rc == 0)
        rc = transfer_begin_message(g, tag);
    if (rc == 0)
        rc = transfer_receive(g, in, in_bytes, from);
    if (rc == 0)
        rc = transfer_send(g, out, out_bytes, to);
    return rc < 0 ? rc : transfer_finish(g);
}
