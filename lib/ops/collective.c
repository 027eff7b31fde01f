/*
 * Collectives by name, for transforms of plugins.
 */
#include <ctitan/lib/ops.h>

struct ct_op *ct_all_gather(struct ct_builder *b, const char *name, struct ct_value *const *x,
                            int count, ct_axes axes, int dim)
{
    return ct_emit_type(b, &ct_op_all_gather, name, x, count,
                        &(struct ct_collective_attrs){.axes = axes, .dim = dim});
}

struct ct_op *ct_reduce_scatter(struct ct_builder *b, const char *name, struct ct_value *const *x,
                                int count, ct_axes axes, int dim, enum ct_reduction reduction)
{
    return ct_emit_type(
        b, &ct_op_reduce_scatter, name, x, count,
        &(struct ct_collective_attrs){.axes = axes, .dim = dim, .reduction = reduction});
}

struct ct_value *ct_all_to_all(struct ct_builder *b, const char *name, struct ct_value *x,
                               ct_axes axes, int dim, int to)
{
    return ct_emit_type1(b, &ct_op_all_to_all, name, &x, 1,
                         &(struct ct_collective_attrs){.axes = axes, .dim = dim, .to = to});
}

struct ct_value *ct_slice(struct ct_builder *b, const char *name, struct ct_value *x, ct_axes axes,
                          int dim)
{
    return ct_emit_type1(b, &ct_op_slice, name, &x, 1,
                         &(struct ct_collective_attrs){.axes = axes, .dim = dim});
}
