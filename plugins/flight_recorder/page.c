/*
 * The page that a person reads: the verdict, then what every rank did last.
 */
#include <string.h>
#include <time.h>

#include <ctitan/comm.h>
#include <ctitan/error.h>

#include "flight.h"

#define LATEST 1e11 /* seconds since 1970 */

/* ---- words ---- */

static const char *phase_name(int phase)
{
    static const char *const names[] = {
#define X(id, text) text,
        FLIGHT_PHASES(X)
#undef X
    };

    return phase >= 0 && phase < FLIGHT_PHASE_COUNT ? names[phase] : "?";
}

static const char *class_name(int class)
{
    static const char *const names[] = {
#define X(id, text) text,
        FLIGHT_CLASSES(X)
#undef X
    };

    return class >= 0 && class < FLIGHT_CLASS_COUNT ? names[class] : "?";
}

struct words {
    char *text;
    size_t used, room;
};

static void CT_PRINTF(2, 3) put(struct words *w, const char *fmt, ...)
{
    va_list args;

    va_start(args, fmt);
    if (w->used < w->room)
        w->used += (size_t)vsnprintf(w->text + w->used, w->room - w->used, fmt, args);
    va_end(args);
}

/* "all_gather of %w, [4, 64] float32 (layers.3; 1F, microbatch 2)" */
static void put_instruction(struct words *w, const struct flight_header *h,
                            const struct flight_instruction *f)
{
    const char *region = flight_string(h, f->region);

    put(w, "%s of %%%s, %s (%s%s%s", flight_string(h, f->op), flight_string(h, f->value),
        flight_string(h, f->sizes), region, *region ? "; " : "", flight_string(h, f->section));
    if (f->microbatch >= 0)
        put(w, ", microbatch %d", f->microbatch);
    put(w, ")");
}

static void put_group(struct words *w, const struct flight_members *m)
{
    put(w, "group '%s' [", m->name);
    for (int i = 0; i < m->size && i < 16; i++)
        put(w, "%s%d", i ? " " : "", m->ranks[i]);
    put(w, m->size > 16 ? " ..]" : "]");
}

void flight_describe_group(const struct flight_members *m, char *text, size_t room)
{
    put_group(&(struct words){text, 0, room}, m);
}

static const char *call_name(int32_t kind)
{
    return kind >= 0 && kind < CT_CALL_KINDS ? ct_call_name((enum ct_call_kind)kind) : "a call";
}

void flight_describe_call(const struct flight_run *run, int rank, int group, int64_t sequence,
                          char *text, size_t room)
{
    const struct flight_header *h = run->rank[rank].h;
    const struct flight_group *g = flight_group(h, group);
    struct words w = {text, 0, room};
    const struct flight_mark *m = g->started.sequence == sequence ? &g->started : &g->enqueued;
    const struct flight_instruction *f = flight_instruction(h, m->program, m->index);

    *text = '\0';
    if (m->sequence == sequence && m->program < 0)
        put(&w, "%s by the host", call_name(m->index));
    else if (m->sequence == sequence && f)
        put_instruction(&w, h, f);
    else
        put(&w, "a call");
    put(&w, ", step %lld, call %lld of ", (long long)m->step, (long long)sequence);
    put_group(&w, &run->group[run->rank[rank].group[group]]);
    if (m->time > 0)
        put(&w, ", since %.2f s", run->now - flight_time(h, m->time));
}

void flight_describe_position(const struct flight_run *run, int rank, char *text, size_t room)
{
    const struct flight_header *h = run->rank[rank].h;
    const struct flight_position *p = &h->position;
    const struct flight_instruction *f = flight_instruction(h, p->program, p->index);
    struct words w = {text, 0, room};

    *text = '\0';
    if (p->phase != FLIGHT_IN_OPENING)
        put(&w, "step %lld, ", (long long)p->step);
    if (p->phase == FLIGHT_IN_BETWEEN && f && p->index + 1 == h->program[p->program].step_count)
        put(&w, "waiting for the streams at the end of the step");
    else if (p->phase == FLIGHT_IN_CALL && flight_is_group(h, p->index))
        flight_describe_call(run, rank, p->index, flight_group(h, p->index)->started.sequence,
                             text + w.used, room - w.used);
    else
        put(&w, "%s", phase_name(p->phase));
    w.used = strlen(text);
    if (f && p->phase == FLIGHT_IN_INSIDE) {
        put(&w, " ");
        put_instruction(&w, h, f);
        put(&w, ", one of %s", class_name(f->class));
    } else if (f && p->phase == FLIGHT_IN_BETWEEN) {
        put(&w, ", after ");
        put_instruction(&w, h, f);
    }
    if (p->phase != FLIGHT_IN_CALL && p->phase != FLIGHT_IN_OVER)
        put(&w, ", since %.2f s", run->now - flight_time(h, p->since));
}

/* ---- the page ---- */

static const char *const rules[] = {
    [FLIGHT_NOTHING] = "nothing failed",
    [R1] = "R1, a rank failed or died",
    [R2] = "R2, different recipes",
    [R3] = "R3, calls that do not match",
    [R4] = "R4, a deadlock",
    [R5] = "R5, a rank that does not arrive",
    [R6] = "R6, a call that does not end",
    [R7] = "R7, a slow rank",
    [R8] = "R8, ranks that diverge",
};

const char *flight_state_of(const struct flight_run *run, int rank)
{
    const struct flight_header *h = run->rank[rank].h;

    if (h->state == FLIGHT_ENDED)
        return "ended";
    if (flight_is_stopped(run, rank) && h->state != FLIGHT_TOLD)
        return "stopped";
    if (h->state == FLIGHT_FAILED)
        return "failed";
    if (h->state == FLIGHT_TOLD)
        return "asked to end";
    if (flight_is_dead(run, rank))
        return "dead";
    return run->rank[rank].process == 'X' ? "was running" : "running";
}

static void print_absent(const struct flight_run *run, int rank, FILE *out)
{
    double ago;
    const char *told = flight_told(run, rank, &ago);

    if (told)
        fprintf(out, "  rank %-3d no record; it last said, %.1f s ago: %s\n", rank, ago, told);
    else
        fprintf(out, "  rank %-3d no record\n", rank);
}

static void print_rank(const struct flight_run *run, int rank, FILE *out)
{
    const struct flight_header *h = run->rank[rank].h;
    char text[512];

    if (!h) {
        print_absent(run, rank, out);
        return;
    }
    flight_describe_position(run, rank, text, sizeof(text));
    fprintf(out, "  rank %-3d pid %-7d %-11s %s\n", rank, h->pid, flight_state_of(run, rank), text);
    if (h->state == FLIGHT_FAILED)
        fprintf(out, "           said: %s\n", h->message);
}

void flight_calls_ended(const struct flight_run *run, const struct flight_members *m,
                        int64_t *least, int64_t *most)
{
    *least = INT64_MAX;
    *most = 0;
    for (int i = 0; i < m->size; i++) {
        const struct flight_header *h = run->rank[m->ranks[i]].h;
        int64_t n = h && m->own[i] >= 0 ? flight_group(h, m->own[i])->finished.sequence : 0;

        *least = n < *least ? n : *least;
        *most = n > *most ? n : *most;
    }
}

static void print_group(const struct flight_run *run, const struct flight_members *m, FILE *out)
{
    char text[256];
    struct words w = {text, 0, sizeof(text)};
    int64_t least, most;

    flight_calls_ended(run, m, &least, &most);
    put_group(&w, m);
    if (m->instance)
        put(&w, " (%d)", m->instance + 1);
    fprintf(out, "  %-40s calls that ended: %lld", text, (long long)least);
    if (most > least)
        fprintf(out, " on all ranks, %lld on some", (long long)most);
    fputc('\n', out);
}

void flight_page(const struct flight_run *run, const struct flight_verdict *v, FILE *out)
{
    const struct flight_header *any = NULL;
    time_t t = run->now > 0 && run->now < LATEST ? (time_t)run->now : 0; /* damaged: any time */
    char when[64];
    struct tm tm;

    for (int r = 0; r < run->world && !any; r++)
        any = run->rank[r].h;
    strftime(when, sizeof(when), "%Y-%m-%d %H:%M:%S", localtime_r(&t, &tm));
    fprintf(out, "job '%s', %d rank%s, as of %s\n\n", any ? any->job : "", run->world,
            run->world > 1 ? "s" : "", when);
    fprintf(out, "verdict: %s\n%s\n", rules[v->rule], v->text);
    fprintf(out, "ranks\n");
    for (int r = 0; r < run->world; r++)
        print_rank(run, r, out);
    fprintf(out, "\ngroups\n");
    for (int g = 0; g < run->group_count; g++)
        print_group(run, &run->group[g], out);
}
