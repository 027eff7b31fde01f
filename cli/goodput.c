/*
 * A job on a virtual clock that only stops for failures. Hosts fail independently, at any time
 * alike, while they train; a broken one is away until its repair ends.
 */
#include <math.h>

#include <ctitan/rng.h>

#include "goodput.h"

#define FAILURES 20000
#define SEED 54
#define GROWTH 1.04 /* between intervals that are tried */

struct clock {
    const struct failing_run *run;
    double back[FAILURES]; /* when the host of each failure is repaired, in order */
    int64_t first, last;
    double now;
};

/* Seconds until the next failure of any host that trains. */
static double until_failure(const struct failing_run *r, int64_t number)
{
    struct ct_philox bits = ct_philox(SEED, 0, (uint64_t)number);
    double uniform = ((double)bits.v[0] + 0.5 + (double)bits.v[1] * 0x1p32) * 0x1p-64;

    return -log(uniform) * r->mtbf / (double)r->hosts;
}

/* A host breaks now. Returns how long the job waits for one, beside its restart. */
static double break_one(struct clock *c)
{
    double end = c->now + c->run->restart, wait = 0;

    c->back[c->last++] = c->now + c->run->repair;
    while (c->first < c->last && c->back[c->first] <= end)
        c->first++;
    if (c->last - c->first > c->run->spares) {
        wait = c->back[c->last - c->run->spares - 1] - end;
        c->first = c->last - c->run->spares;
    }
    return wait;
}

void goodput_simulate(const struct failing_run *r, int64_t interval, struct goodput *g)
{
    static struct clock c;
    /* One checkpoint is whole before the next one begins. */
    double work = fmax((double)interval * r->step, r->save - r->stall), period = work + r->stall;

    *g = (struct goodput){0};
    c = (struct clock){.run = r};
    for (int64_t i = 0; i < FAILURES; i++) {
        double up = until_failure(r, i), whole = fmax(floor((up - r->save) / period), 0), wait;

        c.now += up;
        g->trained += whole * work;
        g->stalled += whole * r->stall;
        g->redone += up - whole * period;
        wait = break_one(&c);
        g->restarted += r->restart;
        g->waited += wait;
        c.now += r->restart + wait;
    }
    g->trained /= c.now;
    g->stalled /= c.now;
    g->redone /= c.now;
    g->restarted /= c.now;
    g->waited /= c.now;
}

int64_t goodput_best(const struct failing_run *r, struct goodput *best)
{
    double longest = r->mtbf / (double)r->hosts / r->step;
    int64_t found = 1;

    goodput_simulate(r, 1, best);
    for (double steps = 2; steps < longest; steps = fmax(steps + 1, steps * GROWTH)) {
        struct goodput g;

        goodput_simulate(r, (int64_t)steps, &g);
        if (g.trained <= best->trained)
            continue;
        *best = g;
        found = (int64_t)steps;
    }
    return found;
}
