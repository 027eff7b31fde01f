/* Tensor parallelism: declarations shared by its sources. */
#ifndef TP_H
#define TP_H

#include <ctitan/run.h>

struct tp_config {
    int64_t degree;
    bool sequence_parallel, regather, loss_parallel;
};

extern struct tp_config tp_config;

/* Position of the axis in the mesh, or -1 if the degree is 1. */
int tp_axis(const struct ct_graph *graph);

/* Two ops: the statistics of a token in each part of the vocabulary (largest logit, sum of
   exponentials, the label's logit), and the loss from all of them. Parts have one length, the last
   ones may be shorter or empty. */
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

/* Rewrite losses whose weight is split by vocabulary: on sharded or gathered logits. */
int tp_split_losses(struct ct_graph *graph, struct ct_run *run);
/* Repeat gathers along the sequence for the backward. */
int tp_regather(struct ct_graph *graph, struct ct_run *run);

#endif
