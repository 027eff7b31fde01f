/*
 * Rates of training: the peak that utilisation is relative to, means over steps, and the line that
 * shows progress.
 */
#include <ctitan/device/device.h>
#include <ctitan/lib/rates.h>
#include <ctitan/recipe.h>

#include "assertions.h"

static void info(struct ct_device *device, enum ct_dtype compute, struct ct_device_info *info)
{
    (void)device;
    info->peak_flops = compute == CT_BF16 ? 8e12 : 1e12;
}

static void flops_per_token(const struct ct_model *model, int64_t seq_len, double *whole,
                            double *halved)
{
    (void)model, (void)seq_len;
    *whole = 2e9;
    *halved = 1e9;
}

static const struct ct_device_ops device_ops = {.size = sizeof(device_ops), .info = info};
static const struct ct_model_ops model_ops = {.size = sizeof(model_ops),
                                              .flops_per_token = flops_per_token};

/* Parameters in bfloat16 do not make float32's products faster. */
static void the_peak_is_that_of_what_is_computed(void **state)
{
    static const struct {
        const char *dtype, *mixed;
        double peak;
    } cases[] = {{"float32", "float32", 1e12},
                 {"float32", "bfloat16", 8e12},
                 {"bfloat16", "float32", 1e12},
                 {"bfloat16", "bfloat16", 8e12}};
    struct ct_device device = {.ops = &device_ops};
    struct ct_run run = {.model_ops = &model_ops, .device = &device, .world = 2};

    (void)state;
    for (size_t i = 0; i < CT_COUNT(cases); i++) {
        struct ct_rates rates = {0};

        ct_config.training.dtype = cases[i].dtype;
        ct_config.training.mixed_precision_param = cases[i].mixed;
        assert_int_equal(ct_rates_open(&rates, &run, 0), 0);
        assert_true(rates.peak == cases[i].peak);
    }
}

static void rates_are_means_over_steps(void **state)
{
    struct ct_run run = {.world = 2};
    struct ct_rates rates = {.peak = 1e12, .whole = 2e9, .halved = 1e9};
    struct ct_rate r;

    (void)state;
    ct_rates_add(&rates, &(struct ct_step_result){.tokens = 300, .seconds = 1});
    ct_rates_add(&rates, &(struct ct_step_result){.tokens = 300, .seconds = 2, .data_seconds = 1});
    r = ct_rates_take(&rates, &run);
    assert_true(r.tokens_per_second == 200); /* of both ranks */
    assert_true(r.step_time == 1.5 && r.data_time == 0.5);
    assert_true(r.mfu == 20 && r.mfu_halved == 10); /* 0.2e12 FLOP/s of each rank */
    assert_true(rates.steps == 0 && rates.seconds == 0);
}

static void a_pace_says_what_is_left(void **state)
{
    const struct ct_pace pace = {10, 100, 5.5, 12345, 3700, 2};
    char line[160];

    (void)state;
    ct_pace_print(&pace, line, sizeof(line));
    assert_string_equal(line,
                        "step 10/100  loss 5.50000  12,345 tokens/s  1:01:40 elapsed, 03:00 left");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_peak_is_that_of_what_is_computed),
        cmocka_unit_test(rates_are_means_over_steps),
        cmocka_unit_test(a_pace_says_what_is_left),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
