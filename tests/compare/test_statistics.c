/*
 * Conclusions of `compare` from pairs: intervals against tables, and how often equal recipes are
 * told apart.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <ctitan/lib/measure.h>
#include <ctitan/rng.h>

#include "compare_statistics.h"

static void assert_near(double value, double expected, double tolerance)
{
    if (!(fabs(value - expected) <= tolerance))
        fail_msg("%.9g, expected %.9g", value, expected);
}

/* Logarithms -1, 0, 1 hundredths: mean 0, standard deviation 0.01, error 0.01 / sqrt(3). */
static void the_interval_is_students(void **state)
{
    double ratio[3] = {exp(-0.01), 1, exp(0.01)};
    struct ratio r = ratio_of(ratio, 3);

    (void)state;
    assert_near(r.value, 1, 1e-12);
    assert_near(log(r.high), 4.303 * 0.01 / sqrt(3), 1e-12);
    assert_near(log(r.low), -4.303 * 0.01 / sqrt(3), 1e-12);
    assert_false(r.differs);
}

static void many_pairs_come_near_the_normal_distribution(void **state)
{
    double ratio[60];
    struct ratio r;

    (void)state;
    for (int i = 0; i < 60; i++)
        ratio[i] = exp(i % 2 ? 0.01 : -0.01);
    r = ratio_of(ratio, 60);
    assert_near(log(r.high), 2.001 * 0.01 * sqrt(60. / 59) / sqrt(60), 2e-6); /* t(59) = 2.001 */
}

static void a_small_difference_is_none(void **state)
{
    double ratio[6];

    (void)state;
    for (int i = 0; i < 6; i++)
        ratio[i] = 1.003 + i * 1e-6;
    assert_false(ratio_of(ratio, 6).differs);
    for (int i = 0; i < 6; i++)
        ratio[i] = 1.05 + i * 1e-6;
    assert_true(ratio_of(ratio, 6).differs);
}

static double uniform(uint64_t index)
{
    return (double)ct_uniform(ct_philox(7, 1, index).v[0]);
}

/* Noise of a machine: 1 %, and in one run of ten up to 20 % slower. */
static double noise(uint64_t *at)
{
    double u = uniform((*at)++), v = uniform((*at)++);

    return exp(0.02 * (u - 0.5) + (v < 0.1 ? 2 * v : 0));
}

static void equal_recipes_are_seldom_told_apart(void **state)
{
    int differs = 0, found = 0;
    uint64_t at = 0;

    (void)state;
    for (int n = 0; n < 1000; n++) {
        double same[6], faster[6];

        for (int i = 0; i < 6; i++) {
            same[i] = noise(&at) / noise(&at);
            faster[i] = 1.1 * exp(0.02 * (uniform(at++) - 0.5));
        }
        differs += ratio_of(same, 6).differs;
        found += ratio_of(faster, 6).differs;
    }
    assert_in_range(differs, 0, 20);
    assert_int_equal(found, 1000);
}

static void the_median_of_an_even_number_is_between(void **state)
{
    double odd[] = {3, 1, 2}, even[] = {4, 1, 3, 2};

    (void)state;
    assert_near(ct_median(odd, 3), 2, 0);
    assert_near(ct_median(even, 4), 2.5, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_interval_is_students),
        cmocka_unit_test(many_pairs_come_near_the_normal_distribution),
        cmocka_unit_test(a_small_difference_is_none),
        cmocka_unit_test(equal_recipes_are_seldom_told_apart),
        cmocka_unit_test(the_median_of_an_even_number_is_between),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
