/*
 * The first failure of a communicator: one message for all threads and processes, even if the one
 * that writes it dies.
 */
#include "assertions.h"

#include <pthread.h>
#include <stdarg.h>

#include <ctitan/clock.h>
#include <ctitan/comm.h>

enum { THREADS = 8, ROUNDS = 200 };

static int set(struct ct_first_failure *failure, const char *words, ...)
{
    va_list args;
    int rc;

    va_start(args, words);
    rc = ct_first_failure_set(failure, words, args);
    va_end(args);
    return rc;
}

/* ---- many at once ---- */

struct thread {
    pthread_t id;
    pthread_barrier_t *start;
    struct ct_first_failure *failure;
    int number, rc;
    char heard[640];
};

static void *fail_in_thread(void *argument)
{
    struct thread *t = argument;

    pthread_barrier_wait(t->start);
    t->rc = set(t->failure, "thread %d: %0600d", t->number, t->number);
    snprintf(t->heard, sizeof(t->heard), "%s", ct_error_message());
    return NULL;
}

static void all_threads_hear_the_same_whole_message(void **state)
{
    (void)state;
    for (int round = 0; round < ROUNDS; round++) {
        struct ct_first_failure failure = {0};
        struct thread thread[THREADS];
        char expected[640];
        pthread_barrier_t start;
        int first = -1;

        assert_int_equal(ct_first_failure_get(&failure), 0);
        pthread_barrier_init(&start, NULL, THREADS);
        for (int i = 0; i < THREADS; i++) {
            thread[i] = (struct thread){.start = &start, .failure = &failure, .number = i};
            assert_int_equal(pthread_create(&thread[i].id, NULL, fail_in_thread, &thread[i]), 0);
        }
        for (int i = 0; i < THREADS; i++)
            assert_int_equal(pthread_join(thread[i].id, NULL), 0);
        pthread_barrier_destroy(&start);
        assert_int_equal(sscanf(failure.text, "thread %d", &first), 1);
        snprintf(expected, sizeof(expected), "thread %d: %0600d", first, first);
        for (int i = 0; i < THREADS; i++) {
            assert_int_equal(thread[i].rc, CT_EPEER);
            assert_string_equal(thread[i].heard, expected);
        }
    }
}

/* ---- a writer that dies ---- */

static void a_message_that_is_never_written_is_not_awaited_for_ever(void **state)
{
    struct ct_first_failure failure = {.state = 1}; /* its writer was killed */
    double begin = ct_now();

    (void)state;
    assert_int_equal(ct_first_failure_get(&failure), CT_EPEER);
    assert_non_null(strstr(ct_error_message(), "died before it could report it"));
    assert_true(ct_now() - begin < 30);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_threads_hear_the_same_whole_message),
        cmocka_unit_test(a_message_that_is_never_written_is_not_awaited_for_ever),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
