/*
 * The transform that adds caches does so for the runs of generators alone: a run that is opened
 * afterwards gets none.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <ctitan/error.h>
#include <ctitan/lib/app/generate.h>
#include <ctitan/run.h>

#include "../../lib/generate/cache.h"

static enum ct_generating seen;

int __wrap_ct_run_open(struct ct_recipe *recipe, const struct ct_run_options *options,
                       struct ct_run **run);

int __wrap_ct_run_open(struct ct_recipe *recipe, const struct ct_run_options *options,
                       struct ct_run **run)
{
    (void)recipe;
    (void)options;
    (void)run;
    seen = ct_generating;
    return ct_fail(CT_ECONFIG, "no run");
}

static void caches_are_those_of_a_generator(void **state)
{
    static const enum ct_generating expected[] = {CT_GENERATING_WHOLE, CT_GENERATING_PARTS};

    (void)state;
    for (int cache = 0; cache < 2; cache++) {
        struct ct_generate_request request = {.world = 1, .sequences = 1, .cache = cache};
        struct ct_generator *generator = NULL;

        assert_int_equal(ct_generator_open(NULL, &request, &generator), CT_ECONFIG);
        assert_int_equal(seen, expected[cache]);
        assert_int_equal(ct_generating, CT_GENERATING_NOT);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(caches_are_those_of_a_generator)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
