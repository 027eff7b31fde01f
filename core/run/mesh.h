/* The mesh and the batch of a run. Private to core/run. */
#ifndef CT_RUN_MESH_H
#define CT_RUN_MESH_H

#include <ctitan/run.h>

/* Fill run->mesh and its batch_axes and head_axes from the axes of all plugins. CT_ECONFIG: the
   product of the degrees is not the number of ranks; the message shows it. */
int ct_run_make_mesh(struct ct_run *run);

/* The offer that orders a step. *ops NULL: it runs microbatch by microbatch. */
int ct_run_find_order(const struct ct_order_ops **ops);

/* Where a plugin gave global_batch_size (ct_recipe_give), as that of a checkpoint, and it is no
   multiple of local_batch_size on this mesh, give local_batch_size the next smaller number that
   fits. If none does, nothing is given, and ct_run_batch_sizes refuses. */
int ct_run_fit_batch(struct ct_run *run);

/* Sequences of one data-parallel rank in a microbatch. */
int ct_run_microbatch_size(int64_t *size);

#endif
