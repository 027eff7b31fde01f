/*
 * Freezing: what the transform leaves of a backward.
 */
#include "plugin_under_test.h"
#include "support.h"

#include <ctitan/app/verify.h>
#include <ctitan/pass.h>
#include <ctitan/text.h>

/* Three layers with their norms' weights. */
static const char layers[] =
    "graph \"layers\"\n"
    "param %a.w : float32[4,4]\n"
    "param %a.norm : float32[4]\n"
    "param %b.w : float32[4,4]\n"
    "param %b.norm : float32[4]\n"
    "param %c.w : float32[4,4]\n"
    "input %x : float32[8,4]\n"
    "input %labels : int32[8]\n"
    "F a %a.h, %a.rstd = rms_norm(%x, %a.norm) : float32[8,4], float32[8]\n"
    "F a %a.y = linear(%a.h, %a.w) : float32[8,4]\n"
    "F b %b.h, %b.rstd = rms_norm(%a.y, %b.norm) : float32[8,4], float32[8]\n"
    "F b %b.y = linear(%b.h, %b.w) : float32[8,4]\n"
    "F c %loss = linear_cross_entropy(%b.y, %c.w, %labels) : float32[]\n"
    "fetch loss = %loss\n";

static void check_layers(const char *setting, const char *golden)
{
    const struct ct_plugin *plugin = test_plugin("freeze");
    struct ct_arena arena = {0};
    struct ct_graph *g = parse(&arena, layers);

    assert_ok(ct_graph_verify(g, NULL));
    assert_ok(ct_differentiate(g));
    TEST_OPTIONS(plugin, setting);
    assert_ok(test_transform(plugin, "freeze")->apply(g, NULL));
    assert_ok(ct_graph_verify(g, NULL));
    assert_golden(golden, ct_graph_text(g, &arena));
    ct_arena_finish(&arena);
}

/* The backward goes on through what is frozen. */
static void gradients_flow_through_frozen_layers(void **state)
{
    (void)state;
    check_layers("parameters=b.*, *.norm", "through.txt");
}

/* It ends behind the first that is not. */
static void the_backward_ends_where_all_before_is_frozen(void **state)
{
    (void)state;
    check_layers("trains=c.w", "last.txt");
}

/* A head that is frozen has no gradient beside that of its input. */
static void no_gradient_is_made_of_a_frozen_head(void **state)
{
    (void)state;
    check_layers("parameters=c.w", "head.txt");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_flow_through_frozen_layers),
        cmocka_unit_test(the_backward_ends_where_all_before_is_frozen),
        cmocka_unit_test(no_gradient_is_made_of_a_frozen_head),
    };

    if (ct_ops_register() < 0)
        return 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
