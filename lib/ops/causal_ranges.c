/*
 * The keys that queries see, where the positions of both are known before a step runs: a rank's
 * tokens are a few runs of consecutive positions, and of two runs one is before the other, or they
 * are the same.
 */
#include <string.h>

#include "list.h"

#define RUNS 64

/* Tokens of a shard: `count` runs of `length` consecutive positions, which begin at first[]. */
struct runs {
    int count;
    int64_t length, first[RUNS];
};

/* The rank whose block of v this one holds after `moved` hops along the axis that splits it; -1:
   several axes do. */
static int64_t owner(const struct ct_prepare *p, const struct ct_value *v, int64_t moved)
{
    int64_t ranks[1024], size, at = 0;

    if (v->sharding.count[1] == 0 || moved == 0)
        return p->rank;
    if (v->sharding.count[1] > 1 || p->mesh->axis[v->sharding.axis[1][0]].size > 1024)
        return -1;
    size = ct_mesh_group(p->mesh, p->rank, (ct_axes)1 << v->sharding.axis[1][0], ranks);
    while (ranks[at] != p->rank)
        at++;
    return ranks[((at - moved) % size + size) % size];
}

static bool find_runs(const struct ct_prepare *p, int input, int64_t moved, struct runs *r)
{
    const struct ct_value *v = p->op->in[input];
    struct ct_launch here = {.op = p->op, .mesh = p->mesh, .graph = p->graph};
    int64_t tokens = p->in[input].shape[1], chunks = p->graph ? p->graph->chunks : 0;

    here.rank = owner(p, v, moved);
    r->length = chunks ? v->shape[1] / chunks : tokens;
    if (here.rank < 0 || !r->length || tokens % r->length || tokens / r->length > RUNS)
        return false;
    r->count = (int)(tokens / r->length);
    for (int i = 0; i < r->count; i++)
        r->first[i] = ct_launch_position(&here, v, 1, i * r->length);
    return true;
}

static bool same_in_order(const struct runs *q, const struct runs *k)
{
    for (int i = 0; i < q->count; i++)
        if (q->count != k->count || q->length != k->length || q->first[i] != k->first[i] ||
            (i && q->first[i] < q->first[i - 1]))
            return false;
    return true;
}

/* Does run i of the queries see run j of the keys? -1: in part. */
static int sees_run(const struct runs *q, int i, const struct runs *k, int j)
{
    if (k->first[j] + k->length - 1 <= q->first[i])
        return 1;
    return k->first[j] > q->first[i] + q->length - 1 ? 0 : -1;
}

/* Runs of keys that run i of the queries sees, which follow each other from *first on; -1: they do
   not. */
static int seen_by(const struct runs *q, int i, const struct runs *k, int *first)
{
    int count = 0;

    for (int j = 0; j < k->count; j++) {
        int sees = sees_run(q, i, k, j);

        if (sees < 0 || (sees && count && j != *first + count))
            return -1;
        if (sees && count++ == 0)
            *first = j;
    }
    return count;
}

static bool find_block(const struct runs *q, const struct runs *k, struct ct_seen_block *block)
{
    int first = 0, keys = 0, query = 0, queries = 0;

    for (int i = 0; i < q->count; i++) {
        int from = 0, count = seen_by(q, i, k, &from);

        if (count < 0 ||
            (count && queries && (i != query + queries || from != first || count != keys)))
            return false;
        if (count && queries++ == 0) {
            query = i;
            first = from;
            keys = count;
        }
    }
    *block = (struct ct_seen_block){query * q->length, queries * q->length, first * k->length,
                                    keys * k->length};
    return true;
}

enum ct_seen ct_attention_seen(const struct ct_prepare *p, int at, int positions,
                               struct ct_seen_block *block)
{
    bool given = (positions < p->ins && p->present[positions]) ||
                 (positions + 1 < p->ins && p->present[positions + 1]);
    int64_t known = ct_op_int(p->op, "known");
    struct runs q, k;

    *block = (struct ct_seen_block){0, p->in[at].shape[1], 0, p->in[at + 1].shape[1]};
    if (!ct_op_bool(p->op, "causal"))
        return CT_SEEN_BLOCK;
    if ((given && !known) || !find_runs(p, at, 0, &q) ||
        !find_runs(p, at + 1, known ? known - 1 : 0, &k))
        return CT_SEEN_UNKNOWN;
    if (same_in_order(&q, &k))
        return CT_SEEN_CAUSAL;
    return find_block(&q, &k, block) ? CT_SEEN_BLOCK : CT_SEEN_UNKNOWN;
}
