#include "assertions.h"

#include <pthread.h>

#include <ctitan/hook.h>
#include <ctitan/log.h>

/* ---- errors ---- */

static void a_failure_is_its_code_and_message(void **state)
{
    (void)state;
    assert_fails(ct_fail(CT_EIO, "block %d", 7), CT_EIO, "block 7");
    assert_fails(ct_context(CT_EIO, "reading %s", "x"), CT_EIO, "reading x: block 7");
    assert_fails(ct_fail(CT_EIO, "2; %s", ct_error_message()), CT_EIO, "2; reading x: block 7");
    ct_fail(CT_EIO, "x.csv: line 2: no number");
    ct_context(CT_EIO, "%s", "x.csv");
    assert_string_equal(ct_error_message(), "x.csv: line 2: no number");
    ct_context(CT_EIO, "[pp] schedule_csv = %s", "x.csv");
    assert_string_equal(ct_error_message(), "[pp] schedule_csv = x.csv: line 2: no number");
    ct_fail(CT_EIO, "x.csv: line 2: no number");
    ct_context(CT_EIO, "max.csv");
    assert_string_equal(ct_error_message(), "max.csv: x.csv: line 2: no number");
    ct_context(CT_EIO, "matrix.csv");
    assert_string_equal(ct_error_message(), "matrix.csv: max.csv: x.csv: line 2: no number");
    assert_string_equal(ct_strerror(CT_EPEER), "a peer failed or timed out");
    assert_string_equal(ct_strerror(-1000), "unknown error");
    assert_string_equal(ct_strerror(CT_OK), "success");
}

static void long_messages_are_cut_whole(void **state)
{
    char word[3000];

    (void)state;
    memset(word, 'y', sizeof(word) - 1);
    word[sizeof(word) - 1] = '\0';
    ct_fail(CT_EIO, "%s", word);
    assert_true(strlen(ct_error_message()) < sizeof(word));
    ct_context(CT_EIO, "%s", word);
    ct_context(CT_EIO, "outermost");
    assert_int_equal(strncmp(ct_error_message(), "outermost: yyy", 14), 0);
}

static void *fail_elsewhere(void *unused)
{
    ct_fail(CT_EIO, "another thread's");
    return unused;
}

static void messages_belong_to_their_thread(void **state)
{
    pthread_t thread;

    (void)state;
    ct_fail(CT_EINVAL, "mine");
    assert_int_equal(pthread_create(&thread, NULL, fail_elsewhere, NULL), 0);
    pthread_join(thread, NULL);
    assert_string_equal(ct_error_message(), "mine");
}

static void a_kept_message_is_recorded_again(void **state)
{
    struct ct_error_kept kept;

    (void)state;
    ct_fail(CT_EIO, "the first");
    kept = ct_error_keep();
    ct_fail(CT_EINVAL, "the second");
    assert_fails(ct_error_restore(CT_EIO, &kept), CT_EIO, "the first");
}

static void lines_end_where_their_room_does(void **state)
{
    char text[8] = "";
    struct ct_line line = {text, sizeof(text), 0}, none = {NULL, 0, 0};

    (void)state;
    for (int i = 0; i < 5; i++) {
        ct_line_add(&line, "%d, ", i);
        ct_line_add(&none, "%d, ", i);
    }
    assert_string_equal(text, "0, 1, 2");
    assert_int_equal(line.used, 15);
    assert_int_equal(none.used, 15);
}

/* ---- log ---- */

struct seen {
    int count;
    enum ct_log_level level;
    char line[4096];
};

static void sink(enum ct_log_level level, const char *line, void *context)
{
    struct seen *seen = context;

    seen->count++;
    seen->level = level;
    snprintf(seen->line, sizeof(seen->line), "%s", line);
}

static void levels_decide_what_is_logged(void **state)
{
    struct seen seen = {0};

    (void)state;
    ct_info("nobody listens");
    ct_log_to(sink, &seen, CT_LOG_INFO);
    ct_debug("too fine");
    assert_int_equal(seen.count, 0);
    ct_info("step %d", 3);
    assert_string_equal(seen.line, "step 3");
    assert_int_equal(seen.level, CT_LOG_INFO);
    ct_status("%d%%", 5);
    assert_int_equal(seen.level, CT_LOG_STATUS);
    assert_int_equal(seen.count, 2);
    ct_log_to(sink, &seen, CT_LOG_WARNING);
    ct_status("not shown");
    ct_info("not shown");
    assert_int_equal(seen.count, 2);
    ct_warn("%02000d", 1);
    assert_int_equal(strlen(seen.line), 2000);
    ct_log_to(NULL, NULL, CT_LOG_DEBUG);
    ct_warn("nobody listens");
    assert_int_equal(seen.count, 3);
}

/* ---- hooks ---- */

struct listener {
    int calls, rc;
};

static int listen(const struct ct_event_data *data, void *context)
{
    struct listener *l = context;

    (void)data;
    l->calls++;
    return l->rc ? ct_fail(l->rc, "a listener said no") : 0;
}

static int fire(enum ct_event event)
{
    return ct_hook_fire(&(struct ct_event_data){.event = event});
}

static void hooks_hear_what_they_asked_for(void **state)
{
    static struct listener a, b;
    static const struct ct_hook on_step = {.size = sizeof(struct ct_hook),
                                           .events =
                                               1u << CT_EVENT_STEP_END | 1u << CT_EVENT_FAILURE,
                                           .call = listen,
                                           .context = &a};
    static const struct ct_hook on_both = {
        .size = sizeof(struct ct_hook),
        .events = 1u << CT_EVENT_STEP_END | 1u << CT_EVENT_STEP_BEGIN | 1u << CT_EVENT_FAILURE,
        .call = listen,
        .context = &b};

    (void)state;
    assert_false(ct_hook_wanted(CT_EVENT_STEP_END));
    assert_int_equal(fire(CT_EVENT_STEP_END), 0);
    assert_int_equal(ct_hook_register(&on_step, NULL), 0);
    assert_int_equal(ct_hook_register(&on_both, NULL), 0);
    assert_true(ct_hook_wanted(CT_EVENT_STEP_BEGIN));
    assert_false(ct_hook_wanted(CT_EVENT_OP_BEGIN));
    assert_int_equal(fire(CT_EVENT_STEP_BEGIN), 0);
    assert_int_equal(fire(CT_EVENT_STEP_END), 0);
    assert_int_equal(a.calls, 1);
    assert_int_equal(b.calls, 2);
    a.rc = CT_EIO;
    assert_fails(fire(CT_EVENT_STEP_END), CT_EIO, "a listener said no");
    assert_int_equal(b.calls, 2);
    assert_int_equal(fire(CT_EVENT_FAILURE), 0);
    assert_int_equal(b.calls, 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_failure_is_its_code_and_message),
        cmocka_unit_test(long_messages_are_cut_whole),
        cmocka_unit_test(messages_belong_to_their_thread),
        cmocka_unit_test(a_kept_message_is_recorded_again),
        cmocka_unit_test(lines_end_where_their_room_does),
        cmocka_unit_test(levels_decide_what_is_logged),
        cmocka_unit_test(hooks_hear_what_they_asked_for),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
