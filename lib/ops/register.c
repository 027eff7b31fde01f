/*
 * Registers the models' ops in a program that uses them.
 */
#include <ctitan/lib/collective.h>

#include "list.h"

int ct_ops_register(void)
{
    static const struct ct_op_type *const types[] = {
#define X(id) &ct_op_##id,
        CT_LIB_OPS(X)
#undef X
    };
    static bool done;
    int rc = 0;

    for (size_t i = 0; !done && rc == 0 && i < CT_COUNT(types); i++)
        rc = ct_op_need(types[i]);
    if (!done && rc == 0)
        rc = ct_transform_register(&ct_join_pointwise);
    if (!done && rc == 0)
        rc = ct_transform_register(&ct_join);
    ct_collective_register();
    done |= rc == 0;
    return rc;
}
