/*
 * The common ops, for model authors. A model uses plain ops. The transform "join" combines adjacent
 * ones into ops that do them at once (add and rms_norm; several linear layers on one input; silu
 * and mul; linear and cross_entropy).
 *
 * Each function adds one op and returns its (first) output. All accept NULL inputs and return NULL
 * once the builder has failed, so a model is written without a check per line. b = batch, t =
 * tokens, k, n = features, h = heads, g = key/value heads, d = head size, v = vocabulary.
 */
#ifndef CT_OPS_H
#define CT_OPS_H

#include <ctitan/core_ops.h>
#include <ctitan/input.h>

#define CT_LIB_OPS(X)                                                                              \
    X(init_normal)                                                                                 \
    X(init_constant)                                                                               \
    X(init_uniform)                                                                                \
    X(embedding)                                                                                   \
    X(embedding_grad)                                                                              \
    X(linear)                                                                                      \
    X(linear_dx)                                                                                   \
    X(linear_dw)                                                                                   \
    X(bias)                                                                                        \
    X(rms_norm)                                                                                    \
    X(add_rms_norm)                                                                                \
    X(rms_norm_grad)                                                                               \
    X(rms_norm_plain)                                                                              \
    X(rms_norm_plain_grad)                                                                         \
    X(layer_norm)                                                                                  \
    X(rope)                                                                                        \
    X(temper)                                                                                      \
    X(document_chunks)                                                                             \
    X(split)                                                                                       \
    X(split_grad)                                                                                  \
    X(expand_latent)                                                                               \
    X(expand_latent_grad)                                                                          \
    X(attention)                                                                                   \
    X(attention_grad)                                                                              \
    X(attention_sink)                                                                              \
    X(attention_sink_grad)                                                                         \
    X(cache_write)                                                                                 \
    X(cast_like)                                                                                   \
    X(straight_through)                                                                            \
    X(copy_heads)                                                                                  \
    X(copy_heads_grad)                                                                             \
    X(causal_conv)                                                                                 \
    X(causal_conv_grad)                                                                            \
    X(causal_conv_carry)                                                                           \
    X(causal_conv_dstate)                                                                          \
    X(state_scan)                                                                                  \
    X(state_scan_grad)                                                                             \
    X(state_scan_carry)                                                                            \
    X(state_scan_dstate)                                                                           \
    X(sigmoid)                                                                                     \
    X(decay)                                                                                       \
    X(gated_delta)                                                                                 \
    X(gated_delta_grad)                                                                            \
    X(gated_delta_carry)                                                                           \
    X(gated_delta_dstate)                                                                          \
    X(fold_states)                                                                                 \
    X(document_ends)                                                                               \
    X(mul)                                                                                         \
    X(scale)                                                                                       \
    X(scale_rows)                                                                                  \
    X(ones)                                                                                        \
    X(silu)                                                                                        \
    X(gelu)                                                                                        \
    X(swiglu)                                                                                      \
    X(softmax)                                                                                     \
    X(top_k)                                                                                       \
    X(top_k_grad)                                                                                  \
    X(balanced_top_k_grad)                                                                         \
    X(expert_load)                                                                                 \
    X(expert_excess)                                                                               \
    X(softmax_sum)                                                                                 \
    X(balance_loss)                                                                                \
    X(balanced)                                                                                    \
    X(experts)                                                                                     \
    X(experts_dx)                                                                                  \
    X(experts_dw)                                                                                  \
    X(experts_grad)                                                                                \
    X(expert_bias)                                                                                 \
    X(expert_bias_dweights)                                                                        \
    X(expert_bias_dbias)                                                                           \
    X(linear_cross_entropy)                                                                        \
    X(linear_cross_entropy_grad)                                                                   \
    X(linear_cross_entropy_dx)                                                                     \
    X(cross_entropy)                                                                               \
    X(cross_entropy_grad)                                                                          \
    X(sign_step)                                                                                   \
    X(cast_into)                                                                                   \
    X(load)                                                                                        \
    X(store)                                                                                       \
    X(offload)

struct ct_run;

#define X(id) extern CT_API const struct ct_op_type ct_op_##id;
CT_LIB_OPS(X)
#undef X
/* experts and experts_grad with the hidden layers kept between them (ct_keep_hidden):
   y, kept = experts_kept(x, weights, ids, gate, up, down, ..)
   dx, dweights, .. = experts_kept_grad(kept, dy, x, weights, ids, gate, up, down, ..)
   kept is opaque: its layout is the device's. */
extern CT_API const struct ct_op_type ct_op_experts_kept, ct_op_experts_kept_grad;

CT_BEGIN_DECLS

/* Register the op types of this header, and the transforms that join and keep them. A program calls
   it before it parses graphs or opens a run; a second call does nothing. */
CT_API int ct_ops_register(void);

/* For the transform of a device with kernels for both: experts becomes experts_kept where its
   gradients are one op on the same operands. item: bytes that kernels keep of an element, with this
   rank's shape of gate and number of choices; 0: they do not take it. */
CT_API int ct_keep_hidden(struct ct_graph *graph, const struct ct_run *run,
                          size_t (*item)(const struct ct_op *forward, const int64_t *gate,
                                         int64_t choices));

/* Whether two values are the same, or copies that were gathered, cast or loaded alike, or made of
   such by the same op. */
CT_API bool ct_copies_of_one(const struct ct_value *a, const struct ct_value *b);

/* table[v, n], tokens int32 [b, t] (or positions) -> [b, t, n] */
CT_API struct ct_value *ct_embedding(struct ct_builder *b, const char *name,
                                     struct ct_value *tokens, struct ct_value *table);
/* The same; the lookup gives the row of the token `padding` no gradient. -1: of none. */
CT_API struct ct_value *ct_padded_embedding(struct ct_builder *b, const char *name,
                                            struct ct_value *tokens, struct ct_value *table,
                                            int64_t padding);
struct ct_embedding {
    int64_t padding; /* a token of the whole vocabulary; -1: none */
};
struct ct_embedding_grad {
    int64_t rows;    /* of the table: the vocabulary */
    int64_t padding; /* a token that adds nothing; -1: none */
};

/* x[.., k], w[n, k] -> x w^T [.., n] */
CT_API struct ct_value *ct_linear(struct ct_builder *b, const char *name, struct ct_value *x,
                                  struct ct_value *w);
/* Several weights on one input: y[i] = x w[i]^T. One matrix product where the device can do that.
   names[i] names y[i]. */
CT_API void ct_linears(struct ct_builder *b, const char *const *names, struct ct_value *x,
                       struct ct_value *const *w, int count, struct ct_value **y);

/* x[.., n] + row[n] */
CT_API struct ct_value *ct_bias(struct ct_builder *b, const char *name, struct ct_value *x,
                                struct ct_value *row);

struct ct_rms_norm { /* and of add_rms_norm and rms_norm_plain, which has no offset */
    double eps;
    double offset; /* added to w, in float32 */
};
struct ct_rms_norm_grad {
    double offset;
};
/* x[.., k] * rsqrt(mean(x^2) + eps) * w[k]; the inner arithmetic is float32 (Zhang and Sennrich
   2019) */
CT_API struct ct_value *ct_rms_norm(struct ct_builder *b, const char *name, struct ct_value *x,
                                    struct ct_value *w, double eps);
/* The same times offset + w[k]: of Gemma's norms, whose w is near 0, the offset is 1. */
CT_API struct ct_value *ct_rms_norm_offset(struct ct_builder *b, const char *name,
                                           struct ct_value *x, struct ct_value *w, double eps,
                                           double offset);
/* The same without w. */
CT_API struct ct_value *ct_rms_norm_plain(struct ct_builder *b, const char *name,
                                          struct ct_value *x, double eps);
struct ct_layer_norm {
    double eps;
};
/* (x[.., k] - mean) * rsqrt(variance + eps) * w[k] + bias[k] (Ba et al. 2016); bias may be NULL. */
CT_API struct ct_value *ct_layer_norm(struct ct_builder *b, const char *name, struct ct_value *x,
                                      struct ct_value *w, struct ct_value *bias, double eps);
/* *sum = x + r; returns rms_norm of it. */
CT_API struct ct_value *ct_add_rms_norm(struct ct_builder *b, const char *name, struct ct_value *x,
                                        struct ct_value *r, struct ct_value *w, double eps,
                                        struct ct_value **sum);

/*
 * Rotary embedding on x[b, t, h, d] (Su et al. 2021). Pairs of features are rotated: i and i + d/2,
 * as Hugging Face does, or 2i and 2i + 1. positions int32 [b, t], or NULL for 0, 1, 2, .. along t.
 * With factor > 1, low frequencies are divided by it, as in Llama 3.1, or as in YaRN (Peng et al.
 * 2023), or all of them (linear). Of LongRoPE (Ding et al. 2024), each has a divisor of its own.
 */
struct ct_rope {
    double theta;
    double factor, low_freq_factor, high_freq_factor;
    int64_t original_max_position;
    bool inverse;     /* rotate backwards: the gradient */
    bool interleaved; /* pairs are features 2i and 2i + 1 */
    enum ct_rope_scaling {
        CT_ROPE_LLAMA3, /* by low_freq_factor and high_freq_factor */
        CT_ROPE_YARN,   /* by beta_fast and beta_slow */
        CT_ROPE_LINEAR, /* all alike */
        CT_ROPE_LONG,   /* by divisors, and not by factor */
    } scaling;
    int64_t first;               /* features of a head before this one are copied, not rotated */
    int64_t rotated;             /* so many from it on are rotated, the rest copied; 0: all */
    double beta_fast, beta_slow; /* 0: 32 and 1 */
    bool fractional;  /* yarn: pairs are kept up to one that is a real number, and stretched fully
                        from one; else these are rounded, away from each other */
    double magnitude; /* cosines and sines are multiplied by it; 0: 1 */
    const char *divisors; /* longrope: of each pair, "1:1.5:4" */
    /* Values of config.json that are no attributes: the model applies them. 0: it has none. */
    double mscale_all_dim;
    double amplitude; /* by what YaRN and LongRoPE multiply cosines and sines */
    double partial;   /* share of a head's features that is rotated; 0: all */
    bool dynamic;     /* theta grows with the context, by factor (dynamic NTK) */
    struct ct_rope_long {
        const char *near, *far; /* divisors for contexts up to the original one, and beyond */
    } longrope;
    double alpha;  /* of heads of d features, theta is multiplied by alpha^(d / (d - 2)) */
    double temper; /* scale of ct_temper, every original_max_position tokens */
};
CT_API struct ct_value *ct_rope(struct ct_builder *b, const char *name, struct ct_value *x,
                                struct ct_value *positions, const struct ct_rope *rope);
/* Frequency of pair i of rotated/2, where `rotated` features are rotated; scaling applied. */
CT_API double ct_rope_frequency(const struct ct_rope *rope, int64_t rotated, int64_t pair);

struct ct_temper {
    double scale;
    int64_t every, added; /* tokens */
};
/* x[b, t, h, d] times 1 + scale log(1 + floor((position + added) / every)): queries whose attention
   shall not flatten in long sequences (Nakanishi 2025). positions are as those of rope. */
CT_API struct ct_value *ct_temper(struct ct_builder *b, const char *name, struct ct_value *x,
                                  struct ct_value *positions, const struct ct_temper *how);
struct ct_document_chunks {
    int64_t tokens; /* of a chunk */
    int64_t most;   /* chunks of a document */
};
/* The documents for an attention within chunks of documents: documents * most + position / tokens,
   modulo 2^32. tokens int32 [b, t] give the shape only; positions are as those of rope; documents
   NULL are zeros. */
CT_API struct ct_value *ct_document_chunks(struct ct_builder *b, const char *name,
                                           struct ct_value *tokens, struct ct_value *positions,
                                           struct ct_value *documents,
                                           const struct ct_document_chunks *how);
/* For transforms: give positions to a rope, temper or document_chunks that counts them. Returns
   whether op is one of these types. */
CT_API bool ct_give_positions(struct ct_graph *graph, struct ct_op *op, struct ct_value *positions);

/* x in the dtype of `like`, whatever that becomes: a model does not know in what dtype the forward
   computes ([training] mixed_precision_param). The dtypes are floating ones; shapes may differ. */
CT_API struct ct_value *ct_cast_like(struct ct_builder *b, const char *name, struct ct_value *x,
                                     struct ct_value *like);
/* y, whose gradient is that of x (Bengio et al. 2013): y is x after a rounding or a step, which has
   no useful derivative. Both have one shape and dtype. */
CT_API struct ct_value *ct_straight_through(struct ct_builder *b, const char *name,
                                            struct ct_value *x, struct ct_value *y);

/*
 * Caches (struct ct_cache, op.h), for the function `cache` of an op type.
 *
 * The state "cache.<name>": created, of zeros if dtype is a floating one, unless it is there
 * already. NULL once the builder has failed.
 */
CT_API struct ct_value *ct_cache_state(struct ct_cache *cache, const char *name,
                                       enum ct_dtype dtype, int ndim, const int64_t *shape);
/* The state of that name of shape [batch, context, g, d], after x[b, t, g, d] was written into the
   slots of its tokens. */
CT_API struct ct_value *ct_cache_tokens(struct ct_cache *cache, const char *name,
                                        struct ct_value *x);
/* For kernels: tokens of sequence b that count, the first ones of its row. slots[b, t], or NULL or
   without data: all `tokens`. */
CT_API int64_t ct_slots_used(const struct ct_tensor *slots, int64_t b, int64_t tokens);
/* For kernels: whether sequence b begins in this row, so that nothing is before it. */
CT_API bool ct_slots_begin(const struct ct_tensor *slots, int64_t b);

struct ct_split { /* and of split_grad */
    struct ct_shape widths;
};
/* x[.., n] -> parts of the last dimension, y[i][.., widths[i]], in order; their sum is n. count: at
   most CT_MAX_DIMS. names[i] names y[i]. */
CT_API void ct_split(struct ct_builder *b, const char *const *names, struct ct_value *x,
                     const int64_t *widths, int count, struct ct_value **y);

struct ct_expand_latent {
    int64_t keys;
};
struct ct_expand_latent_grad {
    int64_t keys, values, shared; /* keys, v's features, and those of `shared` */
};
/*
 * Keys and values of multi-head latent attention (DeepSeek-AI 2024). kv[b, t, h, keys + dv] has for
 * each head the first features of its key, then its value; shared[b, t, r] the last features of the
 * keys of all heads. -> k[b, t, h, keys + r], and *v[b, t, h, dv]. names: of k and of v.
 */
CT_API struct ct_value *ct_expand_latent(struct ct_builder *b, const char *const names[2],
                                         struct ct_value *kv, struct ct_value *shared, int64_t keys,
                                         struct ct_value **v);

/*
 * Attention: softmax(scale q k^T) v over the keys that a query sees. q[b, t, h, d], k[b, t, g, d],
 * v[b, t, g, e], g divides h -> [b, t, h, e]. documents int32 [b, t] or NULL: a token sees only its
 * own document. how NULL: causal, no window, 1 / sqrt(d).
 */
struct ct_attention {
    bool causal;    /* a query sees no later key */
    double scale;   /* 0: 1 / sqrt(d) */
    int64_t window; /* a query sees keys closer to it than this: itself and window - 1 before it
                       (and, unless causal, after it); 0: no limit */
    bool blockwise; /* for transforms: keys are split as queries are, and each rank sees the block
                       that it holds */
    int64_t known;  /* for transforms: positions follow from ct_launch_position; keys are the block
                       of the rank known - 1 places before this one. 0: positions may be any */
    double softcap; /* c: scaled scores s become c tanh(s / c), before keys are masked; 0: they stay
                       (Gemma Team 2024) */
    double alibi;   /* scaled scores are less ct_alibi_slope times the distance of query and key; 0:
                       they stay. Not with softcap. 8: Press et al. 2022 */
};
CT_API extern const struct ct_option ct_attention_attrs[];
/* The slope of a head: 2^(-alibi (head + 1) / heads) where `heads` is a power of two. Else those of
   the next smaller power of two, and then every second one of those of twice that. */
CT_API double ct_alibi_slope(double alibi, int64_t heads, int64_t head);
/* Which of a rank's keys its queries see, as far as that is known before a step runs. Documents and
   the window are ignored. */
enum ct_seen {
    CT_SEEN_UNKNOWN,
    CT_SEEN_CAUSAL, /* query i sees keys 0 .. i */
    CT_SEEN_BLOCK,  /* some queries, one after the other, see some keys, others nothing */
};
struct ct_seen_block {
    int64_t query, queries, key, keys; /* the first, and how many */
};
/* For an attention whose inputs number at and at + 1 are q and k, and whose inputs number positions
   and positions + 1 are their positions. *block is set for CT_SEEN_BLOCK. */
CT_API enum ct_seen ct_attention_seen(const struct ct_prepare *p, int at, int positions,
                                      struct ct_seen_block *block);
CT_API struct ct_value *ct_attention(struct ct_builder *b, const char *name, struct ct_value *q,
                                     struct ct_value *k, struct ct_value *v,
                                     struct ct_value *documents, const struct ct_attention *how);
/*
 * Attention with a sink: the softmax of a query of head h has one more term, exp(sink[h]), which
 * adds no value. Two ops: attention, and attention_sink, which multiplies its result by
 * 1 / (1 + exp(sink - lse)). NAME is what the latter gives, NAME.plain what attention gives.
 */
CT_API struct ct_value *ct_attention_with_sink(struct ct_builder *b, const char *name,
                                               struct ct_value *q, struct ct_value *k,
                                               struct ct_value *v, struct ct_value *documents,
                                               struct ct_value *sink,
                                               const struct ct_attention *how);
/* For the gradient of a type that stands for attention, and for transforms: the value that
   attention_grad takes as `o`. It is the output of the attention_sink that takes the op's output 0,
   if there is one, else output 0. CT_EINVAL: an attention_sink and others take output 0. */
CT_API int ct_attention_result(const struct ct_op *attention, struct ct_value **result);

struct ct_copy_heads {
    int64_t heads;
    ct_axes axes;
};
struct ct_copy_heads_grad {
    int64_t groups;
};
/* Copies of heads: x[.., g, d] -> [.., heads, d], of which number i is head i g / heads of x. g
   divides `heads`. The ranks along `axes` get equal shares of the copies. */
CT_API struct ct_value *ct_copy_heads(struct ct_builder *b, const char *name, struct ct_value *x,
                                      int64_t heads, ct_axes axes);
/* For transforms that split the heads of an attention over so many shards, which divide those of q:
   k and v get as many copies of each head as it takes to divide these, too (NAME.copies), which the
   ranks along `axes` share. */
CT_API int ct_share_heads(struct ct_graph *graph, struct ct_op *attention, int64_t shards,
                          ct_axes axes, const char *why);

/*
 * A convolution of each channel along its sequence (Gu and Dao 2023): x[b, t, c], w[c, k] ->
 * [b, t, c]; y[t] = bias + sum over j of w[k - 1 - j] x[t - j], j below k. bias[c] may be NULL.
 * documents int32 [b, t], or NULL for one per sequence: a token sees those of its document only.
 */
CT_API struct ct_value *ct_causal_conv(struct ct_builder *b, const char *name, struct ct_value *x,
                                       struct ct_value *w, struct ct_value *bias,
                                       struct ct_value *documents);

/*
 * The selective state space of Mamba-2 (Dao and Gu 2024): x[b, t, h, p] -> y[b, t, h, p]. Each head
 * has a state [p, n]; for each token, with dt = softplus(dt[b, t, h] + dt_bias[h]) within limits,
 *
 *     state = exp(-exp(a_log[h]) dt) state + dt x B^T,  y = state C + D[h] x
 *
 * B and C are [b, t, g, n]; g divides h, and consecutive heads share a group. documents int32
 * [b, t], or NULL for one per sequence: a state begins with zeros in each. Kernels work on
 * chunks of CT_SCAN_CHUNK tokens.
 */
#define CT_SCAN_CHUNK 64
struct ct_state_scan {  /* and of state_scan_grad */
    double least, most; /* limits of dt; most 0: none */
};
struct ct_state_inputs {
    struct ct_value *x, *dt, *a_log, *b, *c, *d, *dt_bias;
};
CT_API struct ct_value *ct_state_scan(struct ct_builder *b, const char *name,
                                      const struct ct_state_inputs *in, struct ct_value *documents,
                                      const struct ct_state_scan *how);

/*
 * The gated delta rule (Yang et al. 2024): each head has a state S[k, n], zeros before the first
 * token of a document. A token makes it exp(gate) S, adds k^T u with u = beta (v - k S), and then
 * gets o = q S. q and k are [b, t, g, k], v is [b, t, h, n], h a multiple of g; gate and beta are
 * [b, t, h], float32; documents int32 [b, t], or NULL for one per sequence. Kernels work on chunks
 * of CT_DELTA_CHUNK tokens.
 */
#define CT_DELTA_CHUNK 64
CT_API struct ct_value *ct_gated_delta(struct ct_builder *b, const char *name, struct ct_value *q,
                                       struct ct_value *k, struct ct_value *v,
                                       struct ct_value *gate, struct ct_value *beta,
                                       struct ct_value *documents);

/*
 * Sequences in segments. Of the three ops above, tokens see earlier ones through a state alone: the
 * last inputs of a convolution, the states of heads. What a segment of a sequence makes of the
 * state before it is linear: keeps state + gain, and nothing of the state is kept where a document
 * begins in the segment. So segments may lie on different ranks: each of them computes keeps and
 * gain of its own segments, ct_op_fold_states combines them, and the op begins each segment with
 * its state. A sequence [.., t, ..] in segments is [.., segments, tokens, ..].
 *
 * An op type says so by its field `recurrence`. The gradient of such an op goes the other way: its
 * vjp emits the gradient of the state before each segment from that segment alone, and gives
 * ct_fold_back that of the state behind each.
 */
struct ct_recurrence {
    size_t size;
    int documents; /* the input int32 [.., t], optional */
    int state;     /* the input with the state before the first token, optional; absent: zeros */
    /* The fewest tokens of a segment; NULL: one. */
    int64_t (*least)(const struct ct_op *op);
    /* Emit from op's inputs what its segments do to a state: keeps [b, segments, h, k, k], or a
       factor [b, segments, h, 1, 1], or NULL, nothing; gain [b, segments, h, k, v]. Returns the
       builder's status. */
    int (*carry)(struct ct_builder *b, const char *name, const struct ct_op *op,
                 struct ct_value **keeps, struct ct_value **gain);
};

struct ct_conv_carry { /* of ct_op_causal_conv_carry */
    int64_t tokens;    /* of the end of a segment */
};
struct ct_fold { /* of ct_op_fold_states */
    bool back;   /* from gradients of the states before segments to those of the states behind */
};

/* The first and the last of documents int32 [.., t]: [.., 2]. */
CT_API struct ct_value *ct_document_ends(struct ct_builder *b, const char *name,
                                         struct ct_value *documents);
/* The state before each segment, in the order of sequences, from keeps and gain of `carry`. ends:
   of the segments' documents, [b, segments, 2]; NULL: one document. */
CT_API struct ct_value *ct_fold_states(struct ct_builder *b, const char *name,
                                       struct ct_value *keeps, struct ct_value *gain,
                                       struct ct_value *ends);
/* Whether state is one of ct_fold_states, so that later segments depend on the op's. */
CT_API bool ct_states_are_passed(const struct ct_value *state);
/* The gradient of the state behind each segment; own: that of the state before each, as far as its
   own segment uses it. */
CT_API struct ct_value *ct_fold_back(struct ct_builder *b, const struct ct_value *state,
                                     struct ct_value *own);

/* 1 / (1 + e^-x), float32 */
CT_API struct ct_value *ct_sigmoid(struct ct_builder *b, const char *name, struct ct_value *x);
/* -e^a[h] log(1 + e^(x[.., h] + bias[h])), float32: the gate of ct_gated_delta */
CT_API struct ct_value *ct_decay(struct ct_builder *b, const char *name, struct ct_value *x,
                                 struct ct_value *a, struct ct_value *bias);

/* x * y, elementwise */
CT_API struct ct_value *ct_mul(struct ct_builder *b, const char *name, struct ct_value *x,
                               struct ct_value *y);
struct ct_scale {
    double factor;
};
/* factor * x */
CT_API struct ct_value *ct_scale(struct ct_builder *b, const char *name, struct ct_value *x,
                                 double factor);
/* x[.., n] * w[..], a number for each row; w is float32 */
CT_API struct ct_value *ct_scale_rows(struct ct_builder *b, const char *name, struct ct_value *x,
                                      struct ct_value *w);
/* Ones, in the shape and dtype of x, whose gradient is 0. */
CT_API struct ct_value *ct_ones(struct ct_builder *b, const char *name, struct ct_value *x);
/* x / (1 + e^-x) */
CT_API struct ct_value *ct_silu(struct ct_builder *b, const char *name, struct ct_value *x);
enum ct_gelu_kind { CT_GELU_EXACT, CT_GELU_TANH };
struct ct_gelu { /* and of gelu_grad */
    enum ct_gelu_kind approximate;
};
/* x Phi(x) (Hendrycks and Gimpel 2016), or its approximation by tanh, as in GPT-2 */
CT_API struct ct_value *ct_gelu(struct ct_builder *b, const char *name, struct ct_value *x,
                                bool approximate);
/* Over the last dimension. */
CT_API struct ct_value *ct_softmax(struct ct_builder *b, const char *name, struct ct_value *x);
/* silu(gate) * up, elementwise */
CT_API struct ct_value *ct_swiglu(struct ct_builder *b, const char *name, struct ct_value *gate,
                                  struct ct_value *up);

enum ct_scores { CT_SCORES_SOFTMAX, CT_SCORES_SIGMOID };
struct ct_top_k { /* and of top_k_grad */
    int64_t k;
    bool normalised; /* weights are divided by their sum; that of sigmoids and 1e-20 */
    double balance;  /* above 0: x is [b, t, e], scores are softmax */
    enum ct_scores scores;
    int64_t groups, groups_chosen; /* 0: no groups */
    double scale;                  /* of the weights; 0: 1 */
};
/* The k experts of each token with the largest score + bias -> weights[.., k], float32, their
   scores without the bias, and ids[.., k], int32. Largest first; of equal ones, the lower index.
   Scores are softmax(x[.., e]), or sigmoid(x). bias[e], float32, may be NULL.

   With groups, experts are in so many equal groups, in order. A group's score is the sum of its two
   largest score + bias. Experts of the groups_chosen best groups can be chosen, others never
   (DeepSeek-AI 2024).

   The gradient flows through the weights. That of the bias is ct_expert_excess: descending its sign
   makes choices even (Wang et al. 2024). With `balance`, the gradient of x is also that of a loss
   that is not computed: the sum over b, t and e of balance load[b, e] p[b, t, e]; load, as in
   ct_expert_load, counts as constant. */
CT_API struct ct_value *ct_top_k(struct ct_builder *b, const char *name, struct ct_value *x,
                                 struct ct_value *bias, const struct ct_top_k *attrs,
                                 struct ct_value **ids);
/* CT_EINVAL: so many experts are not in such groups, or fewer than k can be chosen. */
CT_API int ct_top_k_check_groups(const struct ct_top_k *attrs, int64_t experts);
/* How many choices ids[b, t, k] of the tokens of each sequence are each of the experts that x[b, t,
   e] has -> load[b, e], float32. *total: the same of all sequences, [e]. */
CT_API struct ct_value *ct_expert_load(struct ct_builder *b, const char *name, struct ct_value *ids,
                                       struct ct_value *x, struct ct_value **total);
/* How many choices ids[.., k] are each of the experts that x[.., e] has, less the mean of that over
   experts, times their number -> [e], float32. Excesses of parts of a batch add up to that of the
   whole: exactly, since they are whole numbers, as long as they are below 2^24. */
CT_API struct ct_value *ct_expert_excess(struct ct_builder *b, const char *name,
                                         struct ct_value *ids, struct ct_value *x);
/* The sum over all rows of softmax(x[.., e]) -> [e], float32 */
CT_API struct ct_value *ct_softmax_sum(struct ct_builder *b, const char *name, struct ct_value *x);
struct ct_balance { /* of balance_loss and balanced */
    double weight;
};
/* The auxiliary loss of mixtures, weight sum_e load[e] score[e], float32 scalar: load[e] counts
   choices of expert e, score[e] is the sum of its probabilities, of any tokens and layers. Its
   gradient is that of ct_balanced. */
CT_API struct ct_value *ct_balance_loss(struct ct_builder *b, const char *name,
                                        struct ct_value *load, struct ct_value *score,
                                        double weight);
/* x, in the same memory. Where a gradient arrives, score gets that of such a loss, in addition to
   what x passes on; load counts as constant. */
CT_API struct ct_value *ct_balanced(struct ct_builder *b, const char *name, struct ct_value *x,
                                    struct ct_value *load, struct ct_value *score, double weight);

/* The gated layer of an expert, and attributes of experts and its gradients: with g = gate x and
   u = up x, and biases added where there are any, g is at most `limit`, and u from -limit to limit;
   h = g sigmoid(alpha g) (u + offset). Zeros are SwiGLU; gpt-oss (OpenAI 2025) has 1.702, 7, 1. The
   gradient passes at a limit, and not beyond. */
struct ct_experts {
    double alpha; /* 0: 1 */
    double limit; /* 0: none */
    double offset;
};
CT_API extern const struct ct_option ct_experts_attrs[];
/* The operands of ct_experts. */
struct ct_expert_operands {
    struct ct_value *x;                   /* [.., n] */
    struct ct_value *weights, *ids;       /* [.., k] */
    struct ct_value *gate, *up;           /* [experts, f, n] */
    struct ct_value *down;                /* [experts, n, f] */
    struct ct_value *gate_bias, *up_bias; /* [experts, f], or both NULL */
};
/* A mixture of gated layers (Shazeer et al. 2017): for each token of x, the sum over its k choices
   i of weights[i] down[e] h[e], e = ids[i]. how NULL: SwiGLU, h = silu(gate[e] x) * (up[e] x). An
   id may be CT_NO_EXPERT: such a choice adds nothing. Splitting experts or f leaves the result
   unreduced. */
#define CT_NO_EXPERT (-1)
CT_API struct ct_value *ct_experts(struct ct_builder *b, const char *name,
                                   const struct ct_expert_operands *of,
                                   const struct ct_experts *how);
/* Biases of the chosen layers: for each token, the sum over its choices i of weights[i]
   bias[ids[i]], [.., n]. weights and ids are as above, bias is [experts, n]. */
CT_API struct ct_value *ct_expert_bias(struct ct_builder *b, const char *name,
                                       struct ct_value *weights, struct ct_value *ids,
                                       struct ct_value *bias);

/* Sum over tokens of -log softmax(x w^T)[label], float32 scalar; labels int32 [b, t], -100 masked.
   The logits are computed and consumed in shards. The sum is not scaled: the caller does that. */
CT_API struct ct_value *ct_linear_cross_entropy(struct ct_builder *b, const char *name,
                                                struct ct_value *x, struct ct_value *w,
                                                struct ct_value *labels);
/* The same on given logits[b, t, v]. */
CT_API struct ct_value *ct_cross_entropy(struct ct_builder *b, const char *name,
                                         struct ct_value *logits, struct ct_value *labels);

/* The objective of recipes that name none: the mean cross entropy of the stream "labels". */
CT_API extern const struct ct_objective_ops ct_objective_cross_entropy;

/* For transforms that drop the gradients of parameters (ct_value_set_grad): remove the ops that
   only these needed, and let ops that give several gradients leave out those of weights. */
CT_API int ct_sweep_gradients(struct ct_graph *graph);

/* Once gradients are made: for each op of another section that uses op's output, emit a copy of op
   in front of it, which has its output's name with ".again". The output lives no longer than its
   own section needs it. why: of the copies. */
CT_API int ct_compute_again(struct ct_graph *graph, struct ct_op *op, const char *why);

/* ---- host memory: between the device's memory and its larger, slower one ---- */

/* A copy, on the device, of the offloaded x. */
CT_API struct ct_value *ct_load(struct ct_builder *b, const char *name, struct ct_value *x);
/* Store x, on the device, over the offloaded y: a parameter or state. */
CT_API struct ct_op *ct_store(struct ct_builder *b, struct ct_value *y, struct ct_value *x);
/* An offloaded copy of x: only ct_load may take it. */
CT_API struct ct_value *ct_offload(struct ct_builder *b, const char *name, struct ct_value *x);

/*
 * For transforms that feed sequences in another order, or in parts. Dimension 1 of every input runs
 * along sequences. CT_ECONFIG: an op needs whole sequences in order, or combines sequences with
 * what does not run along them. The message ends with `because`.
 */
CT_API int ct_check_sequences(const struct ct_graph *graph, const char *because);

/* ---- parameters ---- */

struct ct_init_normal {
    double std, truncate; /* truncate: redrawn beyond this many deviations; 0: never */
    int64_t seed;
};
/* Fill p with normal numbers: mean 0, standard deviation std. */
CT_API void ct_init_normal(struct ct_builder *b, struct ct_value *p,
                           const struct ct_init_normal *attrs);

struct ct_init_uniform {
    double low, high;
    int64_t seed;
};
/* Fill p with numbers that are uniform between low and high. */
CT_API void ct_init_uniform(struct ct_builder *b, struct ct_value *p,
                            const struct ct_init_uniform *attrs);

struct ct_init_constant {
    double value;
};
/* Fill p with one number. */
CT_API void ct_init_constant(struct ct_builder *b, struct ct_value *p, double value);

/* ---- steps of given sizes ---- */

struct ct_sign_step { /* clip, then parameters and gradients in turn */
    double rate;
};

/* ---- copies of parameters in another dtype ---- */

/* The first op behind init that updates a parameter; NULL: no step changes it. */
CT_API struct ct_op *ct_updater(const struct ct_value *param);
/* Whether v is a cast of a parameter from float32 to bfloat16, once a step. */
CT_API bool ct_is_parameter_cast(const struct ct_value *v);
/* Replace such a cast by a state called name, which the init part makes (cast_into). */
CT_API struct ct_value *ct_cast_once(struct ct_builder *init, struct ct_value *cast,
                                     const char *name);
/* Whether the run's device has a kernel of the type with these flags. */
CT_API bool ct_device_runs(const struct ct_op_type *type, unsigned flags);

/* ---- parameters ---- */

/* Initial values of a parameter; {0} is zeros. */
struct ct_init {
    enum ct_init_kind {
        CT_INIT_ZERO,
        CT_INIT_CONSTANT, /* a everywhere */
        CT_INIT_NORMAL,   /* mean 0, standard deviation a */
        CT_INIT_UNIFORM,  /* between a and b */
    } kind;
    double a, b;
    double truncate; /* normal: redrawn beyond this many deviations; 0: never */
};
#define CT_INIT_ONE ((struct ct_init){.kind = CT_INIT_CONSTANT, .a = 1})
#define CT_INIT_STD(std) ((struct ct_init){.kind = CT_INIT_NORMAL, .a = (std)})

/* Weights of linear layers and embeddings: normal, with standard deviation std by the model's own
   rule, or share times [model] initializer_range where the recipe sets that. */
CT_API struct ct_init ct_init_weight(double std, double share);

/* A new parameter, float32 until a precision transform says otherwise, and the op that fills it. */
CT_API struct ct_value *ct_parameter(struct ct_builder *b, const char *name, int ndim,
                                     const int64_t *shape, struct ct_init init);

/* ---- for reference kernels, in addition to <ctitan/op_author.h> ---- */

/* Label or token i as an index below limit. CT_EINVAL names one that is outside. */
CT_API int ct_checked_index(const double *indices, int64_t i, int64_t limit, const char *what);

/* For kernels of types that need whole sequences in any order ("@T"): the index of the token at
   each position, at[shape[dim]]. */
CT_API void ct_launch_order(const struct ct_launch *launch, const struct ct_value *v, int dim,
                            int64_t *at);

/* ---- collectives, besides ct_all_reduce and ct_permute (core_ops.h) ---- */

/* Both take `count` values in one call. Output i is the result for x[i]. all_gather: on every rank
   the whole of dimension dim, which axes split. */
CT_API struct ct_op *ct_all_gather(struct ct_builder *b, const char *name,
                                   struct ct_value *const *x, int count, ct_axes axes, int dim);
/* The reduction of each x over the group, split along dim: each rank gets its shard. */
CT_API struct ct_op *ct_reduce_scatter(struct ct_builder *b, const char *name,
                                       struct ct_value *const *x, int count, ct_axes axes, int dim,
                                       enum ct_reduction reduction);
/* A value that axes split along dim becomes one that they split along `to`. */
CT_API struct ct_value *ct_all_to_all(struct ct_builder *b, const char *name, struct ct_value *x,
                                      ct_axes axes, int dim, int to);
/* The rank's own shard along dim of a replicated value; nothing is sent. */
CT_API struct ct_value *ct_slice(struct ct_builder *b, const char *name, struct ct_value *x,
                                 ct_axes axes, int dim);

CT_END_DECLS

#endif
