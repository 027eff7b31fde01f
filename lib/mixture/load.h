/* How often each expert is chosen, fetched from the graph. */
#ifndef LOAD_H
#define LOAD_H

#include <ctitan/graph.h>

/* Fetch the number of choices [experts] of a layer. */
void load_fetch(struct ct_graph *graph, int64_t layer, struct ct_value *load);

#endif
