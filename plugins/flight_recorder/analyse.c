/*
 * Why a run failed or hangs: rules, tried in order.
 *
 *   R1  a rank failed by itself, died, was stopped, or left no file
 *   R2  ranks run different recipes
 *   R3  the calls of a group differ between its ranks, in the programs or in what they did
 *   R4  ranks wait for each other in a circle
 *   R5  a rank does something else than what the others wait for
 *   R6  all ranks are in a call, and it does not end
 *   R7  a rank is slow    } found while the ranks ran
 *   R8  values diverged   } (straggler.c, divergence.c)
 *
 * R4 to R6 come from a graph of who waits for whom. Its nodes are a rank's main thread and its
 * calls of groups. A call that has begun waits for the members that have not begun it. A call that
 * was only enqueued waits for the call before it on its stream, or for what its instruction waits
 * for. The main thread waits for what its instruction waits for. From every call that does not end,
 * these edges lead to the first cause: a node that waits for nothing, or a circle.
 */
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <ctitan/lib/comm.h>
#include <ctitan/error.h>

#include "flight.h"

#define WAITERS 8    /* of which the verdict tells */
#define HOST_CALLS 4 /* last ones of a group that are compared */
#define TOGETHER 0.5 /* seconds between the ends of ranks that something outside ended */

static void CT_PRINTF(2, 3) say(struct flight_verdict *v, const char *fmt, ...)
{
    size_t used = strlen(v->text);
    va_list args;

    va_start(args, fmt);
    vsnprintf(v->text + used, sizeof(v->text) - used, fmt, args);
    va_end(args);
}

static void blame(struct flight_verdict *v, enum flight_rule rule, int rank)
{
    if (v->rule == FLIGHT_NOTHING)
        v->rank = rank;
    v->rule = rule;
    if (rank >= 0 && rank < 64)
        v->guilty |= (uint64_t)1 << rank;
}

static bool is_guilty(const struct flight_verdict *v, int rank)
{
    return rank < 64 ? v->guilty >> rank & 1 : rank == v->rank;
}

/* ---- R1 ---- */

/* Seconds of CLOCK_REALTIME at which the first rank failed; 0: none did. */
static double first_failure(const struct flight_run *run)
{
    double first = 0;

    for (int r = 0; r < run->world; r++) {
        const struct flight_header *h = run->rank[r].h;
        double t;

        if (!h || (h->broken <= 0 && h->state != FLIGHT_FAILED))
            continue;
        t = flight_time(h, h->broken > 0 ? h->broken : h->ended);
        if (first == 0 || t < first)
            first = t;
    }
    return first;
}

bool flight_is_dead(const struct flight_run *run, int rank)
{
    const struct flight_header *h = run->rank[rank].h;
    double failed = first_failure(run);

    if (!h)
        return true;
    if (h->state != FLIGHT_RUNNING)
        return false;
    if (h->seen)
        return h->seen == 'X';
    return run->rank[rank].process == 'X' && (failed == 0 || flight_time(h, h->beat) < failed);
}

static bool is_stopped(const struct flight_run *run, int rank)
{
    const struct flight_header *h = run->rank[rank].h;
    int state = h->seen ? h->seen : run->rank[rank].process;

    return h->state != FLIGHT_FAILED && h->state != FLIGHT_ENDED && (state == 'T' || state == 't');
}

static void say_position(struct flight_verdict *v, const struct flight_run *run, int rank)
{
    char text[512];

    flight_describe_position(run, rank, text, sizeof(text));
    say(v, "%s", text);
}

static void find_failed(const struct flight_run *run, struct flight_verdict *v)
{
    for (int r = 0; r < run->world; r++) {
        const struct flight_header *h = run->rank[r].h;

        if (!h || h->state != FLIGHT_FAILED || h->code == CT_EPEER)
            continue;
        if (v->rule && !strcmp(h->message, run->rank[v->rank].h->message)) {
            blame(v, R1, r); /* the same words need no second line */
            continue;
        }
        blame(v, R1, r);
        say(v, "rank %d failed by itself: %s\n  ", r, h->message);
        say_position(v, run, r);
        say(v, "\n");
    }
}

/* All ranks ended within a moment, and none of them failed: they were ended. */
static bool ended_together(const struct flight_run *run)
{
    double first = 0, last = 0;
    bool told = false;

    for (int r = 0; r < run->world; r++) {
        const struct flight_header *h = run->rank[r].h;
        bool is_told = h && h->state == FLIGHT_TOLD;
        double t = !h ? 0 : flight_time(h, is_told ? h->ended : h->beat);

        if (!is_told && (!h || h->exit_first || h->seen || !flight_is_dead(run, r)))
            return false;
        told = told || is_told;
        first = r == 0 || t < first ? t : first;
        last = t > last ? t : last;
    }
    return (told || run->world > 1) && last - first < TOGETHER;
}

static void find_dead(const struct flight_run *run, struct flight_verdict *v)
{
    if (ended_together(run)) {
        v->rule = R1;
        say(v, "all ranks were ended together: by a user, a batch system or the host\n");
        return;
    }
    for (int r = 0; r < run->world; r++) {
        const struct flight_header *h = run->rank[r].h;

        if (flight_is_dead(run, r)) {
            blame(v, R1, r);
            if (!h) {
                say(v,
                    "rank %d left no record: it did not start, or runs on a host without this "
                    "folder\n",
                    r);
                continue;
            }
            say(v, "rank %d (pid %d on %s) died", r, h->pid, h->host);
            if (h->exit_first && (h->exit_status & 0x7f))
                say(v, ", by signal %d (%s)", h->exit_status & 0x7f,
                    strsignal(h->exit_status & 0x7f));
        } else if (is_stopped(run, r)) {
            blame(v, R1, r);
            say(v, "rank %d (pid %d on %s) was stopped by a signal", r, h->pid, h->host);
        } else {
            continue;
        }
        say(v, "; the last that it did: ");
        say_position(v, run, r);
        say(v, "\n");
    }
}

/* Ranks failed while the run was opened, and none by itself: they waited for others. */
static void find_unopened(const struct flight_run *run, struct flight_verdict *v)
{
    bool failed = false;

    for (int r = 0; r < run->world; r++) {
        const struct flight_header *h = run->rank[r].h;

        failed = failed || (h->state == FLIGHT_FAILED && h->position.phase == FLIGHT_IN_OPENING);
    }
    for (int r = 0; failed && r < run->world; r++) {
        const struct flight_header *h = run->rank[r].h;

        if (h->state == FLIGHT_FAILED || h->position.phase != FLIGHT_IN_OPENING)
            continue;
        blame(v, R5, r);
        say(v, "rank %d does not arrive: it still opens the run, or waits for others there\n", r);
    }
    if (failed && !v->rule)
        say(v, "the ranks do not agree on what they open\n");
    for (int r = 0; failed && r < run->world; r++) {
        const struct flight_header *h = run->rank[r].h;

        if (h->state != FLIGHT_FAILED)
            continue;
        if (v->rule != R5)
            blame(v, R3, r);
        say(v, "  rank %d: %s\n", r, h->message);
    }
}

/* ---- R2 ---- */

/* The first line that differs; false: none does. */
static bool differs(const char **a, const char **b)
{
    const char *line_a = *a, *line_b = *b;

    for (; *line_a || *line_b; line_a += strcspn(line_a, "\n") + (*line_a != 0),
                               line_b += strcspn(line_b, "\n") + (*line_b != 0)) {
        size_t n = strcspn(line_a, "\n"), m = strcspn(line_b, "\n");

        *a = line_a;
        *b = line_b;
        if (n != m || memcmp(line_a, line_b, n))
            return true;
    }
    return false;
}

static const char *recipe_of(const struct flight_run *run, int rank)
{
    const struct flight_header *h = run->rank[rank].h;

    return h ? (const char *)h + h->recipe : NULL;
}

static void find_other_recipe(const struct flight_run *run, struct flight_verdict *v)
{
    int like[2] = {0, 0}, first = -1, other = -1;

    for (int r = 0; r < run->world; r++) {
        const char *a = first < 0 ? NULL : recipe_of(run, first), *b = recipe_of(run, r);

        if (!b)
            continue;
        if (first < 0)
            first = r;
        if (a && differs(&a, &b)) {
            other = other < 0 ? r : other;
            like[1]++;
        } else {
            like[0]++;
        }
    }
    if (other < 0)
        return;
    for (int r = 0; r < run->world; r++) {
        const char *a = recipe_of(run, like[0] < like[1] ? other : first), *b = recipe_of(run, r);

        if (!b || !differs(&a, &b))
            continue;
        blame(v, R2, r);
        say(v, "rank %d has another recipe: %.*s, others %.*s\n", r, (int)strcspn(b, "\n"), b,
            (int)strcspn(a, "\n"), a);
    }
}

/* ---- R3: programs ---- */

/* The calls of a group in one step of a member's program. */
struct calls {
    const struct flight_header *h;
    const struct flight_instruction **list;
    int count;
};

static struct calls calls_of(const struct flight_run *run, const struct flight_members *m, int i)
{
    struct calls c = {.h = run->rank[m->ranks[i]].h};
    const struct flight_program *p;

    if (!c.h || !c.h->program[0].step_count || m->own[i] < 0)
        return c;
    p = &c.h->program[0];
    c.list = calloc((size_t)p->step_count + 1, sizeof(*c.list));
    for (int64_t n = 0; c.list && n < p->step_count; n++) {
        const struct flight_instruction *f = flight_instruction(c.h, 0, n);

        if (f->group == m->own[i])
            c.list[c.count++] = f;
    }
    return c;
}

static bool name_is(const struct flight_header *h, uint32_t at, const char *name)
{
    return !strcmp(flight_string(h, at), name);
}

/* Whether two members' calls fit together. */
static bool fit(const struct calls *a, const struct calls *b, int n)
{
    const struct flight_instruction *x = a->list[n], *y = b->list[n];

    if (!name_is(b->h, y->dtype, flight_string(a->h, x->dtype)))
        return false;
    if (x->form == FLIGHT_SEND || x->form == FLIGHT_RECEIVE)
        return y->form == (x->form == FLIGHT_SEND ? FLIGHT_RECEIVE : FLIGHT_SEND) &&
               x->bytes == y->bytes;
    return name_is(b->h, y->op, flight_string(a->h, x->op)) &&
           name_is(b->h, y->value, flight_string(a->h, x->value)) &&
           (x->bytes == y->bytes || x->form != FLIGHT_ALIKE);
}

static bool fit_all(const struct calls *a, const struct calls *b, int n)
{
    if (n >= a->count || n >= b->count)
        return n >= a->count && n >= b->count;
    return fit(a, b, n);
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

static void say_planned(struct flight_verdict *v, int rank, const struct calls *c, int n)
{
    const struct flight_instruction *f = n < c->count ? c->list[n] : NULL;

    say(v, "  rank %d: ", rank);
    if (!f) {
        say(v, "has %d calls only\n", c->count);
        return;
    }
    say(v, "%s of %%%s, %s (%s", flight_string(c->h, f->op), flight_string(c->h, f->value),
        flight_string(c->h, f->sizes), flight_string(c->h, f->section));
    if (f->microbatch >= 0)
        say(v, ", microbatch %d", f->microbatch);
    if (*flight_string(c->h, f->why))
        say(v, "; made by %s", flight_string(c->h, f->why));
    say(v, ")\n");
}

/* Whether b makes call n of a, at any time. */
static bool makes(const struct calls *b, const struct calls *a, int n)
{
    const struct flight_instruction *x = a->list[n];

    for (int i = 0; i < b->count; i++)
        if (name_is(b->h, b->list[i]->op, flight_string(a->h, x->op)) &&
            name_is(b->h, b->list[i]->value, flight_string(a->h, x->value)))
            return true;
    return false;
}

/* What differs, in words. */
static const char *difference(const struct calls *a, const struct calls *b, int n)
{
    const struct flight_instruction *x = n < a->count ? a->list[n] : NULL;
    const struct flight_instruction *y = n < b->count ? b->list[n] : NULL;

    if (!x || !y)
        return x ? "makes a call that others do not" : "lacks a call";
    if (x->form >= FLIGHT_SEND && y->form >= FLIGHT_SEND)
        return x->form == y->form ? "sends or receives the wrong way" : "has another size";
    if (!name_is(b->h, y->value, flight_string(a->h, x->value)) && !makes(a, b, n))
        return "lacks a call";
    if (!name_is(b->h, y->value, flight_string(a->h, x->value)))
        return makes(b, a, n) ? "calls in another order" : "makes a call that others do not";
    if (!name_is(b->h, y->op, flight_string(a->h, x->op)))
        return "calls another collective";
    return name_is(b->h, y->dtype, flight_string(a->h, x->dtype)) ? "has another size"
                                                                  : "has another dtype";
}

static void say_group(struct flight_verdict *v, const struct flight_members *m)
{
    say(v, "group '%s' [", m->name);
    for (int i = 0; i < m->size && i < 16; i++)
        say(v, "%s%d", i ? " " : "", m->ranks[i]);
    say(v, m->size > 16 ? " ..]" : "]");
}

static bool compare_members(struct flight_verdict *v, const struct flight_members *m,
                            const struct calls *calls)
{
    int longest = 0;

    for (int i = 0; i < m->size; i++)
        longest = calls[i].count > longest ? calls[i].count : longest;
    for (int n = 0; n < longest; n++) {
        int odd = minority(calls, m->size, n), other = -1;

        for (int i = 0; i < m->size && other < 0; i++)
            if (i != odd && calls[i].h && calls[odd].h && !fit_all(&calls[odd], &calls[i], n))
                other = i;
        if (other < 0)
            continue;
        blame(v, R3, m->ranks[odd]);
        say(v, "rank %d %s: call %d of a step in ", m->ranks[odd],
            difference(&calls[odd], &calls[other], n), n + 1);
        say_group(v, m);
        say(v, "\n");
        say_planned(v, m->ranks[odd], &calls[odd], n);
        say_planned(v, m->ranks[other], &calls[other], n);
        if (m->size == 2 && calls[odd].count == calls[other].count)
            say(v, "  of two ranks, either may be the wrong one\n");
        return true;
    }
    return false;
}

static void compare_programs(const struct flight_run *run, struct flight_verdict *v)
{
    bool found = false;

    for (int g = 0; g < run->group_count && !found; g++) {
        const struct flight_members *m = &run->group[g];
        struct calls *calls = calloc((size_t)m->size, sizeof(*calls));

        for (int i = 0; calls && i < m->size; i++)
            calls[i] = calls_of(run, m, i);
        found = calls && compare_members(v, m, calls);
        for (int i = 0; calls && i < m->size; i++)
            free(calls[i].list);
        free(calls);
    }
}

/* ---- R3: records ---- */

/* Whether no member can end the call that a mark is of before all have begun it. */
static bool waits_for_all(const struct flight_header *h, const struct flight_mark *m)
{
    const struct flight_instruction *f = flight_instruction(h, m->program, m->index);

    if (m->program < 0)
        return m->index <= CT_CALL_ALL_TO_ALL;
    return f && (f->form == FLIGHT_ALIKE || f->form == FLIGHT_UNEVEN);
}

static const struct flight_group *member(const struct flight_run *run,
                                         const struct flight_members *m, int i)
{
    const struct flight_header *h = run->rank[m->ranks[i]].h;

    return h && m->own[i] >= 0 ? flight_group(h, m->own[i]) : NULL;
}

static bool unfinished(const struct flight_group *g)
{
    return g->started.sequence > g->finished.sequence;
}

/* Call number `sequence` has not begun on some member. */
static int absent(const struct flight_run *run, const struct flight_members *m, int64_t sequence)
{
    for (int i = 0; i < m->size; i++) {
        const struct flight_group *g = member(run, m, i);

        if (!g || g->started.sequence < sequence)
            return i;
    }
    return -1;
}

/* A member that ended a call which cannot have ended, as another member has not ended or begun
   it. */
static void find_early(const struct flight_run *run, struct flight_verdict *v)
{
    for (int n = 0; n < run->group_count; n++) {
        const struct flight_members *m = &run->group[n];
        int64_t stuck = 0;

        for (int i = 0; i < m->size; i++) {
            const struct flight_group *g = member(run, m, i);

            if (g && unfinished(g) && waits_for_all(run->rank[m->ranks[i]].h, &g->started))
                stuck = g->started.sequence;
        }
        for (int i = 0; stuck && i < m->size; i++) {
            const struct flight_group *g = member(run, m, i);
            int late = absent(run, m, stuck);

            if (!g || g->finished.sequence < stuck || (late < 0 && first_failure(run) == 0))
                continue;
            blame(v, R3, m->ranks[i]);
            say(v, "rank %d ended call %lld of ", m->ranks[i], (long long)stuck);
            say_group(v, m);
            if (late >= 0)
                say(v, ", which rank %d has not begun: it did not wait for the others\n",
                    m->ranks[late]);
            else
                say(v, ", in which the others wait: it took no part, or in another call\n");
        }
    }
}

/* Kind of a member's host call of this number; -1: not known, -2: it has made fewer. */
static int host_call(const struct flight_run *run, const struct flight_members *m, int i,
                     int64_t sequence)
{
    const struct flight_group *g = member(run, m, i);
    struct flight_query q = {.kind = FLIGHT_HOST_CALL, .group = m->own[i], .sequence = sequence};
    const struct flight_record *r = NULL;

    if (g && g->enqueued.sequence < sequence)
        return -2;
    r = g ? flight_find(run->rank[m->ranks[i]].h, &q) : NULL;
    return r ? r->index : -1;
}

/* The member whose call was made by the fewest; *other: one that made another. -1: all agree. */
static int odd_host_call(const struct flight_run *run, const struct flight_members *m,
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
static void compare_host_calls(const struct flight_run *run, struct flight_verdict *v)
{
    for (int n = 0; n < run->group_count; n++) {
        const struct flight_members *m = &run->group[n];
        int64_t last = 0;

        for (int i = 0; i < m->size; i++) {
            const struct flight_group *g = member(run, m, i);

            if (g && g->enqueued.program < 0 && g->enqueued.sequence > last)
                last = g->enqueued.sequence;
        }
        for (int64_t s = last; s > 0 && s > last - HOST_CALLS; s--) {
            int kind[2], odd = odd_host_call(run, m, s, kind);

            if (odd < 0)
                continue;
            blame(v, R3, m->ranks[odd]);
            say(v, "rank %d calls %s, others %s, as call %lld of ", m->ranks[odd],
                ct_call_name((enum ct_call_kind)kind[0]), ct_call_name((enum ct_call_kind)kind[1]),
                (long long)s);
            say_group(v, m);
            say(v, m->size == 2 ? "; of two ranks, either may be the wrong one\n" : "\n");
            return;
        }
    }
}

/* ---- R4 to R6: who waits for whom ---- */

enum { MAIN = -1 };

/* The main thread of a rank, or its unfinished call of one of its groups. */
struct node {
    int rank, group; /* group: the rank's own number, or MAIN */
    bool begun;      /* a call: on its stream; else it was only enqueued */
    int64_t sequence;
};

struct walk {
    const struct flight_run *run;
    struct flight_verdict *v;
    struct node path[256];
    int depth;
    struct node root[64];
    int roots;
    bool circle;
};

static const struct flight_header *header(const struct walk *w, int rank)
{
    return w->run->rank[rank].h;
}

static struct node main_of(int rank)
{
    return (struct node){.rank = rank, .group = MAIN};
}

static bool is_same(const struct node *a, const struct node *b)
{
    return a->rank == b->rank && a->group == b->group && a->begun == b->begun;
}

/* The record of the node's call. */
static const struct flight_record *record_of(const struct walk *w, const struct node *n)
{
    struct flight_query q = {.kind = FLIGHT_CALL, .group = n->group, .sequence = n->sequence};

    return flight_find(header(w, n->rank), &q);
}

static void add_root(struct walk *w, struct node n)
{
    for (int i = 0; i < w->roots; i++)
        if (is_same(&w->root[i], &n))
            return;
    if (w->roots < (int)CT_COUNT(w->root))
        w->root[w->roots++] = n;
}

static void follow(struct walk *w, struct node n);

/* Follow what instruction `index` of a rank waits for. False: nothing that is unfinished. */
static bool follow_waits(struct walk *w, int rank, int program, int64_t index, int64_t step)
{
    const struct flight_header *h = header(w, rank);
    const struct flight_instruction *f = flight_instruction(h, program, index);
    const int32_t *waits = FLIGHT_AT(h, h->waits);
    bool any = false;

    for (uint32_t i = 0; f && i < f->wait_count; i++) {
        int64_t of = waits[f->waits + i];
        const struct flight_instruction *made = flight_instruction(h, program, of);
        struct flight_query q = {
            .kind = FLIGHT_CALL, .program = program, .index = of, .step = step};
        const struct flight_record *r;

        if (!made || made->group < 0)
            continue;
        q.group = made->group;
        r = flight_find(h, &q);
        if (!r || r->finished > 0)
            continue;
        follow(w, (struct node){rank, made->group, r->started > 0, r->sequence});
        any = true;
    }
    return any;
}

/* All calls of a rank that have begun and not ended; stream -1: of any stream. */
static bool follow_begun(struct walk *w, int rank, int stream)
{
    const struct flight_header *h = header(w, rank);
    bool any = false;

    for (int g = 0; g < (int)h->group_count; g++) {
        const struct flight_group *group = flight_group(h, g);
        const struct flight_instruction *f =
            flight_instruction(h, group->started.program, group->started.index);

        if (!unfinished(group) || (stream >= 0 && (!f || f->stream != stream)))
            continue;
        follow(w, (struct node){rank, g, true, group->started.sequence});
        any = true;
    }
    return any;
}

static bool follow_main(struct walk *w, int rank)
{
    const struct flight_header *h = header(w, rank);
    const struct flight_position *p = &h->position;
    const struct flight_instruction *f = flight_instruction(h, p->program, p->index);

    switch (p->phase) {
    case FLIGHT_IN_CALL:
        if (!flight_is_group(h, p->index))
            return false;
        follow(w, (struct node){rank, p->index, true, flight_group(h, p->index)->started.sequence});
        return true;
    case FLIGHT_IN_INSIDE:
        if (f && f->group >= 0 && unfinished(flight_group(h, f->group)) &&
            flight_group(h, f->group)->started.index == p->index) {
            follow(w, (struct node){rank, f->group, true,
                                    flight_group(h, f->group)->started.sequence});
            return true;
        }
        return follow_waits(w, rank, p->program, p->index, p->step);
    case FLIGHT_IN_BETWEEN: /* behind the last instruction it waits for all streams */
        return f && p->index + 1 == h->program[p->program].step_count && follow_begun(w, rank, -1);
    default:
        return false;
    }
}

/* A call that was only enqueued. */
static void follow_queued(struct walk *w, const struct node *n)
{
    const struct flight_record *r = record_of(w, n);
    const struct flight_instruction *f =
        r ? flight_instruction(header(w, n->rank), r->program, r->index) : NULL;

    if (f && (follow_begun(w, n->rank, f->stream) ||
              follow_waits(w, n->rank, r->program, r->index, r->step)))
        return;
    follow(w, main_of(n->rank));
}

/* A call that has begun waits for the members that have not. */
static bool follow_call(struct walk *w, const struct node *n)
{
    const struct flight_members *m = &w->run->group[w->run->rank[n->rank].group[n->group]];
    bool any = false;

    for (int i = 0; i < m->size; i++) {
        const struct flight_group *g = member(w->run, m, i);

        if (!g || m->ranks[i] == n->rank || g->started.sequence >= n->sequence)
            continue;
        if (g->enqueued.sequence >= n->sequence)
            follow(w, (struct node){m->ranks[i], m->own[i], false, n->sequence});
        else
            follow(w, main_of(m->ranks[i]));
        any = true;
    }
    return any;
}

static void note_circle(struct walk *w, int from)
{
    if (w->circle)
        return;
    w->circle = true;
    say(w->v, "deadlock: these wait for each other in a circle\n");
    for (int i = from; i < w->depth; i++) {
        const struct node *n = &w->path[i];
        char text[512];

        if (n->group == MAIN || !n->begun)
            continue;
        blame(w->v, R4, n->rank);
        flight_describe_call(w->run, n->rank, n->group, n->sequence, text, sizeof(text));
        say(w->v, "  rank %d is in %s\n", n->rank, text);
    }
}

static void follow(struct walk *w, struct node n)
{
    for (int i = 0; i < w->depth; i++)
        if (is_same(&w->path[i], &n)) {
            note_circle(w, i);
            return;
        }
    if (w->depth == (int)CT_COUNT(w->path))
        return;
    w->path[w->depth++] = n;
    if (n.group == MAIN) {
        if (!follow_main(w, n.rank))
            add_root(w, n);
    } else if (!n.begun) {
        follow_queued(w, &n);
    } else if (!follow_call(w, &n)) {
        add_root(w, n);
    }
    w->depth--;
}

/* ---- R5, R6 ---- */

static const char *kind_of_stall(const struct flight_header *h)
{
    const struct flight_position *p = &h->position;
    const struct flight_instruction *f = flight_instruction(h, p->program, p->index);

    if (p->phase == FLIGHT_IN_DATA)
        return "stuck in reading data; communication is not at fault";
    if (p->phase == FLIGHT_IN_HOOKS)
        return "stuck after a step, in a hook (saving, for example) or in validation";
    if (p->phase == FLIGHT_IN_INSIDE && f && f->class == FLIGHT_PRODUCTS)
        return "slow or stuck in a matrix product";
    if (p->phase == FLIGHT_IN_INSIDE)
        return "slow or stuck in a kernel, or in a hook on it";
    return "slow or stuck in the host's code";
}

static void say_root(struct walk *w, const struct node *n)
{
    const struct flight_header *h = header(w, n->rank);
    char text[512];

    if (n->group == MAIN) {
        blame(w->v, R5, n->rank);
        say(w->v, "rank %d does not arrive: %s\n  ", n->rank, kind_of_stall(h));
        say_position(w->v, w->run, n->rank);
        say(w->v, "\n");
        return;
    }
    blame(w->v, R6, n->rank);
    flight_describe_call(w->run, n->rank, n->group, n->sequence, text, sizeof(text));
    say(w->v, "all ranks are in the call, and rank %d does not get on: %s\n", n->rank, text);
}

/* Main threads before calls; of main threads those of ranks that have not failed. */
static bool is_better(const struct walk *w, const struct node *n, bool main, bool running)
{
    return (n->group == MAIN) == main && (header(w, n->rank)->state != FLIGHT_FAILED) == running;
}

static void say_roots(struct walk *w)
{
    for (int pass = 0; pass < 4 && !w->v->rule; pass++)
        for (int i = 0; i < w->roots; i++)
            if (is_better(w, &w->root[i], pass < 2, pass % 2 == 0))
                say_root(w, &w->root[i]);
}

/* Who waits in calls, after the cause. */
static void say_waiters(const struct flight_run *run, struct flight_verdict *v)
{
    int count = 0;

    for (int n = 0; n < run->group_count; n++) {
        const struct flight_members *m = &run->group[n];

        for (int i = 0; i < m->size; i++) {
            const struct flight_group *g = member(run, m, i);
            char text[512];

            if (!g || !unfinished(g) || is_guilty(v, m->ranks[i]) || ++count > WAITERS)
                continue;
            flight_describe_call(run, m->ranks[i], m->own[i], g->started.sequence, text,
                                 sizeof(text));
            say(v, "rank %d waits in %s\n", m->ranks[i], text);
        }
    }
    if (count > WAITERS)
        say(v, "and %d more\n", count - WAITERS);
}

static void follow_all(const struct flight_run *run, struct flight_verdict *v)
{
    struct walk w = {.run = run, .v = v};

    for (int r = 0; r < run->world; r++)
        if (run->rank[r].h)
            follow_begun(&w, r, -1);
    if (!w.circle)
        say_roots(&w);
}

bool flight_is_over(const struct flight_run *run)
{
    for (int r = 0; r < run->world; r++)
        if (!run->rank[r].h || run->rank[r].h->state != FLIGHT_ENDED)
            return false;
    return true;
}

/* What ranks found while they ran. */
static void add_findings(const struct flight_run *run, struct flight_verdict *v)
{
    for (int r = 0; r < run->world; r++) {
        const struct flight_header *h = run->rank[r].h;

        if (!h)
            continue;
        if (*h->diverged)
            say(v, "%s\n", h->diverged);
        if (*h->slow)
            say(v, "%s\n", h->slow);
        if (!v->rule && (*h->diverged || *h->slow))
            v->rule = *h->diverged ? R8 : R7;
    }
}

void flight_analyse(const struct flight_run *run, struct flight_verdict *v)
{
    static void (*const rules[])(const struct flight_run *, struct flight_verdict *) = {
        find_other_recipe, find_failed,        find_dead,  find_unopened,
        compare_programs,  compare_host_calls, find_early, follow_all};

    *v = (struct flight_verdict){.rank = -1};
    for (size_t i = 0; i < CT_COUNT(rules) && !v->rule; i++)
        if (rules[i] == compare_host_calls || !flight_is_over(run))
            rules[i](run, v);
    if (v->rule)
        say_waiters(run, v);
    add_findings(run, v);
}
