/*
 * One layer: every sensible choice of what to keep, as a front of bytes against seconds.
 *
 * Ops are decided from the last to the first. If the backward or a recomputed op needs an op's
 * result, the op is either kept (costing bytes) or recomputed (costing seconds, and needing its
 * inputs). Each op is decided once, so shared ancestors count once, and a set of kept values is
 * always closed. Of choices that leave the same values needed, those that cost more of both are
 * dropped, so the front is exact.
 */
#include <stdlib.h>
#include <string.h>

#include "sac.h"

/* A partial choice. */
struct label {
    size_t bytes;
    double seconds, flops;
    int words;
    uint64_t *needed; /* bit i: result of op i is needed; then what is kept */
};

struct labels {
    struct label *item;
    size_t count, room;
};

static uint64_t *saved_of(const struct label *l)
{
    return l->needed + l->words;
}

static bool has(const uint64_t *bits, int i)
{
    return bits[i / 64] >> (i % 64) & 1;
}

static void set(uint64_t *bits, int i, bool on)
{
    bits[i / 64] &= ~(UINT64_C(1) << (i % 64));
    bits[i / 64] |= (uint64_t)on << (i % 64);
}

static int compare(const void *a, const void *b)
{
    const struct label *x = a, *y = b;
    int order = memcmp(x->needed, y->needed, sizeof(uint64_t) * (size_t)x->words);

    if (order)
        return order;
    if (x->bytes != y->bytes)
        return x->bytes < y->bytes ? -1 : 1;
    if (x->seconds != y->seconds)
        return x->seconds < y->seconds ? -1 : 1;
    return memcmp(saved_of(x), saved_of(y), sizeof(uint64_t) * (size_t)x->words);
}

/* Drop choices that cost more of both and leave the same values needed. */
static void prune(struct labels *l)
{
    const struct label *best = NULL;
    size_t n = 0;

    qsort(l->item, l->count, sizeof(*l->item), compare);
    for (size_t i = 0; i < l->count; i++) {
        const struct label *at = &l->item[i];
        bool same = best && !memcmp(best->needed, at->needed, sizeof(uint64_t) * (size_t)at->words);

        if (same && best->seconds <= at->seconds)
            continue;
        l->item[n] = *at;
        best = &l->item[n++];
    }
    l->count = n;
}

static struct label *branch(struct sac *s, struct labels *l, struct label from)
{
    l->item = ct_arena_grow(&s->scratch, l->item, &l->room, l->count + 1, sizeof(*l->item));
    from.needed =
        ct_arena_copy(&s->scratch, from.needed, sizeof(uint64_t) * 2 * (size_t)from.words);
    l->item[l->count] = from;
    return &l->item[l->count++];
}

/* Keep or recompute the result of op i. */
static void decide(struct sac *s, const struct sac_problem *p, int i, const struct labels *from,
                   struct labels *to)
{
    for (size_t k = 0; k < from->count; k++) {
        struct label *l;

        if (!has(from->item[k].needed, i)) {
            branch(s, to, from->item[k]);
            continue;
        }
        if (!p->op[i].must) {
            l = branch(s, to, from->item[k]);
            l->bytes += p->op[i].bytes;
            set(l->needed, i, false);
            set(saved_of(l), i, true);
        }
        l = branch(s, to, from->item[k]);
        l->seconds += p->op[i].seconds;
        l->flops += p->op[i].flops;
        set(l->needed, i, false);
        for (int n = 0; n < p->op[i].ins; n++)
            set(l->needed, p->op[i].in[n], true);
    }
    prune(to);
}

void sac_front(struct sac *s, const struct sac_problem *p, struct sac_front *front)
{
    int words = p->count / 64 + 1;
    struct label start = {.words = words};
    struct labels now = {0}, next;

    start.needed = ct_arena_array(&s->scratch, uint64_t, 2 * words);
    for (int i = 0; i < p->count; i++)
        set(start.needed, i, p->op[i].needed);
    branch(s, &now, start);
    for (int i = p->count - 1; i >= 0; i--) {
        next = (struct labels){0};
        decide(s, p, i, &now, &next);
        now = next;
    }
    front->count = (int)now.count;
    front->choice = ct_arena_array(&s->scratch, struct sac_choice, now.count);
    for (size_t i = 0; i < now.count; i++)
        front->choice[i] = (struct sac_choice){now.item[i].bytes, now.item[i].seconds,
                                               now.item[i].flops, saved_of(&now.item[i])};
}
