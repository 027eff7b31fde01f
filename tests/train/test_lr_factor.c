/*
 * The learning rate's factor: warm-up, a stable stretch, decay, against values worked out by hand.
 */
#include <math.h>
#include <stdint.h>
#include <string.h>

#include <ctitan/config.h>
#include <ctitan/model.h>
#include <ctitan/train.h>

#include "assertions.h"

enum { STEPS = 10 };

static const double root1 = 0.70710678118654752, root2 = 0.57735026918962576; /* of 1/2, 1/3 */
static const double cos60 = 0.5;

static const struct {
    struct ct_lr_config config;
    double factors[STEPS];
} cases[] = {
    {{2, -1, CT_DECAY_LINEAR, 0},
     {0.5, 1, 1, 7.0 / 8, 6.0 / 8, 5.0 / 8, 4.0 / 8, 3.0 / 8, 2.0 / 8, 1.0 / 8}},
    {{2, 0.5, CT_DECAY_LINEAR, 0}, {0.5, 1, 1, 1, 1, 1, 0.8, 0.6, 0.4, 0.2}},
    {{2, 0.3, CT_DECAY_LINEAR, 0}, {0.5, 1, 1, 1, 1, 1, 1, 1, 2.0 / 3, 1.0 / 3}},
    {{2, -1, CT_DECAY_LINEAR, 0.2}, {0.5, 1, 1, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3}},
    {{0, -1, CT_DECAY_LINEAR, 0}, {1, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1}},
    {{20, -1, CT_DECAY_LINEAR, 0}, {0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1}},
    {{5, 0.8, CT_DECAY_LINEAR, 0}, {0.2, 0.4, 0.6, 0.8, 1, 1, 0.8, 0.6, 0.4, 0.2}}, /* 5 + 8 > 10 */
    {{0, 0, CT_DECAY_LINEAR, 0}, {1, 1, 1, 1, 1, 1, 1, 1, 1, 1}},
    {{2, 0.2, CT_DECAY_SQRT, 0}, {0.5, 1, 1, 1, 1, 1, 1, 1, 1, 1 - root1}},
    {{2, 0.3, CT_DECAY_SQRT, 0.1},
     {0.5, 1, 1, 1, 1, 1, 1, 1, 0.1 + 0.9 * (1 - root2), 0.1 + 0.9 * (1 - root1 * 2 * root2)}},
    {{2, 0.3, CT_DECAY_COSINE, 0},
     {0.5, 1, 1, 1, 1, 1, 1, 1, 0.5 * (1 + cos60), 0.5 * (1 - cos60)}},
};

static void factors_are_those_of_the_rule(void **state)
{
    (void)state;
    for (size_t c = 0; c < CT_COUNT(cases); c++)
        for (int64_t step = 0; step < STEPS; step++) {
            double is = ct_lr_factor(&cases[c].config, step, STEPS);

            if (fabs(is - cases[c].factors[step]) > 1e-15)
                fail_msg("case %zu, step %lld: %.17g, not %.17g", c, (long long)step, is,
                         cases[c].factors[step]);
        }
}

/* In a long run every factor lies between the smallest and 1, and the last one is above it. */
static void factors_stay_in_range(void **state)
{
    static const enum ct_decay types[] = {CT_DECAY_LINEAR, CT_DECAY_SQRT, CT_DECAY_COSINE};

    (void)state;
    for (size_t i = 0; i < CT_COUNT(types); i++) {
        struct ct_lr_config config = {100, 0.5, types[i], 0.1};
        double before = 0;

        for (int64_t step = 0; step < 1000; step++) {
            double is = ct_lr_factor(&config, step, 1000);

            assert_true(is > (step < 100 ? 0 : 0.1) && is <= 1);
            assert_true(step < 501 ? is >= before : is < before);
            before = is;
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(factors_are_those_of_the_rule),
        cmocka_unit_test(factors_stay_in_range),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
