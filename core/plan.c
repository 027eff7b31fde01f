/*
 * The memory plan: offsets for buffers whose lives are known.
 *
 * What lives always comes first, in order of creation. The rest is placed in program order, each
 * buffer into the smallest free gap that holds it, as memory that was just freed is the likeliest
 * to be in a cache. The result is exact: the arena is as large as the highest end of any buffer.
 * The device's second memory is planned in the same way, by itself.
 */
#include <stdlib.h>
#include <string.h>

#include "lower.h"

#define ALIGNMENT 64

static size_t align(size_t bytes)
{
    return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

static bool lives_always(const struct ct_buffer *b)
{
    return b->first == INT64_MIN && b->last == INT64_MAX;
}

/* Free gaps below `end`, sorted by offset, none adjacent. */
struct gaps {
    struct gap {
        size_t offset, bytes;
    } * item;
    size_t count, room, end;
    struct ct_arena *arena;
};

static void gap_remove(struct gaps *g, size_t i)
{
    memmove(&g->item[i], &g->item[i + 1], sizeof(*g->item) * (--g->count - i));
}

static void gap_insert(struct gaps *g, size_t i, struct gap gap)
{
    g->item = ct_arena_grow(g->arena, g->item, &g->room, g->count + 1, sizeof(*g->item));
    memmove(&g->item[i + 1], &g->item[i], sizeof(*g->item) * (g->count++ - i));
    g->item[i] = gap;
}

static void release(struct gaps *g, size_t offset, size_t bytes)
{
    size_t i = 0;

    while (i < g->count && g->item[i].offset < offset)
        i++;
    if (i < g->count && offset + bytes == g->item[i].offset) {
        bytes += g->item[i].bytes;
        gap_remove(g, i);
    }
    if (i > 0 && g->item[i - 1].offset + g->item[i - 1].bytes == offset) {
        g->item[i - 1].bytes += bytes;
        return;
    }
    gap_insert(g, i, (struct gap){offset, bytes});
}

static size_t take(struct gaps *g, size_t bytes)
{
    size_t best = SIZE_MAX, offset;

    for (size_t i = 0; i < g->count; i++)
        if (g->item[i].bytes >= bytes &&
            (best == SIZE_MAX || g->item[i].bytes < g->item[best].bytes))
            best = i;
    if (best == SIZE_MAX) {
        /* Grow the top, using a gap that touches it. */
        bool touches =
            g->count && g->item[g->count - 1].offset + g->item[g->count - 1].bytes == g->end;

        offset = touches ? g->item[--g->count].offset : g->end;
        g->end = offset + bytes;
        return offset;
    }
    offset = g->item[best].offset;
    g->item[best].offset += bytes;
    g->item[best].bytes -= bytes;
    if (g->item[best].bytes == 0)
        gap_remove(g, best);
    return offset;
}

struct event {
    int64_t at;
    struct ct_buffer *buffer;
    bool begins;
};

/* In time; where a life ends at an instruction, its memory is free from the next one on. Larger
   buffers first, then by creation, so that the order is total. */
static int compare_events(const void *a, const void *b)
{
    const struct event *x = a, *y = b;

    if (x->at != y->at)
        return x->at < y->at ? -1 : 1;
    if (x->begins != y->begins)
        return x->begins ? 1 : -1;
    if (x->buffer->bytes != y->buffer->bytes)
        return x->buffer->bytes > y->buffer->bytes ? -1 : 1;
    return x->buffer < y->buffer ? -1 : x->buffer > y->buffer;
}

static struct event *sort_events(struct ct_program *p, bool offloaded, struct ct_arena *scratch,
                                 size_t *count)
{
    struct event *events = ct_arena_array(scratch, struct event, 2 * p->buffer_count + 1);
    size_t n = 0;

    for (size_t i = 0; i < p->buffer_count; i++) {
        struct ct_buffer *b = &p->buffers[i];

        if (lives_always(b) || b->offloaded != offloaded)
            continue;
        events[n++] = (struct event){b->first, b, true};
        if (b->last != INT64_MAX)
            events[n++] = (struct event){b->last + 1, b, false};
    }
    qsort(events, n, sizeof(*events), compare_events);
    *count = n;
    return events;
}

static void place_persistent(struct ct_program *p, bool offloaded, struct ct_memory *m)
{
    for (size_t i = 0; i < p->buffer_count; i++) {
        struct ct_buffer *b = &p->buffers[i];

        if (!lives_always(b) || b->offloaded != offloaded)
            continue;
        b->offset = m->persistent;
        m->persistent += align(b->bytes);
        m->peak[b->category] += align(b->bytes);
    }
}

/* Peaks of each category, and what each held when the sum was largest. */
static void count_peaks(struct ct_memory *m, const struct event *events, size_t count)
{
    size_t now[CT_CATEGORY_COUNT], sum = 0, most = 0;

    memcpy(now, m->peak, sizeof(now));
    memcpy(m->at_peak, now, sizeof(now));
    for (size_t i = 0; i < count; i++) {
        enum ct_category c = events[i].buffer->category;
        size_t bytes = align(events[i].buffer->bytes);

        now[c] += events[i].begins ? bytes : -bytes;
        sum += events[i].begins ? bytes : -bytes;
        if (now[c] > m->peak[c])
            m->peak[c] = now[c];
        if (sum > most) {
            most = sum;
            memcpy(m->at_peak, now, sizeof(now));
        }
    }
}

static void plan(struct ct_program *p, bool offloaded, struct ct_memory *m,
                 struct ct_arena *scratch)
{
    struct gaps gaps = {.arena = scratch};
    struct event *events;
    size_t count;

    place_persistent(p, offloaded, m);
    m->bytes = gaps.end = m->persistent;
    events = sort_events(p, offloaded, scratch, &count);
    for (size_t i = 0; i < count; i++) {
        struct ct_buffer *b = events[i].buffer;

        if (events[i].begins)
            b->offset = take(&gaps, align(b->bytes));
        else
            release(&gaps, b->offset, align(b->bytes));
        if (gaps.end > m->bytes)
            m->bytes = gaps.end;
    }
    count_peaks(m, events, count);
}

static void *resolve(const struct ct_program *p, void *code)
{
    uint64_t bits = (uint64_t)(uintptr_t)code;

    return (void *)(uintptr_t)(p->buffers[(bits >> 40) - 1].offset + (bits & 0xffffffffffu));
}

static void resolve_all(struct ct_program *p, struct ct_instruction *list, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        struct ct_launch *launch = &list[i].launch;
        struct ct_tensor *in = (struct ct_tensor *)launch->in;
        struct ct_tensor *out = (struct ct_tensor *)launch->out;

        for (int k = 0; k < launch->ins; k++)
            if (in[k].data)
                in[k].data = resolve(p, in[k].data);
            else
                in[k].rank = -1;
        for (int k = 0; k < launch->outs; k++)
            out[k].data = resolve(p, out[k].data);
        list[i].workspace = launch->workspace ? (size_t)resolve(p, launch->workspace) : SIZE_MAX;
        launch->workspace = NULL;
    }
}

void ct_lower_plan(struct ct_program *p, struct ct_arena *scratch)
{
    plan(p, false, &p->memory, scratch);
    plan(p, true, &p->offloaded, scratch);
    for (size_t i = 0; i < p->buffer_count; i++)
        if (p->buffers[i].offloaded)
            p->buffers[i].offset += CT_OFFLOADED;
    resolve_all(p, p->init, p->init_count);
    resolve_all(p, p->step, p->step_count);
}
