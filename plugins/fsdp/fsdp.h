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

/* The mark of gathers of parameters, this plugin's and others': they are gathered again for the
   backward, ahead of their use, and in one call for a unit. */
#define FSDP_GATHER "fsdp.gather"

/* Are parameters gathered anew for the backward? */
bool fsdp_reshards(const struct ct_graph *graph);

/* Clones gathers into the backward, puts them on their stream, in front of the region before. */
int fsdp_prefetch(struct ct_graph *graph, struct ct_run *run);

/* One collective for what is alike in a unit. */
int fsdp_bucket(struct ct_graph *graph, struct ct_run *run);

/* Where parameters of a group's sections are gathered once a step: "1UNSHARD", so that the order of
   a step can have it done late, or again; without groups, pre. */
const struct ct_section *fsdp_unshard_section(struct ct_graph *graph, int group);

/* Does it gather what has the mark? */
bool fsdp_is_gather(const struct ct_op *op);

#endif
