/*
 * Between gradient.c, which derives the gradients of a formula, and gradient_type.c, which makes an
 * op type of them.
 */
#ifndef CT_IR_DERIVATION_H
#define CT_IR_DERIVATION_H

#include <ctitan/pointwise.h>

#include "ir/signature.h"

#define WHOLE (CT_BY_ROW | CT_BY_COLUMN)
#define MOST_ROOTS 32
#define MOST_READS 30 /* operands, and attributes */
_Static_assert(MOST_READS < CT_MAX_TERMS, "a gradient has an operand more than its forward");

struct root {
    int node, gradient;
};

/* Operands are the forward's: its inputs, then its outputs. Inputs of the formula's nodes have
   their numbers; the number after them is the output's gradient, then come attributes. */
struct derivation {
    const struct ct_signature *s;
    struct ct_arena *arena;
    struct ct_pointwise p;
    struct ct_pointwise_names names;
    unsigned level[CT_MAX_TERMS];
    int forward;                                        /* nodes of the forward */
    int output;                                         /* the operand whose gradient is given */
    int operand[CT_MAX_TERMS], dout, din[CT_MAX_TERMS]; /* nodes */
    struct root root[MOST_ROOTS];
    int roots;
    bool sums_all; /* the gradient of a value that varies along nothing is needed */
};

/* One way to compute the gradients. */
struct choice {
    int din[CT_MAX_TERMS]; /* nodes, by input */
    uint64_t reads;        /* operands, a bit each; attributes from bit 32 on */
    double cost;           /* tensors that it reads, then operations */
};

static inline const struct ct_term *term_at(const struct derivation *d, int i)
{
    return &d->s->term[i];
}

static inline int operands(const struct derivation *d)
{
    return d->s->ins + d->s->outs;
}

/* The number of attribute i among the inputs of nodes. */
static inline int attribute_input(const struct derivation *d, int i)
{
    return operands(d) + 1 + i;
}

static inline bool reads(const struct choice *c, int i)
{
    return c->reads >> i & 1;
}

/* Derive the gradients; s, arena and p.arena are set. CT_EINVAL says why there are none. */
int ct_gradient_find(struct derivation *d, struct choice *c);

#endif
