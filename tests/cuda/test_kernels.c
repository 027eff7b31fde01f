/*
 * Ops that some plugin has, and the device cuda no kernel for. Such a list is short and known:
 * whoever adds an op adds its kernel, or a line here.
 */
#include <string.h>

#include "plugin_under_test.h"
#include "plugin_ops.h"

#include <ctitan/lib/ops.h>

/* Passes replace them by other ops before a program is made, or they move nothing. */
static const char *const replaced[] = {
    "balance_loss",        "balanced",         "cast_like",      "ep.experts",
    "ep.experts_dw",       "ep.experts_dx",    "redistribute",   "ring_attention",
    "ring_attention_grad", "straight_through", "tp_async.local", "view",
};

/* They have a formula, which `fuse` compiles. */
static const char *const formulas[] = {
    "clip",    "clip_grad",    "decay",         "decay_grad",
    "relu",    "relu_grad",    "scale_columns", "scale_columns_grad",
    "sigmoid", "sigmoid_grad", "soft_cap",      "soft_cap_grad",
    "softmax", "softmax_grad", "softmax_sum",   "softmax_sum_grad",
    "whiten",  "whiten_grad",
};

static bool is_in(const char *name, const char *const *list, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (!strcmp(list[i], name))
            return true;
    return false;
}

static bool has_kernel(const char **plugins, size_t count, const char *op)
{
    for (size_t i = 0; i < count; i++) {
        const struct ct_plugin *plugin = NULL;

        if (ct_plugin_find(plugins[i], &plugin) < 0)
            fail_msg("%s: %s", plugins[i], ct_error_message());
        for (const struct ct_offer *o = plugin->offers; o->kind != CT_NOTHING; o++)
            for (const struct ct_kernel *k = o->ops;
                 o->kind == CT_KERNELS && !strcmp(o->name, "cuda") && k->op; k++)
                if (!strcmp(k->op, op))
                    return true;
    }
    return false;
}

/* Collectives have the transport's; those of plugin cpu are for CPUs; NVRTC makes those of
   "fused". */
static bool needs_none(const struct ct_op_type *type)
{
    return type->collective || !strncmp(type->name, "cpu.", 4) || !strcmp(type->name, "fused");
}

static void every_op_has_a_kernel(void **state)
{
    struct ct_arena arena = {0};
    const char **names;
    size_t plugins = ct_plugin_names(&arena, &names), lacking = 0;
    const struct ct_op_type *type;

    (void)state;
    for (size_t i = 0; i < plugins; i++)
        if (register_ops_of(names[i]) < 0)
            fail_msg("%s: %s", names[i], ct_error_message());
    for (size_t i = 0; (type = ct_op_at(i)); i++) {
        bool listed = is_in(type->name, replaced, CT_COUNT(replaced));
        bool formula = is_in(type->name, formulas, CT_COUNT(formulas));

        if (needs_none(type))
            continue;
        lacking += listed || formula;
        if (formula)
            assert_non_null(ct_op_type_whole(type)->pointwise);
        if (has_kernel(names, plugins, type->name) == (listed || formula))
            fail_msg("%s %s", type->name,
                     listed || formula ? "has a kernel for cuda, and is listed as one without"
                                       : "has no kernel for cuda");
    }
    assert_int_equal(lacking, CT_COUNT(replaced) + CT_COUNT(formulas));
    ct_arena_finish(&arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_op_has_a_kernel)};

    if (ct_ops_register() < 0)
        return 1;
    return cmocka_run_group_tests_name("kernels of cuda", tests, NULL, NULL);
}
