/*
 * One layer: every sensible choice of what to keep, as a front of bytes against seconds.
 *
 * Ops are decided from the last to the first. If the backward or a recomputed op needs an op's
 * result, the op is kept (costing bytes), offloaded (costing time of copies), or recomputed
 * (costing seconds, and needing its inputs). Each op is decided once, so shared ancestors count
 * once, and a set of kept values is always closed. Of choices that leave the same values needed,
 * those that cost more of everything are dropped. As long as no more than MOST are left after an
 * op, the front is exact.
 *
 * A layer with many values needed at a time has more. Each of them is then completed at PRICES
 * prices of a byte, where every other result is made in the way that is cheapest for it alone. The
 * BEST ones in each of POINTS steps of bytes stay. The front is then near the exact one, and is
 * marked as partial. So is one with more than POINTS choices, of which one for each step of bytes
 * stays.
 *
 * Copies to host memory run beside the layer's forward, those back beside its backward. They take
 * what they take longer. The time of copies is counted in STEPS of the forward's time, or in
 * MOST_STEPS of the time of all copies if these are longer, rounded up.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "sac.h"

#define MOST 32768
#define PRICES 16
#define BEST 4
#define POINTS 1024
#define STEPS 32
#define MOST_STEPS 256

/* A partial choice. */
struct label {
    size_t bytes;
    double seconds, flops;
    int copy;         /* steps of copies to host memory */
    uint64_t *needed; /* bit i: result of op i is needed; then what is kept; then what is
                         offloaded */
};

struct solver {
    const struct sac_problem *p;
    int words;     /* of bits for all ops */
    double step;   /* seconds of copies */
    int steps;     /* of all copies */
    double *least; /* by steps: least seconds of the choices seen that copy no more */
    bool partial;
};

/* The choices after an op, with all that they point to. */
struct labels {
    struct ct_arena arena;
    struct label *item;
    size_t count, room;
};

static uint64_t *saved_of(const struct solver *f, const struct label *l)
{
    return l->needed + f->words;
}

static uint64_t *away_of(const struct solver *f, const struct label *l)
{
    return l->needed + 2 * f->words;
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

/* ---- time of copies ---- */

static int steps_of(const struct solver *f, int i)
{
    return f->p->op[i].may_leave && f->step > 0 ? (int)ceil(f->p->op[i].copy / f->step) : 0;
}

static void count_steps(struct solver *f)
{
    double all = 0;

    for (int i = 0; i < f->p->count; i++)
        all += f->p->op[i].may_leave ? f->p->op[i].copy : 0;
    f->step = fmax(f->p->forward / STEPS, all / MOST_STEPS);
    for (int i = 0; i < f->p->count; i++)
        f->steps += steps_of(f, i);
}

/* Seconds that copies take longer than the computation that they overlap. */
static double exposed(const struct solver *f, const struct label *l)
{
    double copy = l->copy * f->step;

    return fmax(0, copy - f->p->forward) + fmax(0, copy - f->p->backward);
}

/* ---- choices that others beat ---- */

static int compare_needed(const void *a, const void *b, void *solver)
{
    const struct label *x = a, *y = b;
    const struct solver *f = solver;
    int order = memcmp(x->needed, y->needed, sizeof(uint64_t) * (size_t)f->words);

    if (order)
        return order;
    if (x->bytes != y->bytes)
        return x->bytes < y->bytes ? -1 : 1;
    if (x->seconds != y->seconds)
        return x->seconds < y->seconds ? -1 : 1;
    if (x->copy != y->copy)
        return x->copy < y->copy ? -1 : 1;
    return memcmp(saved_of(f, x), saved_of(f, y), sizeof(uint64_t) * 2 * (size_t)f->words);
}

/* Whether none of the choices before, of no more bytes, is as good. */
static bool improves(struct solver *f, const struct label *at)
{
    if (f->least[at->copy] <= at->seconds)
        return false;
    for (int i = at->copy; i <= f->steps && f->least[i] > at->seconds; i++)
        f->least[i] = at->seconds;
    return true;
}

/* Drop choices that cost more of everything and leave the same values needed. */
static void prune(struct solver *f, struct labels *l)
{
    size_t n = 0;

    if (l->count)
        qsort_r(l->item, l->count, sizeof(*l->item), compare_needed, f);
    for (size_t i = 0; i < l->count; i++) {
        const struct label *at = &l->item[i];

        if (!n || memcmp(l->item[n - 1].needed, at->needed, sizeof(uint64_t) * (size_t)f->words))
            for (int k = 0; k <= f->steps; k++)
                f->least[k] = INFINITY;
        if (improves(f, at))
            l->item[n++] = *at;
    }
    l->count = n;
}

/* ---- too many choices ---- */

enum way { KEEP, OFFLOAD, RECOMPUTE };

/* The cheapest way to each op's result, by itself, at a price of a byte. */
static void find_ways(const struct solver *f, double price, double *cost, enum way *way)
{
    for (int i = 0; i < f->p->count; i++) {
        const struct sac_decided *d = &f->p->op[i];
        double again = d->seconds;

        for (int k = 0; k < d->ins; k++)
            again += cost[d->in[k]];
        cost[i] = d->must ? INFINITY : price * (double)d->bytes;
        way[i] = KEEP;
        if (d->may_leave && d->copy < cost[i]) {
            cost[i] = d->copy;
            way[i] = OFFLOAD;
        }
        if (!d->must_not && again < cost[i]) {
            cost[i] = again;
            way[i] = RECOMPUTE;
        }
    }
}

/* Go on from a choice, in which op `next` is the first that is not decided. */
static struct label complete(const struct solver *f, const struct label *from, int next,
                             const enum way *way, uint64_t *needed)
{
    struct label l = *from;

    memcpy(needed, from->needed, sizeof(*needed) * (size_t)f->words);
    for (int i = next; i >= 0; i--) {
        const struct sac_decided *d = &f->p->op[i];

        if (!has(needed, i))
            continue;
        l.bytes += way[i] == KEEP ? d->bytes : 0;
        l.copy += way[i] == OFFLOAD ? steps_of(f, i) : 0;
        l.seconds += way[i] == RECOMPUTE ? d->seconds : 0;
        for (int k = 0; way[i] == RECOMPUTE && k < d->ins; k++)
            set(needed, d->in[k], true);
    }
    l.seconds += exposed(f, &l);
    return l;
}

/* In equal ratios: from half the least seconds of a byte to twice all seconds for the fewest bytes,
   of results that take time to recompute. */
static void find_prices(const struct sac_problem *p, double price[PRICES])
{
    double least = INFINITY, smallest = INFINITY, all = 0;

    for (int i = 0; i < p->count; i++) {
        const struct sac_decided *d = &p->op[i];

        all += d->seconds;
        if (d->bytes && d->seconds > 0) {
            least = fmin(least, d->seconds / (double)d->bytes);
            smallest = fmin(smallest, (double)d->bytes);
        }
    }
    for (int i = 0; i < PRICES; i++)
        price[i] = isinf(least)
                       ? 1
                       : least / 2 * pow(4 * all / smallest / least, (double)i / (PRICES - 1));
}

/* The choices that take least. */
struct best {
    double least[BEST]; /* sorted */
    size_t at[BEST];
    int count;
};

static void note(struct best *b, double takes, size_t at)
{
    int n = 0;

    while (n < b->count && b->at[n] != at)
        n++;
    if (n < b->count && b->least[n] <= takes)
        return;
    if (n == b->count && n == BEST && b->least[--n] <= takes)
        return;
    b->count += n == b->count;
    for (; n > 0 && b->least[n - 1] > takes; n--) {
        b->least[n] = b->least[n - 1];
        b->at[n] = b->at[n - 1];
    }
    b->least[n] = takes;
    b->at[n] = at;
}

/* best[POINTS + 1]: of each step of bytes the fastest, and of all those with fewest bytes, if the
   choices go on at one of the prices. */
static void note_ends(const struct solver *f, struct labels *l, int next, struct best *best)
{
    double *cost = ct_arena_array(&l->arena, double, f->p->count), price[PRICES];
    enum way *way = ct_arena_array(&l->arena, enum way, f->p->count);
    uint64_t *needed = ct_arena_array(&l->arena, uint64_t, f->words);
    size_t step = 1;

    for (int i = 0; i < f->p->count; i++)
        step += f->p->op[i].bytes / (POINTS - 1);
    find_prices(f->p, price);
    for (int n = 0; n < PRICES; n++) {
        find_ways(f, price[n], cost, way);
        for (size_t i = 0; i < l->count; i++) {
            struct label end = complete(f, &l->item[i], next, way, needed);
            size_t at = end.bytes / step;

            note(&best[at < POINTS ? at : POINTS - 1], end.seconds, i);
            note(&best[POINTS], (double)end.bytes, i);
        }
    }
}

static void narrow(struct solver *f, struct labels *l, int next)
{
    struct best *best = ct_arena_array(&l->arena, struct best, POINTS + 1);
    bool *stays = ct_arena_array(&l->arena, bool, l->count);
    size_t n = 0;

    note_ends(f, l, next, best);
    for (int i = 0; i <= POINTS; i++)
        for (int k = 0; k < best[i].count; k++)
            stays[best[i].at[k]] = true;
    for (size_t i = 0; i < l->count; i++)
        if (stays[i])
            l->item[n++] = l->item[i];
    l->count = n;
    f->partial = true;
}

/* ---- decisions ---- */

static struct label *branch(const struct solver *f, struct labels *l, struct label from)
{
    l->item = ct_arena_grow(&l->arena, l->item, &l->room, l->count + 1, sizeof(*l->item));
    from.needed = ct_arena_copy(&l->arena, from.needed, sizeof(uint64_t) * 3 * (size_t)f->words);
    l->item[l->count] = from;
    return &l->item[l->count++];
}

static void keep(const struct solver *f, int i, const struct label *from, struct labels *to)
{
    struct label *l = branch(f, to, *from);

    l->bytes += f->p->op[i].bytes;
    set(l->needed, i, false);
    set(saved_of(f, l), i, true);
}

static void offload(const struct solver *f, int i, const struct label *from, struct labels *to)
{
    struct label *l = branch(f, to, *from);

    l->copy += steps_of(f, i);
    set(l->needed, i, false);
    set(saved_of(f, l), i, true);
    set(away_of(f, l), i, true);
}

static void recompute(const struct solver *f, int i, const struct label *from, struct labels *to)
{
    const struct sac_decided *d = &f->p->op[i];
    struct label *l = branch(f, to, *from);

    l->seconds += d->seconds;
    l->flops += d->flops;
    set(l->needed, i, false);
    for (int n = 0; n < d->ins; n++)
        set(l->needed, d->in[n], true);
}

/* Keep, offload or recompute the result of op i. */
static void decide(struct solver *f, int i, const struct labels *from, struct labels *to)
{
    const struct sac_decided *d = &f->p->op[i];

    for (size_t k = 0; k < from->count; k++) {
        const struct label *l = &from->item[k];

        if (!has(l->needed, i)) {
            branch(f, to, *l);
            continue;
        }
        if (!d->must)
            keep(f, i, l, to);
        if (d->may_leave)
            offload(f, i, l, to);
        if (!d->must_not)
            recompute(f, i, l, to);
    }
    prune(f, to);
    if (to->count > MOST)
        narrow(f, to, i - 1);
}

/* ---- the front ---- */

/* The fastest point in each step of bytes stays, and the smallest, if there are too many. */
static void thin(struct solver *f, struct labels *l)
{
    size_t step = l->item[l->count - 1].bytes / (POINTS - 2) + 1, n = 1;

    if (l->count <= POINTS)
        return;
    for (size_t i = 1; i < l->count; i++)
        if (i + 1 == l->count || l->item[i + 1].bytes / step != l->item[i].bytes / step)
            l->item[n++] = l->item[i];
    l->count = n;
    f->partial = true;
}

static struct sac_choice choice_of(struct sac *s, const struct solver *f, const struct label *l)
{
    const uint64_t *bits =
        ct_arena_copy(&s->scratch, saved_of(f, l), sizeof(uint64_t) * 2 * (size_t)f->words);
    double seconds = 0;

    for (int i = 0; i < f->p->count; i++)
        seconds += has(away_of(f, l), i) ? f->p->op[i].copy : 0;
    return (struct sac_choice){l->bytes, l->seconds,     l->flops, seconds * s->rates.host,
                               bits,     bits + f->words};
}

/* From the labels of a solved layer, of which none leaves anything needed. */
static void collect(struct sac *s, struct solver *f, struct labels *l, struct sac_front *front)
{
    for (size_t i = 0; i < l->count; i++) {
        l->item[i].seconds += exposed(f, &l->item[i]);
        l->item[i].copy = 0;
    }
    prune(f, l);
    thin(f, l);
    front->partial = f->partial;
    front->count = (int)l->count;
    front->choice = ct_arena_array(&s->scratch, struct sac_choice, l->count);
    for (size_t i = 0; i < l->count; i++)
        front->choice[i] = choice_of(s, f, &l->item[i]);
}

void sac_front(struct sac *s, const struct sac_problem *p, struct sac_front *front)
{
    struct solver f = {.p = p, .words = p->count / 64 + 1};
    struct labels now = {0}, next;
    struct label start = {0};

    count_steps(&f);
    f.least = ct_arena_array(&s->scratch, double, f.steps + 1);
    start.needed = ct_arena_array(&s->scratch, uint64_t, 3 * f.words);
    for (int i = 0; i < p->count; i++)
        set(start.needed, i, p->op[i].needed);
    branch(&f, &now, start);
    for (int i = p->count - 1; i >= 0; i--) {
        next = (struct labels){0};
        decide(&f, i, &now, &next);
        ct_arena_finish(&now.arena);
        now = next;
    }
    collect(s, &f, &now, front);
    ct_arena_finish(&now.arena);
}
