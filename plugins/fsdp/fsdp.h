/* Fully sharded data parallelism: declarations shared by its transforms. */
#ifndef FSDP_H
#define FSDP_H

#include <ctitan/pass.h>

/* Choices of the options, in their order. */
enum fsdp_reshard { FSDP_RESHARD_DEFAULT, FSDP_RESHARD_ALWAYS, FSDP_RESHARD_NEVER };
enum fsdp_reduce { FSDP_REDUCE_DEFAULT, FSDP_REDUCE_MICROBATCH, FSDP_REDUCE_STEP };
enum fsdp_reduce_dtype { FSDP_REDUCE_FLOAT32, FSDP_REDUCE_BFLOAT16 };
enum fsdp_bucket { FSDP_BUCKET_UNIT, FSDP_BUCKET_PARAMETER };

struct fsdp_config {
    int64_t shard_degree, replicate_degree;
    enum fsdp_reshard reshard_after_forward;
    enum fsdp_reduce reduce;
    enum fsdp_reduce_dtype reduce_dtype;
    enum fsdp_bucket bucket;
    bool prefetch;
};

extern struct fsdp_config fsdp_config;

/* Mark of parameter gathers, by this plugin or others. Marked gathers are repeated for the
   backward, prefetched, and merged into one call per unit. */
#define FSDP_GATHER "fsdp.gather"

/* True if parameters are gathered again for the backward. */
bool fsdp_reshards(const struct ct_graph *graph);

/* Clone gathers into the backward, and move them to their stream and to the preceding region. */
int fsdp_prefetch(struct ct_graph *graph, struct ct_run *run);

/* Merge similar collectives of a unit into one. */
int fsdp_bucket(struct ct_graph *graph, struct ct_run *run);

/* Reduce gradients over ranks in [fsdp] reduce_dtype. */
int fsdp_reduce_dtype(struct ct_graph *graph, struct ct_run *run);

/* Section for gathers that run once a step: "1UNSHARD" for a group's parameters, so that the step's
   order can delay or repeat them; `pre` without groups. */
const struct ct_section *fsdp_unshard_section(struct ct_graph *graph, int group);

/* True if op is a gather with the mark. */
bool fsdp_is_gather(const struct ct_op *op);

/* True if each output is the reduction of an input over ranks, or a shard of it. */
bool fsdp_reduces(const struct ct_op *op);

#endif
