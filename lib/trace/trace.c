#include <math.h>

#include <jansson.h>

#include <ctitan/error.h>
#include <ctitan/lib/json.h>
#include <ctitan/lib/trace.h>

static void begin_event(struct ct_trace *t, const char *phase, int process, int thread)
{
    fprintf(t->out, "%s\n{\"ph\": \"%s\", \"pid\": %d, \"tid\": %d", t->comma ? "," : "", phase,
            process, thread);
    t->comma = true;
}

static void put_text(struct ct_trace *t, const char *key, const char *text)
{
    json_t *string = ct_json_text(text);

    fprintf(t->out, "\"%s\": ", key);
    if (!string || json_dumpf(string, t->out, JSON_ENCODE_ANY) < 0)
        fputs("null", t->out);
    json_decref(string);
}

/* 0 for a time that no double holds: JSON has no infinity. */
static double micros(double seconds)
{
    double time = round(seconds * 1e9) * 1e-3;

    return isfinite(time) ? time : 0;
}

void ct_trace_begin(struct ct_trace *t, FILE *out)
{
    *t = (struct ct_trace){.out = out};
    fputs("{\"displayTimeUnit\": \"ms\", \"traceEvents\": [", out);
}

void ct_trace_name(struct ct_trace *t, int process, int thread, const char *name)
{
    begin_event(t, "M", process, thread);
    fprintf(t->out, ", \"name\": \"%s\", \"args\": {", thread < 0 ? "process_name" : "thread_name");
    put_text(t, "name", name);
    fputs("}}", t->out);
}

void ct_trace_rank(struct ct_trace *t, int process, int64_t rank)
{
    char name[32];

    snprintf(name, sizeof(name), "rank %lld", (long long)rank);
    ct_trace_name(t, process, -1, name);
}

void ct_trace_slice(struct ct_trace *t, int process, int thread, const char *name, double start,
                    double end)
{
    begin_event(t, "X", process, thread);
    fprintf(t->out, ", \"ts\": %.3f, \"dur\": %.3f, ", micros(start),
            fmax(micros(end) - micros(start), 0));
    put_text(t, "name", name);
    fputs(", \"args\": {", t->out);
    t->comma = false;
}

static void next_argument(struct ct_trace *t)
{
    fputs(t->comma ? ", " : "", t->out);
    t->comma = true;
}

void ct_trace_text(struct ct_trace *t, const char *key, const char *value)
{
    next_argument(t);
    put_text(t, key, value);
}

void ct_trace_integer(struct ct_trace *t, const char *key, int64_t value)
{
    next_argument(t);
    fprintf(t->out, "\"%s\": %lld", key, (long long)value);
}

void ct_trace_number(struct ct_trace *t, const char *key, double value)
{
    next_argument(t);
    if (isfinite(value))
        fprintf(t->out, "\"%s\": %.12g", key, value);
    else
        fprintf(t->out, "\"%s\": null", key);
}

void ct_trace_flag(struct ct_trace *t, const char *key, bool value)
{
    next_argument(t);
    fprintf(t->out, "\"%s\": %s", key, value ? "true" : "false");
}

void ct_trace_close(struct ct_trace *t)
{
    fputs("}}", t->out);
    t->comma = true;
}

void ct_trace_arrow(struct ct_trace *t, size_t id, bool begins, int process, int thread, double at)
{
    begin_event(t, begins ? "s" : "f", process, thread);
    fprintf(t->out, ", \"ts\": %.3f, \"id\": %zu, \"cat\": \"call\", \"name\": \"call\"%s}",
            micros(at), id, begins ? "" : ", \"bp\": \"e\"");
}

void ct_trace_step(struct ct_trace *t, int process, int64_t step, double start, double data_end,
                   double end)
{
    char name[32];

    snprintf(name, sizeof(name), "step %lld", (long long)step);
    ct_trace_slice(t, process, CT_TRACE_STEPS, name, start, end);
    ct_trace_close(t);
    if (data_end <= start)
        return;
    ct_trace_slice(t, process, CT_TRACE_STEPS, "data", start, data_end);
    ct_trace_close(t);
}

int ct_trace_end(struct ct_trace *t, const char *other)
{
    fputs("\n]", t->out);
    if (other)
        fprintf(t->out, ", \"otherData\": %s", other);
    fputs("}\n", t->out);
    return fflush(t->out) || ferror(t->out) ? ct_fail(CT_EIO, "cannot write the trace") : 0;
}

/* ---- instructions ---- */

int ct_instruction_name(const struct ct_instruction *i, char *text, size_t room)
{
    const struct ct_op *op = i->op;
    const char *value = op->outs ? op->out[0]->name : op->ins ? op->in[0]->name : "";

    return snprintf(text, room, "%s %s", op->type->name, value);
}

void ct_trace_instruction(struct ct_trace *t, int process, const struct ct_instruction *i,
                          double start, double end)
{
    const struct ct_op *op = i->op;
    char name[256];

    ct_instruction_name(i, name, sizeof(name));
    ct_trace_slice(t, process, i->stream, name, start, end);
    ct_trace_text(t, "section", op->section ? op->section->name : "");
    ct_trace_integer(t, "microbatch", i->microbatch);
    ct_trace_text(t, "layer", op->region ? op->region : "");
    ct_trace_number(t, "sent", i->lowered->sent);
}

void ct_trace_streams(struct ct_trace *t, int process, const struct ct_program *p)
{
    bool used[CT_STREAMS] = {false};

    for (size_t n = 0; n < p->step_count; n++) {
        int stream = p->step[n].stream;

        if (!used[stream])
            ct_trace_name(t, process, stream, ct_stream_name(stream));
        used[stream] = true;
    }
}
