/* Measured facts: every process has the value that the first one measured, to the last bit. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

#include <ctitan/config.h>

#include "tuning.h"

static double measured(void *context)
{
    return *(double *)context;
}

FILE *__real_fdopen(int fd, const char *mode);
FILE *__wrap_fdopen(int fd, const char *mode);

static bool no_streams; /* none can be opened */

FILE *__wrap_fdopen(int fd, const char *mode)
{
    return no_streams ? NULL : __real_fdopen(fd, mode);
}

int __real_flock(int fd, int how);
int __wrap_flock(int fd, int how);

static bool interrupted; /* the next wait for a lock, by a signal */

int __wrap_flock(int fd, int how)
{
    bool now = interrupted;

    interrupted = false;
    errno = EINTR;
    return now ? -1 : __real_flock(fd, how);
}

static double not_again(void *context)
{
    (void)context;
    return 1000;
}

/* The value that another process gets, which measures. */
static double tuned_elsewhere(const char *name, double value)
{
    double got = 0;
    int ends[2], status;
    pid_t child;

    assert_int_equal(pipe(ends), 0);
    child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        got = cpu_tuned(name, measured, &value);
        _exit(write(ends[1], &got, sizeof(got)) != sizeof(got));
    }
    close(ends[1]);
    assert_int_equal(read(ends[0], &got, sizeof(got)), sizeof(got));
    close(ends[0]);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    return got;
}

static void all_processes_have_one_value(void **state)
{
    static const double values[] = {1.020049, 1.01996, 0.123456789, 12345.678, 3};

    (void)state;
    for (int i = 0; i < (int)(sizeof(values) / sizeof(*values)); i++) {
        char name[16];
        double there;

        snprintf(name, sizeof(name), "speed.%d", i);
        there = tuned_elsewhere(name, values[i]);
        assert_true(there > 0.999 * values[i] && there < 1.001 * values[i]);
        assert_memory_equal(&there, &(double){cpu_tuned(name, not_again, NULL)}, sizeof(there));
    }
}

/* A descriptor that stays open keeps the lock, for which the next measurement would wait. */
static void a_file_that_cannot_be_read_is_closed(void **state)
{
    double value = 5;
    int before = dup(0), after;

    (void)state;
    close(before);
    no_streams = true;
    assert_true(cpu_tuned("unread", measured, &value) < 0);
    no_streams = false;
    after = dup(0);
    close(after);
    assert_int_equal(after, before);
    assert_true(cpu_tuned("read", measured, &value) == 5);
}

static void a_signal_ends_no_wait_for_the_file(void **state)
{
    double value = 5;

    (void)state;
    interrupted = true;
    assert_true(cpu_tuned("waited for", measured, &value) == 5);
    assert_false(interrupted);
}

/* A fact that was measured here may be lost, or be another elsewhere. */
static void repeatable_runs_take_the_defaults(void **state)
{
    double value = 5;

    (void)state;
    assert_true(cpu_tuned("known", measured, &value) == 5);
    ct_config.deterministic = true;
    assert_true(cpu_tuned("known", measured, &value) < 0);
    assert_true(cpu_tuned("unknown", measured, &value) < 0);
    ct_config.deterministic = false;
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(all_processes_have_one_value),
                                       cmocka_unit_test(a_file_that_cannot_be_read_is_closed),
                                       cmocka_unit_test(a_signal_ends_no_wait_for_the_file),
                                       cmocka_unit_test(repeatable_runs_take_the_defaults)};
    char folder[] = "/tmp/ctitan-tuning-XXXXXX", command[64];
    int failed;

    if (!mkdtemp(folder) || setenv("XDG_CACHE_HOME", folder, 1) < 0)
        return 1;
    failed = cmocka_run_group_tests(tests, NULL, NULL);
    snprintf(command, sizeof(command), "rm -r %s", folder);
    return system(command) || failed;
}
