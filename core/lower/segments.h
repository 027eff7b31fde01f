/*
 * Memory in segments, each with the last instructions of every stream that wrote and read it.
 * Segments are disjoint, in order, and cover all addresses.
 */
#ifndef CT_SEGMENTS_H
#define CT_SEGMENTS_H

#include <ctitan/device/device.h>

#include "base/sorted.h"

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
    size_t count, visited; /* segments; those that ct_segments_first and _next have given */
};

void ct_segments_init(struct ct_segments *s, struct ct_arena *arena);
/* The segments that make up [begin, end), split so that they end there. */
struct ct_segment *ct_segments_first(struct ct_segments *s, size_t begin, size_t end);
/* NULL: the next begins at `end` or behind it. */
struct ct_segment *ct_segments_next(struct ct_segments *s, const struct ct_segment *segment,
                                    size_t end);
/* Those of [begin, end) become one that instruction n of a stream wrote, after all that ever
   touched them. */
void ct_segments_write(struct ct_segments *s, size_t begin, size_t end, int stream, int64_t n);

#endif
