/* Declarations that the checks of ops share. */
#ifndef CHECK_MACHINE_H
#define CHECK_MACHINE_H

#include <stdlib.h>

#include <ctitan/lib/app/check.h>
#include <ctitan/rule.h>

#define CHECK_OPERANDS 64

/* Whether what a fill makes may have a gradient. */
bool fill_has_gradient(const char *name);

/* The reference kernel of op, of graph, on the shards that a rank of mesh (NULL: there is none)
   holds. */
int launch(const struct ct_graph *graph, const struct ct_mesh *mesh, int64_t rank,
           const struct ct_op *op, const struct ct_tensor *in, const struct ct_tensor *out,
           uint32_t accumulate);

/* A sample's op, its inputs before and after a run, and its outputs. All are dense. */
struct call {
    struct ct_trial m;
    const struct ct_sample *sample;
    const struct ct_op *op;
    struct ct_tensor in[CHECK_OPERANDS], after[CHECK_OPERANDS], out[CHECK_OPERANDS];
};

/* In dtype. Inputs have the values of those of `like`, which may be rounded (NULL: their own). */
int call_create(struct call *c, const struct ct_sample *s, enum ct_dtype dtype,
                const struct call *like);
void call_finish(struct call *c);
/* Feed the op's sequences in another order from now on: the graph changes. 0: the type's results do
   not depend on positions, the op lacks an input with them, or its sequences have an odd length; 1:
   done. rule: the op's. */
int order_begin(struct ct_trial *m, struct ct_rule *rule);
/* Put the elements of a dense tensor in that order. operand: inputs come first. */
void order_apply(struct ct_trial *m, const struct ct_rule *rule, int operand,
                 const struct ct_tensor *t);

/* A copy of t in the call's arena: dimensions in another order in memory, and room between the
   elements. */
struct ct_tensor scattered(struct call *c, const struct ct_tensor *t);

/* CT_EINVAL if got differs from want + offset by more than tolerance * (1 + |want|). */
int expect(const struct call *c, const char *what, const char *kind, int operand,
           const struct ct_tensor *got, const struct ct_tensor *want, double offset,
           double tolerance);

/* ---- the checks in ct_op_checks ---- */

int check_gradients(const struct ct_sample *s);
int check_flops(const struct ct_sample *s);

#endif
