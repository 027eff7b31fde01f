/*
 * A mesh of ranks in one process: every rank's shard of every value, side by side.
 *
 * A world runs a graph op by op: each rank calls the op's reference kernel on its own shards, and
 * collectives move numbers between the shards, as their definitions say. Nothing of the core's own
 * collectives or communicators takes part. Values can be split from whole tensors and put together
 * again, which checks that the shards fit their sharding: replicas must be equal bit by bit.
 */
#ifndef SHARD_SIMULATE_H
#define SHARD_SIMULATE_H

#include <ctitan/op.h>

#include "random.h"

struct world {
    struct ct_arena arena;
    const struct ct_graph *graph;
    int64_t ranks;
    struct ct_tensor **shard; /* by value id; one for each rank; NULL: not yet made */
    /* The kernel that a rank runs on its shards. world_create sets the op's reference kernel. */
    int (*launch)(const struct ct_op *op, const struct ct_tensor *in, const struct ct_tensor *out,
                  const struct ct_mesh *mesh, int64_t rank);
};

void world_create(struct world *w, const struct ct_graph *graph);
void world_finish(struct world *w);

/* A dense tensor of v's whole shape, zeroed. */
struct ct_tensor world_whole(struct world *w, const struct ct_value *v);

/* Split v into its shards; pending sums get random summands. */
void world_scatter(struct world *w, const struct ct_value *v, const struct ct_tensor *whole,
                   struct random *random);
/* Put v together. CT_EINVAL names ranks whose replicas differ. */
int world_gather(struct world *w, const struct ct_value *v, struct ct_tensor *whole);

/*
 * Run one op on all ranks. The result is checked against the op run on the whole: what a rule
 * promises must hold for each op on its own. CT_EINVAL names op, output, element and numbers.
 */
int world_run_op(struct world *w, const struct ct_op *op);
/* All ops of the graph in order, those of the init part first. */
int world_run(struct world *w);

/* The reference kernel on shards; mesh NULL: on the whole. */
int launch_reference(const struct ct_op *op, const struct ct_tensor *in,
                     const struct ct_tensor *out, const struct ct_mesh *mesh, int64_t rank);

/* Two ways to sum the same numbers of a dtype. CT_EINVAL: element, numbers. */
int compare_tensors(const char *what, const struct ct_tensor *got, const struct ct_tensor *want);

#endif
