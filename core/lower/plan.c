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
    return b->first == INT32_MIN && b->last == INT32_MAX;
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

/* Buffers by the instruction at which they begin, or after which they end: those of time n are
   buffer[from[n - first]] up to buffer[from[n - first + 1]]. */
struct times {
    int32_t first, count; /* instructions, those of init included */
    uint32_t *from, *buffer;
};

static bool is_of(const struct ct_buffer *b, enum ct_space space, bool begins, int32_t *at)
{
    *at = begins ? b->first : b->last;
    return !lives_always(b) && b->space == space && (begins || b->last != INT32_MAX);
}

/* Larger buffers first, then by creation, so that the order is total. */
static int compare_buffers(const void *a, const void *b, void *buffers)
{
    uint32_t i = *(const uint32_t *)a, k = *(const uint32_t *)b;
    size_t x = ((const struct ct_buffer *)buffers)[i].bytes;
    size_t y = ((const struct ct_buffer *)buffers)[k].bytes;

    if (x != y)
        return x > y ? -1 : 1;
    return i < k ? -1 : i > k;
}

static struct times sort_by_time(const struct ct_program *p, enum ct_space space, bool begins,
                                 struct ct_arena *scratch)
{
    struct times t = {-(int32_t)p->init_count, (int32_t)(p->init_count + p->step_count),
                      ct_arena_array(scratch, uint32_t, p->init_count + p->step_count + 2), NULL};
    int32_t at;

    for (size_t i = 0; i < p->buffer_count; i++)
        if (is_of(&p->buffers[i], space, begins, &at))
            t.from[at - t.first + 2]++;
    for (int32_t n = 2; n <= t.count; n++)
        t.from[n + 1] += t.from[n];
    t.buffer = ct_arena_array(scratch, uint32_t, t.from[t.count + 1] + 1);
    for (size_t i = 0; i < p->buffer_count; i++)
        if (is_of(&p->buffers[i], space, begins, &at))
            t.buffer[t.from[at - t.first + 1]++] = (uint32_t)i;
    for (int32_t n = 0; n < t.count; n++)
        if (t.from[n + 1] - t.from[n] > 1)
            qsort_r(&t.buffer[t.from[n]], t.from[n + 1] - t.from[n], sizeof(*t.buffer),
                    compare_buffers, p->buffers);
    return t;
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

/* Bytes of each category that are live, and their sum. */
struct live {
    size_t now[CT_CATEGORY_COUNT], sum, most;
};

/* A buffer begins: the peak of each category, and the size of each when the sum was largest. */
static void count_peaks(struct ct_memory *m, struct live *live, const struct ct_buffer *b)
{
    live->now[b->category] += align(b->bytes);
    live->sum += align(b->bytes);
    if (live->now[b->category] > m->peak[b->category])
        m->peak[b->category] = live->now[b->category];
    if (live->sum > live->most) {
        live->most = live->sum;
        memcpy(m->at_peak, live->now, sizeof(live->now));
    }
}

static void plan(struct ct_program *p, enum ct_space space, struct ct_memory *m,
                 struct ct_arena *scratch)
{
    struct gaps gaps = {ct_sorted_create(scratch), ct_sorted_create(scratch), .arena = scratch};
    struct times begin = sort_by_time(p, space, true, scratch);
    struct times end = sort_by_time(p, space, false, scratch);
    struct live live = {.sum = 0};

    place_persistent(p, space, m);
    gaps.end = m->persistent;
    memcpy(live.now, m->peak, sizeof(live.now));
    memcpy(m->at_peak, m->peak, sizeof(live.now));
    for (int32_t n = 0; n < begin.count; n++) {
        /* a buffer that ends at an instruction frees its memory for the next one */
        for (uint32_t i = n ? end.from[n - 1] : 0; n && i < end.from[n]; i++) {
            const struct ct_buffer *b = &p->buffers[end.buffer[i]];

            release(&gaps, b->offset, align(b->bytes));
            live.now[b->category] -= align(b->bytes);
            live.sum -= align(b->bytes);
        }
        for (uint32_t i = begin.from[n]; i < begin.from[n + 1]; i++) {
            struct ct_buffer *b = &p->buffers[begin.buffer[i]];

            b->offset = take(&gaps, align(b->bytes));
            count_peaks(m, &live, b);
        }
    }
    m->bytes = gaps.end; /* it never falls */
}

void ct_lower_plan(struct ct_program *p, struct ct_arena *scratch)
{
    plan(p, CT_SPACE_DEVICE, &p->memory, scratch);
    plan(p, CT_SPACE_HOST, &p->host, scratch);
    for (size_t i = 0; i < p->buffer_count; i++)
        if (p->buffers[i].space == CT_SPACE_HOST)
            p->buffers[i].offset += CT_HOST_OFFSET;
}

size_t ct_instruction_offset(const struct ct_program *p, const struct ct_instruction *i,
                             int operand)
{
    int32_t b = i->buffers[operand];
    bool workspace = operand == i->op->ins + i->op->outs;

    if (b == CT_NO_BUFFER)
        return SIZE_MAX;
    return p->buffers[b].offset + (workspace ? 0 : i->lowered->offsets[operand]);
}
