/*
 * Memory as segments, each with the last instruction of every stream that wrote it and that read
 * it. Segments are disjoint, ordered, and cover all addresses.
 */
#ifndef CT_SEGMENTS_H
#define CT_SEGMENTS_H

#include <ctitan/device/device.h>

#include <ctitan/app/sorted.h>

CT_BEGIN_DECLS

struct ct_segment {
    size_t begin, end;
    int64_t write[CT_STREAMS], read[CT_STREAMS]; /* numbers of instructions; -1: none */
    struct ct_sorted_node *node;
    struct ct_segment *next_unused;
};

struct ct_segments {
    struct ct_arena *arena;
    struct ct_sorted sorted; /* by begin */
    struct ct_segment *unused;
    size_t count, visited; /* segments; those that ct_segments_first and _next have returned */
};

/* One segment covers all addresses at first, without accesses. Segments are in arena. */
CT_API void ct_segments_init(struct ct_segments *s, struct ct_arena *arena);
/* Iterate over the segments of [begin, end), which are split at its bounds. */
CT_API struct ct_segment *ct_segments_first(struct ct_segments *s, size_t begin, size_t end);
/* NULL: the next segment begins at or after `end`. */
CT_API struct ct_segment *ct_segments_next(struct ct_segments *s, const struct ct_segment *segment,
                                           size_t end);
/* Merge [begin, end) into one segment that instruction n of a stream wrote, after all earlier
   accesses to it. */
CT_API void ct_segments_write(struct ct_segments *s, size_t begin, size_t end, int stream,
                              int64_t n);

CT_END_DECLS

#endif
