/*
 * A device's kernels may be for ops of plugins that are not loaded, but some plugin must have them.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

#include <ctitan/error.h>
#include <ctitan/lib/ops.h>
#include <ctitan/plugins.h>

#include "plugin_ops.h"

static const struct ct_plugin *opened(const char *name)
{
    const struct ct_plugin *plugin = NULL;

    if (ct_plugin_find(name, &plugin) < 0)
        fail_msg("%s: %s", name, ct_error_message());
    return plugin;
}

static size_t check_kernels(const struct ct_plugin *plugin)
{
    size_t count = 0;

    for (const struct ct_offer *o = plugin->offers; o->kind != CT_NOTHING; o++)
        for (const struct ct_kernel *k = o->ops; o->kind == CT_KERNELS && k->op; k++, count++)
            if (!ct_op_find(k->op))
                fail_msg("plugin %s has a kernel for %s: %s", plugin->name, k->op,
                         ct_error_message());
    return count;
}

static void kernels_are_for_ops_that_some_plugin_has(void **state)
{
    struct ct_arena arena = {0};
    const char **names;
    size_t plugins = ct_plugin_names(&arena, &names), kernels = 0;

    (void)state;
    for (size_t i = 0; i < plugins; i++)
        assert_int_equal(register_ops_of(names[i]), 0);
    for (size_t i = 0; i < plugins; i++)
        kernels += check_kernels(opened(names[i]));
    assert_true(kernels > 0);
    ct_arena_finish(&arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(kernels_are_for_ops_that_some_plugin_has)};

    if (ct_ops_register() < 0)
        return 1;
    return cmocka_run_group_tests_name("kernels of plugins", tests, NULL, NULL);
}
