/*
 * Why a run failed or hangs: rules, tried in order.
 *
 *   R1  a rank failed by itself, died, was stopped, or left no file
 *   R2  ranks run different recipes
 *   R3  the calls of a group differ between its ranks, in the programs or in what they did
 *   R4  ranks wait for each other in a circle
 *   R5  a rank does something else than what the others wait for
 *   R6  all ranks are in a call, and it does not end
 *   R7  a rank is slow    } found by the ranks
 *   R8  values diverged   } while they ran
 */
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <ctitan/error.h>
#include <ctitan/recipe.h>

#include "analyse.h"

#define TOGETHER 0.5 /* seconds between the ends of ranks that something outside ended */
#define STEPS 4      /* of which the longest tells how long a step takes */
#define STUCK 1.0    /* seconds in which no rank did anything, at least, .. */
#define UNKNOWN 10.0 /* .. if it is not known how long a step takes */

void ct_flight_say(struct ct_flight_verdict *v, const char *fmt, ...)
{
    size_t used = strlen(v->text);
    va_list args;

    va_start(args, fmt);
    vsnprintf(v->text + used, sizeof(v->text) - used, fmt, args);
    va_end(args);
}

void ct_flight_blame(struct ct_flight_verdict *v, enum ct_flight_rule rule, int rank)
{
    if (v->rule == CT_FLIGHT_NOTHING)
        v->rank = rank;
    v->rule = rule;
    if (rank >= 0)
        v->guilty[rank] = true;
}

bool ct_flight_is_guilty(const struct ct_flight_verdict *v, int rank)
{
    return v->guilty[rank];
}

void ct_flight_say_group(struct ct_flight_verdict *v, const struct ct_flight_members *m)
{
    char text[512];

    ct_flight_describe_group(m, text, sizeof(text));
    ct_flight_say(v, "%s", text);
}

/* ---- facts ---- */

const struct ct_flight_group *ct_flight_member(const struct ct_flight_run *run,
                                               const struct ct_flight_members *m, int i)
{
    const struct ct_flight_header *h = run->rank[m->ranks[i]].h;

    return h && m->own[i] >= 0 ? ct_flight_group(h, m->own[i]) : NULL;
}

bool ct_flight_unfinished(const struct ct_flight_group *g)
{
    return g->started.sequence > g->finished.sequence;
}

/* ---- R1 ---- */

bool ct_flight_is_dead(const struct ct_flight_run *run, int rank)
{
    const struct ct_flight_header *h = run->rank[rank].h;

    if (!h)
        return true;
    if (h->state != CT_FLIGHT_RUNNING)
        return false;
    if (h->seen)
        return h->seen == 'X';
    return run->rank[rank].process == 'X' &&
           (run->failed == 0 || ct_flight_time(h, h->beat) < run->failed);
}

static bool is_stop(int state)
{
    return state == 'T' || state == 't';
}

/* One that is continued later fails because of the others. */
bool ct_flight_is_stopped(const struct ct_flight_run *run, int rank)
{
    const struct ct_flight_header *h = run->rank[rank].h;

    if (h->state == CT_FLIGHT_ENDED)
        return false;
    return h->seen ? is_stop(h->seen)
                   : h->state != CT_FLIGHT_FAILED && is_stop(run->rank[rank].process);
}

void ct_flight_say_position(struct ct_flight_verdict *v, const struct ct_flight_run *run, int rank)
{
    char text[512];

    ct_flight_describe_position(run, rank, text, sizeof(text));
    ct_flight_say(v, "%s", text);
}

static void find_failed(const struct ct_flight_run *run, struct ct_flight_verdict *v)
{
    for (int r = 0; r < run->world; r++) {
        const struct ct_flight_header *h = run->rank[r].h;

        if (!h || h->state != CT_FLIGHT_FAILED || h->code == CT_EPEER)
            continue;
        if (v->rule && !strcmp(h->message, run->rank[v->rank].h->message)) {
            ct_flight_blame(v, CT_FLIGHT_R1, r); /* the same words need no second line */
            continue;
        }
        ct_flight_blame(v, CT_FLIGHT_R1, r);
        ct_flight_say(v, "rank %d failed first: %s\n  ", r, h->message);
        ct_flight_say_position(v, run, r);
        ct_flight_say(v, "\n");
    }
}

/* Seconds of the longest of a rank's last steps; 0: none is on record. */
static double longest_step(const struct ct_flight_header *h)
{
    double longest = 0;
    int steps = 0;

    for (uint64_t id = atomic_load(&h->written); id >= ct_flight_first(h) && steps < STEPS; id--) {
        const struct ct_flight_record *r = ct_flight_at(h, id);

        if (!r || r->kind != CT_FLIGHT_STEP || r->finished <= 0)
            continue;
        steps++;
        longest = fmax(longest, r->finished - r->enqueued);
    }
    return longest;
}

bool ct_flight_is_stuck(const struct ct_flight_run *run)
{
    double last = 0, step = 0;

    for (int r = 0; r < run->world; r++) {
        const struct ct_flight_header *h = run->rank[r].h;

        if (!h)
            continue;
        last = fmax(last, ct_flight_time(h, ct_flight_progress(h)));
        step = fmax(step, longest_step(h));
    }
    return last > 0 && run->now - last > (step > 0 ? fmax(STUCK, 2 * step) : UNKNOWN);
}

/* All ranks ended within a moment, and none of them failed: they were ended. */
static bool ended_together(const struct ct_flight_run *run)
{
    double first = 0, last = 0;
    bool told = false;

    for (int r = 0; r < run->world; r++) {
        const struct ct_flight_header *h = run->rank[r].h;
        bool is_told = h && h->state == CT_FLIGHT_TOLD;
        double t = !h ? 0 : ct_flight_time(h, is_told ? h->ended : h->beat);

        if (!is_told && (!h || h->exit_first || h->seen || !ct_flight_is_dead(run, r)))
            return false;
        told = told || is_told;
        first = r == 0 || t < first ? t : first;
        last = t > last ? t : last;
    }
    return (told || run->world > 1) && last - first < TOGETHER;
}

/* Ranks from r on, one after the other, that left no record; returns the last. One that has sent
   text had started. */
static int say_absent(const struct ct_flight_run *run, struct ct_flight_verdict *v, int r)
{
    double ago;
    const char *told = ct_flight_told(run, r, &ago);
    int last = r;

    if (told) {
        ct_flight_say(v, "rank %d is gone with its records; it last said, %.1f s ago: %s\n", r, ago,
                      told);
        return r;
    }
    while (last + 1 < run->world && !run->rank[last + 1].h && !ct_flight_told(run, last + 1, &ago))
        ct_flight_blame(v, CT_FLIGHT_R1, ++last);
    if (last > r)
        ct_flight_say(v, "ranks %d to %d left no record: they did not start, or run on hosts", r,
                      last);
    else
        ct_flight_say(v, "rank %d left no record: it did not start, or runs on a host", r);
    ct_flight_say(v, " without this folder\n");
    return last;
}

static void find_dead(const struct ct_flight_run *run, struct ct_flight_verdict *v)
{
    bool together = ended_together(run);

    for (int r = 0; r < run->world && !together; r++) {
        const struct ct_flight_header *h = run->rank[r].h;

        if (ct_flight_is_dead(run, r)) {
            ct_flight_blame(v, CT_FLIGHT_R1, r);
            if (!h) {
                r = say_absent(run, v, r);
                continue;
            }
            ct_flight_say(v, "rank %d (pid %d on %s) died", r, h->pid, h->host);
            if (h->exit_first && (h->exit_status & 0x7f))
                ct_flight_say(v, ", by signal %d (%s)", h->exit_status & 0x7f,
                              strsignal(h->exit_status & 0x7f));
        } else if (ct_flight_is_stopped(run, r)) {
            ct_flight_blame(v, CT_FLIGHT_R1, r);
            ct_flight_say(v, "rank %d (pid %d on %s) was stopped by a signal", r, h->pid, h->host);
        } else {
            continue;
        }
        ct_flight_say(v, "; its last recorded action: ");
        ct_flight_say_position(v, run, r);
        ct_flight_say(v, "\n");
    }
}

/* Ranks failed while the run was opened, and none by itself: they waited for others. */
static void find_unopened(const struct ct_flight_run *run, struct ct_flight_verdict *v)
{
    bool failed = false;

    for (int r = 0; r < run->world; r++) {
        const struct ct_flight_header *h = run->rank[r].h;

        failed =
            failed || (h->state == CT_FLIGHT_FAILED && h->position.phase == CT_FLIGHT_IN_OPENING);
    }
    for (int r = 0; failed && r < run->world; r++) {
        const struct ct_flight_header *h = run->rank[r].h;

        if (h->state == CT_FLIGHT_FAILED || h->position.phase != CT_FLIGHT_IN_OPENING)
            continue;
        ct_flight_blame(v, CT_FLIGHT_R5, r);
        ct_flight_say(
            v,
            "rank %d does not arrive: it is still opening the run, or waits for other ranks "
            "there\n",
            r);
    }
    if (failed && !v->rule)
        ct_flight_say(v, "the ranks open different runs or groups\n");
    for (int r = 0; failed && r < run->world; r++) {
        const struct ct_flight_header *h = run->rank[r].h;

        if (h->state != CT_FLIGHT_FAILED)
            continue;
        if (v->rule != CT_FLIGHT_R5)
            ct_flight_blame(v, CT_FLIGHT_R3, r);
        ct_flight_say(v, "  rank %d: %s\n", r, h->message);
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

static const char *recipe_of(const struct ct_flight_run *run, int rank)
{
    const struct ct_flight_header *h = run->rank[rank].h;

    return h ? (const char *)h + h->recipe : NULL;
}

static void say_other_recipe(struct ct_flight_verdict *v, int rank, const char *usual,
                             const char *mine)
{
    char lacks[256], extra[256];

    ct_recipe_lacks(mine, usual, lacks, sizeof(lacks));
    ct_recipe_lacks(usual, mine, extra, sizeof(extra));
    if (!*lacks && !*extra) {
        differs(&usual, &mine);
        ct_flight_say(v, "rank %d has another recipe: %.*s, others %.*s\n", rank,
                      (int)strcspn(mine, "\n"), mine, (int)strcspn(usual, "\n"), usual);
        return;
    }
    ct_flight_say(v, "rank %d was started with other plugins:%s%s%s%s%s\n", rank,
                  *lacks ? " it lacks " : "", lacks, *lacks && *extra ? "," : "",
                  *extra ? " others lack " : "", extra);
}

static void find_other_recipe(const struct ct_flight_run *run, struct ct_flight_verdict *v)
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
        const char *usual = recipe_of(run, like[0] < like[1] ? other : first);
        const char *mine = recipe_of(run, r), *a = usual, *b = mine;

        if (!b || !differs(&a, &b))
            continue;
        ct_flight_blame(v, CT_FLIGHT_R2, r);
        say_other_recipe(v, r, usual, mine);
    }
}

/* Have all ranks ended without a failure? */
static bool is_over(const struct ct_flight_run *run)
{
    for (int r = 0; r < run->world; r++)
        if (!run->rank[r].h || run->rank[r].h->state != CT_FLIGHT_ENDED)
            return false;
    return true;
}

/* Adds the findings of ranks while they ran. */
static void add_findings(const struct ct_flight_run *run, struct ct_flight_verdict *v)
{
    for (int r = 0; r < run->world; r++) {
        const struct ct_flight_header *h = run->rank[r].h;

        if (!h)
            continue;
        if (*h->diverged)
            ct_flight_say(v, "%s\n", h->diverged);
        if (*h->slow)
            ct_flight_say(v, "%s\n", h->slow);
        if (!v->rule && (*h->diverged || *h->slow))
            v->rule = *h->diverged ? CT_FLIGHT_R8 : CT_FLIGHT_R7;
    }
}

/* Nothing was wrong before. */
static void find_ended(const struct ct_flight_run *run, struct ct_flight_verdict *v)
{
    if (!ended_together(run))
        return;
    v->rule = CT_FLIGHT_R1;
    ct_flight_say(v, "all ranks were ended together by a user, a batch system or the host\n");
}

/* In order; the first that decides is the last that is tried. */
static const struct rule {
    void (*find)(const struct ct_flight_run *run, struct ct_flight_verdict *v);
    enum {
        WHEN_FAILED, /* not of a run that ended well */
        WHEN_STUCK,  /* nor of one that was ended while it did something */
        ALWAYS
    } when;
} rules[] = {
    {find_other_recipe, WHEN_FAILED},
    {find_failed, WHEN_FAILED},
    {find_dead, WHEN_FAILED},
    {find_unopened, WHEN_FAILED},
    {ct_flight_compare_programs, ALWAYS},
    {ct_flight_compare_host_calls, ALWAYS},
    {ct_flight_find_early, WHEN_STUCK},
    {ct_flight_follow_waits, WHEN_STUCK},
    {find_ended, WHEN_FAILED},
};

static bool applies(const struct rule *rule, const struct ct_flight_run *run)
{
    if (rule->when == ALWAYS)
        return true;
    return !is_over(run) &&
           (rule->when == WHEN_FAILED || !ended_together(run) || ct_flight_is_stuck(run));
}

void ct_flight_analyse(struct ct_flight_run *run, struct ct_flight_verdict *v)
{
    *v = (struct ct_flight_verdict){.rank = -1, .ranks = run->world};
    v->guilty = ct_arena_array(&run->arena, bool, run->world);
    for (const struct rule *r = rules; r < rules + CT_COUNT(rules) && !v->rule; r++)
        if (applies(r, run))
            r->find(run, v);
    if (v->rule)
        ct_flight_say_waiters(run, v);
    add_findings(run, v);
}
