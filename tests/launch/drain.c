/*
 * The rest of an ended rank's pipe is relayed, though others hold the pipe open and write on: here
 * whenever it is read.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <fcntl.h>
#include <unistd.h>

#include <cmocka.h>

#include <ctitan/lib/outlet.h>

#include "../../lib/launch/launched.h"

#define MOST 100 /* reads */

static const char line[] = "a line\n";
static int ends[2], reads;

ssize_t __real_read(int fd, void *data, size_t size);
ssize_t __wrap_read(int fd, void *data, size_t size);

ssize_t __wrap_read(int fd, void *data, size_t size)
{
    ssize_t n = __real_read(fd, data, size);

    if (fd == ends[0] && ++reads < MOST && write(ends[1], line, strlen(line)) < 0)
        return -1;
    return n;
}

static void a_pipe_is_drained_of_what_it_held(void **state)
{
    struct launched rank = {.name = "rank 0"};
    struct children all = {.at = &rank, .count = 1, .program = "drain"};
    int nowhere = open("/dev/null", O_WRONLY | O_CLOEXEC);

    (void)state;
    assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
    for (int i = 0; i < 1000; i++)
        assert_int_equal(write(ends[1], line, strlen(line)), strlen(line));
    rank.out = (struct stream){.from = ends[0], .to = nowhere};
    launched_drain(&all, &rank, &rank.out);
    assert_int_equal(rank.out.from, -1);
    assert_true(reads >= 2 && reads < 10);
    ct_outlet_flush(nowhere);
    close(ends[1]);
    close(nowhere);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_pipe_is_drained_of_what_it_held)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
