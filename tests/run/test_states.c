/*
 * States of a run: listed, read, written, copied out; and runs that go on where others ended.
 */
#include <math.h>
#include <pthread.h>
#include <unistd.h>

#include <ctitan/comm.h>
#include <ctitan/state.h>

#include "toy.h"

#define STATES 16
#define ELEMENTS 256

static struct snapshot {
    struct ct_progress progress;
    char name[STATES][64];
    float data[STATES][ELEMENTS];
    size_t count;
} snapshot, staged;

/* The hook's action in each test; NULL: none. */
static int (*on_ready)(struct ct_run *run);
static int (*on_step)(struct ct_run *run, const struct ct_step_result *r);
static double losses[8];
static int64_t ends;

static int on_event(const struct ct_event_data *data, void *context)
{
    (void)context;
    assert_int_equal(data->size, sizeof(*data));
    if (data->event == CT_EVENT_RUN_END)
        ends++;
    if (data->event == CT_EVENT_RUN_READY)
        return on_ready ? on_ready(data->run) : 0;
    if (data->event != CT_EVENT_STEP_END)
        return 0;
    losses[data->step] = data->result->loss;
    return on_step ? on_step(data->run, data->result) : 0;
}

static const struct ct_hook hook = {.size = sizeof(struct ct_hook),
                                    .events = 1u << CT_EVENT_RUN_READY | 1u << CT_EVENT_STEP_END |
                                              1u << CT_EVENT_RUN_END,
                                    .call = on_event};

static int start(void **state)
{
    int rc = toy_start(state);

    return rc < 0 ? rc : ct_hook_register(&hook, NULL);
}

static int reset(void **state)
{
    on_ready = NULL;
    on_step = NULL;
    ends = 0;
    return toy_reset(state);
}

static void train(void)
{
    struct ct_run *run = toy_opened();

    if (ct_run_train(run) < 0)
        fail_msg("%s", ct_error_message());
    ct_run_close(run);
}

/* ---- the list ---- */

static int64_t rows(const struct ct_state *s)
{
    return s->ndim ? s->shape[0] : 1;
}

/* One row after the other. */
static int move_by_rows(struct ct_run *run, const struct ct_state *s, float *data, bool out)
{
    int64_t shape[CT_MAX_DIMS], offset[CT_MAX_DIMS] = {0},
                                width = ct_shape_count(s->ndim, s->shape);
    int rc = 0;

    memcpy(shape, s->shape, sizeof(shape));
    width /= rows(s);
    shape[0] = 1;
    for (int64_t r = 0; rc == 0 && r < rows(s); r++) {
        offset[0] = r;
        rc = out ? ct_run_read(run, s, offset, shape, data + r * width)
                 : ct_run_write(run, s, offset, shape, data + r * width);
    }
    return rc;
}

static int keep(struct ct_run *run, const struct ct_step_result *r)
{
    int rc = 0;

    if (r->step != 2)
        return 0;
    snapshot.progress = run->progress;
    snapshot.count = run->state_count;
    for (size_t i = 0; rc == 0 && i < run->state_count; i++) {
        snprintf(snapshot.name[i], sizeof(snapshot.name[i]), "%s", run->states[i].name);
        rc = move_by_rows(run, &run->states[i], snapshot.data[i], true);
    }
    return rc;
}

static int restore(struct ct_run *run)
{
    int rc = 0;

    run->progress = snapshot.progress;
    for (size_t i = 0; rc == 0 && i < snapshot.count; i++)
        rc = move_by_rows(run, ct_run_state(run, snapshot.name[i]), snapshot.data[i], false);
    return rc;
}

static void every_parameter_and_state_is_listed(void **state)
{
    struct ct_run *run = toy_opened();
    int params = 0, states = 0;

    (void)state;
    for (size_t i = 0; i < run->state_count; i++) {
        const struct ct_state *s = &run->states[i];

        params += s->role == CT_ROLE_PARAM;
        states += s->role == CT_ROLE_STATE;
        assert_non_null(s->value);
        assert_string_equal(s->value->name, s->name);
        assert_true(ct_run_shard(run, s, 0, NULL, NULL));
        assert_true(ct_run_shard_first(run, s, 0));
    }
    assert_int_equal(params, 2);
    assert_int_equal(states, 4); /* two moments of each */
    assert_null(ct_run_state(run, "nobody"));
    ct_run_close(run);
}

static void a_restored_run_goes_on_bit_for_bit(void **state)
{
    double whole[8];

    (void)state;
    on_step = keep;
    train();
    memcpy(whole, losses, sizeof(whole));
    memset(losses, 0, sizeof(losses));
    on_step = NULL;
    on_ready = restore;
    train();
    assert_true(losses[1] == 0 && losses[2] == 0);
    assert_true(losses[3] == whole[3] && losses[4] == whole[4]);
}

static void a_box_outside_the_shard_is_refused(void **state)
{
    struct ct_run *run = toy_opened();
    const struct ct_state *s = ct_run_state(run, "table");
    float box[TOY_WIDTH];

    (void)state;
    assert_int_equal(
        ct_run_read(run, s, (int64_t[]){TOY_VOCABULARY, 0}, (int64_t[]){1, TOY_WIDTH}, box),
        CT_EINVAL);
    assert_int_equal(ct_run_write(run, s, (int64_t[]){0, 1}, (int64_t[]){1, TOY_WIDTH}, box),
                     CT_EINVAL);
    ct_run_close(run);
}

static void a_box_is_a_part_of_both_dimensions(void **state)
{
    struct ct_run *run = toy_opened();
    const struct ct_state *s = ct_run_state(run, "table");
    float whole[TOY_VOCABULARY][TOY_WIDTH], box[3][2] = {{1, 2}, {3, 4}, {5, 6}}, again[3][2];
    const int64_t offset[] = {4, 5}, shape[] = {3, 2};

    (void)state;
    assert_int_equal(ct_run_write(run, s, offset, shape, box), 0);
    assert_int_equal(ct_run_read(run, s, NULL, NULL, whole), 0);
    assert_true(whole[4][5] == 1 && whole[4][6] == 2 && whole[6][5] == 5 && whole[6][6] == 6);
    assert_int_equal(ct_run_read(run, s, offset, shape, again), 0);
    assert_memory_equal(box, again, sizeof(box));
    ct_run_close(run);
}

static void a_box_of_the_whole_fills_what_is_here(void **state)
{
    struct ct_run *run = toy_opened();
    const struct ct_state *s = ct_run_state(run, "table");
    float box[3][2] = {{1, 2}, {3, 4}, {5, 6}}, again[3][2];
    const int64_t offset[] = {4, 5}, shape[] = {3, 2};

    (void)state;
    assert_int_equal(ct_run_fill(run, s, offset, shape, box), 0);
    assert_int_equal(ct_run_read(run, s, offset, shape, again), 0);
    assert_memory_equal(box, again, sizeof(box));
    assert_int_equal(ct_run_fill(run, s, (int64_t[]){TOY_VOCABULARY - 2, 0}, shape, box),
                     CT_EINVAL);
    assert_non_null(strstr(ct_error_message(), "dimension 0 of table"));
    ct_run_close(run);
}

/* ---- copies while steps run ---- */

static pthread_t copier;

/* Long after the next step has begun. */
static void *copy_late(void *context)
{
    struct ct_run *run = context;
    size_t count = run->state_count; /* the run may close when the last one is released */

    usleep(50000);
    for (size_t i = 0; i < count; i++) {
        const struct ct_state *s = &run->states[i];
        size_t bytes = ct_run_shard_bytes(run, s), half = bytes / 8 * 4;
        int rc = ct_run_copy_out(run, s, 0, half, staged.data[i]);

        if (rc == 0)
            rc = ct_run_copy_out(run, s, half, bytes - half, (char *)staged.data[i] + half);
        assert_int_equal(rc, 0);
        ct_run_release(run, s);
    }
    return NULL;
}

static int begin_copies(struct ct_run *run, const struct ct_step_result *r)
{
    int rc = keep(run, r);

    if (r->step != 2)
        return rc;
    for (size_t i = 0; i < run->state_count; i++)
        ct_run_hold(run, &run->states[i]);
    assert_int_equal(pthread_create(&copier, NULL, copy_late, run), 0);
    return rc;
}

static void copies_are_of_the_step_that_began_them(void **state)
{
    (void)state;
    memset(&snapshot, 0, sizeof(snapshot));
    memset(&staged, 0, sizeof(staged));
    on_step = begin_copies;
    train(); /* two more steps, each of which writes everything */
    pthread_join(copier, NULL);
    assert_memory_equal(staged.data, snapshot.data, sizeof(staged.data));
}

/* ---- early ends, and the world ---- */

static int stop_at_two(struct ct_run *run, const struct ct_step_result *r)
{
    if (r->step == 2)
        ct_run_stop(run, "a test");
    return 0;
}

static void a_run_that_is_stopped_ends_in_order(void **state)
{
    (void)state;
    memset(losses, 0, sizeof(losses));
    on_step = stop_at_two;
    train();
    assert_true(losses[2] > 0 && losses[3] == 0);
    assert_int_equal(ends, 1);
}

static int progress_of_two(struct ct_run *run, const struct ct_step_result *r)
{
    assert_int_equal(run->progress.step, r->step + 1);
    assert_int_equal(run->progress.updates, r->step);
    assert_int_equal(run->progress.samples, 4 * r->step);
    assert_int_equal(run->progress.tokens, 4 * TOY_LENGTH * r->step);
    return 0;
}

static void progress_counts_steps_updates_samples_and_tokens(void **state)
{
    (void)state;
    on_step = progress_of_two;
    train();
}

static void the_world_of_one_rank_is_itself(void **state)
{
    struct ct_run *run = toy_opened();
    struct ct_group *world = ct_run_world(run);
    int32_t in = 3, out = 0;

    (void)state;
    assert_int_equal(world->size, 1);
    assert_int_equal(ct_group_barrier(world), 0);
    assert_int_equal(ct_group_broadcast(world, &in, 1, CT_I32, 0), 0);
    assert_int_equal(ct_group_all_reduce(world, &in, &out, 1, CT_I32, CT_REDUCE_MAX), 0);
    assert_int_equal(out, 3);
    assert_int_equal(ct_group_send(world, &in, 4, 1, 0), CT_EINVAL);
    ct_run_close(run);
}

/* ---- another rule of the learning rate ---- */

static double halves(int64_t step, int64_t total)
{
    assert_int_equal(total, 4);
    return ldexp(1, -(int)step);
}

static int rate_is_halved(struct ct_run *run, const struct ct_step_result *r)
{
    (void)run;
    assert_true(r->lr == ldexp(0.01, 1 - (int)r->step));
    return 0;
}

/* The last test: plugins stay. */
static void a_plugins_schedule_gives_the_learning_rate(void **state)
{
    static const struct ct_lr_schedule_ops ops = {.size = sizeof(ops), .factor = halves};
    static const struct ct_offer offers[] = {{CT_LR_SCHEDULE, "halves", &ops}, {CT_NOTHING}};
    static const struct ct_plugin plugin = {
        .abi = {CT_MAGIC, CT_ABI_MAJOR, CT_ABI_MINOR, sizeof(plugin)},
        .name = "halves",
        .version = "1.0",
        .summary = "Halves the learning rate in every step",
        .offers = offers};

    (void)state;
    assert_int_equal(ct_plugin_register(&plugin), 0);
    on_step = rate_is_halved;
    train();
    assert_int_equal(ends, 1);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup(name, reset)
    const struct CMUnitTest tests[] = {
        TEST(every_parameter_and_state_is_listed),
        TEST(a_restored_run_goes_on_bit_for_bit),
        TEST(a_box_outside_the_shard_is_refused),
        TEST(a_box_is_a_part_of_both_dimensions),
        TEST(a_box_of_the_whole_fills_what_is_here),
        TEST(copies_are_of_the_step_that_began_them),
        TEST(a_run_that_is_stopped_ends_in_order),
        TEST(progress_counts_steps_updates_samples_and_tokens),
        TEST(the_world_of_one_rank_is_itself),
        TEST(a_plugins_schedule_gives_the_learning_rate),
    };

    return cmocka_run_group_tests(tests, start, NULL);
}
