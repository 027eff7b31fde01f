/*
 * The page that a person reads: the verdict, then what every rank did last.
 */
#include <string.h>
#include <time.h>

#include <ctitan/error.h>

#include "analyse.h"

#define LATEST 1e11 /* seconds since 1970 */

/* ---- words ---- */

static const char *phase_name(int phase)
{
    static const char *const names[] = {
#define X(id, text) text,
        CT_FLIGHT_PHASES(X)
#undef X
    };

    return phase >= 0 && phase < CT_FLIGHT_PHASE_COUNT ? names[phase] : "?";
}

static const char *work_name(int work)
{
    static const char *const names[] = {
#define X(id, text) text,
        CT_FLIGHT_WORKS(X)
#undef X
    };

    return work >= 0 && work < CT_FLIGHT_WORK_COUNT ? names[work] : "?";
}

/* "all_gather of %w, [4, 64] float32 (layers.3; 1F, microbatch 2)" */
static void put_instruction(struct ct_line *w, const struct ct_flight_header *h,
                            const struct ct_flight_instruction *f)
{
    const char *region = ct_flight_string(h, f->region);

    ct_line_add(w, "%s of %%%s, %s (%s%s%s", ct_flight_string(h, f->op),
                ct_flight_string(h, f->value), ct_flight_string(h, f->sizes), region,
                *region ? "; " : "", ct_flight_string(h, f->section));
    if (f->microbatch >= 0)
        ct_line_add(w, ", microbatch %d", f->microbatch);
    ct_line_add(w, ")");
}

static void put_group(struct ct_line *w, const struct ct_flight_members *m)
{
    ct_line_add(w, "group '%s' [", m->name);
    for (int i = 0; i < m->size && i < 16; i++)
        ct_line_add(w, "%s%d", i ? " " : "", m->ranks[i]);
    ct_line_add(w, m->size > 16 ? " ..]" : "]");
}

void ct_flight_describe_group(const struct ct_flight_members *m, char *text, size_t room)
{
    put_group(&(struct ct_line){text, room, 0}, m);
}

void ct_flight_describe_call(const struct ct_flight_run *run, int rank, int group, int64_t sequence,
                             char *text, size_t room)
{
    const struct ct_flight_header *h = run->rank[rank].h;
    const struct ct_flight_group *g = ct_flight_group(h, group);
    struct ct_line w = {text, room, 0};
    const struct ct_flight_mark m = g->started.sequence == sequence ? g->started : g->enqueued;
    const struct ct_flight_instruction *f = ct_flight_instruction(h, m.program, m.index);

    *text = '\0';
    if (m.sequence == sequence && m.program < 0)
        ct_line_add(&w, "%s by the host", ct_flight_call_name(m.index));
    else if (m.sequence == sequence && f)
        put_instruction(&w, h, f);
    else
        ct_line_add(&w, "a call");
    ct_line_add(&w, ", step %lld, call %lld of ", (long long)m.step, (long long)sequence);
    put_group(&w, &run->group[run->rank[rank].group[group]]);
    if (m.time > 0)
        ct_line_add(&w, ", since %.2f s", run->now - ct_flight_time(h, m.time));
}

void ct_flight_describe_position(const struct ct_flight_run *run, int rank, char *text, size_t room)
{
    const struct ct_flight_header *h = run->rank[rank].h;
    const struct ct_flight_position p = ct_flight_position(h);
    const struct ct_flight_instruction *f = ct_flight_instruction(h, p.program, p.index);
    struct ct_line w = {text, room, 0};

    *text = '\0';
    if (p.phase != CT_FLIGHT_IN_OPENING)
        ct_line_add(&w, "step %lld, ", (long long)p.step);
    if (p.phase == CT_FLIGHT_IN_BETWEEN && f && p.index + 1 == h->program[p.program].step_count)
        ct_line_add(&w, "waiting for the streams at the end of the step");
    else if (p.phase == CT_FLIGHT_IN_CALL && ct_flight_is_group(h, p.index))
        ct_flight_describe_call(run, rank, p.index, ct_flight_group(h, p.index)->started.sequence,
                                text + w.used, room - w.used);
    else
        ct_line_add(&w, "%s", phase_name(p.phase));
    w.used = strlen(text);
    if (f && p.phase == CT_FLIGHT_IN_INSIDE) {
        ct_line_add(&w, " ");
        put_instruction(&w, h, f);
        ct_line_add(&w, ", one of %s", work_name(f->work));
    } else if (f && p.phase == CT_FLIGHT_IN_BETWEEN) {
        ct_line_add(&w, ", after ");
        put_instruction(&w, h, f);
    }
    if (p.phase != CT_FLIGHT_IN_CALL && p.phase != CT_FLIGHT_IN_OVER)
        ct_line_add(&w, ", since %.2f s", run->now - ct_flight_time(h, p.since));
}

/* ---- the page ---- */

static const char *const rules[] = {
    [CT_FLIGHT_NOTHING] = "nothing failed",
    [CT_FLIGHT_R1] = "R1, a rank failed or died",
    [CT_FLIGHT_R2] = "R2, different recipes",
    [CT_FLIGHT_R3] = "R3, calls that do not match",
    [CT_FLIGHT_R4] = "R4, a deadlock",
    [CT_FLIGHT_R5] = "R5, a rank that does not arrive",
    [CT_FLIGHT_R6] = "R6, a call that does not end",
    [CT_FLIGHT_R7] = "R7, a slow rank",
    [CT_FLIGHT_R8] = "R8, ranks that diverge",
};

const char *ct_flight_state_of(const struct ct_flight_run *run, int rank)
{
    const struct ct_flight_header *h = run->rank[rank].h;

    if (h->state == CT_FLIGHT_ENDED)
        return "ended";
    if (ct_flight_is_stopped(run, rank) && h->state != CT_FLIGHT_TOLD)
        return "stopped";
    if (h->state == CT_FLIGHT_FAILED)
        return "failed";
    if (h->state == CT_FLIGHT_TOLD)
        return "asked to end";
    if (ct_flight_is_dead(run, rank))
        return "dead";
    return run->rank[rank].process == 'X' ? "was running" : "running";
}

static void print_absent(const struct ct_flight_run *run, int rank, FILE *out)
{
    double ago;
    const char *told = ct_flight_told(run, rank, &ago);

    if (told)
        fprintf(out, "  rank %-3d no record; it last said, %.1f s ago: %s\n", rank, ago, told);
    else
        fprintf(out, "  rank %-3d no record\n", rank);
}

static void print_rank(const struct ct_flight_run *run, int rank, FILE *out)
{
    const struct ct_flight_header *h = run->rank[rank].h;
    char text[512];

    if (!h) {
        print_absent(run, rank, out);
        return;
    }
    ct_flight_describe_position(run, rank, text, sizeof(text));
    fprintf(out, "  rank %-3d pid %-7d %-11s %s\n", rank, h->pid, ct_flight_state_of(run, rank),
            text);
    if (h->state == CT_FLIGHT_FAILED)
        fprintf(out, "           said: %s\n", h->message);
}

void ct_flight_calls_ended(const struct ct_flight_run *run, const struct ct_flight_members *m,
                           int64_t *least, int64_t *most)
{
    *least = INT64_MAX;
    *most = 0;
    for (int i = 0; i < m->size; i++) {
        const struct ct_flight_header *h = run->rank[m->ranks[i]].h;
        int64_t n = h && m->own[i] >= 0 ? ct_flight_group(h, m->own[i])->finished.sequence : 0;

        *least = n < *least ? n : *least;
        *most = n > *most ? n : *most;
    }
}

static void print_group(const struct ct_flight_run *run, const struct ct_flight_members *m,
                        FILE *out)
{
    char text[256];
    struct ct_line w = {text, sizeof(text), 0};
    int64_t least, most;

    ct_flight_calls_ended(run, m, &least, &most);
    put_group(&w, m);
    if (m->instance)
        ct_line_add(&w, " (%d)", m->instance + 1);
    fprintf(out, "  %-40s calls that ended: %lld", text, (long long)least);
    if (most > least)
        fprintf(out, " on all ranks, %lld on some", (long long)most);
    fputc('\n', out);
}

void ct_flight_page(const struct ct_flight_run *run, const struct ct_flight_verdict *v, FILE *out)
{
    const struct ct_flight_header *any = NULL;
    time_t t = run->now > 0 && run->now < LATEST ? (time_t)run->now : 0; /* damaged: any time */
    char when[64];
    struct tm tm;

    for (int r = 0; r < run->world && !any; r++)
        any = run->rank[r].h;
    strftime(when, sizeof(when), "%Y-%m-%d %H:%M:%S", localtime_r(&t, &tm));
    fprintf(out, "job '%s', %d rank%s, as of %s\n\n", any ? any->job : "", run->world,
            ct_plural(run->world), when);
    fprintf(out, "verdict: %s\n%s\n", rules[v->rule], v->text);
    fprintf(out, "ranks\n");
    for (int r = 0; r < run->world; r++)
        print_rank(run, r, out);
    fprintf(out, "\ngroups\n");
    for (int g = 0; g < run->group_count; g++)
        print_group(run, &run->group[g], out);
}
