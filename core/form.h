/*
 * Operand lists: what rules and operands of op types have in common.
 *
 * Both are lists of terms, inputs "->" outputs, some repeated or optional. A form is such a list
 * written out for an op with so many inputs: a slot for every operand, saying which term it is an
 * instance of and which repetition.
 */
#ifndef CT_FORM_H
#define CT_FORM_H

#include <ctitan/op.h>

#define CT_MAX_TERMS 32

struct ct_term {
    const char *text;
    int length, unit; /* terms of one unit are repeated together */
    bool repeated, optional;
};

struct ct_slot {
    const struct ct_term *term;
    int repetition; /* -1: not repeated */
};

struct ct_form {
    struct ct_term term[CT_MAX_TERMS]; /* inputs, then outputs */
    int ins, outs;                     /* terms */
    int repetitions;
    struct ct_slot *slot; /* a slot for each input and output of the op */
};

/* Terms of text; slots are left empty. CT_EINVAL shows where it stops making sense. */
int ct_form_parse(const char *text, struct ct_form *form);
/* text written out for op's number of inputs; slots in arena. */
int ct_form_of(const char *text, const struct ct_op *op, struct ct_arena *arena,
               struct ct_form *form);
/* "w.1 %layers.0.wq [64,128]": operand i of op, for failures. */
const char *ct_operand_describe(const struct ct_op *op, int i, char *text, size_t room);

#endif
