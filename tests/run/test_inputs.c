/*
 * What a run feeds, and what it refuses before the first step.
 */
#include "toy.h"

static void a_model_without_tokens_is_refused(void **state)
{
    (void)state;
    toy.no_tokens = true;
    assert_refused("no input \"tokens\"");
}

static void a_model_without_an_op_is_refused(void **state)
{
    (void)state;
    toy.no_ops = true;
    assert_refused("no op");
}

static void a_model_without_a_loss_is_refused(void **state)
{
    (void)state;
    toy.no_loss = true;
    assert_refused("fetches no \"loss\"");
}

static void an_input_that_nobody_feeds_is_refused(void **state)
{
    (void)state;
    toy.declare = "postions";
    assert_refused("did you mean positions?");
}

static void train(struct ct_run *run)
{
    if (ct_run_train(run) < 0)
        fail_msg("%s", ct_error_message());
}

static void a_model_that_declares_positions_is_fed_them(void **state)
{
    struct ct_run *run;
    struct ct_tensor t;

    (void)state;
    toy.positions = true;
    run = toy_opened();
    train(run);
    t = ct_executor_tensor(run->executor, ct_graph_find_input(run->graph, "positions"), 0);
    for (int64_t i = 0; i < 4 * TOY_LENGTH; i++)
        assert_int_equal(((const int32_t *)t.data)[i], i % TOY_LENGTH);
    ct_run_close(run);
}

static void a_value_that_is_called_like_an_input_is_not_fed(void **state)
{
    struct ct_run *run;

    (void)state;
    toy.occupy = true;
    run = toy_opened();
    assert_null(ct_graph_find_input(run->graph, "positions"));
    train(run);
    ct_run_close(run);
}

static void an_input_takes_its_name_from_other_values(void **state)
{
    struct ct_run *run;

    (void)state;
    toy.occupy = toy.positions = true;
    run = toy_opened();
    assert_int_equal(ct_graph_find_input(run->graph, "positions")->role, CT_ROLE_INPUT);
    train(run);
    ct_run_close(run);
}

/* A rank that reads the sample would end the run, while others went on. */
static void data_that_goes_on_after_its_end_is_refused(void **state)
{
    struct ct_run *run;

    (void)state;
    toy.samples = 12;
    toy.missing = 5;
    run = toy_opened();
    assert_int_equal(ct_run_train(run), CT_EINVAL);
    assert_non_null(strstr(ct_error_message(), "no sample 5, but the later sample 7"));
    ct_run_close(run);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup(name, toy_reset)
    const struct CMUnitTest tests[] = {
        TEST(a_model_without_tokens_is_refused),
        TEST(a_model_without_an_op_is_refused),
        TEST(a_model_without_a_loss_is_refused),
        TEST(an_input_that_nobody_feeds_is_refused),
        TEST(a_model_that_declares_positions_is_fed_them),
        TEST(a_value_that_is_called_like_an_input_is_not_fed),
        TEST(an_input_takes_its_name_from_other_values),
        TEST(data_that_goes_on_after_its_end_is_refused),
    };

    return cmocka_run_group_tests(tests, toy_start, NULL);
}
