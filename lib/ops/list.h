/*
 * Shared by the sources of the op types.
 */
#ifndef CT_LIB_OPS_LIST_H
#define CT_LIB_OPS_LIST_H

#include <ctitan/op_author.h>
#include <ctitan/pass.h>
#include <ctitan/lib/ops.h>

/* Replace adjacent plain ops by one op that does all of them. */
extern const struct ct_transform ct_join_pointwise, ct_join;
/* `by` takes the place of `old`: its users and its name. */
void ct_take_over(struct ct_graph *graph, struct ct_value *old, struct ct_value *by);
/* Replace gradients that begin with the same work by one op. */
extern const struct ct_transform ct_join_gradients;
/* Make casts of parameters that no step changes once. */
extern const struct ct_transform ct_keep_casts;
/* Casts in the place of cast_like. */
extern const struct ct_transform ct_settle_casts;

/* ---- `cache` of op types ---- */

/* Caching of an op that takes positions. */
int ct_cache_positions(struct ct_cache *c);
int ct_cache_attention(struct ct_cache *c);
/* Most inputs of a recurrence: its documents are input at - 1, its state `at`; slots are last. */
#define CT_CACHE_INPUTS 16
int ct_cache_recurrence(struct ct_cache *c, int at, enum ct_dtype dtype, int ndim,
                        const int64_t *shape);
/* For `infer`: the state, input `at`, and slots are there, or neither is. */
int ct_check_part(const struct ct_op *op, int at);
/* For `vjp`: CT_EINVAL if there is a state. */
int ct_check_whole(const struct ct_op *op, int at);

/* ---- functions of references ---- */

double sigmoid_of(double x);
/* log(1 + e^x) */
double softplus_of(double x);
/* y[n]: e^x over its sum. */
void softmax_of(const double *x, int64_t n, double *y);

#endif
