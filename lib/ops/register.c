/*
 * Registers the models' ops and the transforms that join them.
 */
#include <ctitan/objective.h>

#include "list.h"

int ct_ops_register(void)
{
    static const struct ct_op_type *const types[] = {
#define X(id) &ct_op_##id,
        CT_LIB_OPS(X)
#undef X
            & ct_op_experts_kept,
        &ct_op_experts_kept_grad,
    };
    static const struct ct_transform *const transforms[] = {
        &ct_join_pointwise, &ct_join, &ct_join_gradients, &ct_keep_casts, &ct_settle_casts};
    static bool done;
    int rc = 0;

    for (size_t i = 0; !done && rc == 0 && i < CT_COUNT(types); i++)
        rc = ct_op_need(types[i]);
    for (size_t i = 0; !done && rc == 0 && i < CT_COUNT(transforms); i++)
        rc = ct_transform_register(transforms[i]);
    ct_objective_register("cross_entropy", &ct_objective_cross_entropy);
    done |= rc == 0;
    return rc;
}
