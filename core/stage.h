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

/* ---- between stage.c and stage_carry.c ---- */

/* A value that one rank has after the microbatches and another needs. */
struct ct_message {
    struct ct_value *value;
    struct ct_op *user; /* that wants it first */
    int from, to;
};

struct ct_cut {
    struct ct_graph *graph;
    struct ct_arena scratch;
    int ranks, me;
    uint64_t *where; /* by value id: the ranks that have it */
    bool *needed;    /* by value id: on the rank that is looked at */
    struct ct_message *message;
    size_t messages, message_room;
};

/* Does a rank have, need, keep it? Parts before and after the microbatches: as find_needed found.
 */
bool ct_cut_has(const struct ct_cut *c, const struct ct_value *v, int rank);
bool ct_cut_keeps(const struct ct_cut *c, const struct ct_op *op, int rank);
/* Is the input v of op used there, too? */
bool ct_cut_wants(const struct ct_cut *c, const struct ct_op *op, const struct ct_value *v,
                  int rank);
void ct_cut_find_needed(struct ct_cut *c, int rank);

/* What must be sent after the microbatches; all ranks find the same. */
void ct_cut_find_messages(struct ct_cut *c);
/* Insert sends and receives: in the microbatches, and after them. */
int ct_cut_carry(struct ct_cut *c);
int ct_cut_exchange(struct ct_cut *c);

#endif
