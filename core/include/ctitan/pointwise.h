/*
 * The formula of an op type (ct_op_type.pointwise, see op.h), as a list of nodes.
 *
 * A node is an input, a number, or a function of earlier nodes. Equal nodes are made once. A node
 * has a level, which says along which dimensions its value varies: the last one is the column, all
 * others together are the row. x of rms_norm varies along both, its weight along columns, its rstd
 * along rows, and a learning rate along neither.
 *
 * The formulas of several ops can be applied in one list: the outputs of one are inputs of the
 * next. Outputs in bfloat16 are rounded where the ops would round them.
 */
#ifndef CT_POINTWISE_H
#define CT_POINTWISE_H

#include <ctitan/op.h>

CT_BEGIN_DECLS

#define CT_BY_COLUMN 1u
#define CT_BY_ROW 2u

/* id, name in formulas, number of arguments, binding strength (0: a call or a leaf) */
#define CT_POINTWISE_KINDS(X)                                                                      \
    X(NUMBER, "", 0, 0)                                                                            \
    X(INPUT, "", 0, 0)                                                                             \
    X(SELECT, "?", 3, 1)                                                                           \
    X(LESS, "<", 2, 2)                                                                             \
    X(GREATER, ">", 2, 2)                                                                          \
    X(ADD, "+", 2, 3)                                                                              \
    X(SUBTRACT, "-", 2, 3)                                                                         \
    X(MULTIPLY, "*", 2, 4)                                                                         \
    X(DIVIDE, "/", 2, 4)                                                                           \
    X(NEGATE, "-", 1, 5)                                                                           \
    X(EXP, "exp", 1, 0)                                                                            \
    X(LOG, "log", 1, 0)                                                                            \
    X(LOG1P, "log1p", 1, 0)                                                                        \
    X(SIGMOID, "sigmoid", 1, 0)                                                                    \
    X(TANH, "tanh", 1, 0)                                                                          \
    X(ERF, "erf", 1, 0)                                                                            \
    X(SIN, "sin", 1, 0)                                                                            \
    X(COS, "cos", 1, 0)                                                                            \
    X(SQRT, "sqrt", 1, 0)                                                                          \
    X(ABS, "abs", 1, 0)                                                                            \
    X(MIN, "min", 2, 0)                                                                            \
    X(MAX, "max", 2, 0)                                                                            \
    X(POW, "pow", 2, 0)                                                                            \
    X(BF16, "bfloat16", 1, 0)                                                                      \
    X(COLUMNS, "columns", 0, 0)                                                                    \
    X(ROW_SUM, "row_sum", 1, 0)                                                                    \
    X(ROW_MEAN, "row_mean", 1, 0)                                                                  \
    X(ROW_MAX, "row_max", 1, 0)                                                                    \
    X(COLUMN_SUM, "column_sum", 1, 0)

enum ct_pointwise_kind {
#define X(id, name, arguments, strength) CT_POINTWISE_##id,
    CT_POINTWISE_KINDS(X)
#undef X
        CT_POINTWISE_KIND_COUNT
};

struct ct_pointwise_node {
    enum ct_pointwise_kind kind;
    unsigned level;
    int arg[3];    /* indices of earlier nodes */
    int input;     /* INPUT: its number */
    double number; /* NUMBER */
};

/* Number of arguments of a node of this kind. */
CT_API int ct_pointwise_arguments(enum ct_pointwise_kind kind);

/* Zeroed at first, except for the arena. */
struct ct_pointwise {
    struct ct_arena *arena;
    struct ct_pointwise_node *node;
    size_t count, room;
};

/* Names that a formula may use, and those that it assigns. */
struct ct_pointwise_names {
    struct ct_pointwise_name {
        const char *name;
        int node;
    } * item;
    size_t count, room;
    const struct ct_op *op; /* its outputs in bfloat16 are rounded when assigned; NULL: none */
};

/* The index of a node that is a number, or an input; it is added unless there is an equal one. */
CT_API int ct_pointwise_number(struct ct_pointwise *p, double number);
CT_API int ct_pointwise_input(struct ct_pointwise *p, int input, unsigned level);
/* The node kind(arg[0], ..). What depends on numbers only is computed at once. */
CT_API int ct_pointwise_call(struct ct_pointwise *p, enum ct_pointwise_kind kind, const int *arg);

CT_API void ct_pointwise_name(struct ct_pointwise *p, struct ct_pointwise_names *names,
                              const char *name, int node);
/* The node called name, the latest if there are several; -1: none. */
CT_API int ct_pointwise_find(const struct ct_pointwise_names *names, const char *name);
/* Add the nodes of a formula, and the names that it assigns. CT_EINVAL says what is wrong, and
   where. */
CT_API int ct_pointwise_read(struct ct_pointwise *p, const char *formula,
                             struct ct_pointwise_names *names);

/*
 * The levels of op's operands (inputs, then outputs), from the factors of its type's signature: an
 * operand varies along the columns if it has the last factor of the largest operand. CT_EINVAL: an
 * operand has other factors than these, or the type has no formula.
 */
CT_API int ct_pointwise_levels(const struct ct_op *op, unsigned *level);
/* The largest operand of op: an input or an output. It has the rows and columns. */
CT_API struct ct_value *ct_pointwise_whole(const struct ct_op *op);

/* Apply the formula of op's type. in: the nodes of its inputs (an absent one is 0); out[i] becomes
   the node of output i. */
CT_API int ct_pointwise_apply(struct ct_pointwise *p, const struct ct_op *op, const int *in,
                              int *out);
/* The same for any values of its attributes: number[i], if it is not negative, is the node of
   attribute i of the type's table. */
CT_API int ct_pointwise_apply_any(struct ct_pointwise *p, const struct ct_op *op, const int *number,
                                  const int *in, int *out);

/* How ct_pointwise_print writes nodes. */
struct ct_pointwise_style {
    const char *prefix;     /* of calls */
    int digits;             /* of numbers */
    const char *suffix;     /* of numbers, which then have a point: "f"; NULL: none */
    const char *const *use; /* by node: a name to write instead of it, or NULL */
    /* Values with columns are vectors: this function makes a vector of an argument without columns,
       and select, less and greater are calls. NULL: they are numbers. */
    const char *set;
};
/* Append the text of a node. The node itself is written out even if it has a name. */
CT_API void ct_pointwise_print(const struct ct_pointwise *p, int node,
                               const struct ct_pointwise_style *style, FILE *out);

/* The value of every node for rows x columns elements, in float64: value[node] has as many elements
   as its level says. in: by input, in the size of its level. */
CT_API double **ct_pointwise_evaluate(const struct ct_pointwise *p, int64_t rows, int64_t columns,
                                      double *const *in, struct ct_arena *arena);

/*
 * For op types with a formula.
 *
 * The reference kernel. And the gradient: a type with this vjp has a second type, NAME_grad, which
 * is registered with it. Its formula is derived by the rules of differentiation, with the function
 * of the forward's attributes. It reads the output's gradient, and those inputs and outputs of the
 * forward with which it keeps the fewest tensors and computes least; it gives the gradients of all
 * floating-point inputs, added up along the rows or columns that an input lacks. One output has
 * rows and columns; statistics of rows beside it take no gradient. Where min and max have equal
 * arguments, min's gradient is the first one's, max's the second's: that of max(x, 0) is 0 at 0.
 * row_max gives its gradient to each of several equal elements.
 * Registering the type fails with CT_EINVAL where no gradient can be derived.
 */
CT_API int ct_pointwise_reference(const struct ct_launch *launch);
CT_API int ct_pointwise_vjp(struct ct_vjp *v);
/* NAME_grad of a type with ct_pointwise_vjp; the type is registered if it is not yet. NULL: it
   cannot be. */
CT_API const struct ct_op_type *ct_pointwise_gradient(const struct ct_op_type *type);

/* The members of an op type that follow from its formula: {.name = "swish", ..,
   CT_FORMULA("y = x * sigmoid(x)")} */
#define CT_FORMULA(text)                                                                           \
    .pointwise = (text), .reference = ct_pointwise_reference, .vjp = ct_pointwise_vjp
/* A whole op type: the formula of y from x, elementwise. */
#define CT_ACTIVATION(NAME, SUMMARY, TEXT)                                                         \
    {                                                                                              \
        .size = sizeof(struct ct_op_type), .name = (NAME), .summary = (SUMMARY),                   \
        .signature = "x[.] T -> y[.] T", .inplace = (const int8_t[][2]){{0, 0}, {-1, -1}},         \
        CT_FORMULA(TEXT)                                                                           \
    }

CT_END_DECLS

#endif
