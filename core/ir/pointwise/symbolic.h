/*
 * Between symbolic.c, which has the algebra of formulas' nodes, and gradient.c, which derives
 * gradients with it. All functions append nodes to p, simplified.
 */
#ifndef CT_IR_SYMBOLIC_H
#define CT_IR_SYMBOLIC_H

#include <ctitan/pointwise.h>

int ct_symbolic_multiply(struct ct_pointwise *p, int a, int b);
int ct_symbolic_add(struct ct_pointwise *p, int a, int b);
/* The partial derivative of node k by node `leaf`: an input, or a reduction. Other reductions count
   as constants. memo: of `memos` elements, -1 at first, for this leaf. */
int ct_symbolic_partial(struct ct_pointwise *p, int k, int leaf, int *memo, int memos);
/* kind(e) for ROW_SUM and ROW_MEAN: what is the same in all columns stands before the reduction,
   unless the first `forward` nodes have it as a factor. A reduction that is 0 for any operands, as
   the sum of differences from the mean, is the number 0. */
int ct_symbolic_reduce(struct ct_pointwise *p, enum ct_pointwise_kind kind, int e, int forward);

/* Is k, which varies along rows alone, 0 for any operands? It is compared with `size`, the sum of
   the magnitudes of what is added up, for numbers of several magnitudes; only what is finite
   counts. */
bool ct_symbolic_vanishes(struct ct_pointwise *p, int k, int size);

static inline bool ct_symbolic_is(const struct ct_pointwise *p, int k, double number)
{
    return p->node[k].kind == CT_POINTWISE_NUMBER && p->node[k].number == number;
}

#endif
