/* Fully sharded data parallelism: what its two transforms share. */
#ifndef FSDP_H
#define FSDP_H

#include <ctitan/pass.h>

struct fsdp_config {
    int64_t shard_degree, replicate_degree;
    const char *reshard_after_forward, *reduce, *bucket;
    bool prefetch;
};

extern struct fsdp_config fsdp_config;

/* What the gathers of this plugin give as their reason: how they are found again. */
#define FSDP_GATHER "fsdp: a parameter is used whole and kept in shards"

/* Are parameters gathered anew for the backward? */
bool fsdp_reshards(const struct ct_graph *graph);

/* Clones gathers into the backward, moves them to their stream and in front of the region before.
 */
int fsdp_prefetch(struct ct_graph *graph, struct ct_run *run);

/* One collective for what is alike in a unit. */
int fsdp_bucket(struct ct_graph *graph, struct ct_run *run);

/* Of a parameter. */
bool fsdp_is_gather(const struct ct_op *op);

#endif
