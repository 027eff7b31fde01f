/*
 * Registers the models' ops, the transforms of every run, and what the core leaves to libraries.
 */
#include <ctitan/app/diagnose.h>
#include <ctitan/lib/collective.h>
#include <ctitan/lib/plugin.h>
#include <ctitan/lib/text.h>
#include <ctitan/lib/train.h>
#include <ctitan/lib/app/verify.h>

#include "list.h"

static int check_graph(const struct ct_graph *graph)
{
    return ct_graph_verify(graph, NULL);
}

static const struct ct_diagnostics diagnostics = {.size = sizeof(struct ct_diagnostics),
                                                  .plugin = ct_plugin_check,
                                                  .graph = check_graph,
                                                  .lacking = ct_plugin_lacking,
                                                  .no_kernel = ct_kernel_lacking,
                                                  .lowered = ct_kernel_report};

int ct_ops_register(void)
{
    static const struct ct_op_type *const types[] = {
#define X(id) &ct_op_##id,
        CT_LIB_OPS(X)
#undef X
            & ct_op_experts_kept,
        &ct_op_experts_kept_grad,
    };
    static const struct ct_transform *const transforms[] = {&ct_pass_precision, &ct_join_pointwise,
                                                            &ct_join,           &ct_pass_update,
                                                            &ct_join_gradients, &ct_keep_casts};
    static bool done;
    int rc = 0;

    for (size_t i = 0; !done && rc == 0 && i < CT_COUNT(types); i++)
        rc = ct_op_need(types[i]);
    for (size_t i = 0; !done && rc == 0 && i < CT_COUNT(transforms); i++)
        rc = ct_transform_register(transforms[i]);
    ct_objective_register("cross_entropy", &ct_objective_cross_entropy);
    ct_collective_register();
    ct_diagnostics_install(&diagnostics);
    done |= rc == 0;
    return rc;
}
