/* Selective activation checkpointing: what its sources share. */
#ifndef SAC_H
#define SAC_H

#include <ctitan/run.h>

struct sac_config {
    const char *mode, *save_ops;
    int64_t every;
};
extern struct sac_config sac_config;

/* A region of the model that repeats, "layers.3", on this rank. */
struct sac_layer {
    const char *name;
    int group;
};

/*
 * The forward as it is decided upon. `forward` is a copy of the graph in which ops of several
 * outputs are taken apart, so that each can be kept or recomputed by itself, and an op at the
 * entry of a layer belongs to the one before if fewer bytes cross then. Its values have the ids of
 * the graph's.
 */
struct sac {
    struct ct_graph *graph, *forward;
    struct ct_arena scratch;
    int64_t rank; /* whose shards are counted: the same on all ranks of a stage */
    size_t count; /* values of the graph; the forward may have more */
    struct sac_layer *layer;
    int layers;
    int *layer_of;          /* by value id: the layer that makes it; -1: none */
    struct ct_value **root; /* by value id: what it is a view of; else itself */
    bool *may;              /* by value id: it can be recomputed */
    bool *must;             /* by value id: another transform recomputes it already */
    int *stream;            /* by value id: of that recomputation */
    bool *kept;             /* by value id: the backward takes what the forward made */
};

int sac_begin(struct sac *s, struct ct_graph *graph, const struct ct_run *run);
void sac_finish(struct sac *s);

/* Several ops in the place of one that has `apart`. */
int sac_take_apart(struct ct_graph *graph, struct ct_op *op);

/* Choose what is kept, by the mode. */
int sac_choose(struct sac *s);
/* Let the backward recompute what is not kept. */
int sac_replay(struct sac *s);

#endif
