/*
 * The decoder of Llama and its relatives (Touvron et al. 2023): embedding, pre-norm layers of
 * grouped-query attention and SwiGLU, a final norm, a head. A model plugin gives a table of
 * flavors, the table of config.json, and what differs.
 *
 * Weights are initialised as in TorchTitan: the embedding with standard deviation 1; q, k, v and
 * gate with 0.02; o, up and down with 0.02 / sqrt(2 (layer + 1)); the head with dim^-0.5, truncated
 * at three deviations. TorchTitan's other truncations are at the absolute value 2, a hundred
 * deviations away, and change nothing. A tied embedding is initialised as a head, whose scale
 * matters.
 */
#ifndef CT_DECODER_H
#define CT_DECODER_H

#include <ctitan/lib/hf_config.h>
#include <ctitan/lib/ops.h>
#include <ctitan/model.h>

CT_BEGIN_DECLS

/* First members of a plugin's struct ct_model. */
struct ct_decoder_sizes {
    const char *flavor; /* these two as struct ct_flavor */
    int64_t parameters;
    int64_t dim, layers, heads, kv_heads, head_dim, ffn_dim, vocabulary;
    int64_t max_position; /* of config.json: dynamic rope changes beyond it */
    double norm_eps;
    struct ct_rope rope;
    bool tied;    /* the head's weight is the embedding */
    bool qk_norm; /* heads of q and k are normalised before rope, with one weight for all heads */
    /* The token whose row of the embedding gets no gradient from the lookup, as CT_HF_TOKEN. */
    int32_t padding;
    bool attention_bias, mlp_bias; /* q, k, v and o, or gate, up and down have biases */
    int64_t window;                /* tokens that the attention of sliding layers sees; 0: all */
    struct ct_hf_layers sliding;
};

/* Rows of a table of struct ct_hf_key for the fields above but qk_norm, mlp_bias and windows. T: a
   struct ct_model whose first member `sizes` is the struct above. head and context: what an absent
   head_dim (0: the width over the heads) and an absent max_position_embeddings mean. */
#define CT_DECODER_KEYS(T, head, context)                                                          \
    {"vocab_size", CT_HF_SIZE, offsetof(T, sizes.vocabulary), -1},                                 \
        {"hidden_size", CT_HF_SIZE, offsetof(T, sizes.dim), -1},                                   \
        {"intermediate_size", CT_HF_SIZE, offsetof(T, sizes.ffn_dim), -1},                         \
        {"num_hidden_layers", CT_HF_DEPTH, offsetof(T, sizes.layers), -1},                         \
        {"num_attention_heads", CT_HF_SIZE, offsetof(T, sizes.heads), -1},                         \
        {"num_key_value_heads", CT_HF_SIZE, offsetof(T, sizes.kv_heads), 0},                       \
        {"head_dim", CT_HF_SIZE, offsetof(T, sizes.head_dim), head},                               \
        {"max_position_embeddings", CT_HF_SIZE, offsetof(T, sizes.max_position), context},         \
        {"rms_norm_eps", CT_HF_NUMBER, offsetof(T, sizes.norm_eps), 1e-6},                         \
        {"tie_word_embeddings", CT_HF_BOOL, offsetof(T, sizes.tied), 0},                           \
        {"pad_token_id", CT_HF_TOKEN, offsetof(T, sizes.padding), 0},                              \
        {"attention_bias", CT_HF_BOOL, offsetof(T, sizes.attention_bias), 0},                      \
    {                                                                                              \
        "rope_theta", CT_HF_ROPE, offsetof(T, sizes.rope), 10000                                   \
    }

/* Rows of a table of struct ct_hf_fixed that hold for all of them. */
#define CT_DECODER_FIXED                                                                           \
    {"hidden_act", "\"silu\"|\"swish\"", false}, {"is_causal", "true", false},                     \
    {                                                                                              \
        "attention_dropout", "0.0", true                                                           \
    }

enum ct_tie { CT_TIE_AUTO, CT_TIE_TRUE, CT_TIE_FALSE };

/* The recipe's changes to a flavor: options of the plugin's section. */
struct ct_decoder_options {
    int64_t dim, n_layers, n_heads, n_kv_heads, head_dim, ffn_dim, vocab_size;
    double rope_theta, norm_eps;
    enum ct_tie tie_embeddings;
};

/* Rows of an option table, without those below. T: a struct with a member m of the type above. */
#define CT_DECODER_SIZE_OPTIONS(T, m)                                                              \
    CT_OPT_INT(T, m.dim, "dim", "0", 0, 1e6, "Width of the model; 0: the flavor's"),               \
        CT_OPT_INT(T, m.n_layers, "n_layers", "0", 0, 1e4, "Number of layers; 0: the flavor's"),   \
        CT_OPT_INT(T, m.n_heads, "n_heads", "0", 0, 1e4,                                           \
                   "Number of attention heads; 0: the flavor's"),                                  \
        CT_OPT_INT(T, m.vocab_size, "vocab_size", "0", 0, 1e8,                                     \
                   "Size of the vocabulary; 0: the flavor's"),                                     \
        CT_OPT_FLOAT(T, m.rope_theta, "rope_theta", "0", 0, 1e12,                                  \
                     "Base of the rotary embedding; 0: the flavor's"),                             \
        CT_OPT_FLOAT(T, m.norm_eps, "norm_eps", "0", 0, 1,                                         \
                     "Added to the mean square in norms; 0: the flavor's"),                        \
        CT_OPT_ENUM(T, m.tie_embeddings, "tie_embeddings", "auto", "auto|true|false",              \
                    "Use the embedding as the head's weight; auto: as in the flavor")

#define CT_DECODER_FFN_OPTION(T, m)                                                                \
    CT_OPT_INT(T, m.ffn_dim, "ffn_dim", "0", 0, 1e7,                                               \
               "Width of the feed-forward layers; 0: the flavor's, or 8/3 dim, rounded up to a "   \
               "multiple of 256, where dim is set")

#define CT_DECODER_HEAD_OPTIONS(T, m)                                                              \
    CT_OPT_INT(T, m.n_kv_heads, "n_kv_heads", "0", 0, 1e4,                                         \
               "Number of key/value heads; 0: the flavor's, or n_heads where that is set"),        \
        CT_OPT_INT(T, m.head_dim, "head_dim", "0", 0, 1e5,                                         \
                   "Features of a head; 0: the flavor's, or dim / n_heads where one of these is "  \
                   "set")

/* All of them. */
#define CT_DECODER_OPTIONS(T, m)                                                                   \
    CT_DECODER_SIZE_OPTIONS(T, m), CT_DECODER_FFN_OPTION(T, m), CT_DECODER_HEAD_OPTIONS(T, m)

struct ct_decoder_family {
    const char *name; /* of the plugin */
    /* Its flavors are structs ct_model, its description a struct ct_hf_config. */
    const struct ct_model_ops *ops;
    bool own_heads; /* sizes of heads do not follow from dim and n_heads */
    bool no_ffn;    /* no layer uses ffn_dim */
    /* Set, and check, what the options do not: the plugin's own. NULL: nothing. */
    int (*apply)(const struct ct_run *run, struct ct_model *model);
};

/* A model of the size that the recipe asks for ([model] flavor or init_from, then options, then
   apply). CT_ECONFIG: no model has these sizes; the message names them. */
CT_API int ct_decoder_create(const struct ct_run *run, const struct ct_decoder_family *family,
                             const struct ct_decoder_options *options, struct ct_model **model);

/* ---- the members of struct ct_model_ops ---- */

/* Functions for struct ct_model_ops, which say there what they do. */
CT_API void ct_decoder_destroy(struct ct_model *model);
CT_API int ct_decoder_build(struct ct_model *model, struct ct_graph *graph,
                            const struct ct_model_request *request);
CT_API int64_t ct_decoder_vocabulary(const struct ct_model *model);
/* Six per parameter that a matrix product reads, and in each layer 12 H d for each key that a query
   sees: ct_decoder_seen. TorchTitan leaves out an embedding even if it is also the head; here it
   counts, because the head's product is computed. */
CT_API void ct_decoder_flops(const struct ct_model *model, int64_t seq_len, double *whole,
                             double *halved);
/* Also of stacked experts and their routers (mlp.experts.gate_proj, mlp.gate). */
CT_API extern const struct ct_shard_rule ct_decoder_shard_plan[];

/* ---- for models whose layers differ ---- */

struct ct_decoder_parts;

/* State that the functions below share while one graph is built. */
struct ct_decoder {
    struct ct_builder b;
    const struct ct_decoder_sizes *sizes;
    const struct ct_model_request *request;
    struct ct_value *tokens;
    struct ct_value *documents, *positions; /* NULL: none */
    struct ct_value *embedding, *head;      /* their weights; head NULL: not yet there */
    int64_t layer;                          /* the current one */
    double depth_std;                       /* standard deviation of its o, up and down */
    const char *name;                       /* made last by ct_decoder_named */
    const char *layers; /* what names of its parameters begin with; NULL: "model.layers" */
    int64_t from;       /* number of the layer that is 0 in these */
    const struct ct_decoder_parts *parts; /* NULL: another program's */
    struct ct_rope rope;                  /* of the current layer, for the request */
};

typedef struct ct_value *ct_decoder_part_fn(struct ct_decoder *d, struct ct_value *x);
/* Parts of the current layer: norm, layers, sum with x[b, t, n]. */
CT_API ct_decoder_part_fn ct_decoder_attention, ct_decoder_feed_forward;

/* The parts of a decoder. */
struct ct_decoder_parts {
    ct_decoder_part_fn *attention, *feed_forward; /* of each layer */
    ct_decoder_part_fn *end; /* from the final norm to the head; NULL: nothing is between them */
    const struct ct_predictions *predictions; /* NULL: none */
};

/* ct_decoder_build with other parts. */
CT_API int ct_decoder_build_with(struct ct_model *model, struct ct_graph *graph,
                                 const struct ct_model_request *request,
                                 const struct ct_decoder_parts *parts);

/*
 * Multi-token prediction (DeepSeek-AI 2024, section 2.2). Depth k of D has a layer, whose input at
 * token i is a product of two normed vectors side by side: the embedding of token i + k, and what
 * the head reads at depth k - 1 (0: of the model itself). It predicts token i + k + 1 through a
 * norm and the model's own head. The loss of the objective is differentiated with weight / D times
 * the sum over k of these losses more, each divided as the objective's is; they are fetched as
 * "mtp_loss_k". Tokens are predicted from their own sequence and document only.
 */
struct ct_predictions {
    int64_t depths; /* D; 0: none */
    double weight;
    /* Names of weights, without ".weight"; '#' stands for the number of the layer, where each depth
       has its own, behind the model's. */
    const char *embedding_norm, *hidden_norm, *projection, *norm;
    const char *layers; /* what names of its layers' weights begin with, which count from 0; NULL:
                           they count on from the model's */
    /* Tensors that files have besides, with the model's own embedding and head. NULL: none */
    const char *embedding_copies, *head_copies;
};
/* Rules for these copies: at most CT_PREDICTION_RULES of each depth and of the model. embedding,
   head: names of these weights, without ".weight"; head NULL: the embedding. Returns how many. */
#define CT_PREDICTION_RULES 2
CT_API int ct_prediction_stored(struct ct_arena *arena, const struct ct_predictions *predictions,
                                int64_t layers, const char *embedding, const char *head,
                                struct ct_stored_rule *rules);
/* Rows of an option table. T: a struct with the members m.depths and m.weight. */
#define CT_PREDICTION_OPTIONS(T, m)                                                                \
    CT_OPT_INT(T, m.depths, "mtp", "0", 0, 64,                                                     \
               "Tokens that are predicted behind the next one (multi-token prediction)"),          \
        CT_OPT_FLOAT(T, m.weight, "mtp_weight", "0.3", 0, 1e6,                                     \
                     "Weight of the mean of these predictions' losses")
/* The parts of a model that its predictions use. */
struct ct_prediction_parts {
    struct ct_value *(*embed)(struct ct_decoder *d, const char *name, struct ct_value *tokens);
    /* weight: its whole name, without ".weight". */
    struct ct_value *(*norm)(struct ct_decoder *d, const char *name, struct ct_value *x,
                             const char *weight);
    ct_decoder_part_fn *layer;
    struct ct_value *(*logits)(struct ct_decoder *d, const char *name, struct ct_value *x);
};
/* Add the predictions to what the final norm gives, x[b, t, n], in regions of layers behind the
   model's. */
CT_API void ct_decoder_predict(struct ct_decoder *d, struct ct_value *x,
                               const struct ct_predictions *predictions,
                               const struct ct_prediction_parts *parts);
/* To be called when the graph is complete: one without a loss predicts nothing, and is left with
   the parameters, which checkpoints have. */
CT_API void ct_decoder_predicted(struct ct_decoder *d, const struct ct_predictions *predictions);
/* The end of a decoder's forward, from what the last layer gives: `last`, which has the final norm;
   the predictions; and the logits, which are fetched. */
CT_API void ct_decoder_finish(struct ct_decoder *d, struct ct_value *x, ct_decoder_part_fn *last,
                              const struct ct_predictions *predictions,
                              const struct ct_prediction_parts *parts);
/* FLOPs per token, forward and backward, of the products of a depth without its layer. */
CT_API double ct_prediction_flops(const struct ct_decoder_sizes *sizes);

/* SwiGLU of this width on h, with new weights "WHERE.gate_proj", "WHERE.up_proj" and
   "WHERE.down_proj"; the values' names begin with `prefix`. */
CT_API struct ct_value *ct_decoder_swiglu(struct ct_decoder *d, const char *prefix,
                                          struct ct_value *h, const char *where, int64_t width);

/* Keys that a query sees on average in a sequence of t tokens, counted whole, and as causal pairs.
   A window of 0 is none. With a window, keys are counted one by one where causal pairs are. */
struct ct_decoder_seen {
    double whole, halved;
};
CT_API struct ct_decoder_seen ct_decoder_seen(int64_t window, int64_t t);
/* Their sum over the layers, of which those of `sliding` have the window. */
CT_API struct ct_decoder_seen ct_decoder_seen_by_all(const struct ct_decoder_sizes *sizes,
                                                     int64_t t);

/* Whether LongRoPE has a divisor for each pair of rotated features, in both its lists; CT_ECONFIG
   names the key. */
CT_API int ct_decoder_check_rope(const struct ct_rope *rope, int64_t rotated);

/* CT_ECONFIG: layer_types says that this layer slides, but no key gives it a window. */
CT_API int ct_decoder_fail_window(int64_t layer);

/* Fit a rope whose scaling depends on the length of sequences to the request; leave another as it
   is. rotated: features of a head that it rotates. CT_ECONFIG: the request has documents, whose
   lengths would count. */
CT_API int ct_decoder_fit_rope(const struct ct_decoder_sizes *sizes,
                               const struct ct_model_request *request, int64_t rotated,
                               struct ct_rope *rope);

/* The scale of attention whose queries and keys are rotated whole: 1 / sqrt(head_dim), times the
   square of rope's amplitude. */
CT_API double ct_decoder_scale(const struct ct_decoder_sizes *sizes);

/* The token whose row of the embedding gets no gradient from look-ups; -1: none. */
CT_API int64_t ct_decoder_padding(const struct ct_decoder_sizes *sizes);

/* The text that printf would print, of any length, for as long as the graph lives. */
#define ct_decoder_text(d, ...) ct_arena_printf((d)->b.graph->arena, __VA_ARGS__)
/* "layers.3.WHAT", for as long as the graph lives. A `what` or `name` that is NULL or the result of
   the last call, here and below, is CT_EINVAL in d->b.status. */
CT_API const char *ct_decoder_named(struct ct_decoder *d, const char *what);
/* A parameter of the current layer, by default "model.layers.3.WHAT", or the same with ".weight"
   behind it. */
CT_API struct ct_value *ct_decoder_parameter(struct ct_decoder *d, const char *what, int ndim,
                                             const int64_t *shape, struct ct_init init);
CT_API struct ct_value *ct_decoder_weight(struct ct_decoder *d, const char *what, int ndim,
                                          const int64_t *shape, struct ct_init init);
/* x times a new weight, `what`; the value is called `name`. */
CT_API struct ct_value *ct_decoder_linear(struct ct_decoder *d, const char *name,
                                          struct ct_value *x, const char *what, int64_t rows,
                                          int64_t columns, double std);
/* The same plus a new bias, "WHAT.bias", of this standard deviation. */
CT_API struct ct_value *ct_decoder_biased(struct ct_decoder *d, const char *name,
                                          struct ct_value *x, const char *what, int64_t rows,
                                          int64_t columns, double std, double bias_std);
/* One of the two; the bias begins at 0. */
CT_API struct ct_value *ct_decoder_project(struct ct_decoder *d, const char *name,
                                           struct ct_value *x, const char *what, int64_t rows,
                                           int64_t columns, double std, bool biased);
/* Standard deviation of initial weights of o, up and down in a layer. */
CT_API double ct_decoder_depth_std(int64_t layer);
/* Initial values of the head, and of an embedding that is one, too. */
CT_API struct ct_init ct_decoder_head_init(const struct ct_decoder_sizes *sizes);
/* h times a new weight, "self_attn.WHAT_proj", as heads: [b, t, count, head_dim]. `what` is q, k or
   v, and the values' name. */
CT_API struct ct_value *ct_decoder_heads(struct ct_decoder *d, struct ct_value *h, const char *what,
                                         int64_t count, bool biased);
/* Attention's result h[b, t, heads, any] times a new weight, "self_attn.o_proj", plus x. */
CT_API struct ct_value *ct_decoder_attention_sum(struct ct_decoder *d, struct ct_value *x,
                                                 struct ct_value *h, bool biased);
/* RMS norm of x, over its last dimension, with a new weight. */
CT_API struct ct_value *ct_decoder_norm(struct ct_decoder *d, const char *name, struct ct_value *x,
                                        const char *what, int64_t size);

CT_END_DECLS

#endif
