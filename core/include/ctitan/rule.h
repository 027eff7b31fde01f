/*
 * Factor rules of op types, applied to one op.
 *
 * A type's rule ("*.n,*nk->.k", see op.h) names dimensions by factors. Applied to an op,
 * repetitions and leading dimensions are written out: each dimension of each operand points to its
 * factor, and a factor has one size. That is what shapes are inferred from, and what shardings are
 * propagated along: an axis that cuts a factor cuts every dimension that points to it.
 */
#ifndef CT_RULE_H
#define CT_RULE_H

#include <ctitan/op.h>

enum ct_factor_kind {
    CT_FACTOR_PARALLEL,  /* stands in an output */
    CT_FACTOR_REDUCTION, /* in inputs only: when cut, all outputs are unreduced */
    CT_FACTOR_WHOLE,     /* may not be cut */
};

struct ct_factor {
    char letter;    /* '.': a leading dimension */
    int repetition; /* of the repeated operands, if it is a factor of its own in each; else -1 */
    int index;      /* which of the leading dimensions; else 0 */
    enum ct_factor_kind kind;
    int64_t size; /* -1: in outputs only, set by the type's `infer` */
    int operand;  /* the first to have it: inputs, then outputs */
};

struct ct_rule_operand {
    int rank;       /* -1: absent */
    int repetition; /* of a repeated operand; else -1 */
    int factor[CT_MAX_RANK];
};

struct ct_rule {
    int count;
    struct ct_factor *factor;
    struct ct_rule_operand *operand; /* op->ins inputs, then op->outs outputs */
    int tie[2]; /* two factors that are cut together, the first a multiple of the second; -1: none
                 */
};

/*
 * Apply the type's rule to op's inputs; outputs' shapes are not read. CT_EINVAL names the operand
 * with a wrong rank, or the two whose sizes disagree. Types without a rule: no factors, rank -1
 * throughout.
 */
CT_API int ct_rule_apply(const struct ct_op *op, struct ct_arena *arena, struct ct_rule *rule);

/* Whether output is a partial sum where factor is cut: inputs have it, the output has neither it
   nor what it is tied to, and does not belong to another repetition. */
CT_API bool ct_rule_reduces(const struct ct_rule *rule, const struct ct_op *op, int factor,
                            int output);

/* Set the outputs' dtypes as type->operands says, and check number, presence and dtypes of the
 * inputs. */
CT_API int ct_operands_apply(struct ct_op *op);
/* Outputs by type->operands, for the number of inputs that op has. */
CT_API int ct_operands_count_outputs(const struct ct_op *op);
/* Name of operand i, inputs then outputs: "w", or "w.1" where it is repeated. As snprintf. */
CT_API int ct_operand_name(const struct ct_op *op, int i, char *text, size_t room);

/* Faults in the type's own rule and operands: CT_EINVAL. */
CT_API int ct_rule_check(const struct ct_op_type *type);

#endif
