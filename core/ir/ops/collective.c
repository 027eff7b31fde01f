/*
 * Collectives as ops. The global value stays the same; its sharding changes. Transforms emit
 * `redistribute`. Propagation replaces it by the other collectives, one change each.
 */
#include <ctitan/core_ops.h>
#include <ctitan/op_author.h>

/* ---- redistribute ---- */

/* Propagation decides the gradient's sharding, unless the op states it: redistribute it here. */
static int redistribute_vjp(struct ct_vjp *v)
{
    const struct ct_redistribute *attrs = v->op->attrs;

    v->din[0] = v->dout[0];
    if (!attrs->gradient.given)
        return 0;
    v->din[0] =
        ct_redistribute(v->b, ct_gradient_name(v, 0), v->dout[0], &attrs->gradient.sharding, NULL);
    return v->b->status;
}

const struct ct_op_type ct_op_redistribute = {
    .size = sizeof(struct ct_op_type),
    .name = "redistribute",
    .summary = "the same value in the sharding `to`",
    .signature = "x[.] A -> y[.] A",
    .flags = CT_OP_PACKED,
    .attrs =
        (const struct ct_option[]){
            CT_OPT_SHARDING(struct ct_redistribute, to, "to", "Sharding text; empty: replicated"),
            CT_OPT_SHARDING(
                struct ct_redistribute, gradient, "gradient",
                "Sharding of the gradient, made in each microbatch; empty: as it comes"),
            {0}},
    .attrs_size = sizeof(struct ct_redistribute),
    .vjp = redistribute_vjp,
};

struct ct_value *ct_redistribute(struct ct_builder *b, const char *name, struct ct_value *x,
                                 const struct ct_sharding *to, const struct ct_sharding *gradient)
{
    struct ct_redistribute attrs = {.to = {!ct_sharding_is_replicated(to), *to}};

    if (gradient)
        attrs.gradient = (struct ct_target){true, *gradient};
    return ct_emit_type1(b, &ct_op_redistribute, name, &x, 1, &attrs);
}

/* ---- the ops that replace it ---- */

#define AXES CT_OPT_AXES(struct ct_collective_attrs, axes, "axes", "Axes of the group")
#define DIM                                                                                        \
    CT_OPT_INT(struct ct_collective_attrs, dim, "dim", "0", 0, CT_MAX_DIMS - 1,                    \
               "Dimension that is split")
#define TO                                                                                         \
    CT_OPT_INT(struct ct_collective_attrs, to, "to", "0", 0, CT_MAX_DIMS - 1,                      \
               "Dimension split afterwards")
#define SHIFT                                                                                      \
    CT_OPT_INT(struct ct_collective_attrs, shift, "shift", "1", -0x1p20, 0x1p20,                   \
               "Ranks by which a shard moves")
#define REDUCTION                                                                                  \
    CT_OPT_ENUM(struct ct_collective_attrs, reduction, "reduction", "sum", "sum|max",              \
                "What is made of the ranks' values")

/* One value, or several transferred together in one op. */
#define ONE "x[.] A -> y[.] A"
#define SEVERAL "*x[.] A -> *y[.] A"

#define COLLECTIVE(id, values, text, communicates, ...)                                            \
    const struct ct_op_type ct_op_##id = {                                                         \
        .size = sizeof(struct ct_op_type),                                                         \
        .name = #id,                                                                               \
        .summary = text,                                                                           \
        .signature = values,                                                                       \
        .flags = communicates,                                                                     \
        .attrs = (const struct ct_option[]){__VA_ARGS__, {0}},                                     \
        .attrs_size = sizeof(struct ct_collective_attrs),                                          \
        .collective = &ct_collective_##id,                                                         \
    }

COLLECTIVE(all_gather, SEVERAL, "shards of a dimension from all ranks",
           CT_OP_COLLECTIVE | CT_OP_PACKED, AXES, DIM);
COLLECTIVE(reduce_scatter, SEVERAL, "sum over ranks, a shard of a dimension for each",
           CT_OP_COLLECTIVE, AXES, DIM, REDUCTION);
COLLECTIVE(all_reduce, SEVERAL, "sum over ranks", CT_OP_COLLECTIVE, AXES, REDUCTION);
COLLECTIVE(all_to_all, ONE, "split along another dimension", CT_OP_COLLECTIVE, AXES, DIM, TO);
COLLECTIVE(slice, ONE, "this rank's shard of a dimension; nothing is sent", CT_OP_PACKED, AXES,
           DIM);
COLLECTIVE(permute, SEVERAL, "shards move on to other ranks, round the group; sizes must be even",
           CT_OP_COLLECTIVE, AXES, SHIFT);

struct ct_op *ct_all_reduce(struct ct_builder *b, const char *name, struct ct_value *const *x,
                            int count, ct_axes axes, enum ct_reduction reduction)
{
    return ct_emit_type(b, &ct_op_all_reduce, name, x, count,
                        &(struct ct_collective_attrs){.axes = axes, .reduction = reduction});
}

struct ct_op *ct_permute(struct ct_builder *b, const char *name, struct ct_value *const *x,
                         int count, ct_axes axes, int shift)
{
    return ct_emit_type(b, &ct_op_permute, name, x, count,
                        &(struct ct_collective_attrs){.axes = axes, .shift = shift});
}
