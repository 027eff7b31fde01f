/*
 * The order of steps, validations, ends of stages and the end of the steps.
 */
#include "toy.h"

static struct {
    int64_t stop, back, to; /* steps: to stop after; to go back after, once, and to which */
    char order[256];
} seen;

/* "1 v1 |1 end1": with the step of the result, or "?" where there is none; "!": it was stopped */
static void note_order(const struct ct_event_data *data)
{
    static const char *const signs[CT_EVENT_COUNT] = {[CT_EVENT_STEP_END] = "",
                                                      [CT_EVENT_VALIDATED] = "v",
                                                      [CT_EVENT_STAGE_END] = "|",
                                                      [CT_EVENT_STEPS_END] = "end"};
    const struct ct_step_result *r = data->result;
    size_t used = strlen(seen.order);

    snprintf(seen.order + used, sizeof(seen.order) - used, "%s%s%lld%s%s", used ? " " : "",
             signs[data->event], (long long)(r ? r->step : data->step), r ? "" : "?",
             data->code ? "!" : "");
}

/* Stop, or go back as a plugin does that has a checkpoint. */
static void steer(const struct ct_event_data *data)
{
    if (data->step == seen.stop)
        ct_run_stop(data->run, "a test");
    if (data->step != seen.back)
        return;
    seen.back = 0;
    data->run->progress.step = seen.to;
}

static int on_event(const struct ct_event_data *data, void *context)
{
    (void)context;
    note_order(data);
    if (data->event == CT_EVENT_STEP_END)
        steer(data);
    return 0;
}

static const struct ct_hook hook = {.size = sizeof(struct ct_hook),
                                    .events = 1u << CT_EVENT_STEP_END | 1u << CT_EVENT_VALIDATED |
                                              1u << CT_EVENT_STAGE_END | 1u << CT_EVENT_STEPS_END,
                                    .call = on_event};

static int start(void **state)
{
    int rc = toy_start(state);

    return rc < 0 ? rc : ct_hook_register(&hook, "plugin order");
}

static int reset(void **state)
{
    memset(&seen, 0, sizeof(seen));
    return toy_apply("") < 0 ? -1 : toy_reset(state);
}

static void expect_order(const char *order, const char *stop)
{
    struct ct_run *run = toy_opened();

    seen.order[0] = '\0';
    if (ct_run_train(run) < 0)
        fail_msg("%s", ct_error_message());
    assert_string_equal(seen.order, order);
    assert_string_equal(run->stop ? run->stop : "", stop);
    ct_run_close(run);
}

static void the_last_step_is_told_once(void **state)
{
    (void)state;
    expect_order("1 2 3 4 end4", "");
    seen.stop = 2;
    expect_order("1 2 end2!", "a test");
    seen.stop = 0;
    toy.samples = 14;
    expect_order("1 2 3 end3", "the data ended");
}

static void a_step_that_was_taken_back_is_not_told(void **state)
{
    (void)state;
    seen.back = seen.to = seen.stop = 3;
    expect_order("1 2 3 end2?!", "a test");
    ct_config.validation.freq = 3;
    toy.samples = 12;
    seen.stop = 0;
    seen.back = 3;
    expect_order("1 2 3 end2? v2", "the data ended");
    seen.back = seen.to = 1;
    expect_order("1 1 2 end2 v2", "the data ended");
}

static void the_first_reason_to_end_stays(void **state)
{
    (void)state;
    ct_config.validation.freq = 2;
    ct_config.patience = 1;
    ct_config.min_delta = 100;
    ct_config.training.steps = 6;
    expect_order("1 2 v2 3 4 v4 end4!", "[validation] patience");
    toy.samples = 14;
    expect_order("1 2 v2 3 end3 v3", "the data ended");
}

static void a_stage_ends_with_its_last_step(void **state)
{
    (void)state;
    assert_int_equal(
        toy_apply("[validation]\nfreq = 5\n[stage.2]\nbegin = 3\nlocal_batch_size = 8\n"), 0);
    expect_order("1 2 |2 3 4 end4 v4", "");
    toy.samples = 14;
    expect_order("1 2 |2 end2", "the data ended");
    toy.samples = 0;
    seen.back = 3;
    seen.to = 2;
    expect_order("1 2 |2 3 |2? 2 |2 3 4 end4 v4", "");
}

static void the_data_of_a_later_stage_is_looked_at_first(void **state)
{
    struct ct_run *run;

    (void)state;
    toy.samples = 14;
    assert_int_equal(
        toy_apply("[validation]\nfreq = 5\n[stage.2]\nbegin = 3\nlocal_batch_size = 16\n"), 0);
    run = toy_opened();
    assert_int_equal(ct_run_train(run), CT_ECONFIG);
    assert_non_null(strstr(ct_error_message(), "the stage from step 3 on"));
    assert_non_null(strstr(ct_error_message(), "has less than one batch of 16 samples"));
    assert_string_equal(seen.order, "");
    ct_run_close(run);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup(name, reset)
    const struct CMUnitTest tests[] = {
        TEST(the_last_step_is_told_once),
        TEST(a_step_that_was_taken_back_is_not_told),
        TEST(the_first_reason_to_end_stays),
        TEST(a_stage_ends_with_its_last_step),
        TEST(the_data_of_a_later_stage_is_looked_at_first),
    };

    return cmocka_run_group_tests(tests, start, NULL);
}
