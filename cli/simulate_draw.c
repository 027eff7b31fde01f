/* A simulated step as a picture: for each rank a row of its computing, and one of communication. */
#include <stdio.h>
#include <string.h>

#include <ctitan/error.h>
#include <ctitan/op.h>

#include "chart/chart.h"
#include "cli.h"
#include "work.h"

#define JOINED 0.0005 /* boxes of one kind closer than this share of the step are one */

static const char *section_of(const struct ct_instruction *i)
{
    return i->op->section ? i->op->section->name : "";
}

static enum work_kind kind_of(const struct ct_instruction *i)
{
    return work_of(section_of(i),
                   i->op->type->flags & (CT_OP_COLLECTIVE | CT_OP_RENDEZVOUS | CT_OP_SPACES));
}

struct picture {
    struct ct_arena *arena;
    struct ct_chart_timeline chart;
    struct ct_chart_span *span;
    size_t room;
    const struct ct_instruction **first; /* of each span */
};

static void add(struct picture *p, const struct ct_instruction *i, int row, double start,
                double end)
{
    size_t n = p->chart.count, room = p->room;
    int kind = (int)kind_of(i);

    for (size_t back = n; back-- > 0 && n - back <= 2;) {
        struct ct_chart_span *s = &p->span[back];

        if (s->row == row && s->kind == kind && p->first[back]->microbatch == i->microbatch &&
            p->first[back]->op->section == i->op->section &&
            start - s->end < JOINED * p->chart.end && start >= s->start) {
            s->end = end > s->end ? end : s->end;
            return;
        }
    }
    p->span = ct_arena_grow(p->arena, p->span, &p->room, n + 1, sizeof(*p->span));
    p->first = ct_arena_grow(p->arena, p->first, &room, n + 1, sizeof(*p->first));
    p->span[n] = (struct ct_chart_span){.row = row, .kind = kind, .start = start, .end = end};
    p->first[n] = i;
    p->chart.count++;
}

static void label(struct picture *p)
{
    for (size_t n = 0; n < p->chart.count; n++) {
        struct ct_chart_span *s = &p->span[n];

        s->label = ct_arena_printf(p->arena, "%s, %s, microbatch %d: %.3f to %.3f ms",
                                   work_names[s->kind], section_of(p->first[n]),
                                   (int)p->first[n]->microbatch, s->start, s->end);
    }
}

int simulate_draw(const struct ct_simulate_request *r, const struct ct_simulated *result, FILE *out)
{
    struct picture p = {.arena = r->arena};
    const char **row = ct_arena_array(r->arena, const char *, 2 * r->count);

    p.chart = (struct ct_chart_timeline){
        .title = ct_arena_printf(r->arena, "One step: %.3f ms", result->seconds * 1e3),
        .x_name = "ms",
        .row = row,
        .kind = work_names,
        .colour = work_colours,
        .rows = 2 * r->count,
        .kinds = WORK_KINDS,
        .end = result->seconds * 1e3,
        .width = 1200,
        .file = true};
    for (int index = 0; index < r->count; index++) {
        const struct ct_program *program = r->program[index];

        row[2 * index] = ct_arena_printf(r->arena, "rank %lld", (long long)r->rank[index]);
        row[2 * index + 1] = "communicates";
        for (size_t n = 0; n < program->step_count; n++) {
            const struct ct_instruction *i = &program->step[n];

            add(&p, i, 2 * index + (kind_of(i) == WORK_COMMUNICATION),
                result->start[index][n] * 1e3, result->end[index][n] * 1e3);
        }
    }
    label(&p);
    p.chart.span = p.span;
    ct_chart_timeline(&p.chart, out);
    return fflush(out) == 0 && !ferror(out) ? 0 : ct_fail(CT_EIO, "cannot write the SVG");
}
