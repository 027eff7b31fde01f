/*
 * A trace for chrome://tracing and Perfetto: one process per rank, one thread per stream.
 *
 * An arrow leads from the rank that was the last to begin a call (or that sends) to the end of the
 * call on the others: it shows for whom they waited.
 */
#include <stdlib.h>
#include <string.h>

#include <ctitan/comm.h>
#include <ctitan/error.h>
#include <ctitan/file.h>
#include <ctitan/lib/trace.h>
#include <ctitan/stream.h>

#include "read.h"

enum { HOST = CT_TRACE_STEPS + 1 }; /* the thread of calls of the host */

/* One record of a call, with the number of its group in all ranks. */
struct arrival {
    int group, rank;
    struct ct_flight_record record;
};

struct trace {
    const struct ct_flight_run *run;
    struct ct_trace to;
    double begin; /* seconds of CLOCK_REALTIME */
    struct arrival *arrivals;
    size_t count;
};

/* Seconds since the trace's beginning. */
static double since(const struct trace *t, int rank, double time)
{
    return ct_flight_time(t->run->rank[rank].h, time) - t->begin;
}

/* The names of the streams that a rank's programs use. */
static void find_streams(const struct ct_flight_header *h, const char *streams[CT_STREAMS])
{
    for (int p = 0; p < CT_FLIGHT_PROGRAMS; p++)
        for (int64_t n = -h->program[p].init_count; n < h->program[p].step_count; n++) {
            const struct ct_flight_instruction *f = ct_flight_instruction(h, p, n);

            streams[f->stream] = ct_flight_string(h, f->stream_name);
        }
}

static void name_threads(struct trace *t, int rank)
{
    const char *streams[CT_STREAMS] = {NULL};

    ct_trace_rank(&t->to, rank, rank);
    find_streams(t->run->rank[rank].h, streams);
    for (int i = 0; i < CT_STREAMS; i++)
        if (streams[i])
            ct_trace_name(&t->to, rank, i, streams[i]);
    ct_trace_name(&t->to, rank, CT_TRACE_STEPS, "steps");
    ct_trace_name(&t->to, rank, HOST, "calls of the host");
}

/* ---- slices ---- */

static void open_slice(struct trace *t, int rank, int thread, const char *name, double begin,
                       double end)
{
    ct_trace_slice(&t->to, rank, thread, name, since(t, rank, begin), since(t, rank, end));
}

/* The end of a record; of an unfinished one, the end of all. */
static double end_of(const struct trace *t, int rank, const struct ct_flight_record *r)
{
    return r->finished > 0 ? r->finished : t->run->now - t->run->rank[rank].h->clock;
}

static double begin_of(const struct ct_flight_record *r)
{
    return r->started > 0 ? r->started : r->enqueued;
}

static void put_call_args(struct trace *t, int rank, const struct ct_flight_record *r)
{
    const struct ct_flight_members *m;

    if (r->group < 0)
        return;
    m = &t->run->group[t->run->rank[rank].group[r->group]];
    ct_trace_text(&t->to, "group", m->name);
    ct_trace_integer(&t->to, "instance", m->instance);
    ct_trace_integer(&t->to, "sequence", r->sequence);
    ct_trace_number(&t->to, "waited_us", r->started > 0 ? (r->started - r->enqueued) * 1e6 : 0.0);
    if (r->finished <= 0)
        ct_trace_text(&t->to, "state", r->started > 0 ? "started" : "enqueued");
}

static int thread_of(const struct trace *t, int rank, const struct ct_flight_record *r)
{
    const struct ct_flight_instruction *f =
        ct_flight_instruction(t->run->rank[rank].h, r->program, r->index);

    return r->kind == CT_FLIGHT_HOST_CALL || !f ? HOST : f->stream;
}

static void put_instruction(struct trace *t, int rank, const struct ct_flight_record *r)
{
    const struct ct_flight_header *h = t->run->rank[rank].h;
    const struct ct_flight_instruction *f = ct_flight_instruction(h, r->program, r->index);
    char name[256];

    if (!f)
        return;
    snprintf(name, sizeof(name), "%s %s", ct_flight_string(h, f->op),
             ct_flight_string(h, f->value));
    open_slice(t, rank, f->stream, name, begin_of(r), end_of(t, rank, r));
    ct_trace_integer(&t->to, "step", r->step);
    ct_trace_flag(&t->to, "validation", r->program > 0);
    ct_trace_integer(&t->to, "instruction", r->index);
    ct_trace_integer(&t->to, "microbatch", f->microbatch);
    ct_trace_text(&t->to, "section", ct_flight_string(h, f->section));
    ct_trace_text(&t->to, "layer", ct_flight_string(h, f->region));
    ct_trace_text(&t->to, "sizes", ct_flight_string(h, f->sizes));
    put_call_args(t, rank, r);
    ct_trace_close(&t->to);
}

static void put_host_call(struct trace *t, int rank, const struct ct_flight_record *r)
{
    open_slice(t, rank, HOST, ct_flight_call_name(r->index), begin_of(r), end_of(t, rank, r));
    ct_trace_integer(&t->to, "step", r->step);
    put_call_args(t, rank, r);
    ct_trace_close(&t->to);
}

static void put_step(struct trace *t, int rank, const struct ct_flight_record *r)
{
    ct_trace_step(&t->to, rank, r->step, since(t, rank, r->enqueued), since(t, rank, r->started),
                  since(t, rank, end_of(t, rank, r)));
}

static void put_record(struct trace *t, int rank, const struct ct_flight_record *r)
{
    if (r->kind == CT_FLIGHT_STEP)
        put_step(t, rank, r);
    else if (r->kind == CT_FLIGHT_HOST_CALL)
        put_host_call(t, rank, r);
    else
        put_instruction(t, rank, r);
    if (r->group >= 0 && r->finished > 0)
        t->arrivals[t->count++] = (struct arrival){t->run->rank[rank].group[r->group], rank, *r};
}

/* Copy a record, which a living rank may overwrite. False: it has, or the record is damaged. */
static bool take_record(const struct ct_flight_header *h, uint64_t id, struct ct_flight_record *to)
{
    const struct ct_flight_record *r = ct_flight_at(h, id);

    if (!r)
        return false;
    *to = *r;
    return ct_flight_at(h, id) && (to->group == -1 || ct_flight_is_group(h, to->group)) &&
           (to->kind != CT_FLIGHT_HOST_CALL || (to->index >= 0 && to->index < CT_CALL_KINDS));
}

static int put_rank(struct trace *t, int rank)
{
    const struct ct_flight_header *h = t->run->rank[rank].h;
    uint64_t first, last;
    struct ct_flight_record r;

    if (!h)
        return 0;
    last = atomic_load(&h->written);
    first = ct_flight_first(h); /* after `last`: no more than the ring holds */
    t->arrivals = realloc(t->arrivals, sizeof(*t->arrivals) * (t->count + h->ring_count + 1));
    if (!t->arrivals)
        return ct_fail(CT_ENOMEM, "a trace");
    name_threads(t, rank);
    for (uint64_t id = first; id <= last; id++)
        if (take_record(h, id, &r))
            put_record(t, rank, &r);
    return 0;
}

/* ---- arrows ---- */

static int compare_arrivals(const void *a, const void *b)
{
    const struct arrival *x = a, *y = b;

    if (x->group != y->group)
        return x->group < y->group ? -1 : 1;
    if (x->record.sequence != y->record.sequence)
        return x->record.sequence < y->record.sequence ? -1 : 1;
    return x->rank - y->rank;
}

static bool sends(const struct trace *t, const struct arrival *a)
{
    const struct ct_flight_instruction *f =
        ct_flight_instruction(t->run->rank[a->rank].h, a->record.program, a->record.index);

    return a->record.kind == CT_FLIGHT_CALL && f && f->form == CT_FLIGHT_SEND;
}

/* The sender, or the last to begin. */
static size_t source(const struct trace *t, const struct arrival *a, size_t count)
{
    size_t from = 0;

    for (size_t i = 0; i < count; i++) {
        if (sends(t, &a[i]))
            return i;
        if (since(t, a[i].rank, begin_of(&a[i].record)) >
            since(t, a[from].rank, begin_of(&a[from].record)))
            from = i;
    }
    return from;
}

static void put_arrow(struct trace *t, const struct arrival *a, bool begins, size_t id)
{
    double at = begins ? begin_of(&a->record) : a->record.finished;

    ct_trace_arrow(&t->to, id, begins, a->rank, thread_of(t, a->rank, &a->record),
                   since(t, a->rank, at));
}

static void put_arrows(struct trace *t)
{
    size_t id = 0;

    if (t->count)
        qsort(t->arrivals, t->count, sizeof(*t->arrivals), compare_arrivals);
    for (size_t i = 0, n; i < t->count; i += n) {
        const struct arrival *a = &t->arrivals[i];
        size_t from;

        for (n = 1; i + n < t->count && a[n].group == a->group &&
                    a[n].record.sequence == a->record.sequence;
             n++)
            ;
        from = source(t, a, n);
        for (size_t k = 0; k < n; k++) {
            if (k == from)
                continue;
            put_arrow(t, &a[from], true, ++id);
            put_arrow(t, &a[k], false, id);
        }
    }
}

/* ---- all ---- */

static double first_time(const struct ct_flight_run *run)
{
    double first = run->now;

    for (int r = 0; r < run->world; r++) {
        const struct ct_flight_header *h = run->rank[r].h;

        for (uint64_t id = h ? ct_flight_first(h) : 1; h && id <= atomic_load(&h->written); id++) {
            const struct ct_flight_record *record = ct_flight_at(h, id);

            if (record && ct_flight_time(h, record->enqueued) < first)
                first = ct_flight_time(h, record->enqueued);
        }
    }
    return first;
}

int ct_flight_trace(const struct ct_flight_run *run, const char *path)
{
    struct trace t = {.run = run, .begin = first_time(run)};
    struct ct_new_file file;
    int rc = ct_file_begin(&file, path);

    if (rc < 0)
        return ct_context(rc, "--trace");
    ct_trace_begin(&t.to, file.out);
    for (int r = 0; rc == 0 && r < run->world; r++)
        rc = put_rank(&t, r);
    if (rc == 0)
        put_arrows(&t);
    if (rc == 0)
        rc = ct_trace_end(&t.to, NULL);
    free(t.arrivals);
    return ct_file_end(&file, rc);
}
