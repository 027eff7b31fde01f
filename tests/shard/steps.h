/* Random redistributions, as graphs. */
#ifndef SHARD_STEPS_H
#define SHARD_STEPS_H

#include "shard/redistribute.h"
#include "simulate.h"

/* A graph on a random mesh: the source x, split at random, redistributed step by step to *to.
   CT_EINVAL: there are no such steps, or one is not legal. */
int random_steps(struct ct_arena *arena, struct random *random, struct ct_graph **graph,
                 struct ct_value **x, struct ct_sharding *to, struct ct_steps *steps);

/* A world with numbers in x; its first op has not run yet. */
void world_of_steps(struct world *w, const struct ct_graph *graph, const struct ct_value *x,
                    struct random *random);

#endif
