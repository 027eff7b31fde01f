/* What a rank does in one step: the trivial list, or its part of a pipeline's schedule. */
#ifndef CT_ACTIONS_H
#define CT_ACTIONS_H

#include <ctitan/run.h>

/*
 * The actions of this rank for all microbatches of a step (or of a forward, for evaluation). With a
 * pipeline: those of its schedule, with communication, proven to be right; a step of several
 * accumulated batches runs the schedule for one after the other.
 */
int ct_run_actions(struct ct_run *run, const struct ct_graph *graph, int microbatches,
                   bool training, struct ct_action_list *actions);

/* Sequences of a data-parallel rank in one microbatch, and the pipeline's offer (NULL: none). */
int ct_run_microbatch_size(const struct ct_run *run, int64_t *size);

#endif
