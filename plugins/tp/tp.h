/* Tensor parallelism: what its sources share. */
#ifndef TP_H
#define TP_H

#include <ctitan/run.h>

struct tp_config {
    int64_t degree;
    bool sequence_parallel, regather, loss_parallel;
};

extern struct tp_config tp_config;

/* Position of the axis in the mesh; -1: degree 1. */
int tp_axis(const struct ct_graph *graph);

/* Losses whose weight is split by vocabulary: on logits, in shards or gathered. */
int tp_split_losses(struct ct_graph *graph, struct ct_run *run);
/* What was gathered along the sequence is gathered again for the backward. */
int tp_regather(struct ct_graph *graph, struct ct_run *run);

#endif
