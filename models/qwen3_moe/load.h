/* How often each expert is chosen: fetched from the graph, and reported after a step. */
#ifndef LOAD_H
#define LOAD_H

#include <ctitan/run.h>

/* Fetch the number of choices [experts] of a layer. */
void load_fetch(struct ct_graph *graph, int64_t layer, struct ct_value *load);
/* Log how even the step's choices are, and add a line to experts.jsonl. */
int load_report(struct ct_run *run, int64_t step);

#endif
