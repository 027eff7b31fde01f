/*
 * Random training steps in float64: a forward of standard ops, their gradients, norm, clipping and
 * AdamW. The same seed gives the same step, on one rank or, with a mesh, on ranks: then parameters
 * and inputs are split at random, and redistributions are asked for at random places.
 */
#ifndef SHARD_MODEL_H
#define SHARD_MODEL_H

#include <ctitan/run.h>

#include "random.h"

/* mesh NULL: one rank. NULL, with the failure recorded, if a transform fails. */
struct ct_graph *random_step(struct ct_arena *arena, uint64_t seed, const struct ct_mesh *mesh,
                             const struct ct_optimizer_ops *optimizer);

/* Element i of a source: labels, tokens and the like by its name. */
double source_element(const struct ct_value *v, int64_t i);

#endif
