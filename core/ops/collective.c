/*
 * Collectives, as ops: a global value stays what it is, its sharding changes. Transforms ask for
 * `redistribute`; propagation turns that into the others, one change each.
 */
#include "standard.h"

struct redistribute {
    const char *to;
    const char *gradient;
};

struct moved {
    const char *axes;
    int64_t dim, to;
};

/* The gradient finds its own way by propagation, or is redistributed here where the op says to
 * what. */
static int redistribute_vjp(struct ct_vjp *v)
{
    struct redistribute back = {.to = ct_op_string(v->op, "gradient"), .gradient = ""};

    v->din[0] = v->dout[0];
    if (!*back.to)
        return 0;
    v->din[0] = ct_emit1(v->b, "redistribute", ct_gradient_name(v, 0), &v->dout[0], 1, &back);
    return v->b->status;
}

const struct ct_op_type ct_op_redistribute = {
    .name = "redistribute",
    .summary = "the same value in the sharding `to`",
    .operands = "x A -> y A",
    .rule = ".->.",
    .attrs =
        (const struct ct_option[]){
            CT_OPT_STRING(struct redistribute, to, "to", "", "Sharding text; empty: replicated"),
            CT_OPT_STRING(struct redistribute, gradient, "gradient", "",
                          "Sharding of the gradient, made in each microbatch; empty: as it comes"),
            {0}},
    .attrs_size = sizeof(struct redistribute),
    .vjp = redistribute_vjp,
};

#define AXES CT_OPT_STRING(struct moved, axes, "axes", "", "Axes of the group, major first")
#define DIM CT_OPT_INT(struct moved, dim, "dim", "0", 0, CT_MAX_RANK - 1, "Dimension that is cut")
#define TO CT_OPT_INT(struct moved, to, "to", "0", 0, CT_MAX_RANK - 1, "Dimension cut afterwards")

/* How many values: ONE, or SEVERAL in one op: what travels together. */
#define ONE .operands = "x A -> y A", .rule = ".->."
#define SEVERAL .operands = "*x A -> *y A", .rule = "*.->*."

#define COLLECTIVE(id, values, text, communicates, ...)                                            \
    const struct ct_op_type ct_op_##id = {                                                         \
        .name = #id,                                                                               \
        .summary = text,                                                                           \
        values,                                                                                    \
        .flags = communicates,                                                                     \
        .attrs = (const struct ct_option[]){__VA_ARGS__, {0}},                                     \
        .attrs_size = sizeof(struct moved),                                                        \
    }

COLLECTIVE(all_gather, SEVERAL, "pieces of a dimension from all ranks", CT_OP_COLLECTIVE, AXES,
           DIM);
COLLECTIVE(reduce_scatter, SEVERAL, "sum over ranks, a piece of a dimension for each",
           CT_OP_COLLECTIVE, AXES, DIM);
COLLECTIVE(all_reduce, SEVERAL, "sum over ranks", CT_OP_COLLECTIVE, AXES);
COLLECTIVE(all_to_all, ONE, "cut along another dimension", CT_OP_COLLECTIVE, AXES, DIM, TO);
COLLECTIVE(slice, ONE, "this rank's piece of a dimension; nothing is sent", 0, AXES, DIM);

struct permute {
    const char *axes;
    int64_t shift;
};

const struct ct_op_type ct_op_permute = {
    .name = "permute",
    .summary = "pieces move on to other ranks, round the group; sizes must be even",
    SEVERAL,
    .flags = CT_OP_COLLECTIVE,
    .attrs = (const struct ct_option[]){CT_OPT_STRING(struct permute, axes, "axes", "",
                                                      "Axes of the group, major first"),
                                        CT_OPT_INT(struct permute, shift, "shift", "1", -0x1p20,
                                                   0x1p20, "Ranks by which a piece moves"),
                                        {0}},
    .attrs_size = sizeof(struct permute),
};
