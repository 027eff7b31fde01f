/*
 * Lanes that wait for each other.
 */
#include "support.h"

#include "lanes.h"

static void name_at_length(const void *client, int32_t item, struct ct_lane_name *name)
{
    (void)client;
    name->rank = item / 2;
    name->place = (size_t)item % 2;
    snprintf(name->text, sizeof(name->text), "%0*d", (int)sizeof(name->text) - 1, item);
}

/* Each lane's first item comes after the second one of the next lane. */
static void a_long_deadlock_is_told_in_short(void **unused)
{
    const struct ct_lane_words words = {.title = "", .noun = "action", .name = name_at_length};
    struct ct_arena arena = {0};
    struct ct_lanes l;
    enum { LANES = 9 };

    (void)unused;
    ct_lanes_init(&l, &arena, LANES);
    for (int32_t i = 0; i < LANES; i++) {
        ct_lanes_add(&l, i, 1);
        ct_lanes_after(&l, 2 * ((i + 1) % LANES) + 1, 0);
        ct_lanes_add(&l, i, 1);
    }
    assert_false(ct_lanes_run(&l));
    assert_int_equal(ct_lanes_stuck(&l, &words), CT_EINVAL);
    assert_non_null(strstr(ct_error_message(), "deadlock: rank 0 cannot do 000"));
    ct_arena_finish(&arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_long_deadlock_is_told_in_short)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
