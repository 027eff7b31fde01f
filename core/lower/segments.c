/*
 * A segment is split where an access begins or ends in it. A write joins those that it covers.
 * Dropped ones are used again.
 */
#include <string.h>

#include <ctitan/app/segments.h>

static struct ct_segment *segment_new(struct ct_segments *s, const struct ct_segment *like)
{
    struct ct_segment *segment = s->unused;

    if (segment)
        s->unused = segment->next_unused;
    else
        segment = ct_arena_new(s->arena, struct ct_segment);
    *segment = *like;
    segment->node = ct_sorted_insert(&s->sorted, like->begin, 0, segment);
    s->count++;
    return segment;
}

void ct_segments_init(struct ct_segments *s, struct ct_arena *arena)
{
    struct ct_segment all;

    *s = (struct ct_segments){.arena = arena, .sorted = ct_sorted_create(arena)};
    memset(&all, -1, sizeof(all));
    all.begin = 0;
    all.end = SIZE_MAX;
    segment_new(s, &all);
}

/* Split a segment so that one begins at `at`. */
static struct ct_segment *split(struct ct_segments *s, size_t at)
{
    struct ct_segment *left = ct_sorted_below(&s->sorted, at, 1)->item, right = *left;

    if (left->begin == at)
        return left;
    left->end = right.begin = at;
    return segment_new(s, &right);
}

struct ct_segment *ct_segments_first(struct ct_segments *s, size_t begin, size_t end)
{
    struct ct_segment *first;

    if (begin >= end)
        return NULL;
    first = split(s, begin);
    if (end < SIZE_MAX)
        split(s, end);
    s->visited++;
    return first;
}

struct ct_segment *ct_segments_next(struct ct_segments *s, const struct ct_segment *segment,
                                    size_t end)
{
    if (segment->end >= end)
        return NULL;
    s->visited++;
    return segment->node->next[0]->item;
}

static void drop(struct ct_segments *s, struct ct_segment *segment)
{
    ct_sorted_remove(&s->sorted, segment->node);
    segment->next_unused = s->unused;
    s->unused = segment;
    s->count--;
}

void ct_segments_write(struct ct_segments *s, size_t begin, size_t end, int stream, int64_t n)
{
    struct ct_segment *first = ct_segments_first(s, begin, end);

    if (!first)
        return;
    while (first->end < end) {
        struct ct_segment *next = first->node->next[0]->item;

        first->end = next->end;
        drop(s, next);
    }
    memset(first->write, -1, sizeof(first->write));
    memset(first->read, -1, sizeof(first->read));
    first->write[stream] = n;
}
