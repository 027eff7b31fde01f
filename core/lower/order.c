/*
 * The order of a step: lists of sections, and the ops that they contain.
 */
#include <string.h>

#include <ctitan/error.h>

#include "lower/lower.h"

void ct_order_append(struct ct_arena *arena, struct ct_order *order, struct ct_order_item item)
{
    order->item =
        ct_arena_grow(arena, order->item, &order->room, order->count + 1, sizeof(*order->item));
    order->item[order->count++] = item;
}

void ct_order_default(struct ct_graph *graph, int microbatches, struct ct_arena *arena,
                      struct ct_order *order)
{
    const struct ct_section *f = ct_graph_section(graph, CT_PART_F, CT_NO_GROUP);
    const struct ct_section *i = ct_graph_section(graph, CT_PART_I, CT_NO_GROUP);
    const struct ct_section *w = ct_graph_section(graph, CT_PART_W, CT_NO_GROUP);

    *order = (struct ct_order){0};
    for (int m = 0; m < microbatches; m++) {
        ct_order_append(arena, order,
                        (struct ct_order_item){.name = ct_arena_printf(arena, "F%d", m),
                                               .run = {{f}, m},
                                               .beside = {.microbatch = -1}});
        ct_order_append(arena, order,
                        (struct ct_order_item){.name = ct_arena_printf(arena, "B%d", m),
                                               .run = {{i, w}, m},
                                               .beside = {.microbatch = -1}});
    }
}

/* ---- ops by section ---- */

static void sort_by_section(struct ct_lowering *l)
{
    size_t sections = l->graph->section_count;

    l->section = ct_arena_array(&l->scratch, struct ct_positions, sections + 1);
    l->listed = ct_arena_array(&l->scratch, bool, sections + 1);
    l->runs = ct_arena_array(&l->scratch, uint32_t, sections + 1);
    for (size_t n = 0; n < l->op_count; n++)
        l->section[l->op_at[n]->section->id].count++;
    for (size_t s = 0; s < sections; s++) {
        l->section[s].at = ct_arena_array(&l->scratch, uint32_t, l->section[s].count + 1);
        l->section[s].count = 0;
    }
    for (size_t n = 0; n < l->op_count; n++) {
        struct ct_positions *p = &l->section[l->op_at[n]->section->id];

        p->at[p->count++] = (uint32_t)n;
    }
}

/* ---- faults ---- */

/* Number of runs of a section, by section id x (microbatches + 1) + microbatch + 1. */
struct tally {
    struct ct_lowering *l;
    uint8_t *runs;
};

static uint8_t *runs_of(const struct tally *t, const struct ct_section *s, int microbatch)
{
    return &t->runs[(size_t)s->id * (size_t)(t->l->request->microbatches + 1) +
                    (size_t)(microbatch + 1)];
}

static int count_section(const struct tally *t, const struct ct_order_item *item,
                         const struct ct_section *s, int microbatch)
{
    const struct ct_graph *g = t->l->graph;
    bool repeats = ct_part_is_microbatch(s->part);

    if (s->id >= g->section_count || g->sections[s->id] != s)
        return ct_fail(CT_EINVAL, "%s: section %s is not of this graph", item->name, s->name);
    if (s->part == CT_PART_INIT)
        return ct_fail(CT_EINVAL, "%s: section %s runs before the first step", item->name, s->name);
    if (repeats ? microbatch < 0 || microbatch >= t->l->request->microbatches : microbatch >= 0)
        return ct_fail(CT_EINVAL, "%s: section %s, microbatch %d of %d", item->name, s->name,
                       microbatch, t->l->request->microbatches);
    t->l->listed[s->id] = true;
    t->l->runs[s->id] += !item->release;
    if (item->release)
        *runs_of(t, s, microbatch) = 0;
    else if ((*runs_of(t, s, microbatch))++)
        return ct_fail(CT_EINVAL, "%s: section %s runs a second time", item->name, s->name);
    return 0;
}

static int count_span(const struct tally *t, const struct ct_order_item *item,
                      const struct ct_span *span)
{
    int rc = 0;

    for (int i = 0; rc == 0 && i < 2; i++)
        if (span->section[i])
            rc = count_section(t, item, span->section[i], span->microbatch);
    return rc;
}

static int check_all_run(const struct tally *t)
{
    for (size_t i = 0; i < t->l->graph->section_count; i++) {
        const struct ct_section *s = t->l->graph->sections[i];

        for (int m = 0; m < t->l->request->microbatches; m++)
            if (ct_part_is_microbatch(s->part) && t->l->section[i].count && !*runs_of(t, s, m))
                return ct_fail(CT_EINVAL,
                               "the order of the step never runs section %s, microbatch %d",
                               s->name, m);
    }
    return 0;
}

int ct_lower_check_order(struct ct_lowering *l)
{
    const struct ct_order *order = &l->program->order;
    struct tally t = {.l = l};
    int rc = 0;

    sort_by_section(l);
    t.runs = ct_arena_array(&l->scratch, uint8_t,
                            (l->graph->section_count + 1) * (size_t)(l->request->microbatches + 1));
    for (size_t i = 0; rc == 0 && i < order->count; i++) {
        rc = count_span(&t, &order->item[i], &order->item[i].run);
        if (rc == 0)
            rc = count_span(&t, &order->item[i], &order->item[i].beside);
    }
    return rc < 0 ? rc : check_all_run(&t);
}
