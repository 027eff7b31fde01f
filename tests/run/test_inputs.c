/*
 * Inputs that a run feeds, and those that it refuses before the first step.
 */
#include <math.h>

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

/* Numbers go on from the steps before. */
static void a_model_that_declares_ordinals_is_fed_them(void **state)
{
    struct ct_run *run;
    struct ct_tensor t;
    int32_t first;

    (void)state;
    toy.ordinals = true;
    run = toy_opened();
    train(run);
    t = ct_executor_tensor(run->executor, ct_graph_find_input(run->graph, "ordinals"), 0);
    first = ((const int32_t *)t.data)[0];
    assert_true(first > 0 && first % TOY_LENGTH == 0);
    for (int64_t i = 0; i < 4 * TOY_LENGTH; i++)
        assert_int_equal(((const int32_t *)t.data)[i], first + i);
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

static void a_count_in_too_many_streams_is_refused(void **state)
{
    static const char *const labels[] = {"labels", "labels", "labels", "labels", "labels",
                                         "labels", "labels", "labels", "labels", NULL};
    struct ct_count counts[] = {ct_default_counts[0], {0}};
    struct ct_run *run;

    (void)state;
    counts->streams = labels;
    run = toy_opened();
    run->graph->counts = counts;
    assert_int_equal(ct_run_train(run), CT_EINVAL);
    assert_non_null(strstr(ct_error_message(), "valid_tokens is counted in 9 streams: at most 8"));
    ct_run_close(run);
}

static void use_streams(void)
{
    toy_data.streams = toy_list_streams;
    toy_data.read_streams = toy_read_streams;
}

static void streams_are_fed_in_their_shape_and_dtype(void **state)
{
    struct ct_run *run;
    struct ct_tensor pairs, kind;

    (void)state;
    use_streams();
    toy.width = 2;
    run = toy_opened();
    train(run);
    pairs = ct_executor_tensor(run->executor, ct_graph_find_input(run->graph, "pairs"), 0);
    kind = ct_executor_tensor(run->executor, ct_graph_find_input(run->graph, "kind"), 0);
    assert_int_equal(pairs.dtype, CT_F32);
    assert_int_equal(kind.ndim, 1);
    for (int i = 0; i < 4 * TOY_LENGTH * 2; i++) { /* the last of four steps has samples 12 to 15 */
        int sample = 12 + i / 2 / TOY_LENGTH, t = i / 2 % TOY_LENGTH;

        assert_true(((const float *)pairs.data)[i] == (float)(100 * sample + 10 * t + i % 2));
    }
    for (int i = 0; i < 4; i++)
        assert_int_equal(((const int32_t *)kind.data)[i], 12 + i);
    ct_run_close(run);
}

/* Samples 24 to 31, of work 1 to 128: the three least beside the largest, microbatch by microbatch.
   They are in the step in any case, and so are all labels. */
static void samples_go_to_microbatches_by_their_work(void **state)
{
    static const int want[2][4] = {{24, 25, 26, 31}, {27, 28, 29, 30}};
    struct ct_run *run;

    (void)state;
    use_streams();
    toy.width = 2;
    toy_data.cost = toy_cost;
    ct_config.training.global_batch_size = 8;
    run = toy_opened();
    train(run);
    for (int m = 0; m < 2; m++) {
        struct ct_tensor kind =
            ct_executor_tensor(run->executor, ct_graph_find_input(run->graph, "kind"), m);

        for (int i = 0; i < 4; i++)
            assert_int_equal(((const int32_t *)kind.data)[i], want[m][i]);
    }
    ct_run_close(run);
    toy_data.cost = NULL;
    ct_config.training.global_batch_size = -1;
}

static void an_input_that_no_stream_feeds_names_the_streams(void **state)
{
    (void)state;
    use_streams();
    toy.declare = "pears";
    assert_refused(
        "the data source has kind, tokens, labels, pairs, unused; the run makes "
        "valid_tokens, positions, ordinals, lr, step, loss_limit, norm_limit; did you mean pairs?");
}

static void an_input_of_another_shape_than_its_stream_is_refused(void **state)
{
    (void)state;
    use_streams();
    toy.width = 3;
    assert_refused("input \"pairs\" was declared as [batch, 6, 3], but it is [batch, 6, 2]");
    toy.width = 0;
    toy.declare = "pairs";
    assert_refused("input \"pairs\" was declared as [batch, 6], but it is [batch, 6, 2]");
}

static void scalars_that_are_fetched_are_metrics(void **state)
{
    struct ct_run *run;

    (void)state;
    use_streams(); /* three of six labels count */
    toy.metrics = true;
    run = toy_opened();
    train(run);
    assert_int_equal(run->metric_count, 2);
    assert_string_equal(run->metrics[0].name, "squares");
    assert_string_equal(run->metrics[1].name, "mean_square");
    assert_true(run->metrics[0].value > 0);
    assert_true(fabs(run->metrics[1].value - run->metrics[0].value / 12) < 1e-12);
    ct_run_close(run);
}

static int64_t seven(const struct ct_data *data)
{
    (void)data;
    return 7;
}

/* A step has 4 samples. */
static void epochs_are_steps_where_the_source_tells_its_samples(void **state)
{
    int64_t before = ct_config.training.steps;
    struct ct_run *run;

    (void)state;
    ct_config.training_epochs = 3;
    assert_int_equal(toy_open(&run), CT_ECONFIG);
    assert_non_null(strstr(ct_error_message(), "[training] epochs: the data source does not tell"));
    toy_data.samples = seven;
    assert_int_equal(toy_open(&run), 0);
    assert_int_equal(ct_config.training.steps, 5);
    ct_run_close(run);
    ct_config.lr_total_steps = 4;
    assert_int_equal(toy_open(&run), CT_ECONFIG);
    assert_non_null(strstr(ct_error_message(), "total_steps = 4 ends before the run"));
    ct_config.lr_total_steps = 0;
    ct_config.training_epochs = 0;
    ct_config.training.steps = before;
    toy_data.samples = NULL;
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
        TEST(a_model_that_declares_ordinals_is_fed_them),
        TEST(a_value_that_is_called_like_an_input_is_not_fed),
        TEST(an_input_takes_its_name_from_other_values),
        TEST(data_that_goes_on_after_its_end_is_refused),
        TEST(a_count_in_too_many_streams_is_refused),
        TEST(streams_are_fed_in_their_shape_and_dtype),
        TEST(samples_go_to_microbatches_by_their_work),
        TEST(an_input_that_no_stream_feeds_names_the_streams),
        TEST(an_input_of_another_shape_than_its_stream_is_refused),
        TEST(scalars_that_are_fetched_are_metrics),
        TEST(epochs_are_steps_where_the_source_tells_its_samples),
    };

    return cmocka_run_group_tests(tests, toy_start, NULL);
}
