/* The mesh and the batch of a run, between the sources of core/run. */
#ifndef CT_RUN_MESH_H
#define CT_RUN_MESH_H

#include <ctitan/run.h>

/* Fill run->mesh and run->batch_axes from the axes of all plugins. CT_ECONFIG: degrees that do not
   multiply to the number of ranks, with the product. */
int ct_run_make_mesh(struct ct_run *run);

/* What says how a step runs; *ops NULL: it runs microbatch by microbatch. */
int ct_run_find_order(const struct ct_order_ops **ops);

/* Sequences of a data-parallel rank in one microbatch. */
int ct_run_microbatch_size(int64_t *size);

/* Sequences in a microbatch over all data-parallel ranks, and microbatches in a step. */
int ct_run_batch_sizes(const struct ct_run *run, int64_t *batch, int *microbatches);

#endif
