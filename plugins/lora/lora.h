/*
 * LoRA: interface between the sources of the plugin.
 *
 *   lora.c    options, transforms, hooks      adapt.c    adds adapters to a graph
 *   dora.c    ops of magnitudes               stack.c    ops of stacked weights
 *   freeze.c  what is trained                 factors.c  what adapters add to a run's weights
 *   merge.c   weights with adapters in them   peft.c     adapters as a folder of peft
 *   load.c    those that training begins with verb.c     `ctitan lora`
 *   tokens.c  rows of the embedding
 */
#ifndef LORA_H
#define LORA_H

#include <ctitan/lib/ops.h>
#include <ctitan/model.h>
#include <ctitan/run.h>
#include <ctitan/state.h>

extern struct lora_config {
    int64_t rank;
    double alpha;
    const char *modules, *save_to, *init_from, *trainable_tokens;
    unsigned scaling; /* enum lora_scaling */
    bool dora;
} lora_config;

/* Endings of parameters' names: A [rank, in] and B [out, rank] of the layer whose weight is W [out,
   in]; of stacked weights [experts, out, in], A [experts, rank, in] and B [experts, out, rank]. */
#define LORA_WEIGHT ".weight"
#define LORA_A ".lora_A.weight"
#define LORA_B ".lora_B.weight"
/* Endings for an embedding [vocabulary, out]: A [vocabulary, rank], and B [out, rank]. */
#define LORA_EMBEDDING_A ".lora_embedding_A"
#define LORA_EMBEDDING_B ".lora_embedding_B"
/* [out], float32: magnitudes of the rows of W + scale B A. */
#define LORA_MAGNITUDE ".lora_magnitude_vector"

/* Endings for an embedding some of whose rows are trained: what is added to these, [tokens, out],
   and where they are, [vocabulary, tokens]. */
#define LORA_TOKENS ".token_adapter.trainable_tokens_delta"
#define LORA_SELECTION ".token_adapter.selection"

/* A mark of parameters. */
#define LORA_ADAPTER "lora.adapter"

/* rsLoRA (Kalajdzievski 2023): magnitudes do not fall with the rank. */
enum lora_scaling { LORA_PLAIN, LORA_RSLORA };

/* alpha / rank, or alpha / sqrt(rank), by which B A is multiplied. */
double lora_scale(void);

/* ---- ops: dora.c, stack.c ---- */

/* Attributes of all but lora.magnify and its gradient. */
struct lora_scaled {
    double scale; /* of b a */
    bool frozen;  /* of a merge: no gradient flows into w */
};
extern const struct ct_op_type lora_op_squared_norms, lora_op_magnify, lora_op_magnify_dm;
extern const struct ct_op_type lora_op_merge, lora_op_merge_da, lora_op_merge_db;
extern const struct ct_kernel lora_dora_kernels[], lora_stack_kernels[], lora_cuda_kernels[];
extern const struct ct_cuda_code lora_cuda_code;

/* ---- transforms: adapt.c, freeze.c ---- */

int lora_adapt(struct ct_graph *graph, struct ct_run *run);
/* A parameter beside W, an adapter, split along its dimension d as W is along like[d]; -1: it is
   not. */
struct ct_value *lora_parameter(struct ct_builder *b, const struct ct_value *w, const char *module,
                                const char *suffix, struct ct_shape shape, const int *like,
                                struct ct_init init);
/* "model.layers.0.mlp.up_proj" of "model.layers.0.mlp.up_proj.weight". */
const char *lora_module_of(struct ct_arena *arena, const struct ct_value *w);
/* Whether a use is in the forward pass of what is trained. */
bool lora_is_forward(const struct ct_use *use);
/* Adapters of weights in 16 bits are float32, and cast for use. */
int lora_widen(struct ct_graph *graph, struct ct_run *run);
/* Parameters but adapters lose their gradients. */
int lora_freeze(struct ct_graph *graph, struct ct_run *run);
/* Stacked weights are merged again for the backward, so that none lives until then. */
int lora_again(struct ct_graph *graph, struct ct_run *run);

/* ---- tokens.c ---- */

/* The list of [lora] trainable_tokens. */
struct lora_ids {
    int64_t *id;
    size_t count;
};
int lora_ids_read(struct ct_arena *arena, struct lora_ids *ids);
/* Give all who read the embedding the one with trained rows. *count: of these. */
int lora_adapt_tokens(struct ct_graph *graph, struct ct_arena *arena, int64_t *count);
struct lora_layer;
/* Compare the selection of the layer of tokens with the option; fills: fill it, unless a checkpoint
   has. All ranks call. CT_ECONFIG: the checkpoint has another one. */
int lora_select(struct ct_run *run, const struct lora_layer *layer, bool fills);
/* The same comparison of the run's layer, if it has one. */
int lora_check_tokens(struct ct_run *run);
/* Rows of the frozen table, [tokens, out]. All ranks call. To be freed; NULL: a failure. */
float *lora_table_rows(struct ct_run *run, const struct lora_layer *layer);

/* ---- factors.c ---- */

/* An adapted layer of a run. All ranks list the same ones. */
struct lora_layer {
    const char *module; /* "model.layers.0.self_attn.q_proj" */
    const struct ct_state *w, *a, *b;
    const struct ct_state *m; /* magnitudes; NULL: none */
    bool embedding;
    bool tokens; /* rows of an embedding: a is added to those that b selects */
};

/* The layers, in arena; CT_EINVAL: a part of one is missing. */
int lora_layers(struct ct_arena *arena, const struct ct_run *run, struct lora_layer **layers,
                size_t *count);
/* All elements of a state, on every rank. All ranks call. To be freed; NULL: a failure. */
float *lora_whole(struct ct_run *run, const struct ct_state *state);
/* A matrix [rows, columns] with these swapped. To be freed; NULL: no memory. */
float *lora_transposed(const float *x, int64_t rows, int64_t columns);

/* Factors of a merged weight [.., rows, columns]: times[row] (W + scale up down). */
struct lora_factors {
    int64_t rows, columns; /* of a matrix */
    int64_t rank;
    double scale;
    float *up;     /* [.., rows, rank] */
    float *down;   /* [.., rank, columns] */
    double *times; /* by row: magnitude / norm; NULL: 1 */
};
/* All ranks call. */
int lora_factors_read(struct ct_run *run, const struct lora_layer *layer, struct lora_factors *f);
void lora_factors_free(struct lora_factors *f);
/* Change a part of the weight, a dense tensor that begins at offset in the whole. CT_ECONFIG: its
   dtype does not hold a value. */
int lora_factors_apply(const struct lora_factors *f, const struct ct_tensor *w,
                       const int64_t *offset);

/* Whether some adapter is not as it began: its B, or A of an embedding, is not zero. All ranks
   call; negative: a failure. */
int lora_is_trained(struct ct_run *run);
/* Magnitudes that nothing has filled begin with the norms of their rows. All ranks call. */
int lora_start(struct ct_run *run);

/* ---- merge.c ---- */

/* Weights as they were before they were merged: this rank's shards. All 0: none. */
struct lora_merged {
    struct ct_arena arena;
    struct lora_layer *layers;
    size_t count;
    void **before; /* by layer; NULL: the rank holds none */
};
/* Merge every adapted weight, until lora_unmerge makes weights what they were, to the bit. It may
   be called after a failure. All ranks call both. */
int lora_merge(struct ct_run *run, struct lora_merged *merged);
int lora_unmerge(struct ct_run *run, struct lora_merged *merged);

/* ---- peft.c ---- */

/* A tensor of peft's, and the state that it is, or one matrix of it. */
struct lora_tensor {
    const char *name;
    const struct ct_state *state;
    int64_t matrix;                  /* of a stack; 0: it is the whole state, or the first */
    bool transposed;                 /* its dimensions are those of the state swapped */
    const struct lora_layer *tokens; /* it is the sum of the state and rows of this one's table */
    int ndim;
    int64_t shape[2];
};
struct lora_tensors {
    struct lora_tensor *item;
    size_t count;
};
/* Tensors of all layers, in arena. The matrices of a state follow each other. */
struct lora_tensors lora_tensors_of(struct ct_arena *arena, const struct ct_run *run,
                                    const struct lora_layer *layers, size_t count);
/* CT_ECONFIG names a layer that peft has no such adapter for. */
int lora_check_peft(const struct ct_run *run, const struct lora_layer *layers, size_t count);

/* Write the adapters to a folder that peft loads. All ranks call; rank 0 writes. */
int lora_save(struct ct_run *run, const char *folder);
/* The bytes that it writes. CT_ECONFIG: as lora_check_peft. */
int lora_check_save(const struct ct_run *run, double *bytes);

/* ---- load.c ---- */

/* Fill the adapters from a folder of peft. All ranks call. CT_ECONFIG: it has others. */
int lora_load(struct ct_run *run, const char *folder);

/* ---- verb.c ---- */

extern const struct ct_verb_ops lora_verb;

#endif
