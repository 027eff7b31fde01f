/* Stages of a pipeline, between the core's transforms. */
#ifndef CT_STAGE_H
#define CT_STAGE_H

#include <ctitan/graph.h>

/* The ranks that hold each parameter, by value id, as bits of their coordinates along pp: those
   that use it. Without a pipeline all are the same. */
uint64_t *ct_stage_holders(struct ct_graph *graph, struct ct_arena *arena);

/* The sum of numbers that are made in several stages, on all ranks. */
struct ct_value *ct_stage_sum(struct ct_builder *b, const char *name, struct ct_value *const *terms,
                              int count);

#endif
