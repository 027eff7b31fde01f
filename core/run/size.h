/*
 * Whether a program fits into the host's memory, and how many steps a run has. For core only.
 */
#ifndef CT_RUN_SIZE_H
#define CT_RUN_SIZE_H

#include <ctitan/run.h>

/* A program has instructions for all microbatches: refuse one that half of the host's memory cannot
   hold beside programs of *beside bytes, before anything of that size is made. Its bytes are added
   to *beside. CT_ECONFIG. */
int ct_run_check_size(const struct ct_graph *graph, int64_t microbatches, double *beside);

/* Where [training] epochs is set, set ct_config.training.steps by the samples of the run's data:
   epochs times them, without those that were read, by those of a step, rounded down, and the steps
   that were done. For a run that is opened, and again where its progress changes. CT_ECONFIG: the
   source does not tell them, or they are less than a step. */
int ct_run_count_epochs(struct ct_run *run);

#endif
