/*
 * A simulated step for the eye: as a Chrome trace and as SVG.
 */
#include <string.h>

#include <jansson.h>

#include <ctitan/error.h>
#include <ctitan/lib/app/simulate.h>
#include <ctitan/op.h>

static const char *const stream_names[CT_STREAMS] = {
    "compute", "gather", "reduce", "ring", "copy in", "copy out", "send", "receive", "chunks"};

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
                rc = write_event(label("thread_name", index, i->stream, stream_names[i->stream]),
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

/* ---- SVG ---- */

#define WIDTH 1400.0
#define LEFT 80.0
#define ROW 34.0

/* Colours of forwards, backwards, their halves towards weights, what comes before and after. */
static const char *colour_of(const struct ct_instruction *i)
{
    const char *s = section_of(i);

    s += strspn(s, "0123456789");
    if (i->op->type->flags & (CT_OP_COLLECTIVE | CT_OP_RENDEZVOUS | CT_OP_SPACES))
        return "#b0b0b0";
    return *s == 'F' ? "#4c78c8" : *s == 'I' ? "#58a868" : *s == 'W' ? "#e0a030" : "#9060b0";
}

/* Slices of one colour that follow each other are one rectangle. */
struct rectangle {
    double start, end;
    const char *colour;
    int microbatch;
    const struct ct_instruction *first;
};

static void draw(const struct rectangle *r, double y, double height, double scale, FILE *out)
{
    if (r->colour)
        fprintf(out,
                "<rect x='%.2f' y='%.1f' width='%.2f' height='%.1f' fill='%s'>"
                "<title>%s, microbatch %d: %.3f to %.3f ms</title></rect>\n",
                LEFT + r->start * scale, y, (r->end - r->start) * scale, height, r->colour,
                section_of(r->first), r->microbatch, r->start * 1e3, r->end * 1e3);
}

static void draw_rank(const struct ct_simulate_request *r, const struct ct_simulated *result,
                      int index, bool talk, double y, double height, double scale, FILE *out)
{
    struct rectangle at = {0};

    for (size_t n = 0; n < r->program[index]->step_count; n++) {
        const struct ct_instruction *i = &r->program[index]->step[n];
        double start = result->start[index][n], end = result->end[index][n];
        const char *colour = colour_of(i);

        if ((*colour == '#' && !strcmp(colour, "#b0b0b0")) != talk)
            continue;
        if (at.colour == colour && at.microbatch == i->microbatch &&
            (start - at.end) * scale < 0.5 && start >= at.start) {
            at.end = end > at.end ? end : at.end;
            continue;
        }
        draw(&at, y, height, scale, out);
        at = (struct rectangle){start, end, colour, i->microbatch, i};
    }
    draw(&at, y, height, scale, out);
}

int ct_simulated_svg(const struct ct_simulate_request *r, const struct ct_simulated *result,
                     FILE *out)
{
    double scale = (WIDTH - LEFT - 20) / (result->seconds > 0 ? result->seconds : 1);

    fprintf(
        out,
        "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 %.0f %.0f' "
        "font-family='sans-serif' font-size='12'>\n<rect width='100%%' height='100%%' "
        "fill='white'/>\n<text x='%.0f' y='18'>one step: %.3f ms; forward blue, backward green, "
        "weights' gradients orange, optimizer purple, communication grey</text>\n",
        WIDTH, 40 + ROW * r->count, LEFT, result->seconds * 1e3);
    for (int index = 0; index < r->count; index++) {
        double y = 30 + ROW * index;

        fprintf(out, "<text x='4' y='%.1f'>rank %lld</text>\n", y + 15, (long long)r->rank[index]);
        draw_rank(r, result, index, false, y, 18, scale, out);
        draw_rank(r, result, index, true, y + 20, 8, scale, out);
    }
    fputs("</svg>\n", out);
    return fflush(out) == 0 && !ferror(out) ? 0 : ct_fail(CT_EIO, "cannot write the SVG");
}
