/*
 * Collectives as messages between pairs. In reductions every rank receives all contributions to its
 * shard and adds them in rank order; all_reduce then gathers the shards.
 */
#include <stdlib.h>
#include <string.h>

#include <ctitan/error.h>

#include "cluster.h"

#define SMALL ((size_t)4 << 10)  /* all_reduce: every rank receives everything */
#define BLOCK ((size_t)32 << 20) /* bytes reduced at once; limits the scratch memory */
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
        return cluster_fail(g->comm, "rank %d has no %zu bytes for group '%s'", g->comm->base.rank,
                            bytes, g->base.name);
    g->scratch = scratch;
    g->scratch_bytes = bytes;
    return 0;
}

/* Exchange shards with all others, nearest first. A shard lies at stride x position. */
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
    return transfer_finish(g, rc);
}

/* Rounds with doubling distance (Hensgen, Finkel and Manber 1988). */
static int barrier(struct group *g)
{
    int n = g->base.size, me = g->base.position, rc = 0;

    for (int distance = 1; distance < n && rc == 0; distance *= 2) {
        rc = transfer_receive(g, NULL, 0, (me + n - distance) % n);
        if (rc == 0)
            rc = transfer_send(g, NULL, 0, (me + distance) % n);
        rc = transfer_finish(g, rc);
    }
    return rc;
}

static int all_gather(struct group *g, const struct ct_call *c, size_t bytes)
{
    copy((char *)c->out + (size_t)g->base.position * bytes, c->in, bytes);
    return all_pairs(g, c->in, 0, c->out, bytes, bytes);
}

static int all_to_all(struct group *g, const struct ct_call *c, size_t bytes)
{
    size_t own = (size_t)g->base.position * bytes;

    copy((char *)c->out + own, (const char *)c->in + own, bytes);
    return all_pairs(g, c->in, bytes, c->out, bytes, bytes);
}

/* Receive the contributions to this rank's shard into the scratch memory, one after the other. */
static void reduce(struct group *g, const struct ct_call *c, const void *own, void *out,
                   size_t bytes)
{
    for (int i = 0; i < g->base.size; i++)
        g->inputs[i] = i == g->base.position ? own : g->scratch + (size_t)i * bytes;
    ct_reduce(out, g->inputs, g->base.size, bytes / ct_dtype_size(c->dtype), c->dtype,
              c->reduction);
}

static int reduce_scatter(struct group *g, const struct ct_call *c, size_t bytes)
{
    size_t n = (size_t)g->base.size, me = (size_t)g->base.position;
    size_t block = (BLOCK / n + LINE) / LINE * LINE;
    int rc = need_scratch(g, n * (bytes < block ? bytes : block));

    for (size_t at = 0; rc == 0 && (at < bytes || at == 0); at += block) {
        size_t step = bytes - at < block ? bytes - at : block;
        const char *from = (const char *)c->in + at;

        rc = all_pairs(g, from, bytes, g->scratch, step, step);
        if (rc == 0)
            reduce(g, c, from + me * bytes, (char *)c->out + at, step);
    }
    return rc;
}

/* ---- all_reduce ---- */

/* Send shards to their owners; receive contributions to this rank's into the scratch memory. */
static int scatter(struct group *g, const char *in, size_t bytes, size_t mine)
{
    int n = g->base.size, rc = 0;
    size_t at;

    for (int k = 1; k < n && rc == 0; k++) {
        int from = (g->base.position + n - k) % n;

        rc = transfer_receive(g, g->scratch + (size_t)from * mine, mine, from);
    }
    for (int k = 1; k < n && rc == 0; k++) {
        int to = (g->base.position + k) % n;
        size_t length = ct_comm_share(bytes, n, to, &at);

        rc = transfer_send(g, in + at, length, to);
    }
    return transfer_finish(g, rc);
}

static int gather(struct group *g, char *out, size_t bytes)
{
    int n = g->base.size, rc = 0;
    size_t at, mine = ct_comm_share(bytes, n, g->base.position, &at);
    const char *own = out + at;

    for (int k = 1; k < n && rc == 0; k++) {
        int from = (g->base.position + n - k) % n;
        size_t length = ct_comm_share(bytes, n, from, &at);

        rc = transfer_receive(g, out + at, length, from);
    }
    for (int k = 1; k < n && rc == 0; k++)
        rc = transfer_send(g, own, mine, (g->base.position + k) % n);
    return transfer_finish(g, rc);
}

static int all_reduce_block(struct group *g, const struct ct_call *c, size_t offset, size_t bytes)
{
    size_t begin, mine = ct_comm_share(bytes, g->base.size, g->base.position, &begin);
    const char *in = (const char *)c->in + offset;
    char *out = (char *)c->out + offset;
    int rc;

    if (bytes <= SMALL) {
        rc = all_pairs(g, in, 0, g->scratch, bytes, bytes);
        if (rc == 0)
            reduce(g, c, in, out, bytes);
        return rc;
    }
    rc = scatter(g, in, bytes, mine);
    if (rc < 0)
        return rc;
    reduce(g, c, in + begin, out + begin, mine);
    return gather(g, out, bytes);
}

static int all_reduce(struct group *g, const struct ct_call *c, size_t bytes)
{
    size_t block = bytes < BLOCK ? bytes : BLOCK, unused;
    size_t most = bytes <= SMALL ? bytes : ct_comm_share(block, g->base.size, 0, &unused);
    int rc = need_scratch(g, (size_t)g->base.size * most);

    for (size_t at = 0; rc == 0 && (at < bytes || at == 0); at += BLOCK)
        rc = all_reduce_block(g, c, at, bytes - at < BLOCK ? bytes - at : BLOCK);
    return rc;
}

/* A binomial tree: a rank with the data sends it to those 1, 2, 4, .. positions away. */
static int broadcast(struct group *g, const struct ct_call *c, size_t bytes)
{
    int n = g->base.size, root = c->from, away = (g->base.position - root + n) % n;
    int distance = 1, rc = 0;

    while (distance < n && !(away & distance))
        distance *= 2;
    if (away)
        rc = transfer_finish(g, transfer_receive(g, c->out, bytes, (away - distance + root) % n));
    else
        copy(c->out, c->in, bytes);
    if (rc < 0)
        return rc;
    for (distance /= 2; distance > 0 && rc == 0; distance /= 2)
        if (away + distance < n)
            rc = transfer_send(g, c->out, bytes, (away + distance + root) % n);
    return transfer_finish(g, rc);
}

static int message(struct group *g, const struct ct_call *c, size_t bytes)
{
    int rc = 0;

    if (c->kind != CT_CALL_SEND)
        rc = transfer_receive(g, c->out, bytes, c->from);
    if (rc == 0 && c->kind != CT_CALL_RECEIVE)
        rc = transfer_send(g, c->in, bytes, c->to);
    return transfer_finish(g, rc);
}

int cluster_call(const struct ct_call *c)
{
    static int (*const by_kind[CT_CALL_KINDS])(struct group *, const struct ct_call *, size_t) = {
        [CT_CALL_ALL_GATHER] = all_gather, [CT_CALL_REDUCE_SCATTER] = reduce_scatter,
        [CT_CALL_ALL_REDUCE] = all_reduce, [CT_CALL_ALL_TO_ALL] = all_to_all,
        [CT_CALL_BROADCAST] = broadcast,   [CT_CALL_EXCHANGE] = message,
        [CT_CALL_SEND] = message,          [CT_CALL_RECEIVE] = message,
    };
    struct group *g = (struct group *)c->group;
    int rc = transfer_begin(g, c);

    if (rc < 0)
        return rc;
    if (c->kind == CT_CALL_BARRIER)
        return barrier(g);
    return by_kind[c->kind](g, c, c->count * ct_dtype_size(c->dtype));
}
