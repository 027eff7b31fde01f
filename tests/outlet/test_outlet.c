/*
 * Outlets: writes to a pipe that nobody reads return, what waited arrives whole and in order, and
 * the lines that did not fit are counted.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <fcntl.h>
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include <ctitan/clock.h>
#include <ctitan/lib/outlet.h>

#define LINES 40000 /* of 64 bytes: more than a pipe and an outlet hold */

static int from, to; /* ends of the pipe that the outlet of standard error writes to */

static int divert(void **state)
{
    int ends[2], terminal = dup(STDERR_FILENO);

    (void)state;
    if (terminal < 0 || pipe(ends) < 0 || dup2(ends[1], STDERR_FILENO) < 0)
        return -1;
    from = ends[0];
    to = ends[1];
    ct_outlet_push(STDERR_FILENO); /* opens it */
    return dup2(terminal, STDERR_FILENO) < 0 ? -1 : 0;
}

static void write_lines(int first, int count)
{
    char line[80];

    for (int i = first; i < first + count; i++) {
        sprintf(line, "%062d.\n", i);
        ct_outlet_write(STDERR_FILENO, line, strlen(line));
    }
}

/* Reads until the number's line has come. */
struct reader {
    int last;
    int lines, previous, disorder;
    long lost;
    bool slow;
};

static void take(struct reader *r, const char *line)
{
    int number;

    if (sscanf(line, "ctitan: %ld lines were lost", &r->lost) == 1 || *line == '\n')
        return;
    if (strlen(line) != 64 || sscanf(line, "%d.", &number) != 1 || number <= r->previous) {
        r->disorder++;
        return;
    }
    r->lines++;
    r->previous = number;
}

static void *read_lines(void *argument)
{
    struct reader *r = argument;
    FILE *in = fdopen(dup(from), "r");
    char line[128];

    r->previous = -1;
    while (r->previous != r->last && fgets(line, sizeof(line), in)) {
        take(r, line);
        if (r->slow && r->lines % 8000 == 0)
            ct_nap(0.3);
    }
    fclose(in);
    return NULL;
}

/* All of it comes through a reader that is slower than the writer. */
static void test_slow(void **state)
{
    struct reader r = {.last = LINES - 1, .slow = true};
    pthread_t thread;

    (void)state;
    assert_int_equal(pthread_create(&thread, NULL, read_lines, &r), 0);
    write_lines(0, LINES);
    ct_outlet_flush(STDERR_FILENO);
    pthread_join(thread, NULL);
    assert_int_equal(r.lines, LINES);
    assert_int_equal(r.lost, 0);
    assert_int_equal(r.disorder, 0);
}

static void test_no_reader(void **state)
{
    struct reader r = {.last = LINES};
    pthread_t thread;

    (void)state;
    ct_outlet_hurry();
    write_lines(0, LINES);
    assert_true(ct_outlet_has_room(STDERR_FILENO, CT_OUTLET_ROOM));
    ct_outlet_flush(STDERR_FILENO); /* returns */
    assert_int_equal(ct_outlet_poll(STDERR_FILENO).events, POLLOUT);
    assert_int_equal(pthread_create(&thread, NULL, read_lines, &r), 0);
    while (ct_outlet_poll(STDERR_FILENO).fd >= 0)
        ct_outlet_push(STDERR_FILENO);
    write_lines(LINES, 1);
    pthread_join(thread, NULL);
    assert_true(r.lost > 0);
    assert_int_equal(r.disorder, 0);
    assert_int_equal(r.lines + r.lost, LINES + 1);
}

/* A forked process does not write again what waits in its parent. */
static void test_fork(void **state)
{
    char text[CT_OUTLET_ROOM];
    pid_t child;
    int status;

    (void)state;
    write_lines(0, 4000);
    assert_true(ct_outlet_poll(STDERR_FILENO).fd >= 0);
    child = fork();
    if (child == 0)
        _exit(ct_outlet_poll(STDERR_FILENO).fd >= 0);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    assert_true(fcntl(from, F_SETFL, O_NONBLOCK) == 0);
    for (size_t n = 0; ct_outlet_poll(STDERR_FILENO).fd >= 0 && n < 1000; n++) {
        assert_true(read(from, text, sizeof(text)) > 0);
        ct_outlet_push(STDERR_FILENO);
    }
}

/* Who shares the descriptor goes on to wait. */
static void test_flags(void **state)
{
    (void)state;
    assert_int_equal(fcntl(to, F_GETFL) & O_NONBLOCK, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_slow),
        cmocka_unit_test(test_no_reader),
        cmocka_unit_test(test_fork),
        cmocka_unit_test(test_flags),
    };

    return cmocka_run_group_tests(tests, divert, NULL);
}
