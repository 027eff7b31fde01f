/*
 * The model of this plugin: what a family's description and a folder's config.json say of a
 * decoder. Properties (properties.c) are the names of these fields in descriptions.
 */
#ifndef DECODER_H
#define DECODER_H

#include <ctitan/lib/mixture.h>

/* one: of weights that 1 is added to; plain: without weights */
enum decoder_norm { NORM_RMS, NORM_RMS_ONE, NORM_LAYER, NORM_LAYER_ONE, NORM_LAYER_PLAIN };
enum decoder_norms { NORMS_BEFORE, NORMS_AFTER, NORMS_BOTH }; /* of attention and feed-forward */
enum decoder_qk_norm { QK_NORM_NONE, QK_NORM_HEAD, QK_NORM_WHOLE, QK_NORM_EACH };
enum decoder_positions { POSITIONS_ROPE, POSITIONS_NONE, POSITIONS_LEARNED };
enum decoder_activation {
    ACTIVATION_SILU,
    ACTIVATION_GELU,
    ACTIVATION_GELU_TANH,
    ACTIVATION_RELU,
    ACTIVATION_RELU2
};

/* The weights of a model, by what they do. */
#define DECODER_WEIGHTS(X)                                                                         \
    X(LAYERS, "layers", "model.layers") /* what names of a layer's weights begin with */           \
    X(EMBEDDING, "embedding", "model.embed_tokens")                                                \
    X(PLACES, "positions", NULL) /* of learned positions */                                        \
    X(FINAL_NORM, "final_norm", "model.norm")                                                      \
    X(HEAD, "head", "lm_head")                                                                     \
    X(ATTENTION_NORM, "attention_norm", "input_layernorm")                                         \
    X(ATTENTION_AFTER, "attention_norm_after", "post_attention_layernorm")                         \
    X(Q, "q", "self_attn.q_proj")                                                                  \
    X(K, "k", "self_attn.k_proj")                                                                  \
    X(V, "v", "self_attn.v_proj")                                                                  \
    X(O, "o", "self_attn.o_proj")                                                                  \
    X(Q_NORM, "q_norm", "self_attn.q_norm")                                                        \
    X(K_NORM, "k_norm", "self_attn.k_norm")                                                        \
    X(FFN_NORM, "ffn_norm", "post_attention_layernorm")                                            \
    X(FFN_AFTER, "ffn_norm_after", "post_feedforward_layernorm")                                   \
    X(GATE, "gate", "mlp.gate_proj")                                                               \
    X(UP, "up", "mlp.up_proj")                                                                     \
    X(DOWN, "down", "mlp.down_proj")                                                               \
    X(MIXER, "mixer", "mamba") /* what names of a Mamba-2 layer's weights begin with */            \
    X(ROUTER, "router", "mlp.gate")                                                                \
    X(EXPERTS, "experts", "mlp.experts")                                                           \
    X(SHARED, "shared_experts", "mlp.shared_experts")                                              \
    X(SHARED_GATE, "shared_gate", "mlp.shared_expert_gate")                                        \
    X(Q_GATE, "q_gate", "self_attn.q_gate")                                                        \
    X(LINEAR, "linear", "linear_attn")                                                             \
    X(CONV, "conv", "conv")         /* what names of a gated convolution's weights begin with */   \
    X(LATENT_IN, "latent_in", NULL) /* NULL, here and below: a family may have none */             \
    X(LATENT_OUT, "latent_out", NULL)                                                              \
    X(AHEAD_LAYERS, "prediction_layers", NULL) /* of multi-token prediction; as those below */     \
    X(AHEAD_EMBEDDING_NORM, "prediction_embedding_norm", NULL)                                     \
    X(AHEAD_HIDDEN_NORM, "prediction_hidden_norm", NULL)                                           \
    X(AHEAD_PROJECTION, "prediction_projection", NULL)                                             \
    X(AHEAD_NORM, "prediction_norm", NULL)

enum decoder_weight {
#define X(id, name, usual) WEIGHT_##id,
    DECODER_WEIGHTS(X)
#undef X
        WEIGHT_COUNT
};

/* How files store q, k and v: apart, or as one tensor, of all rows of q, then k, then v, or of
   each head's three, one head behind the other. */
enum decoder_fused { FUSED_NONE, FUSED_ROWS, FUSED_HEADS };

/* How files store the projections of linear layers: those of each head of keys behind the other
   (in_proj_qkvz, in_proj_ba), or q, k and v behind each other (in_proj_qkv), and the rest apart. */
enum decoder_linear_fused { LINEAR_NONE, LINEAR_HEADS, LINEAR_ROWS };

/* Token mixers of layers; the others stand in place of attention. */
enum decoder_mixer { MIXER_ATTENTION, MIXER_DELTA, MIXER_MAMBA, MIXER_CONV };

/* Sizes of the delta net. */
struct decoder_linear {
    int64_t key_heads, value_heads, key_dim, value_dim;
    int64_t taps; /* tokens that the convolution sees */
};

struct family;

/* The layers of Mamba-2. */
struct decoder_state {
    int64_t heads, head_dim, size, groups; /* size: of a head's state, by head_dim */
    int64_t expand;                        /* heads head_dim is so many times dim */
    int64_t conv_size;
    bool conv_bias;
    double least; /* lower limit of time steps */
};

struct ct_model {
    struct ct_decoder_sizes sizes;
    const struct family *family;

    enum decoder_norm norm;
    enum decoder_norms norms;
    bool normed_after; /* false: norms that are both are before alone */
    enum decoder_qk_norm qk_norm;
    bool qk_normed;  /* false: qk_norm is none */
    bool norm_bias;  /* layer norms have biases, except those of q and k */
    bool qk_rotated; /* norms of q and k are behind rope */
    bool qk_bias;    /* the norms of queries and keys have biases, as layer norms have */
    bool q_bias, o_bias, mlp_bias, head_bias; /* q_bias: also of k and v */
    bool attention_bias, all_bias;            /* q and o; these and mlp */

    double scale;         /* of attention; 0: scale_of^-0.5 */
    int64_t scale_of;     /* 0: head_dim */
    double soft_cap;      /* of attention's scores; 0: none */
    double clip;          /* of q, k and v: their largest magnitude; 0: none */
    int64_t window;       /* tokens that sliding layers see; 0: all */
    bool windowed;        /* false: none slide */
    int64_t window_from;  /* the first layer that slides */
    int64_t window_until; /* the first one behind those that slide */
    bool window_plain;    /* layers with rope do not slide */
    int64_t full_every;   /* every so many layers does not slide; 0: all slide */
    bool full_first;      /* the first of so many, not the last */
    struct ct_hf_layers sliding;

    int64_t plain_every;         /* every so many layers has no rope; 0: all have it */
    bool plain_full;             /* where some layers slide, the others have no rope */
    struct ct_hf_layers rotated; /* layers with rope */
    enum decoder_positions positions;
    int64_t first_position; /* learned: rows of their table before that of the first token */
    bool local;             /* sliding layers have a rope of their own: local_rope */
    struct ct_rope local_rope;

    enum decoder_activation activation;
    bool output_gate; /* attention's result times the sigmoid of a projection */

    enum decoder_mixer mixer;      /* of the linear layers; attention: there are none */
    struct ct_hf_layers types[3];  /* linear layers; of `single`, feed-forward; mixtures */
    struct ct_hf_layers attending; /* those with attention, where files list them instead */
    int64_t
        attention_every; /* every so many layers has attention, where no list is given; 0: none */
    struct decoder_linear linear;
    struct decoder_state state;

    bool gated;
    /* Width of feed-forward layers from which ffn_dim follows, where it is not 0: adjusted, it is
       two thirds of it, times the multiplier, as a multiple of ffn_multiple; else the same. */
    int64_t ffn_whole, ffn_multiple;
    double ffn_multiplier; /* 0: none, nor a multiple */
    bool ffn_adjusted;
    int64_t embedding_dim; /* must be dim; 0: it is */
    int64_t ffn_times;     /* without ffn_whole, ffn_dim is so many times dim; 0: it is not */

    bool single;           /* a layer is a mixer or feed-forward, behind one norm */
    int64_t forward_every; /* then every so many is feed-forward, where no list is given; 0: none */
    bool parallel, shared_norm; /* attention and feed-forward read the same x, or its one norm */

    double embedding_multiplier; /* 0: 1 */
    bool embedding_root;         /* embeddings are multiplied by the root of dim */
    double residual_multiplier;  /* of what is added to the residual stream; 0: 1 */
    double logits_divisor;       /* 0: 1 */
    double logits_multiplier;    /* 0: 1 */
    double logits_soft_cap;      /* 0: none */

    struct ct_mixture mixture; /* experts 0: none */
    int64_t dense_layers;      /* the first layers, which are no mixtures */
    bool shared_gated;         /* the shared experts have a gate */
    int64_t sparse_every;      /* every so many layers is a mixture; 0: all */
    int64_t sparse_last;       /* the last layer that is one; 0: any */
    struct ct_hf_layers dense; /* layers that are none */
    int64_t rotary_dim; /* features of a head that are rotated, unless a share says it; 0: all */
    struct ct_predictions predictions;
};

bool decoder_slides(const struct ct_model *m, int64_t layer);
bool decoder_rotates(const struct ct_model *m, int64_t layer);
enum decoder_mixer decoder_mixer(const struct ct_model *m, int64_t layer);
/* Whether the layer has feed-forward, and whether it has a mixer of tokens. */
bool decoder_forwards(const struct ct_model *m, int64_t layer);
bool decoder_mixes(const struct ct_model *m, int64_t layer);
bool decoder_is_mixture(const struct ct_model *m, int64_t layer);
double decoder_scale(const struct ct_model *m);
/* Whether feed-forward layers have no gate, and the square of relu. */
bool decoder_squares(const struct ct_model *m);
/* Such a layer of this width on h, with weights "WHERE.up_proj" and "WHERE.down_proj". */
struct ct_value *decoder_squared(struct ct_decoder *d, struct ct_value *h, const char *where,
                                 int64_t width);
/* The layer whose kind that of predictions has: the last one with attention. */
int64_t decoder_like(const struct ct_model *m, int64_t layer);

/* How many of the features of a head are rotated. */
int64_t decoder_rotated(const struct ct_model *m, const struct ct_rope *rope);
/* The rope of a layer. CT_ECONFIG: it has none for the request. */
int decoder_rope(const struct ct_model *m, int64_t layer, const struct ct_model_request *request,
                 struct ct_rope *rope);

/* The Mamba-2 mixer of the current layer, applied to h, which is normed. */
struct ct_value *decoder_mamba(struct ct_decoder *d, const struct ct_model *m, struct ct_value *h);

int decoder_build(struct ct_model *model, struct ct_graph *graph,
                  const struct ct_model_request *request);

/* ---- descriptions (family.c) ---- */

struct family {
    const char *name, *path;
    struct ct_hf_config config;
    const char *weight[WEIGHT_COUNT];
    enum decoder_fused fused;         /* q, k and v */
    enum decoder_linear_fused linear; /* of linear layers */
    const char *qkv, *gate_up;        /* tensors of fused weights; NULL: none are */
    const char *down;                 /* the tensor of `down`; NULL: as it is called here */
    const char *experts_gate_up, *experts_down; /* tensors of all experts; NULL: each has its own */
    bool experts_transposed;                    /* inputs by outputs, called so as they are */
    const char *expert[3];                      /* tensors of an expert's gate, up and down */
    const char *correction;   /* the tensor of the bias of the choice; NULL: beside the router's */
    const char *each_norm[2]; /* tensors of heads' norms; NULL: none are apart */
    const char *copies[2];    /* tensors of predictions with the embedding and head; NULL: none */
    const char *ignored;      /* ends of names of tensors that are no weights, "a b" */
    const struct ct_recipe *description; /* its sections */
};

/* The description called name, from the folder that has it. CT_ECONFIG: it says something wrong, or
   there is none; the message has their names. It lives as long as the process. */
int family_read(const char *name, const struct family **family);
/* Set all properties: to their defaults, then to what [model] of the description says. */
int family_apply(const struct family *family, struct ct_model *model);
/* Set those of [flavor.NAME], and what config.json would say where it is silent. CT_ECONFIG: no
   such flavor. */
int family_flavor(const struct family *family, const char *flavor, struct ct_model *model);

/* ---- where files have the weights (stored.c) ---- */

/* For a model of these sizes, in the arena. */
const struct ct_stored_rule *decoder_stored(const struct ct_model *m, struct ct_arena *arena);
const struct ct_shard_rule *decoder_shard_plan(const struct ct_model *m, struct ct_arena *arena);

/* ---- properties (properties.c) ---- */

/* Options of struct ct_model. */
extern const struct ct_option decoder_properties[];
/* The words of config.json for the constants of an enum: "silu=swish|gelu|.."; NULL: the option's
   own. */
const char *decoder_words(const struct ct_option *property);

/* ---- ops (ops.c) ---- */

extern const struct ct_op_type op_soft_cap, op_clip, op_relu, op_whiten, op_scale_columns;

/* cap tanh(x / cap) */
struct ct_value *soft_cap(struct ct_builder *b, const char *name, struct ct_value *x, double cap);
/* x between -most and most; the gradient passes between. */
struct ct_value *clip(struct ct_builder *b, const char *name, struct ct_value *x, double most);
/* max(x, 0), or its square */
struct ct_value *relu(struct ct_builder *b, const char *name, struct ct_value *x, bool squared);
/* (x - mean) / standard deviation, of rows */
struct ct_value *whiten(struct ct_builder *b, const char *name, struct ct_value *x, double eps);
/* x[.., k] w[k] */
struct ct_value *scale_columns(struct ct_builder *b, const char *name, struct ct_value *x,
                               struct ct_value *w);

#endif
