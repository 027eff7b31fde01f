/* AdamW: declarations shared by its sources. */
#ifndef ADAMW_H
#define ADAMW_H

#include <ctitan/lib/patterns.h>
#include <ctitan/op.h>

struct adamw_hyper {
    double lr, beta1, beta2, eps, weight_decay, lr_factor;
};
extern const struct ct_option adamw_attrs[];

/* Inputs are lr, step, clip, then p, g, m, v of each parameter. */
extern const struct ct_op_type adamw_type;
enum { ADAMW_FIRST = 3, ADAMW_GROUP = 4 };

/* ---- copies.c ---- */

/* As adamw; after the v of each parameter comes a copy of it, or NULL. */
enum { ADAMW_COPIES_GROUP = ADAMW_GROUP + 1 };
extern const struct ct_op_type adamw_copies;
int adamw_copies_reference(const struct ct_launch *launch); /* in adamw.c */

/* The transform. It does nothing where the run's device has no kernels for it. */
int adamw_write_copies(struct ct_graph *graph);

/* ---- groups.c ---- */

/* Which parameters have a weight decay or a learning rate of their own, by patterns of names. */
struct adamw_groups {
    struct ct_patterns no_decay;
    struct ct_factors factors; /* of learning rates */
};

/* From the options' texts. CT_ECONFIG: an entry cannot be read, or applies to no parameter of the
   graph that adamw updates. In arena. */
int adamw_read_groups(struct ct_arena *arena, const struct ct_graph *graph, const char *no_decay,
                      const char *lr_factors, struct adamw_groups *groups);
/* *hyper, with the parameter's own values. */
struct adamw_hyper adamw_hyper_of(const struct adamw_groups *groups, const struct ct_value *param,
                                  const struct adamw_hyper *hyper);

/* ---- float8.c ---- */

extern const struct ct_op_type adamw_float8;
/* Its kernel for memory of the host. */
int adamw_float8_run(const struct ct_launch *launch);

/* Elements of a block with one scale; 0: the parameter's moments are not kept in 8 bits. */
int64_t adamw_float8_block(const struct ct_value *param);

#endif
