/*
 * LoRA: interface between the sources of the plugin.
 *
 *   lora.c    options, transforms, hooks      adapt.c   adds adapters to a graph
 *   freeze.c  what is trained                 merge.c   adapters of a run, added to its weights
 *   peft.c    adapters as a folder of peft    load.c    adapters that training begins with
 *   verb.c    `ctitan lora`
 */
#ifndef LORA_H
#define LORA_H

#include <ctitan/model.h>
#include <ctitan/run.h>
#include <ctitan/state.h>

extern struct lora_config {
    int64_t rank;
    double alpha;
    const char *modules, *save_to, *init_from;
    unsigned scaling; /* enum lora_scaling */
} lora_config;

/* Of parameters' names: A [rank, in] and B [out, rank] of the layer whose weight is W [out, in]. */
#define LORA_WEIGHT ".weight"
#define LORA_A ".lora_A.weight"
#define LORA_B ".lora_B.weight"

/* A mark of parameters. */
#define LORA_ADAPTER "lora.adapter"

/* In the place of the model's name in the names of peft's tensors. */
#define LORA_PREFIX "base_model.model."

/* rsLoRA (Kalajdzievski 2023): magnitudes do not fall with the rank. */
enum lora_scaling { LORA_PLAIN, LORA_RSLORA };

/* alpha / rank, or alpha / sqrt(rank), by which B A is multiplied. */
double lora_scale(void);

/* ---- transforms: adapt.c, freeze.c ---- */

int lora_adapt(struct ct_graph *graph, struct ct_run *run);
/* Adapters of weights in 16 bits are float32, and cast for use. */
int lora_widen(struct ct_graph *graph, struct ct_run *run);
/* Parameters but adapters lose their gradients. */
int lora_freeze(struct ct_graph *graph, struct ct_run *run);

/* ---- merge.c ---- */

/* An adapted layer of a run. All ranks list the same ones. */
struct lora_layer {
    const char *module; /* "model.layers.0.self_attn.q_proj" */
    const struct ct_state *w, *a, *b;
};

/* The layers, in arena; CT_EINVAL: a part of one is missing. */
int lora_layers(struct ct_arena *arena, const struct ct_run *run, struct lora_layer **layers,
                size_t *count);
/* All elements of a state, on every rank. All ranks call. To be freed; NULL: a failure. */
float *lora_whole(struct ct_run *run, const struct ct_state *state);
/* Weights as they were before they were merged: this rank's shards. All 0: none. */
struct lora_merged {
    struct ct_arena arena;
    struct lora_layer *layers;
    size_t count;
    void **before; /* by layer; NULL: the rank holds none */
};
/* Add scale B A to every adapted weight, until lora_unmerge makes weights what they were, to the
   bit. It may be called after a failure. All ranks call both. */
int lora_merge(struct ct_run *run, struct lora_merged *merged);
int lora_unmerge(struct ct_run *run, struct lora_merged *merged);
/* Whether some B is not zero. All ranks call; negative: a failure. */
int lora_is_trained(struct ct_run *run);

/* ---- peft.c ---- */

/* Write the adapters to a folder that peft loads. All ranks call; rank 0 writes. */
int lora_save(struct ct_run *run, const char *folder);
/* CT_ECONFIG: a layer's weight is a part of a tensor of the model's files. */
int lora_check_save(const struct ct_run *run);

/* ---- load.c ---- */

/* Fill the adapters from a folder of peft. All ranks call. CT_ECONFIG: it has others. */
int lora_load(struct ct_run *run, const char *folder);

/* ---- verb.c ---- */

extern const struct ct_verb_ops lora_verb;

#endif
