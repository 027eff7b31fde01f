/*
 * Events of a run of one rank, and hooks that fail.
 */
#include <ctitan/comm.h>
#include <ctitan/lib/measure.h>
#include <ctitan/train.h>

#include "toy.h"

static struct {
    struct ct_run *run;
    int64_t step, ops, foreign, calls, count[CT_EVENT_COUNT];
    double time;
    enum ct_event fail_on; /* CT_EVENT_COUNT: nowhere */
    char message[2048];
    bool wait; /* for all ranks, before each step */
} seen;

/* The instruction is the one of that index in the program that the event names. */
static void check_op(const struct ct_event_data *data)
{
    const struct ct_program *p = data->program;

    if (data->index >= 0)
        assert_ptr_equal(data->instruction, &p->step[data->index]);
    else
        assert_ptr_equal(data->instruction, &p->init[(int64_t)p->init_count + data->index]);
    assert_ptr_equal(data->launch->op, data->instruction->op);
    assert_int_equal(data->microbatch, data->instruction->microbatch);
    if (data->event == CT_EVENT_OP_BEGIN && data->run)
        seen.ops++;
    seen.foreign += !data->run;
    if (data->run) {
        assert_ptr_equal(p->run, data->run);
        assert_ptr_equal(p, data->run->program);
        assert_int_equal(data->step, data->index < 0 ? 0 : seen.step);
    }
}

/* A call of the host in the group of all ranks. */
static void check_call(const struct ct_event_data *data)
{
    assert_non_null(data->run);
    assert_ptr_equal(data->group, ct_run_world(data->run));
    assert_ptr_equal(data->call->group, data->group);
    assert_int_equal(data->step, data->run->progress.step);
    if (ct_call_is_message(data->call->kind)) {
        assert_int_equal(data->sequence, 0);
        return;
    }
    seen.calls += data->event == CT_EVENT_CALL_BEGIN;
    assert_int_equal(data->sequence, seen.calls);
}

static int wait_for_all(struct ct_group *world)
{
    char out = 1, in = 0;
    int rc = ct_group_barrier(world);

    return rc < 0 ? rc : ct_group_exchange(world, &out, 0, &in, 0, 1, 0);
}

static int on_event(const struct ct_event_data *data, void *context)
{
    (void)context;
    seen.count[data->event]++;
    assert_true(data->time >= seen.time);
    seen.time = data->time;
    if (data->event == CT_EVENT_RUN_READY)
        assert_int_equal(seen.count[CT_EVENT_RUN_LOAD], 1);
    if (data->event == CT_EVENT_STEP_BEGIN)
        seen.step = data->step;
    if (data->event == CT_EVENT_OP_BEGIN || data->event == CT_EVENT_OP_END)
        check_op(data);
    if (data->event == CT_EVENT_CALL_BEGIN || data->event == CT_EVENT_CALL_END)
        check_call(data);
    if (data->event == CT_EVENT_STEP_BEGIN && seen.wait)
        return wait_for_all(ct_run_world(data->run));
    if (data->event == CT_EVENT_FAILURE)
        snprintf(seen.message, sizeof(seen.message), "%s", data->message);
    return data->event == seen.fail_on ? ct_fail(CT_EIO, "the disk is full") : 0;
}

#define ALL (~0u >> (32 - CT_EVENT_COUNT))
static const struct ct_hook hook = {
    .size = sizeof(struct ct_hook), .events = ALL, .call = on_event};

static int start(void **state)
{
    int rc = toy_start(state);

    return rc < 0 ? rc : ct_hook_register(&hook, "plugin trace");
}

static int reset(void **state)
{
    memset(&seen, 0, sizeof(seen));
    seen.fail_on = CT_EVENT_COUNT;
    return toy_reset(state);
}

static void an_event_says_whose_instruction_it_is(void **state)
{
    struct ct_run *run = toy_opened();

    (void)state;
    seen.ops = 0;
    assert_int_equal(ct_run_train(run), 0);
    assert_int_equal(seen.ops, 4 * (int64_t)run->program->step_count);
    assert_int_equal(seen.foreign, 0);
    assert_int_equal(seen.count[CT_EVENT_PLAN_READY], 1);
    assert_int_equal(seen.count[CT_EVENT_RUN_READY], 1);
    assert_int_equal(seen.count[CT_EVENT_STEP_BEGIN], 4);
    assert_int_equal(seen.count[CT_EVENT_STEP_END], 4);
    assert_int_equal(seen.count[CT_EVENT_OP_END], seen.count[CT_EVENT_OP_BEGIN]);
    assert_int_equal(seen.count[CT_EVENT_RUN_END], 1);
    assert_int_equal(seen.count[CT_EVENT_FAILURE], 0);
    ct_run_close(run);
}

static void ops_of_other_programs_are_not_the_runs(void **state)
{
    struct ct_run *run = toy_opened();
    double peak;

    (void)state;
    seen.ops = 0;
    assert_int_equal(ct_measure_gemm(run->device, CT_F32, &peak), 0);
    assert_true(seen.foreign > 0);
    assert_int_equal(seen.ops, 0);
    ct_run_close(run);
}

static void a_call_of_the_host_says_its_run_step_and_number(void **state)
{
    struct ct_run *run = toy_opened();

    (void)state;
    seen.wait = true;
    assert_int_equal(ct_run_train(run), 0);
    assert_int_equal(seen.calls, 4);
    assert_int_equal(seen.count[CT_EVENT_CALL_END], 8); /* with a message in each step */
    ct_run_close(run);
}

static void a_call_in_a_group_of_no_run_has_none(void **state)
{
    struct ct_group alone = {.name = "alone", .size = 1, .ranks = (int[]){0}};
    struct ct_run *run = toy_opened();

    (void)state;
    assert_null(ct_run_of_world(&alone));
    assert_ptr_equal(ct_run_of_world(ct_run_world(run)), run);
    ct_run_close(run);
}

static void the_failure_of_a_hook_names_its_plugin(void **state)
{
    struct ct_run *run = toy_opened();

    (void)state;
    seen.fail_on = CT_EVENT_STEP_END;
    assert_int_equal(ct_run_train(run), CT_EIO);
    assert_string_equal(ct_error_message(), "plugin trace, hook on STEP_END: the disk is full");
    assert_string_equal(seen.message, "plugin trace, hook on STEP_END: the disk is full");
    assert_int_equal(seen.count[CT_EVENT_FAILURE], 1);
    assert_int_equal(seen.count[CT_EVENT_RUN_END], 0);
    ct_run_close(run);
}

static void a_failure_at_the_end_of_a_run_is_one(void **state)
{
    struct ct_run *run = toy_opened();

    (void)state;
    seen.fail_on = CT_EVENT_RUN_END;
    assert_int_equal(ct_run_train(run), CT_EIO);
    assert_string_equal(seen.message, "plugin trace, hook on RUN_END: the disk is full");
    ct_run_close(run);
}

static int save_fails(struct ct_run *run, const char *folder)
{
    (void)run;
    assert_string_equal(folder, "model");
    assert_int_equal(seen.count[CT_EVENT_SAVE_BEGIN], 1);
    assert_int_equal(seen.count[CT_EVENT_SAVE_END], 0);
    return ct_fail(CT_EIO, "the disk is full");
}

static void weights_are_saved_between_two_events(void **state)
{
    static const struct ct_weights_ops weights = {.size = sizeof(weights), .save = save_fails};
    struct ct_run *run = toy_opened();
    struct ct_model_ops ops = *run->model_ops;

    (void)state;
    ops.weights = &weights;
    run->model_ops = &ops;
    ct_config.model.save_to = "model";
    assert_int_equal(ct_run_train(run), CT_EIO);
    assert_non_null(strstr(ct_error_message(), "the disk is full"));
    assert_int_equal(seen.count[CT_EVENT_SAVE_BEGIN], 1);
    assert_int_equal(seen.count[CT_EVENT_SAVE_END], 1);
    ct_run_close(run);
    ct_config.model.save_to = "";
}

static int has_no_room(struct ct_run *run, const char *folder)
{
    assert_int_equal(run->progress.step, 1);
    assert_string_equal(folder, "model");
    return ct_fail(CT_ECONFIG, "the disk has no room");
}

static void a_format_says_before_the_first_step_that_it_cannot_save(void **state)
{
    static const struct ct_weights_ops weights = {.size = sizeof(weights),
                                                  .check_save = has_no_room};
    struct ct_run *run = NULL;

    (void)state;
    toy_model.weights = &weights;
    toy_model.description = "";
    ct_config.model.save_to = "model";
    assert_int_equal(toy_open(&run), CT_ECONFIG);
    assert_string_equal(ct_error_message(), "[model] save_to = model: the disk has no room");
    toy_model.weights = NULL;
    toy_model.description = NULL;
    ct_config.model.save_to = "";
}

static void weights_need_a_format(void **state)
{
    const char **const keys[] = {&ct_config.model.save_to, &ct_config.model.init_from};
    struct ct_run *run = NULL;

    (void)state;
    for (size_t i = 0; i < CT_COUNT(keys); i++) {
        *keys[i] = "model";
        assert_int_equal(toy_open(&run), CT_ECONFIG);
        assert_non_null(strstr(ct_error_message(), "the model toy has no format of weights"));
        *keys[i] = "";
    }
}

static void events_have_names(void **state)
{
    (void)state;
    assert_string_equal(ct_event_name(CT_EVENT_COLLECTIVE_FINISHED), "COLLECTIVE_FINISHED");
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup(name, reset)
    const struct CMUnitTest tests[] = {
        TEST(an_event_says_whose_instruction_it_is),
        TEST(ops_of_other_programs_are_not_the_runs),
        TEST(a_call_of_the_host_says_its_run_step_and_number),
        TEST(a_call_in_a_group_of_no_run_has_none),
        TEST(the_failure_of_a_hook_names_its_plugin),
        TEST(a_failure_at_the_end_of_a_run_is_one),
        TEST(weights_are_saved_between_two_events),
        TEST(a_format_says_before_the_first_step_that_it_cannot_save),
        TEST(weights_need_a_format),
        TEST(events_have_names),
    };

    return cmocka_run_group_tests(tests, start, NULL);
}
