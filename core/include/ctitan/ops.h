/*
 * The common ops, as model authors write them.
 *
 * Each function adds one op and returns its (first) output. All take NULL inputs and return NULL
 * once the builder has failed, so a model is written without a check per line. b = batch, t =
 * tokens, k, n = features, h = heads, g = key/value heads, d = head size, v = vocabulary.
 */
#ifndef CT_OPS_H
#define CT_OPS_H

#include <ctitan/op.h>

/* table[v, n], tokens int32 [b, t] -> [b, t, n] */
CT_API struct ct_value *ct_embedding(struct ct_builder *b, const char *name,
                                     struct ct_value *tokens, struct ct_value *table);

/* x[.., k], w[n, k] -> x w^T [.., n] */
CT_API struct ct_value *ct_linear(struct ct_builder *b, const char *name, struct ct_value *x,
                                  struct ct_value *w);
/* The same input through several weights at once: y[i] = x w[i]^T. One matrix product where the
   device can. names[i] names y[i]. */
CT_API void ct_linears(struct ct_builder *b, const char *const *names, struct ct_value *x,
                       struct ct_value *const *w, int count, struct ct_value **y);

/* x[.., k] * rsqrt(mean(x^2) + eps) * w[k]; the inner arithmetic is float32 (Zhang and Sennrich
 * 2019) */
CT_API struct ct_value *ct_rms_norm(struct ct_builder *b, const char *name, struct ct_value *x,
                                    struct ct_value *w, double eps);
/* *sum = x + r, and the norm of it. */
CT_API struct ct_value *ct_add_rms_norm(struct ct_builder *b, const char *name, struct ct_value *x,
                                        struct ct_value *r, struct ct_value *w, double eps,
                                        struct ct_value **sum);

CT_API struct ct_value *ct_add(struct ct_builder *b, const char *name, struct ct_value *x,
                               struct ct_value *y);

/* Rotary embedding on x[b, t, h, d] in the rotate-half convention of Hugging Face (Su et al. 2021).
   positions int32 [b, t], or NULL for 0, 1, 2, .. along t. Llama 3.1 scaling when factor > 1. */
struct ct_rope {
    double theta;
    double factor, low_freq_factor, high_freq_factor;
    int64_t original_max_position;
    bool inverse; /* rotate backwards: the gradient */
};
CT_API struct ct_value *ct_rope(struct ct_builder *b, const char *name, struct ct_value *x,
                                struct ct_value *positions, const struct ct_rope *rope);
/* Frequency of pair i of d/2, scaling applied. */
CT_API double ct_rope_frequency(const struct ct_rope *rope, int64_t head_size, int64_t pair);

/* Causal attention: softmax(q k^T / sqrt(d)) v. q[b, t, h, d], k and v[b, t, g, d], g divides h.
   documents int32 [b, t] or NULL: a token attends only to its own document. -> [b, t, h, d] */
CT_API struct ct_value *ct_attention(struct ct_builder *b, const char *name, struct ct_value *q,
                                     struct ct_value *k, struct ct_value *v,
                                     struct ct_value *documents);

/* silu(gate) * up, elementwise */
CT_API struct ct_value *ct_swiglu(struct ct_builder *b, const char *name, struct ct_value *gate,
                                  struct ct_value *up);

/* The same elements in another shape; at most one run of dimensions is split or merged. */
CT_API struct ct_value *ct_view(struct ct_builder *b, const char *name, struct ct_value *x,
                                int rank, const int64_t *shape);

CT_API struct ct_value *ct_cast(struct ct_builder *b, const char *name, struct ct_value *x,
                                enum ct_dtype dtype);

/* Sum over tokens of -log softmax(x w^T)[label], float32 scalar; labels int32 [b, t], -100 masked.
   The logits are made and consumed in pieces. Multiply-free: scaling is the caller's. */
CT_API struct ct_value *ct_linear_cross_entropy(struct ct_builder *b, const char *name,
                                                struct ct_value *x, struct ct_value *w,
                                                struct ct_value *labels);
/* The same on logits that exist: logits[b, t, v]. */
CT_API struct ct_value *ct_cross_entropy(struct ct_builder *b, const char *name,
                                         struct ct_value *logits, struct ct_value *labels);

/* A new parameter, float32 until a precision transform says otherwise. The init op that fills it is
   added too: normal with this deviation, cut at +-cut deviations (0: not cut); std 0: all ones. */
struct ct_init {
    double std, cut;
};
CT_API struct ct_value *ct_parameter(struct ct_builder *b, const char *name, int rank,
                                     const int64_t *shape, struct ct_init init);

#endif
