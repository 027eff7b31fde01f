/*
 * The op type that is the gradient of one with a formula. See ct_pointwise_vjp (pointwise.h).
 */
#ifndef CT_IR_GRADIENT_H
#define CT_IR_GRADIENT_H

#include "ir/signature.h"

enum ct_operand_kind { CT_OPERAND_GRADIENT, CT_OPERAND_INPUT, CT_OPERAND_OUTPUT };

struct ct_gradient {
    struct ct_op_type type;
    int output; /* of the forward, whose gradient it takes */
    int ins, outs;
    struct {
        enum ct_operand_kind kind;
        int index; /* of the forward's input or output */
    } in[CT_MAX_TERMS];
    int out[CT_MAX_TERMS];     /* the forward's inputs, by output */
    bool passes[CT_MAX_TERMS]; /* by input of the forward: its gradient is the output's */
};

/* Derive it from a compiled signature. CT_EINVAL: it cannot be derived, and why. */
int ct_gradient_derive(const struct ct_signature *forward, struct ct_arena *arena,
                       struct ct_gradient *gradient);
/* The gradient of a registered type that has ct_pointwise_vjp. */
const struct ct_gradient *ct_gradient_of(const struct ct_op_type *type);

#endif
