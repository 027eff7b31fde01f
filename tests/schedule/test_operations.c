/*
 * Schedules of a thousand ranks take no more work for each action than those of a few. Work is
 * counted in calls of functions, which the compiler reports: the core's sources are part of this
 * program.
 */
#include "support.h"

static uint64_t calls;

void __cyg_profile_func_enter(void *function, void *from) __attribute__((no_instrument_function));
void __cyg_profile_func_exit(void *function, void *from) __attribute__((no_instrument_function));

void __cyg_profile_func_enter(void *function, void *from)
{
    (void)function, (void)from;
    calls++;
}

void __cyg_profile_func_exit(void *function, void *from)
{
    (void)function, (void)from;
}

/* Calls for each compute action until the schedule is communicating, proven, ahead and timed. */
static double work(const struct kind *kind, int ranks, int microbatches)
{
    struct ct_costs costs = {.forward = 1, .input = 1, .weight = 1};
    struct ct_arena arena = {0};
    struct ct_schedule *s;
    struct ct_simulation x;
    double actions = 0;

    assert_works(generate(&arena, kind, ranks, microbatches, &s));
    for (int r = 0; r < s->ranks; r++)
        actions += (double)s->lists[r].count;
    calls = 0;
    assert_works(ct_schedule_communicate(s, &everything));
    assert_works(ct_schedule_verify(s, NULL, NULL));
    assert_works(ct_schedule_simulate(s, &costs, &arena, &x));
    assert_works(ct_schedule_prefetch(s));
    ct_arena_finish(&arena);
    return (double)calls / actions;
}

static void work_grows_with_the_actions_alone(void **state)
{
    static const struct kind some[] = {
        {"1f1b", 1}, {"interleaved_1f1b", 2}, {"zb1p", 1}, {"zbv", 2}};

    (void)state;
    for (size_t i = 0; i < CT_COUNT(some); i++) {
        double few = work(&some[i], 16, 64), many = work(&some[i], 1024, 24),
               long_step = work(&some[i], 16, 1024);

        print_message(
            "%s: %.0f calls for an action of 16 ranks, %.0f of 1024, %.0f of long steps\n",
            some[i].name, few, many, long_step);
        assert_true(few > 20 && many < 1.3 * few && long_step < 1.3 * few);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(work_grows_with_the_actions_alone)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
