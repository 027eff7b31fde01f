/* Tensor parallelism: what its sources share. */
#ifndef TP_H
#define TP_H

#include <ctitan/run.h>

struct tp_config {
    int64_t degree, chunks;
    bool sequence_parallel, regather, loss_parallel, async;
    double link, tflops, chunk_cost; /* GB/s, TFLOP/s, us */
};

extern struct tp_config tp_config;

/* Position of the axis in the mesh; -1: degree 1. */
int tp_axis(const struct ct_graph *graph);

/* What each of so many parts of the vocabulary says of a token (its largest logit, the sum of
   exponentials, the label's logit), and the loss from all of them. Parts are of one length, the
   last ones shorter or empty. */
struct tp_cross_entropy_partial {
    int64_t shards;
};
extern const struct ct_op_type tp_op_cross_entropy_partial, tp_op_cross_entropy_partial_grad,
    tp_op_cross_entropy_merge, tp_op_cross_entropy_merge_grad;
struct ct_value *tp_cross_entropy_partial(struct ct_builder *b, const char *name,
                                          struct ct_value *logits, struct ct_value *labels,
                                          int64_t shards);
struct ct_value *tp_cross_entropy_merge(struct ct_builder *b, const char *name,
                                        struct ct_value *stats, struct ct_value *labels);

/* Losses whose weight is split by vocabulary: on logits, in shards or gathered. */
int tp_split_losses(struct ct_graph *graph, struct ct_run *run);
/* What was gathered along the sequence is gathered again for the backward. */
int tp_regather(struct ct_graph *graph, struct ct_run *run);
/* Products and the collectives beside them become pipelines of chunks. */
int tp_pipeline(struct ct_graph *graph, struct ct_run *run);

#endif
