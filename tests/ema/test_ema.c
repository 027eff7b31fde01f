#include "assertions.h"

#include <math.h>

#include <ctitan/lib/ops.h>
#include <ctitan/plugins.h>
#include <ctitan/text.h>

static int load(void **state)
{
    const struct ct_plugin *plugin;
    int rc = ct_plugin_find("ema", &plugin);

    (void)state;
    if (rc == 0)
        rc = ct_plugin_register(plugin);
    if (rc < 0)
        print_error("%s\n", ct_error_message());
    return rc;
}

static void follow(float p, double step, float *average)
{
    struct ct_arena arena = {0};
    const struct ct_op_type *type = ct_op_find("ema");
    struct ct_op op = {.type = type, .ins = 3, .attrs = ct_arena_alloc(&arena, type->attrs_size)};
    struct ct_tensor in[3] = {ct_tensor_dense(&step, CT_F64, 0, NULL),
                              ct_tensor_dense(&p, CT_F32, 0, NULL),
                              ct_tensor_dense(average, CT_F32, 0, NULL)};

    ct_attributes_reset(type->attrs, op.attrs);
    ct_attribute_set(NULL, type->attrs, op.attrs, "decay", "0.3", "test");
    assert_int_equal(type->reference(&(struct ct_launch){.op = &op, .in = in, .ins = 3}), 0);
    ct_arena_finish(&arena);
}

/* 1: the weights; 2: 3/12 of the average stays; from 3 on 4/13 > 0.3 stay 0.3. */
static void the_average_follows_the_weights(void **state)
{
    float average = NAN;

    (void)state;
    follow(8, 1, &average);
    assert_true(average == 8);
    follow(4, 2, &average);
    assert_true(average == 5);
    follow(-5, 3, &average);
    assert_true(fabs((double)average - (0.3 * 5 - 0.7 * 5)) < 1e-6);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_average_follows_the_weights)};

    if (ct_ops_register() < 0)
        return 1;
    return cmocka_run_group_tests(tests, load, NULL);
}
