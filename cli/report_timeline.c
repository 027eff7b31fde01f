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
#include "slices.h"

#define RANKS 16   /* drawn */
#define SPANS 6000 /* drawn; what is closer than a share of the step is joined */

/* A slice as it is drawn. */
struct bar {
    int rank, row, kind, microbatch; /* row: 2 x rank, one more for communication */
    double start, end;               /* milliseconds */
    const char *section;
};

/* ---- of which step ---- */

/* Work of training: a validation has the number of the step after it. */
static bool is_drawn(const struct slice *s)
{
    return s->section && s->stream < CT_TRACE_STEPS && !s->validation;
}

/* The last step that every rank has; 0: no step of a rank has a number. */
static int64_t last_step(const struct slices *s, struct ct_arena *arena)
{
    int64_t *last = ct_arena_array(arena, int64_t, s->ranks + 1), least;

    for (size_t i = 0; i < s->count; i++) {
        const struct slice *at = &s->list[i];

        if (is_drawn(at) && at->step > last[at->rank])
            last[at->rank] = at->step;
    }
    least = last[0];
    for (size_t n = 1; n < s->ranks; n++)
        least = last[n] < least ? last[n] : least;
    return least;
}

/* The bars of that step. */
static struct bar *make_bars(struct ct_arena *arena, const struct slices *s, size_t *count)
{
    struct bar *list = ct_arena_array(arena, struct bar, s->count + 1);
    int64_t step = last_step(s, arena);

    *count = 0;
    for (size_t i = 0; i < s->count; i++) {
        const struct slice *at = &s->list[i];

        if (is_drawn(at) && (at->step < 0 || at->step == step))
            list[(*count)++] = (struct bar){.rank = at->rank,
                                            .row = 2 * at->rank + (at->stream > 0),
                                            .kind = (int)work_of(at->section, at->stream > 0),
                                            .microbatch = (int)at->microbatch,
                                            .start = at->start * 1e3,
                                            .end = at->end * 1e3,
                                            .section = at->section};
    }
    return list;
}

/* ---- drawing it ---- */

static int by_row(const void *a, const void *b)
{
    const struct bar *x = a, *y = b;

    if (x->row != y->row)
        return x->row - y->row;
    return x->start < y->start ? -1 : x->start > y->start;
}

static bool alike(const struct bar *a, const struct bar *b)
{
    return a->row == b->row && a->kind == b->kind && a->microbatch == b->microbatch &&
           !strcmp(a->section, b->section);
}

/* Join bars that follow each other closer than `gap`, and shift all to begin at 0. Returns how
   many are left. */
static size_t join(struct bar *list, size_t count, double begin, double gap)
{
    size_t kept = 0;

    for (size_t i = 0; i < count; i++) {
        struct bar s = list[i], *last = kept ? &list[kept - 1] : NULL;

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
static const char *label(struct report *r, const struct report_timeline *t, const struct bar *s)
{
    const char *unit = t->seconds ? "ms" : "% of the step";
    char microbatch[32] = "";

    if (s->microbatch >= 0)
        snprintf(microbatch, sizeof(microbatch), ", microbatch %d", s->microbatch);
    return ct_arena_printf(&r->arena, "%s, %s %s%s: %.4g to %.4g %s", t->row[2 * s->rank],
                           work_names[s->kind], s->section, microbatch, s->start, s->end, unit);
}

/* Name the rows of the ranks that are drawn. */
static void name_rows(struct report *r, struct report_timeline *t, const struct slices *s)
{
    t->all_ranks = (int)s->ranks;
    t->ranks = t->all_ranks < RANKS ? t->all_ranks : RANKS;
    t->rows = 2 * t->ranks;
    t->row = ct_arena_array(&r->arena, const char *, t->rows);
    for (int n = 0; n < t->ranks; n++) {
        t->row[2 * n] = s->rank[n] ? s->rank[n] : ct_arena_printf(&r->arena, "rank %d", n);
        t->row[2 * n + 1] = "communicates";
    }
}

static void draw_bars(struct report *r, struct report_timeline *t, struct bar *list, size_t count)
{
    double begin = INFINITY, end = 0, unit;

    qsort(list, count, sizeof(*list), by_row);
    for (size_t i = 0; i < count; i++) {
        begin = fmin(begin, list[i].start);
        end = fmax(end, list[i].end);
    }
    t->busy = ct_arena_alloc(&r->arena, sizeof(*t->busy) * (size_t)t->all_ranks);
    unit = t->seconds ? 1 : 100 / (end - begin);
    t->end = (end - begin) * unit;
    for (size_t i = 0; i < count; i++)
        t->busy[list[i].rank][list[i].kind] += (list[i].end - list[i].start) * unit;
    count = join(list, count, begin, 0);
    for (double gap = 1e-4; count > SPANS && gap < 0.1; gap *= 2)
        count = join(list, count, 0, gap * (end - begin));
    t->span = ct_arena_array(&r->arena, struct ct_chart_span, count);
    for (size_t i = 0; i < count; i++) {
        struct bar at = list[i];

        at.start *= unit;
        at.end *= unit;
        if (at.rank < t->ranks)
            t->span[t->count++] =
                (struct ct_chart_span){at.row, at.kind, at.start, at.end, label(r, t, &at)};
    }
}

static bool draw(struct report *r, struct report_timeline *t, const struct slices *s)
{
    size_t count;
    struct bar *list = make_bars(&r->arena, s, &count);

    if (count) {
        name_rows(r, t, s);
        draw_bars(r, t, list, count);
    } else {
        t->missing = "the trace has no instruction of a whole step";
    }
    return count > 0;
}

static bool draw_trace(struct report *r, struct report_timeline *t, const char *path)
{
    struct slices slices = {.count = 0};

    return slices_read(&r->arena, path, 0, &slices) == 0 && draw(r, t, &slices);
}

/* ---- where a trace is from ---- */

static bool profiled(struct report *r, struct report_run *run)
{
    struct slices slices = {.count = 0};

    run->timeline.seconds = true;
    if (!run->profile.step || profile_slices(&r->arena, run->folder, &run->profile, &slices) < 0 ||
        !draw(r, &run->timeline, &slices))
        return false;
    run->timeline.source =
        ct_arena_printf(&r->arena, "As step %lld was profiled.", (long long)run->profile.step);
    return true;
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
