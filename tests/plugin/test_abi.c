/*
 * Structs of plugins that were built against an older minor version, which had fewer fields.
 */
#include "assertions.h"

#include "plugin/abi.h"

struct old {
    size_t size;
    int a;
};

struct now {
    size_t size;
    int a;
    const char *added;
};

/* Memory behind the old struct belongs to others. */
static const struct {
    struct old old;
    const char *foreign;
} single = {{sizeof(struct old), 7}, "foreign"};

static const struct old array[] = {{sizeof(struct old), 1}, {sizeof(struct old), 2}, {0, 0}};

static void fields_that_an_older_struct_lacks_are_zero(void **state)
{
    struct ct_arena arena = {0};
    const void *widened;
    const struct now *now;

    (void)state;
    assert_int_equal(
        ct_abi_widen(&arena, &single, sizeof(struct old), sizeof(struct now), &widened), 0);
    now = widened;
    assert_ptr_not_equal(now, &single);
    assert_int_equal(now->size, sizeof(struct now));
    assert_int_equal(now->a, 7);
    assert_null(now->added);
    ct_arena_finish(&arena);
}

static void elements_of_an_older_array_are_found_by_their_size(void **state)
{
    struct ct_arena arena = {0};
    const void *widened;
    const struct now *now;

    (void)state;
    assert_int_equal(
        ct_abi_widen_array(&arena, array, sizeof(struct old), sizeof(struct now), &widened), 0);
    now = widened;
    assert_int_equal(now[0].a, 1);
    assert_int_equal(now[1].a, 2);
    assert_null(now[1].added);
    assert_int_equal(now[1].size, sizeof(struct now));
    assert_int_equal(now[2].size, 0);
    ct_arena_finish(&arena);
}

static void what_has_the_size_of_this_build_is_taken_as_it_is(void **state)
{
    struct ct_arena arena = {0};
    const void *widened;

    (void)state;
    assert_int_equal(ct_abi_widen(&arena, &single, 8, sizeof(struct old), &widened), 0);
    assert_ptr_equal(widened, &single);
    assert_int_equal(ct_abi_widen_array(&arena, array, 8, sizeof(struct old), &widened), 0);
    assert_ptr_equal(widened, array);
    ct_arena_finish(&arena);
}

static void sizes_that_cannot_be_are_refused(void **state)
{
    const void *widened;

    (void)state;
    assert_fails(ct_struct_widen(&single, sizeof(struct now), sizeof(struct now), &widened),
                 CT_EABI, "begins with 16, and its size in bytes was expected, 24");
    assert_fails(ct_struct_widen(&single, 8, 8, &widened), CT_EABI, "was expected, 8");
    assert_int_equal(ct_struct_widen(&single, 8, sizeof(struct now), &widened), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fields_that_an_older_struct_lacks_are_zero),
        cmocka_unit_test(elements_of_an_older_array_are_found_by_their_size),
        cmocka_unit_test(what_has_the_size_of_this_build_is_taken_as_it_is),
        cmocka_unit_test(sizes_that_cannot_be_are_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
