/*
 * One layer: every sensible choice of what to keep, as a front of bytes against seconds.
 *
 * Ops are decided from the last to the first. If the backward or a recomputed op needs an op's
 * result, the op is kept (costing bytes), offloaded (costing time of copies), or recomputed
 * (costing seconds, and needing its inputs). Each op is decided once, so shared ancestors count
 * once, and a set of kept values is always closed. Of choices that leave the same values needed,
 * those that cost more of everything are dropped, so the front is exact.
 *
 * Copies to host memory run beside the layer's forward, those back beside its backward. They take
 * what they take longer. The time of copies is counted in STEPS of the forward's time, rounded
 * up, which bounds the number of choices.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "sac.h"

#define STEPS 32

/* A partial choice. */
struct label {
    size_t bytes;
    double seconds, flops;
    double copy; /* seconds of copies to host memory, in steps */
    int words;
    uint64_t *needed; /* bit i: result of op i is needed; then what is kept; then what is
                         offloaded */
};

struct labels {
    struct label *item;
    size_t count, room;
};

static uint64_t *saved_of(const struct label *l)
{
    return l->needed + l->words;
}

static uint64_t *away_of(const struct label *l)
{
    return l->needed + 2 * l->words;
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
    if (x->copy != y->copy)
        return x->copy < y->copy ? -1 : 1;
    return memcmp(saved_of(x), saved_of(y), sizeof(uint64_t) * 2 * (size_t)x->words);
}

/* Is one of the choices from `first` to `end`, of no more bytes, no worse than `at`? */
static bool is_dominated(const struct label *first, const struct label *end, const struct label *at)
{
    for (; first < end; first++)
        if (first->seconds <= at->seconds && first->copy <= at->copy)
            return true;
    return false;
}

/* Drop choices that cost more of everything and leave the same values needed. */
static void prune(struct labels *l)
{
    size_t n = 0, group = 0;

    if (l->count)
        qsort(l->item, l->count, sizeof(*l->item), compare);
    for (size_t i = 0; i < l->count; i++) {
        const struct label *at = &l->item[i];

        if (n > group &&
            memcmp(l->item[group].needed, at->needed, sizeof(uint64_t) * (size_t)at->words) != 0)
            group = n;
        if (!is_dominated(l->item + group, l->item + n, at))
            l->item[n++] = *at;
    }
    l->count = n;
}

static struct label *branch(struct sac *s, struct labels *l, struct label from)
{
    l->item = ct_arena_grow(&s->scratch, l->item, &l->room, l->count + 1, sizeof(*l->item));
    from.needed =
        ct_arena_copy(&s->scratch, from.needed, sizeof(uint64_t) * 3 * (size_t)from.words);
    l->item[l->count] = from;
    return &l->item[l->count++];
}

static void keep(struct sac *s, const struct sac_problem *p, int i, const struct label *from,
                 struct labels *to)
{
    struct label *l = branch(s, to, *from);

    l->bytes += p->op[i].bytes;
    set(l->needed, i, false);
    set(saved_of(l), i, true);
}

static void offload(struct sac *s, const struct sac_problem *p, int i, const struct label *from,
                    struct labels *to)
{
    struct label *l = branch(s, to, *from);

    l->copy += ceil(p->op[i].copy / p->forward * STEPS);
    set(l->needed, i, false);
    set(saved_of(l), i, true);
    set(away_of(l), i, true);
}

static void recompute(struct sac *s, const struct sac_problem *p, int i, const struct label *from,
                      struct labels *to)
{
    struct label *l = branch(s, to, *from);

    l->seconds += p->op[i].seconds;
    l->flops += p->op[i].flops;
    set(l->needed, i, false);
    for (int n = 0; n < p->op[i].ins; n++)
        set(l->needed, p->op[i].in[n], true);
}

/* Keep, offload or recompute the result of op i. */
static void decide(struct sac *s, const struct sac_problem *p, int i, const struct labels *from,
                   struct labels *to)
{
    for (size_t k = 0; k < from->count; k++) {
        const struct label *l = &from->item[k];

        if (!has(l->needed, i)) {
            branch(s, to, *l);
            continue;
        }
        if (!p->op[i].must)
            keep(s, p, i, l, to);
        if (p->op[i].may_leave)
            offload(s, p, i, l, to);
        if (!p->op[i].must_not)
            recompute(s, p, i, l, to);
    }
    prune(to);
}

/* Seconds that copies take longer than the computation that they overlap. */
static double exposed(const struct sac_problem *p, double copy)
{
    return fmax(0, copy - p->forward) + fmax(0, copy - p->backward);
}

static double copied_bytes(const struct sac *s, const struct sac_problem *p, const struct label *l)
{
    double seconds = 0;

    for (int i = 0; i < p->count; i++)
        seconds += has(away_of(l), i) ? p->op[i].copy : 0;
    return seconds * s->rates.host;
}

/* From the labels of a solved layer, of which none leaves anything needed. */
static void collect(struct sac *s, const struct sac_problem *p, struct labels *l,
                    struct sac_front *front)
{
    for (size_t i = 0; i < l->count; i++) {
        l->item[i].seconds += exposed(p, l->item[i].copy * p->forward / STEPS);
        l->item[i].copy = 0;
    }
    prune(l);
    front->count = (int)l->count;
    front->choice = ct_arena_array(&s->scratch, struct sac_choice, l->count);
    for (size_t i = 0; i < l->count; i++) {
        const struct label *at = &l->item[i];

        front->choice[i] = (struct sac_choice){
            at->bytes, at->seconds, at->flops, copied_bytes(s, p, at), saved_of(at), away_of(at)};
    }
}

void sac_front(struct sac *s, const struct sac_problem *p, struct sac_front *front)
{
    int words = p->count / 64 + 1;
    struct label start = {.words = words};
    struct labels now = {0}, next;

    start.needed = ct_arena_array(&s->scratch, uint64_t, 3 * words);
    for (int i = 0; i < p->count; i++)
        set(start.needed, i, p->op[i].needed);
    branch(s, &now, start);
    for (int i = p->count - 1; i >= 0; i--) {
        next = (struct labels){0};
        decide(s, p, i, &now, &next);
        now = next;
    }
    collect(s, p, &now, front);
}
