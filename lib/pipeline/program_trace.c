/*
 * A simulated step for the eye: as a Chrome trace and as SVG.
 */
#include <string.h>

#include <jansson.h>

#include <ctitan/error.h>
#include <ctitan/lib/app/simulate.h>
#include <ctitan/op.h>

static const char *section_of(const struct ct_instruction *i)
{
    return i->op->section ? i->op->section->name : "";
}

/* ---- trace ---- */

/* Takes over `event`. */
static int write_event(json_t *event, bool first, FILE *out)
{
    int rc = fputs(first ? "" : ",\n", out);

    if (!event || rc < 0 || json_dumpf(event, out, JSON_COMPACT | JSON_REAL_PRECISION(12)) < 0)
        rc = ct_fail(CT_EIO, "cannot write the trace");
    json_decref(event);
    return rc < 0 ? rc : 0;
}

static json_t *label(const char *what, int index, int stream, const char *name)
{
    return json_pack("{ss si si ss s{ss}}", "ph", "M", "pid", index, "tid", stream, "name", what,
                     "args", "name", name);
}

static json_t *slice(const struct ct_instruction *i, int index, double start, double end)
{
    const struct ct_op *op = i->op;
    const char *value = op->outs ? op->out[0]->name : op->ins ? op->in[0]->name : "";
    char name[256];

    snprintf(name, sizeof(name), "%s %s", op->type->name, value);
    return json_pack("{ss si si ss ss sf sf s{ss si ss sf}}", "ph", "X", "pid", index, "tid",
                     (int)i->stream, "name", name, "cat", section_of(i), "ts", start * 1e6, "dur",
                     (end - start) * 1e6, "args", "section", section_of(i), "microbatch",
                     (int)i->microbatch, "layer", op->region ? op->region : "", "sent",
                     i->lowered->sent);
}

int ct_simulated_trace(const struct ct_simulate_request *r, const struct ct_simulated *result,
                       FILE *out)
{
    bool first = true;
    int rc = fputs("[\n", out) < 0 ? CT_EIO : 0;

    for (int index = 0; rc == 0 && index < r->count; index++) {
        bool used[CT_STREAMS] = {false};
        char name[64];

        snprintf(name, sizeof(name), "rank %lld", (long long)r->rank[index]);
        rc = write_event(label("process_name", index, 0, name), first, out);
        first = false;
        for (size_t n = 0; rc == 0 && n < r->program[index]->step_count; n++) {
            const struct ct_instruction *i = &r->program[index]->step[n];

            if (!used[i->stream])
                rc = write_event(label("thread_name", index, i->stream, ct_stream_name(i->stream)),
                                 false, out);
            used[i->stream] = true;
            if (rc == 0)
                rc = write_event(slice(i, index, result->start[index][n], result->end[index][n]),
                                 false, out);
        }
    }
    if (rc == 0 && (fputs("\n]\n", out) < 0 || fflush(out) != 0))
        rc = ct_fail(CT_EIO, "cannot write the trace");
    return rc;
}
