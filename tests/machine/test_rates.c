/*
 * Rates of training: the peak that utilisation is relative to, means over steps, and the line that
 * shows progress.
 */
#include <math.h>
#include <string.h>

#include <ctitan/clock.h>
#include <ctitan/config.h>
#include <ctitan/device/device.h>
#include <ctitan/lib/measure.h>
#include <ctitan/lib/rates.h>
#include <ctitan/log.h>
#include <ctitan/op.h>
#include <ctitan/plugins.h>
#include <ctitan/text.h>

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
        enum ct_dtype dtype, mixed;
        double peak;
    } cases[] = {{CT_F32, CT_F32, 1e12},
                 {CT_F32, CT_BF16, 8e12},
                 {CT_BF16, CT_F32, 1e12},
                 {CT_BF16, CT_BF16, 8e12}};
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

/* Steps of another stage had other FLOPs. A warning is said once in a run. */
static void opening_forgets_steps_and_no_warning(void **state)
{
    struct ct_device device = {.ops = &device_ops};
    struct ct_run run = {.model_ops = &model_ops, .device = &device, .world = 1};
    struct ct_rates rates = {.warnings = 1};

    (void)state;
    ct_rates_add(&rates, &(struct ct_step_result){.tokens = 300, .seconds = 1});
    assert_int_equal(ct_rates_open(&rates, &run, 5e12), 0);
    assert_true(rates.steps == 0 && rates.tokens == 0 && rates.seconds == 0);
    assert_true(rates.warnings == 1 && rates.peak == 5e12);
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
    r = ct_rates_take(&rates, &run);
    assert_true(r.tokens_per_second == 0 && r.step_time == 0 && r.data_time == 0 && r.mfu == 0);
}

/* A step of 100 FLOPs per second, relative to a peak of 1. */
static struct ct_rate take_too_much(struct ct_rates *rates, struct ct_run *run)
{
    ct_rates_add(rates, &(struct ct_step_result){.tokens = 100, .seconds = 1});
    return ct_rates_take(rates, run);
}

static int warnings;

static void count_warnings(enum ct_log_level level, const char *line, void *context)
{
    (void)context;
    warnings +=
        level == CT_LOG_WARNING && strstr(line, "mfu is above 100 %: the run reaches 1e-10 "
                                                "TFLOP/s, but the peak is said to be 1e-12");
}

static struct ct_device *open_cpu(void)
{
    struct ct_device_request request = {.local_ranks = 1};
    const struct ct_plugin *plugin;
    const struct ct_offer *offer;
    const struct ct_device_ops *cpu;
    struct ct_device *device;

    assert_int_equal(ct_plugin_find("cpu", &plugin), 0);
    assert_int_equal(ct_options_reset(plugin->options, plugin->config), 0);
    if (ct_offer_find(CT_DEVICE, "cpu", &offer) < 0) {
        assert_int_equal(ct_plugin_register(plugin), 0);
        assert_int_equal(ct_offer_find(CT_DEVICE, "cpu", &offer), 0);
    }
    cpu = offer->ops;
    assert_int_equal(cpu->open(&request, &device), 0);
    device->ops = cpu;
    return device;
}

static void a_peak_that_is_too_low_is_measured_again(void **state)
{
    struct ct_run run = {.world = 1};
    struct ct_rates rates = {.peak = 1, .measured = true, .whole = 1, .halved = 1};
    struct ct_rate r;

    (void)state;
    ct_config.training.mixed_precision_param = CT_F32;
    run.device = open_cpu();
    ct_log_to(count_warnings, NULL, CT_LOG_WARNING);
    r = take_too_much(&rates, &run);
    assert_true(rates.peak > 1e6 && r.mfu > 0 && r.mfu < 100);
    assert_int_equal(warnings, 0);
    rates = (struct ct_rates){.peak = 1, .whole = 1, .halved = 1}; /* a user's */
    r = take_too_much(&rates, &run);
    assert_true(rates.peak == 1 && r.mfu == 10000);
    take_too_much(&rates, &run);
    assert_int_equal(warnings, 1);
    ct_log_to(NULL, NULL, CT_LOG_ERROR);
    run.device->ops->close(run.device);
}

static int64_t equal_elements; /* of the two inputs */

static int compare_inputs(const struct ct_launch *l)
{
    equal_elements = 0;
    for (int64_t i = 0; i < ct_tensor_count(&l->in[0]); i++)
        equal_elements += ct_tensor_load(&l->in[0], i) == ct_tensor_load(&l->in[1], i);
    ct_tensor_store(&l->out[0], 0, 0);
    return 0;
}

static const struct ct_op_type compare_type = {.size = sizeof(struct ct_op_type),
                                               .name = "test_compare",
                                               .summary = "compares",
                                               .signature = "x[n] F, y[n] F -> z[] F",
                                               .reference = compare_inputs};

/* A product of a matrix with itself would be another measurement. */
static void operands_of_one_shape_differ(void **state)
{
    struct ct_device *device = open_cpu();
    struct ct_arena arena = {0};
    struct ct_measured measured;
    struct ct_graph *graph;

    (void)state;
    assert_int_equal(ct_op_register(&compare_type), 0);
    graph = ct_graph_parse(&arena, "graph \"g\"\ninput %x : float32[64]\nparam %y : float32[64]\n"
                                   "F - %z = test_compare(%x, %y) : float32[]\nfetch z = %z\n");
    assert_non_null(graph);
    equal_elements = -1;
    assert_int_equal(ct_measure_graph(graph, device, NULL, 1e-6, &measured), 0);
    assert_int_equal(equal_elements, 0);
    device->ops->close(device);
    ct_arena_finish(&arena);
}

/* Two processors have two seconds in one; others computed for one of them. */
static void the_load_is_what_others_take(void **state)
{
    const struct ct_load from = {.at = 10, .busy = 100, .own = 5, .processors = 2};
    struct ct_load to = {.at = 11, .busy = 101.5, .own = 5.5, .processors = 2};
    struct ct_load before, after;

    (void)state;
    assert_true(ct_load_others(&from, &to) == 0.5);
    to.own = 7; /* counted in hundredths: more than was busy */
    assert_true(ct_load_others(&from, &to) == 0);
    to.at = 10.05;
    assert_true(isnan(ct_load_others(&from, &to)));
    before = ct_load_now(ct_load_job(false));
    for (double began = ct_now(); ct_now() < began + 0.2;)
        ;
    after = ct_load_now(ct_load_job(false));
    assert_true(after.processors > 0 && after.busy > before.busy && after.own > before.own);
    assert_true(ct_load_job(true) >= 0);
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
        cmocka_unit_test(opening_forgets_steps_and_no_warning),
        cmocka_unit_test(rates_are_means_over_steps),
        cmocka_unit_test(a_peak_that_is_too_low_is_measured_again),
        cmocka_unit_test(operands_of_one_shape_differ),
        cmocka_unit_test(the_load_is_what_others_take),
        cmocka_unit_test(a_pace_says_what_is_left),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
