/*
 * The memory plan: offsets for buffers with known lives.
 *
 * Buffers that live for the whole program come first, in order of creation. The others are placed
 * in program order, each into the smallest free gap that holds it, as memory that was just freed is
 * the most likely to be cached. The result is exact: the arena ends at the highest end of any
 * buffer. The device's host memory is planned in the same way, separately.
 */
#include <stdlib.h>
#include <string.h>

#include <ctitan/app/sorted.h>
#include "lower/lower.h"

static size_t align(size_t bytes)
{
    return (bytes + CT_BUFFER_ALIGNMENT - 1) / CT_BUFFER_ALIGNMENT * CT_BUFFER_ALIGNMENT;
}

static bool lives_always(const struct ct_buffer *b)
{
    return b->first == INT64_MIN && b->last == INT64_MAX;
}

/* Free gaps below `end`, no two adjacent. */
struct gap {
    size_t offset, bytes;
    struct ct_sorted_node *by_offset, *by_bytes;
    struct gap *next_unused;
};

struct gaps {
    struct ct_sorted by_offset, by_bytes;
    struct gap *unused;
    size_t end;
    struct ct_arena *arena;
};

static void gap_remove(struct gaps *g, struct gap *gap)
{
    ct_sorted_remove(&g->by_offset, gap->by_offset);
    ct_sorted_remove(&g->by_bytes, gap->by_bytes);
    gap->next_unused = g->unused;
    g->unused = gap;
}

static void gap_insert(struct gaps *g, size_t offset, size_t bytes)
{
    struct gap *gap = g->unused;

    if (gap)
        g->unused = gap->next_unused;
    else
        gap = ct_arena_new(g->arena, struct gap);
    gap->offset = offset;
    gap->bytes = bytes;
    gap->by_offset = ct_sorted_insert(&g->by_offset, offset, 0, gap);
    gap->by_bytes = ct_sorted_insert(&g->by_bytes, bytes, offset, gap);
}

static struct gap *gap_of(const struct ct_sorted_node *node)
{
    return node ? node->item : NULL;
}

static void release(struct gaps *g, size_t offset, size_t bytes)
{
    struct gap *next = gap_of(ct_sorted_at_least(&g->by_offset, offset, 0));
    struct gap *before = gap_of(ct_sorted_below(&g->by_offset, offset, 0));

    if (!bytes)
        return;
    if (next && offset + bytes == next->offset) {
        bytes += next->bytes;
        gap_remove(g, next);
    }
    if (before && before->offset + before->bytes == offset) {
        offset = before->offset;
        bytes += before->bytes;
        gap_remove(g, before);
    }
    gap_insert(g, offset, bytes);
}

/* Allocate at the top, using a gap that touches it. */
static size_t take_top(struct gaps *g, size_t bytes)
{
    struct gap *last = gap_of(ct_sorted_below(&g->by_offset, SIZE_MAX, 0));
    size_t offset = g->end;

    if (last && last->offset + last->bytes == g->end) {
        offset = last->offset;
        gap_remove(g, last);
    }
    g->end = offset + bytes;
    return offset;
}

/* Allocate from the smallest gap that fits, the first of equal ones. */
static size_t take(struct gaps *g, size_t bytes)
{
    struct gap *best = gap_of(ct_sorted_at_least(&g->by_bytes, bytes, 0));
    size_t offset, rest;

    if (!bytes)
        return 0;
    if (!best)
        return take_top(g, bytes);
    offset = best->offset;
    rest = best->bytes - bytes;
    gap_remove(g, best);
    if (rest)
        gap_insert(g, offset + bytes, rest);
    return offset;
}

struct event {
    int64_t at;
    struct ct_buffer *buffer;
    bool begins;
};

/* Sort by time. A buffer that dies at an instruction frees its memory for the next one. Ties:
   larger buffers first, then by creation, so that the order is total. */
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

static struct event *sort_events(struct ct_program *p, enum ct_space space,
                                 struct ct_arena *scratch, size_t *count)
{
    struct event *events = ct_arena_array(scratch, struct event, 2 * p->buffer_count + 1);
    size_t n = 0;

    for (size_t i = 0; i < p->buffer_count; i++) {
        struct ct_buffer *b = &p->buffers[i];

        if (lives_always(b) || b->space != space)
            continue;
        events[n++] = (struct event){b->first, b, true};
        if (b->last != INT64_MAX)
            events[n++] = (struct event){b->last + 1, b, false};
    }
    qsort(events, n, sizeof(*events), compare_events);
    *count = n;
    return events;
}

static void place_persistent(struct ct_program *p, enum ct_space space, struct ct_memory *m)
{
    for (size_t i = 0; i < p->buffer_count; i++) {
        struct ct_buffer *b = &p->buffers[i];

        if (!lives_always(b) || b->space != space)
            continue;
        b->offset = m->persistent;
        m->persistent += align(b->bytes);
        m->peak[b->category] += align(b->bytes);
    }
}

/* The peak of each category, and the size of each when the sum was largest. */
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

static void plan(struct ct_program *p, enum ct_space space, struct ct_memory *m,
                 struct ct_arena *scratch)
{
    struct gaps gaps = {ct_sorted_create(scratch), ct_sorted_create(scratch), .arena = scratch};
    size_t count;
    struct event *events = sort_events(p, space, scratch, &count);

    place_persistent(p, space, m);
    gaps.end = m->persistent;
    for (size_t i = 0; i < count; i++) {
        struct ct_buffer *b = events[i].buffer;

        if (events[i].begins)
            b->offset = take(&gaps, align(b->bytes));
        else
            release(&gaps, b->offset, align(b->bytes));
    }
    m->bytes = gaps.end; /* it never falls */
    count_peaks(m, events, count);
}

static void *resolve(const struct ct_program *p, void *code)
{
    uint64_t bits = (uint64_t)(uintptr_t)code,
             offset = bits & (((uint64_t)1 << CT_OFFSET_BITS) - 1);

    return (void *)(uintptr_t)(p->buffers[(bits >> CT_OFFSET_BITS) - 1].offset + offset);
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
                in[k].ndim = -1;
        for (int k = 0; k < launch->outs; k++)
            out[k].data = resolve(p, out[k].data);
        list[i].workspace = launch->workspace ? (size_t)resolve(p, launch->workspace) : SIZE_MAX;
        launch->workspace = NULL;
    }
}

void ct_lower_plan(struct ct_program *p, struct ct_arena *scratch)
{
    plan(p, CT_SPACE_DEVICE, &p->memory, scratch);
    plan(p, CT_SPACE_HOST, &p->host, scratch);
    for (size_t i = 0; i < p->buffer_count; i++)
        if (p->buffers[i].space == CT_SPACE_HOST)
            p->buffers[i].offset += CT_HOST_OFFSET;
    resolve_all(p, p->init, p->init_count);
    resolve_all(p, p->step, p->step_count);
}
