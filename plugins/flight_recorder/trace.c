/*
 * A trace for chrome://tracing and Perfetto: one process per rank, one thread per stream.
 *
 * An arrow leads from the rank that was the last to begin a call (or that sends) to the end of the
 * call on the others: it shows for whom they waited.
 */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <ctitan/comm.h>
#include <ctitan/error.h>

#include "flight.h"

/* Threads besides streams. */
enum { STEPS = 100, HOST };

/* One record of a call, with the number of its group in all ranks. */
struct arrival {
    int group, rank;
    const struct flight_record *record;
};

struct trace {
    const struct flight_run *run;
    FILE *out;
    double begin; /* seconds of CLOCK_REALTIME */
    bool comma;
    struct arrival *arrivals;
    size_t count;
};

/* In whole nanoseconds, so that slices that follow each other do not overlap as they are printed:
   Perfetto drops a slice that begins before the end of another. */
static double micros(const struct trace *t, int rank, double time)
{
    return round((flight_time(t->run->rank[rank].h, time) - t->begin) * 1e9) * 1e-3;
}

static void begin_event(struct trace *t, const char *phase, int rank, int thread)
{
    fprintf(t->out, "%s\n{\"ph\": \"%s\", \"pid\": %d, \"tid\": %d", t->comma ? "," : "", phase,
            rank, thread);
    t->comma = true;
}

static void put_string(struct trace *t, const char *key, const char *text)
{
    fprintf(t->out, "\"%s\": \"", key);
    for (; *text; text++) {
        if (*text == '"' || *text == '\\')
            fputc('\\', t->out);
        fputc((unsigned char)*text < ' ' ? ' ' : *text, t->out);
    }
    fputc('"', t->out);
}

static void name_thread(struct trace *t, int rank, int thread, const char *name)
{
    begin_event(t, "M", rank, thread);
    fprintf(t->out, ", \"name\": \"%s\", \"args\": {\"name\": \"%s\"}}",
            thread < 0 ? "process_name" : "thread_name", name);
}

/* The names of the streams that a rank's programs use. */
static void find_streams(const struct flight_header *h, const char *streams[CT_STREAMS])
{
    for (int p = 0; p < FLIGHT_PROGRAMS; p++)
        for (int64_t n = -h->program[p].init_count; n < h->program[p].step_count; n++) {
            const struct flight_instruction *f = flight_instruction(h, p, n);

            streams[f->stream] = flight_string(h, f->stream_name);
        }
}

static void name_threads(struct trace *t, int rank)
{
    const char *streams[CT_STREAMS] = {NULL};
    char name[96];

    snprintf(name, sizeof(name), "rank %d", rank);
    name_thread(t, rank, -1, name);
    find_streams(t->run->rank[rank].h, streams);
    for (int i = 0; i < CT_STREAMS; i++)
        if (streams[i])
            name_thread(t, rank, i, streams[i]);
    name_thread(t, rank, STEPS, "steps");
    name_thread(t, rank, HOST, "calls of the host");
}

/* ---- slices ---- */

static void put_times(struct trace *t, int rank, double begin, double end)
{
    double a = micros(t, rank, begin), b = micros(t, rank, end);

    fprintf(t->out, ", \"ts\": %.3f, \"dur\": %.3f, ", a, b > a ? b - a : 0);
}

/* The end of a record; of an unfinished one, the end of all. */
static double end_of(const struct trace *t, int rank, const struct flight_record *r)
{
    return r->finished > 0 ? r->finished : t->run->now - t->run->rank[rank].h->clock;
}

static double begin_of(const struct flight_record *r)
{
    return r->started > 0 ? r->started : r->enqueued;
}

static void put_call_args(struct trace *t, int rank, const struct flight_record *r)
{
    const struct flight_members *m;

    if (r->group < 0)
        return;
    m = &t->run->group[t->run->rank[rank].group[r->group]];
    fprintf(t->out, ", ");
    put_string(t, "group", m->name);
    fprintf(t->out, ", \"instance\": %d, \"sequence\": %lld, \"waited_us\": %.3f", m->instance,
            (long long)r->sequence, r->started > 0 ? (r->started - r->enqueued) * 1e6 : 0.0);
    if (r->finished <= 0)
        fprintf(t->out, ", \"state\": \"%s\"", r->started > 0 ? "started" : "enqueued");
}

static int thread_of(const struct trace *t, int rank, const struct flight_record *r)
{
    const struct flight_instruction *f =
        flight_instruction(t->run->rank[rank].h, r->program, r->index);

    return r->kind == FLIGHT_HOST_CALL || !f ? HOST : f->stream;
}

static void put_instruction(struct trace *t, int rank, const struct flight_record *r)
{
    const struct flight_header *h = t->run->rank[rank].h;
    const struct flight_instruction *f = flight_instruction(h, r->program, r->index);
    char name[256];

    if (!f)
        return;
    begin_event(t, "X", rank, f->stream);
    put_times(t, rank, begin_of(r), end_of(t, rank, r));
    snprintf(name, sizeof(name), "%s %s", flight_string(h, f->op), flight_string(h, f->value));
    put_string(t, "name", name);
    fprintf(t->out,
            ", \"args\": {\"step\": %lld, \"validation\": %s, \"instruction\": %d, "
            "\"microbatch\": %d, ",
            (long long)r->step, r->program > 0 ? "true" : "false", r->index, f->microbatch);
    put_string(t, "section", flight_string(h, f->section));
    fprintf(t->out, ", ");
    put_string(t, "layer", flight_string(h, f->region));
    fprintf(t->out, ", ");
    put_string(t, "sizes", flight_string(h, f->sizes));
    put_call_args(t, rank, r);
    fprintf(t->out, "}}");
}

static void put_host_call(struct trace *t, int rank, const struct flight_record *r)
{
    begin_event(t, "X", rank, HOST);
    put_times(t, rank, begin_of(r), end_of(t, rank, r));
    put_string(t, "name", ct_call_name((enum ct_call_kind)r->index));
    fprintf(t->out, ", \"args\": {\"step\": %lld", (long long)r->step);
    put_call_args(t, rank, r);
    fprintf(t->out, "}}");
}

static void put_step(struct trace *t, int rank, const struct flight_record *r)
{
    begin_event(t, "X", rank, STEPS);
    put_times(t, rank, r->enqueued, end_of(t, rank, r));
    fprintf(t->out, "\"name\": \"step %lld\"}", (long long)r->step);
    if (r->started <= r->enqueued)
        return;
    begin_event(t, "X", rank, STEPS);
    put_times(t, rank, r->enqueued, r->started);
    fprintf(t->out, "\"name\": \"data\"}");
}

static void put_record(struct trace *t, int rank, const struct flight_record *r)
{
    if (r->kind == FLIGHT_STEP)
        put_step(t, rank, r);
    else if (r->kind == FLIGHT_HOST_CALL)
        put_host_call(t, rank, r);
    else
        put_instruction(t, rank, r);
    if (r->group >= 0 && r->finished > 0)
        t->arrivals[t->count++] = (struct arrival){t->run->rank[rank].group[r->group], rank, r};
}

static int put_rank(struct trace *t, int rank)
{
    const struct flight_header *h = t->run->rank[rank].h;
    uint64_t first, last;

    if (!h)
        return 0;
    first = flight_first(h);
    last = atomic_load(&h->written);
    t->arrivals = realloc(t->arrivals, sizeof(*t->arrivals) * (t->count + h->ring_count + 1));
    if (!t->arrivals)
        return ct_fail(CT_ENOMEM, "a trace");
    name_threads(t, rank);
    for (uint64_t id = first; id <= last; id++) {
        const struct flight_record *r = flight_at(h, id);

        if (r && (r->group == -1 || flight_is_group(h, r->group)) &&
            (r->kind != FLIGHT_HOST_CALL || (r->index >= 0 && r->index < CT_CALL_KINDS)))
            put_record(t, rank, r);
    }
    return 0;
}

/* ---- arrows ---- */

static int compare_arrivals(const void *a, const void *b)
{
    const struct arrival *x = a, *y = b;

    if (x->group != y->group)
        return x->group < y->group ? -1 : 1;
    if (x->record->sequence != y->record->sequence)
        return x->record->sequence < y->record->sequence ? -1 : 1;
    return x->rank - y->rank;
}

static bool sends(const struct trace *t, const struct arrival *a)
{
    const struct flight_instruction *f =
        flight_instruction(t->run->rank[a->rank].h, a->record->program, a->record->index);

    return a->record->kind == FLIGHT_CALL && f && f->form == FLIGHT_SEND;
}

/* The sender, or the last to begin. */
static size_t source(const struct trace *t, const struct arrival *a, size_t count)
{
    size_t from = 0;

    for (size_t i = 0; i < count; i++) {
        if (sends(t, &a[i]))
            return i;
        if (micros(t, a[i].rank, begin_of(a[i].record)) >
            micros(t, a[from].rank, begin_of(a[from].record)))
            from = i;
    }
    return from;
}

static void put_arrow(struct trace *t, const struct arrival *a, bool begins, size_t id)
{
    double at = begins ? begin_of(a->record) : a->record->finished;

    begin_event(t, begins ? "s" : "f", a->rank, thread_of(t, a->rank, a->record));
    fprintf(t->out, ", \"ts\": %.3f, \"id\": %zu, \"cat\": \"call\", \"name\": \"call\"%s}",
            micros(t, a->rank, at), id, begins ? "" : ", \"bp\": \"e\"");
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
                    a[n].record->sequence == a->record->sequence;
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

static double first_time(const struct flight_run *run)
{
    double first = run->now;

    for (int r = 0; r < run->world; r++) {
        const struct flight_header *h = run->rank[r].h;

        for (uint64_t id = h ? flight_first(h) : 1; h && id <= atomic_load(&h->written); id++) {
            const struct flight_record *record = flight_at(h, id);

            if (record && flight_time(h, record->enqueued) < first)
                first = flight_time(h, record->enqueued);
        }
    }
    return first;
}

int flight_trace(const struct flight_run *run, const char *path)
{
    struct trace t = {.run = run, .begin = first_time(run)};
    struct ct_new_file file;
    int rc = ct_file_begin(&file, path);

    if (rc < 0)
        return ct_context(rc, "--trace");
    t.out = file.out;
    fprintf(t.out, "{\"displayTimeUnit\": \"ms\", \"traceEvents\": [");
    for (int r = 0; rc == 0 && r < run->world; r++)
        rc = put_rank(&t, r);
    if (rc == 0)
        put_arrows(&t);
    fprintf(t.out, "\n]}\n");
    free(t.arrivals);
    return ct_file_end(&file, rc);
}
