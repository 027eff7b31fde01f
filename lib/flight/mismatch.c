/*
 * R3: the calls of a group differ between its ranks. The programs are compared, which shows a call
 * that one rank lacks before it would be made; then calls of the host, which are in no program;
 * then what was done, for calls that ended though they cannot have.
 */
#include <stdlib.h>
#include <string.h>

#include <ctitan/comm.h>

#include "analyse.h"

#define HOST_CALLS 4 /* last ones of a group that are compared */

/* ---- in programs ---- */

/* The calls of a group in one step of a member's program. */
struct calls {
    const struct ct_flight_header *h;
    const struct ct_flight_instruction **list;
    int count;
};

static struct calls calls_of(const struct ct_flight_run *run, const struct ct_flight_members *m,
                             int i)
{
    struct calls c = {.h = run->rank[m->ranks[i]].h};
    const struct ct_flight_program *p;

    if (!c.h || !c.h->program[0].step_count || m->own[i] < 0)
        return c;
    p = &c.h->program[0];
    c.list = calloc((size_t)p->step_count + 1, sizeof(*c.list));
    for (int64_t n = 0; c.list && n < p->step_count; n++) {
        const struct ct_flight_instruction *f = ct_flight_instruction(c.h, 0, n);

        if (f->group == m->own[i])
            c.list[c.count++] = f;
    }
    return c;
}

static bool name_is(const struct ct_flight_header *h, uint32_t at, const char *name)
{
    return !strcmp(ct_flight_string(h, at), name);
}

/* Whether two members' calls fit together. */
static bool fit(const struct calls *a, const struct calls *b, int n)
{
    const struct ct_flight_instruction *x = a->list[n], *y = b->list[n];

    if (!name_is(b->h, y->dtype, ct_flight_string(a->h, x->dtype)))
        return false;
    if (x->form == CT_FLIGHT_SEND || x->form == CT_FLIGHT_RECEIVE)
        return y->form == (x->form == CT_FLIGHT_SEND ? CT_FLIGHT_RECEIVE : CT_FLIGHT_SEND) &&
               x->bytes == y->bytes;
    return name_is(b->h, y->op, ct_flight_string(a->h, x->op)) &&
           name_is(b->h, y->value, ct_flight_string(a->h, x->value)) &&
           (x->bytes == y->bytes || x->form != CT_FLIGHT_ALIKE);
}

static bool fit_all(const struct calls *a, const struct calls *b, int n)
{
    if (n >= a->count || n >= b->count)
        return n >= a->count && n >= b->count;
    return fit(a, b, n);
}

/* Whether the members agree on call n; most do, so each is compared with one only. */
static bool agree(const struct calls *calls, int size, int n)
{
    const struct calls *first = NULL;

    for (int i = 0; i < size; i++) {
        if (first && calls[i].h && !fit_all(first, &calls[i], n))
            return false;
        if (!first && calls[i].h)
            first = &calls[i];
    }
    return true;
}

/* The member with which the fewest others agree on call n. */
static int minority(const struct calls *calls, int size, int n)
{
    int odd = 0, fewest = size + 1;

    if (size == 2 && calls[0].h && calls[1].h && calls[0].count != calls[1].count)
        return calls[0].count < calls[1].count ? 0 : 1;
    for (int i = 0; i < size; i++) {
        int agree = 0;

        for (int k = 0; k < size; k++)
            agree += calls[i].h && calls[k].h && k != i && fit_all(&calls[i], &calls[k], n);
        if (calls[i].h && agree <= fewest) {
            fewest = agree;
            odd = i;
        }
    }
    return odd;
}

static void say_planned(struct ct_flight_verdict *v, int rank, const struct calls *c, int n)
{
    const struct ct_flight_instruction *f = n < c->count ? c->list[n] : NULL;

    ct_flight_say(v, "  rank %d: ", rank);
    if (!f) {
        ct_flight_say(v, "has only %d calls\n", c->count);
        return;
    }
    ct_flight_say(v, "%s of %%%s, %s (%s", ct_flight_string(c->h, f->op),
                  ct_flight_string(c->h, f->value), ct_flight_string(c->h, f->sizes),
                  ct_flight_string(c->h, f->section));
    if (f->microbatch >= 0)
        ct_flight_say(v, ", microbatch %d", f->microbatch);
    if (*ct_flight_string(c->h, f->why))
        ct_flight_say(v, "; made by %s", ct_flight_string(c->h, f->why));
    ct_flight_say(v, ")\n");
}

/* Whether b makes call n of a, at any time. */
static bool makes(const struct calls *b, const struct calls *a, int n)
{
    const struct ct_flight_instruction *x = a->list[n];

    for (int i = 0; i < b->count; i++)
        if (name_is(b->h, b->list[i]->op, ct_flight_string(a->h, x->op)) &&
            name_is(b->h, b->list[i]->value, ct_flight_string(a->h, x->value)))
            return true;
    return false;
}

/* The difference of two calls, in words. */
static const char *difference(const struct calls *a, const struct calls *b, int n)
{
    const struct ct_flight_instruction *x = n < a->count ? a->list[n] : NULL;
    const struct ct_flight_instruction *y = n < b->count ? b->list[n] : NULL;

    if (!x || !y)
        return x ? "makes a call that the others do not make"
                 : "does not make a call that the others make";
    if (x->form >= CT_FLIGHT_SEND && y->form >= CT_FLIGHT_SEND)
        return x->form == y->form ? "sends or receives in the wrong direction"
                                  : "has a different size";
    if (!name_is(b->h, y->value, ct_flight_string(a->h, x->value)) && !makes(a, b, n))
        return "does not make a call that the others make";
    if (!name_is(b->h, y->value, ct_flight_string(a->h, x->value)))
        return makes(b, a, n) ? "makes its calls in another order"
                              : "makes a call that the others do not make";
    if (!name_is(b->h, y->op, ct_flight_string(a->h, x->op)))
        return "calls a different collective";
    return name_is(b->h, y->dtype, ct_flight_string(a->h, x->dtype)) ? "has a different size"
                                                                     : "has a different dtype";
}

static bool compare_members(struct ct_flight_verdict *v, const struct ct_flight_members *m,
                            const struct calls *calls)
{
    int longest = 0;

    for (int i = 0; i < m->size; i++)
        longest = calls[i].count > longest ? calls[i].count : longest;
    for (int n = 0; n < longest; n++) {
        int odd, other = -1;

        if (agree(calls, m->size, n))
            continue;
        odd = minority(calls, m->size, n);
        for (int i = 0; i < m->size && other < 0; i++)
            if (i != odd && calls[i].h && calls[odd].h && !fit_all(&calls[odd], &calls[i], n))
                other = i;
        if (other < 0)
            continue;
        ct_flight_blame(v, CT_FLIGHT_R3, m->ranks[odd]);
        ct_flight_say(v, "rank %d %s: call %d of a step in ", m->ranks[odd],
                      difference(&calls[odd], &calls[other], n), n + 1);
        ct_flight_say_group(v, m);
        ct_flight_say(v, "\n");
        say_planned(v, m->ranks[odd], &calls[odd], n);
        say_planned(v, m->ranks[other], &calls[other], n);
        if (m->size == 2 && calls[odd].count == calls[other].count)
            ct_flight_say(v, "  with two ranks, either one may be wrong\n");
        return true;
    }
    return false;
}

void ct_flight_compare_programs(const struct ct_flight_run *run, struct ct_flight_verdict *v)
{
    bool found = false;

    for (int g = 0; g < run->group_count && !found; g++) {
        const struct ct_flight_members *m = &run->group[g];
        struct calls *calls = calloc((size_t)m->size, sizeof(*calls));

        for (int i = 0; calls && i < m->size; i++)
            calls[i] = calls_of(run, m, i);
        found = calls && compare_members(v, m, calls);
        for (int i = 0; calls && i < m->size; i++)
            free(calls[i].list);
        free(calls);
    }
}

/* ---- in what was done ---- */

/* Whether no member can end the call that a mark is of before all have begun it. */
static bool waits_for_all(const struct ct_flight_header *h, const struct ct_flight_mark *m)
{
    const struct ct_flight_instruction *f = ct_flight_instruction(h, m->program, m->index);

    if (m->program < 0)
        return m->index <= CT_CALL_ALL_TO_ALL;
    return f && (f->form == CT_FLIGHT_ALIKE || f->form == CT_FLIGHT_UNEVEN);
}

/* Call number `sequence` has not begun on some member. */
static int absent(const struct ct_flight_run *run, const struct ct_flight_members *m,
                  int64_t sequence)
{
    for (int i = 0; i < m->size; i++) {
        const struct ct_flight_group *g = ct_flight_member(run, m, i);

        if (!g || g->started.sequence < sequence)
            return i;
    }
    return -1;
}

/* A member that ended a call which cannot have ended, as another member has not ended or begun
   it. */
void ct_flight_find_early(const struct ct_flight_run *run, struct ct_flight_verdict *v)
{
    for (int n = 0; n < run->group_count; n++) {
        const struct ct_flight_members *m = &run->group[n];
        int64_t stuck = 0;

        for (int i = 0; i < m->size; i++) {
            const struct ct_flight_group *g = ct_flight_member(run, m, i);

            if (g && ct_flight_unfinished(g) &&
                waits_for_all(run->rank[m->ranks[i]].h, &g->started))
                stuck = g->started.sequence;
        }
        for (int i = 0; stuck && i < m->size; i++) {
            const struct ct_flight_group *g = ct_flight_member(run, m, i);
            int late = absent(run, m, stuck);

            if (!g || g->finished.sequence < stuck || (late < 0 && run->failed == 0))
                continue;
            ct_flight_blame(v, CT_FLIGHT_R3, m->ranks[i]);
            ct_flight_say(v, "rank %d ended call %lld of ", m->ranks[i], (long long)stuck);
            ct_flight_say_group(v, m);
            if (late >= 0)
                ct_flight_say(
                    v, ", which rank %d has not begun: the call did not wait for all ranks\n",
                    m->ranks[late]);
            else
                ct_flight_say(v,
                              ", in which the others wait: it did not take part, or took part in "
                              "another call\n");
        }
    }
}

/* Kind of a member's host call of this number; -1: not known, -2: it has made fewer. */
static int host_call(const struct ct_flight_run *run, const struct ct_flight_members *m, int i,
                     int64_t sequence)
{
    const struct ct_flight_group *g = ct_flight_member(run, m, i);
    struct ct_flight_query q = {
        .kind = CT_FLIGHT_HOST_CALL, .group = m->own[i], .sequence = sequence};
    const struct ct_flight_record *r = NULL;
    int kind;

    if (g && g->enqueued.sequence < sequence)
        return -2;
    r = g ? ct_flight_find(run->rank[m->ranks[i]].h, &q) : NULL;
    kind = r ? r->index : -1;
    return kind >= 0 && kind < CT_CALL_KINDS ? kind : -1;
}

/* The member whose call was made by the fewest; *other: one that made another. -1: all agree. */
static int odd_host_call(const struct ct_flight_run *run, const struct ct_flight_members *m,
                         int64_t sequence, int kind[2])
{
    int *kinds = calloc((size_t)m->size, sizeof(*kinds)), odd = -1, fewest = m->size + 1;

    for (int i = 0; kinds && i < m->size; i++)
        kinds[i] = host_call(run, m, i, sequence);
    for (int i = 0; kinds && i < m->size; i++) {
        int alike = 0, other = -1;

        for (int k = 0; k < m->size; k++) {
            alike += kinds[k] == kinds[i];
            other = kinds[k] >= 0 && kinds[k] != kinds[i] ? kinds[k] : other;
        }
        if (kinds[i] < 0 || other < 0 || alike > fewest)
            continue;
        odd = i;
        fewest = alike;
        kind[0] = kinds[i];
        kind[1] = other;
    }
    free(kinds);
    return odd;
}

/* Host calls of one number that are of different kinds. Not all libraries notice that. */
void ct_flight_compare_host_calls(const struct ct_flight_run *run, struct ct_flight_verdict *v)
{
    for (int n = 0; n < run->group_count; n++) {
        const struct ct_flight_members *m = &run->group[n];
        int64_t last = 0;

        for (int i = 0; i < m->size; i++) {
            const struct ct_flight_group *g = ct_flight_member(run, m, i);

            if (g && g->enqueued.program < 0 && g->enqueued.sequence > last)
                last = g->enqueued.sequence;
        }
        for (int64_t s = last; s > 0 && s > last - HOST_CALLS; s--) {
            int kind[2], odd = odd_host_call(run, m, s, kind);

            if (odd < 0)
                continue;
            ct_flight_blame(v, CT_FLIGHT_R3, m->ranks[odd]);
            ct_flight_say(v, "rank %d calls %s, others %s, as call %lld of ", m->ranks[odd],
                          ct_flight_call_name(kind[0]), ct_flight_call_name(kind[1]), (long long)s);
            ct_flight_say_group(v, m);
            ct_flight_say(v, m->size == 2 ? "; with two ranks, either one may be wrong\n" : "\n");
            return;
        }
    }
}
