/* Second sets of weights (struct ct_weight_set, graph.h). Private to core/run. */
#ifndef CT_RUN_WEIGHTS_H
#define CT_RUN_WEIGHTS_H

#include <stdio.h>

#include <ctitan/run.h>

/* Note the sets of the training's graph as the objective built it. CT_ECONFIG: the forward of the
   model that a folder describes is not that of the run's. */
int ct_run_note_sets(struct ct_run *run, const struct ct_graph *graph,
                     const struct ct_model_request *request);
/* Write what ranks compare of the sets' folders, and keep it with the run's state. */
int ct_run_identify_sets(struct ct_run *run, FILE *out);
/* Fill the sets that have folders. */
int ct_run_load_sets(struct ct_run *run);
/* Once a checkpoint may have been loaded. CT_ECONFIG: a folder has other weights than before. */
int ct_run_check_sets(const struct ct_run *run);

#endif
