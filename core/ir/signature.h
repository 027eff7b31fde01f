/*
 * Signatures of op types, compiled.
 *
 * A signature's text (see op.h) is a list of operands. Some repeat, together with their unit: the
 * contents of one pair of brackets, or a single operand. The text is parsed once, when the type is
 * registered. The number of an op's inputs determines how often the units repeat, and with it the
 * position of each operand.
 */
#ifndef CT_SIGNATURE_H
#define CT_SIGNATURE_H

#include <ctitan/op.h>

#define CT_MAX_TERMS 32
#define CT_MAX_LETTERS 24

/* One operand in the text. */
struct ct_term {
    const char *name;
    char dtype;
    bool repeated, optional, updated;
    bool maximum;                    /* an output: partial results combine by their maximum */
    int count;                       /* factors, including '.' */
    uint8_t factor[CT_MAX_DIMS + 1]; /* indices of the signature's letters */
    int dot;                         /* index of '.' among them, or -1 */
};

/* Terms that repeat together. */
struct ct_unit {
    int first, count;
    bool repeated;
};

struct ct_signature {
    const struct ct_op_type *type;
    struct ct_op_type whole;      /* a copy; fields that the type was built without are zero */
    struct ct_gradient *gradient; /* derived from the formula; NULL: the type has a vjp, or none */
    const char *operands;         /* the text without factors, for error messages */
    int ins, outs;                /* terms; outputs follow inputs */
    int least;                    /* inputs before the optional ones at the end */
    bool repeats;                 /* some input repeats */
    bool may_be_none;             /* ..and may be absent altogether: "*?x" */
    bool shaped;                  /* operands have factors */
    bool updates;                 /* an input is updated in place */
    const struct ct_option *counted_by; /* SHAPE attribute with a size for each repetition */
    int letters;
    char letter[CT_MAX_LETTERS];
    bool single[CT_MAX_LETTERS];   /* the same factor in all repetitions */
    bool position[CT_MAX_LETTERS]; /* the result depends on positions along it: "@t" */
    bool positions;                /* some letter has `position` */
    const struct ct_option *multiple[CT_MAX_LETTERS]; /* attribute of "n%size"; NULL: none */
    char tie[2];                                      /* letters; 0: none */
    int in_units, units;
    struct ct_unit unit[CT_MAX_TERMS];
    struct ct_term term[CT_MAX_TERMS];
};

/* A signature, applied to an op's number of inputs. */
struct ct_expansion {
    const struct ct_signature *signature;
    int ins, outs, repetitions;
    int out_repetitions; /* of outputs; differs only in types without factors */
};

/* Parse type's signature. CT_EINVAL says what is wrong with it. Texts go to arena. */
int ct_signature_compile(const struct ct_op_type *type, struct ct_arena *arena,
                         struct ct_signature *signature);
/* The compiled signature of a registered type; CT_ENOENT and NULL if it is not registered. */
const struct ct_signature *ct_signature_of(const struct ct_op_type *type);

/* Find repetitions and outputs from op's inputs. CT_EINVAL: "takes (..), not 3 inputs". */
int ct_signature_expand(const struct ct_op *op, struct ct_expansion *expansion);
/* The term of operand i, counting inputs, then outputs; repetition: -1 if it does not repeat. */
const struct ct_term *ct_signature_term(const struct ct_expansion *expansion, int i,
                                        int *repetition);

/* "w.1 %layers.0.wq [64,128]": operand i of op, for error messages. */
const char *ct_operand_describe(const struct ct_op *op, int i, char *text, size_t room);

#endif
