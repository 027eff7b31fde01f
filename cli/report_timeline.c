/*
 * A step of all ranks for the page, from a Chrome trace: the last one that was profiled, the last
 * one that the flight recorder has of all ranks, or a simulated one. Without a description of the
 * device (--device), a machine with usual proportions is described, and only shares of the step are
 * drawn.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <ctitan/file.h>
#include <ctitan/lib/flight.h>
#include <ctitan/lib/json.h>
#include <ctitan/lib/machine.h>
#include <ctitan/lib/trace.h>

#include "cli.h"
#include "report.h"

#define RANKS 16   /* drawn */
#define SPANS 6000 /* drawn; what is closer than a share of the step is joined */
#define MOST_RANKS (1 << 20)

/* A slice of the trace. */
struct slice {
    int rank, row, kind, microbatch; /* row: 2 x rank, one more for communication */
    double start, end;
    const char *section;
};

struct slices {
    struct slice *list;
    size_t count, room;
    int ranks;
    const char **name; /* of ranks */
    int64_t step;      /* that is drawn; -1: the trace has one only */
};

/* ---- reading a trace ---- */

/* -1: the event is of no rank. */
static int rank_of(const json_t *event)
{
    int64_t pid = json_integer_value(json_object_get(event, "pid"));

    return pid >= 0 && pid < MOST_RANKS ? (int)pid : -1;
}

/* Work of training: a validation has the number of the step after it. */
static bool is_slice(const json_t *event)
{
    const json_t *args = json_object_get(event, "args");
    const char *phase = json_string_value(json_object_get(event, "ph"));

    return phase && !strcmp(phase, "X") && rank_of(event) >= 0 &&
           json_integer_value(json_object_get(event, "tid")) < CT_TRACE_STEPS &&
           json_object_get(args, "section") && !json_is_true(json_object_get(args, "validation"));
}

static int64_t step_of(const json_t *event)
{
    const json_t *step = json_object_get(json_object_get(event, "args"), "step");

    return step ? json_integer_value(step) : -1;
}

/* The last step that every rank has. */
static int64_t last_step(const json_t *events, int ranks, struct ct_arena *arena)
{
    int64_t *last = ct_arena_array(arena, int64_t, ranks + 1), least;

    for (size_t i = 0; i < json_array_size(events); i++) {
        const json_t *e = json_array_get(events, i);
        int rank = rank_of(e);

        if (is_slice(e) && step_of(e) > last[rank])
            last[rank] = step_of(e);
    }
    least = last[0];
    for (int n = 1; n < ranks; n++)
        least = last[n] < least ? last[n] : least;
    return least;
}

static int count_ranks(const json_t *events)
{
    int most = -1;

    for (size_t i = 0; i < json_array_size(events); i++) {
        int rank = rank_of(json_array_get(events, i));

        most = rank > most ? rank : most;
    }
    return most + 1;
}

static const char **name_ranks(struct report *r, const json_t *events, int ranks)
{
    const char **name = ct_arena_array(&r->arena, const char *, ranks + 1);

    for (int n = 0; n < ranks; n++)
        name[n] = ct_arena_printf(&r->arena, "rank %d", n);
    for (size_t i = 0; i < json_array_size(events); i++) {
        const json_t *e = json_array_get(events, i);
        const char *what = json_string_value(json_object_get(e, "name"));
        const char *is = json_string_value(json_object_get(json_object_get(e, "args"), "name"));

        if (what && is && !strcmp(what, "process_name") && rank_of(e) >= 0)
            name[rank_of(e)] = ct_arena_strdup(&r->arena, is);
    }
    return name;
}

static void add_slice(struct report *r, struct slices *s, const json_t *event)
{
    const json_t *args = json_object_get(event, "args");
    int stream = (int)json_integer_value(json_object_get(event, "tid"));
    int rank = rank_of(event);
    double start = json_number_value(json_object_get(event, "ts")) * 1e-3;

    s->list = ct_arena_grow(&r->arena, s->list, &s->room, s->count + 1, sizeof(*s->list));
    s->list[s->count] = (struct slice){
        .rank = rank,
        .row = 2 * rank + (stream > 0),
        .microbatch = (int)json_integer_value(json_object_get(args, "microbatch")),
        .start = start,
        .end = start + json_number_value(json_object_get(event, "dur")) * 1e-3,
        .section = ct_arena_strdup(&r->arena, json_string_value(json_object_get(args, "section"))),
    };
    s->list[s->count].kind = work_of(s->list[s->count].section, stream > 0);
    s->count++;
}

static void read_slices(struct report *r, const json_t *trace, struct slices *s)
{
    const json_t *events = json_is_array(trace) ? trace : json_object_get(trace, "traceEvents");

    *s = (struct slices){.ranks = count_ranks(events)};
    s->name = name_ranks(r, events, s->ranks);
    s->step = last_step(events, s->ranks, &r->arena);
    for (size_t i = 0; i < json_array_size(events); i++) {
        const json_t *e = json_array_get(events, i);

        if (is_slice(e) && (step_of(e) < 0 || step_of(e) == s->step))
            add_slice(r, s, e);
    }
}

/* ---- drawing it ---- */

static int by_row(const void *a, const void *b)
{
    const struct slice *x = a, *y = b;

    if (x->row != y->row)
        return x->row - y->row;
    return x->start < y->start ? -1 : x->start > y->start;
}

static bool alike(const struct slice *a, const struct slice *b)
{
    return a->row == b->row && a->kind == b->kind && a->microbatch == b->microbatch &&
           !strcmp(a->section, b->section);
}

/* Join slices that follow each other closer than `gap`, and shift all to begin at 0. Returns how
   many are left. */
static size_t join(struct slice *list, size_t count, double begin, double gap)
{
    size_t kept = 0;

    for (size_t i = 0; i < count; i++) {
        struct slice s = list[i], *last = kept ? &list[kept - 1] : NULL;

        s.start -= begin;
        s.end -= begin;
        if (last && alike(last, &s) && s.start - last->end <= gap)
            last->end = fmax(last->end, s.end);
        else
            list[kept++] = s;
    }
    return kept;
}

/* s: already in the unit of the axis. */
static const char *label(struct report *r, const struct report_timeline *t, const struct slice *s)
{
    const char *unit = t->seconds ? "ms" : "% of the step";
    char microbatch[32] = "";

    if (s->microbatch >= 0)
        snprintf(microbatch, sizeof(microbatch), ", microbatch %d", s->microbatch);
    return ct_arena_printf(&r->arena, "%s, %s %s%s: %.4g to %.4g %s", t->row[2 * s->rank],
                           work_names[s->kind], s->section, microbatch, s->start, s->end, unit);
}

static void draw(struct report *r, struct report_timeline *t, struct slices *s)
{
    double begin = INFINITY, end = 0, unit;
    size_t count;

    if (s->count)
        qsort(s->list, s->count, sizeof(*s->list), by_row);
    for (size_t i = 0; i < s->count; i++) {
        begin = fmin(begin, s->list[i].start);
        end = fmax(end, s->list[i].end);
    }
    t->all_ranks = s->ranks;
    t->ranks = s->ranks < RANKS ? s->ranks : RANKS;
    t->rows = 2 * t->ranks;
    t->row = ct_arena_array(&r->arena, const char *, t->rows);
    t->busy = ct_arena_alloc(&r->arena, sizeof(*t->busy) * (size_t)s->ranks);
    for (int n = 0; n < t->ranks; n++) {
        t->row[2 * n] = s->name[n];
        t->row[2 * n + 1] = "communicates";
    }
    unit = t->seconds ? 1 : 100 / (end - begin);
    t->end = (end - begin) * unit;
    for (size_t i = 0; i < s->count; i++)
        t->busy[s->list[i].rank][s->list[i].kind] += (s->list[i].end - s->list[i].start) * unit;
    count = join(s->list, s->count, begin, 0);
    for (double gap = 1e-4; count > SPANS && gap < 0.1; gap *= 2)
        count = join(s->list, count, 0, gap * (end - begin));
    t->span = ct_arena_array(&r->arena, struct ct_chart_span, count);
    for (size_t i = 0; i < count; i++) {
        struct slice at = s->list[i];

        at.start *= unit;
        at.end *= unit;
        if (at.rank < t->ranks)
            t->span[t->count++] =
                (struct ct_chart_span){at.row, at.kind, at.start, at.end, label(r, t, &at)};
    }
}

static bool draw_events(struct report *r, struct report_timeline *t, const json_t *trace)
{
    struct slices slices = {.count = 0};

    if (trace)
        read_slices(r, trace, &slices);
    if (slices.count)
        draw(r, t, &slices);
    else
        t->missing = "the trace has no instruction of a whole step";
    return slices.count > 0;
}

static bool draw_trace(struct report *r, struct report_timeline *t, const char *path)
{
    json_t *trace = NULL;
    bool drawn = ct_json_read_file(path, 0, &trace) == 0 && draw_events(r, t, trace);

    json_decref(trace);
    return drawn;
}

/* ---- where a trace is from ---- */

static bool profiled(struct report *r, struct report_run *run)
{
    json_t *events =
        run->profile.step ? profile_events(&r->arena, run->folder, &run->profile) : NULL;
    bool drawn;

    run->timeline.seconds = true;
    drawn = events && draw_events(r, &run->timeline, events);
    json_decref(events);
    if (drawn)
        run->timeline.source =
            ct_arena_printf(&r->arena, "As step %lld was profiled.", (long long)run->profile.step);
    return drawn;
}

static int write_recorded(const char *folder, const char *path)
{
    struct ct_flight_run files;
    int rc = ct_flight_run_open(folder, false, &files);

    if (rc < 0)
        return rc;
    rc = ct_flight_trace(&files, path);
    ct_flight_run_close(&files);
    return rc;
}

static bool recorded(struct report *r, struct report_run *run, const char *path)
{
    run->timeline.seconds = true;
    if (write_recorded(run->folder, path) < 0 || !draw_trace(r, &run->timeline, path))
        return false;
    run->timeline.source = "As the flight recorder has it: the last step that all ranks recorded. "
                           "([flight_recorder] record = all has the computing too.)";
    return true;
}

/* A host like many: its proportions of FLOPs, memory and links. For GPUs, a description that is
   shipped. */
static const char *usual_device(struct report *r, const char *plugin)
{
    const char *path = ct_arena_printf(&r->arena, "%s/device.ini", r->scratch);
    const char *text = ct_arena_printf(
        &r->arena,
        "[device]\nname = usual\nplugin = %s\nmemory = 1e15\nranks_per_host = 8\n"
        "[peak]\nfloat32 = 1e11\nbfloat16 = 2e11\nbandwidth = 4e10\n[rate.all]\nops =\n"
        "reach = 1 1\n[link.host]\nbandwidth = 1e10\n[link.network]\nbandwidth = 1e10\n",
        plugin);

    if (!strcmp(plugin, "cuda"))
        return "h100-80g";
    return ct_file_write(path, text, strlen(text)) < 0 ? NULL : path;
}

static bool simulated(struct report *r, struct report_run *run, const char *path)
{
    const char *plugin = json_string_value(json_object_get(run->plan, "device_plugin"));
    const char *device = r->device ? r->device : usual_device(r, plugin ? plugin : "cpu");
    const char *options[] = {"--device", device, "--trace", path, NULL};
    char bound[UPPER_BOUND];
    bool measured;
    FILE *out = device ? report_ask(r, run, "simulate", options, &run->timeline.missing) : NULL;

    if (!out)
        return false;
    fclose(out);
    run->timeline.seconds = r->device != NULL;
    measured = r->device && ct_machine_is_measured(r->machine);
    if (!draw_trace(r, &run->timeline, path))
        return false;
    run->timeline.source =
        r->device ? ct_arena_printf(&r->arena, "Simulated, as %s is described%s%s.", r->device,
                                    measured ? "" : ": an upper bound of speed, as ",
                                    measured ? "" : upper_bound(r->machine, bound))
                  : "Simulated on a machine of usual proportions, so only shares of the step are "
                    "shown; --device DESCRIPTION shows times, and a run with flight_recorder "
                    "what was measured.";
    return true;
}

void report_take_timeline(struct report *r, struct report_run *run)
{
    const char *path = ct_arena_printf(&r->arena, "%s/trace-%s", r->scratch,
                                       run->status.ranks > 1 ? "ranks" : "rank");

    run->profile = profile_last(&r->arena, run->folder, 0);
    if (profiled(r, run))
        return;
    run->timeline = (struct report_timeline){.missing = NULL};
    remove(path);
    if (recorded(r, run, path))
        return;
    remove(path);
    run->timeline = (struct report_timeline){.missing = run->plan_failure};
    if (run->plan)
        simulated(r, run, path);
}
