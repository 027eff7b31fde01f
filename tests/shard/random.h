/* Random meshes and shardings; the same for the same seed, everywhere. */
#ifndef SHARD_RANDOM_H
#define SHARD_RANDOM_H

#include <ctitan/rng.h>
#include <ctitan/sharding.h>

struct random {
    uint64_t seed, next;
};

/* 0 .. n - 1 */
int64_t random_below(struct random *r, int64_t n);
/* True in percent of cases. */
bool random_chance(struct random *r, int percent);
double random_normal(struct random *r);

/* One to three axes, at most 12 ranks. */
void random_mesh(struct random *r, struct ct_mesh *mesh);
/* Each axis splits some dimension, or is pending (only if asked for), or neither. */
struct ct_sharding random_sharding(struct random *r, const struct ct_mesh *mesh, int rank,
                                   bool pending);

#endif
