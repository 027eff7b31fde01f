/* Parts of opening a run that have a file of their own. For the sources of core/run. */
#ifndef CT_RUN_OPEN_H
#define CT_RUN_OPEN_H

#include <ctitan/pass.h>
#include <ctitan/run.h>

/* Set what run has of the plugins' offers; train: also what only training needs. */
int ct_run_find_offers(struct ct_run *run, bool train);

/* Run all transforms of the run, but those that [training] skip lists. */
int ct_run_transform(struct ct_run *run, struct ct_graph *graph,
                     const struct ct_pass_options *options);
/* Turn the graph shared by all ranks into this rank's. trained: its inputs are those of training,
   not those of generating. */
int ct_run_specialise(struct ct_run *run, struct ct_graph *graph, bool trained,
                      struct ct_pass_options options);
/* Make the graphs of training and validation, or of generating, with what is listed of them. */
int ct_run_open_graphs(struct ct_run *run, const struct ct_run_options *options);

#endif
