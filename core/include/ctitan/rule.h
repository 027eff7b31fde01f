/*
 * Factor rules: the signature of an op type, applied to one op.
 *
 * A signature ("*dy[.n] T, *w[nk] T -> dx[.k] T", see op.h) names dimensions by factors. A rule
 * writes out its repetitions and leading dimensions for one op: each dimension of each operand
 * points to its factor, and a factor has one size. Shapes are inferred from rules, and shardings
 * propagate along factors: an axis that splits a factor splits every dimension that points to it.
 */
#ifndef CT_RULE_H
#define CT_RULE_H

#include <ctitan/op.h>

CT_BEGIN_DECLS

enum ct_factor_kind {
    CT_FACTOR_PARALLEL,  /* in some output */
    CT_FACTOR_REDUCTION, /* in inputs only: when split, outputs are unreduced */
    CT_FACTOR_WHOLE,     /* may not be split */
};

struct ct_factor {
    char letter;    /* '.': a leading dimension */
    int repetition; /* its repetition, if each repetition has its own factor; else -1 */
    int index;      /* which of the leading dimensions; else 0 */
    enum ct_factor_kind kind;
    int64_t size;     /* -1: in outputs only, set by the type's `infer` */
    int operand;      /* first operand with this factor; inputs, then outputs */
    bool position;    /* the result depends on positions along it: "@t" */
    int64_t multiple; /* shards are multiples of it: "n%size"; 0 or 1: any */
};

struct ct_rule_operand {
    int ndim;       /* -1: absent */
    int repetition; /* number of the repetition; -1: not repeated */
    bool maximum;   /* of an output: a split reduction leaves a pending maximum, not a sum */
    int factor[CT_MAX_DIMS];
};

struct ct_rule {
    int count;
    struct ct_factor *factor;
    struct ct_rule_operand *operand; /* op->ins inputs, then op->outs outputs */
    int tie[2]; /* two factors split together, the first a multiple of the second; -1: none */
};

/*
 * Apply the type's signature to op's inputs. Output shapes are not read. CT_EINVAL names the
 * operand with a wrong number of dimensions, or the two operands whose sizes disagree. For types
 * without factors every ndim is -1.
 */
CT_API int ct_rule_apply(const struct ct_op *op, struct ct_arena *arena, struct ct_rule *rule);

/* Whether splitting factor makes output a partial result: an input has the factor, the output has
   neither it nor the factor tied to it, and the two are not of different repetitions. */
CT_API bool ct_rule_reduces(const struct ct_rule *rule, const struct ct_op *op, int factor,
                            int output);

/* Name of operand i, inputs then outputs: "w", or "w.1" where it is repeated. As snprintf. */
CT_API int ct_operand_name(const struct ct_op *op, int i, char *text, size_t room);

CT_END_DECLS

#endif
