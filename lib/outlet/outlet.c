/*
 * Writes that do not wait: a pipe or a terminal is opened again by its name in /proc, because
 * O_NONBLOCK on the descriptor itself would hold for all processes that share it.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <ctitan/clock.h>
#include <ctitan/lib/outlet.h>

#define HURRY 0.5 /* seconds */

static struct outlet {
    bool opened;
    int own;      /* does not wait; -1: only the descriptor that the process got */
    bool is_file; /* takes everything */
    size_t used;
    pid_t owner;  /* of what waits: a forked process has a copy */
    double since; /* when something was last taken, or began to wait */
    long long lost;
    char waiting[CT_OUTLET_ROOM];
} outlets[2];

static volatile sig_atomic_t hurried;

static struct outlet *outlet_of(int fd)
{
    struct outlet *o = &outlets[fd == STDERR_FILENO];
    struct stat s;
    char name[32];

    if (!o->opened) {
        snprintf(name, sizeof(name), "/proc/self/fd/%d", fd);
        o->own = -1;
        o->is_file = fstat(fd, &s) < 0 ||
                     (!S_ISFIFO(s.st_mode) && !S_ISCHR(s.st_mode) && !S_ISSOCK(s.st_mode));
        if (!o->is_file && !S_ISSOCK(s.st_mode))
            o->own = open(name, O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
        o->opened = true;
    }
    if (o->used && o->owner != getpid())
        o->used = 0;
    return o;
}

/* ---- one write ---- */

/* Bytes that were taken; negative: none, for now (EAGAIN) or for ever. */
static ssize_t offer(const struct outlet *o, int fd, const char *data, size_t bytes)
{
    struct pollfd ready = {.fd = fd, .events = POLLOUT};

    if (!o->is_file && o->own < 0) {
        if (poll(&ready, 1, 0) != 1) {
            errno = EAGAIN;
            return -1;
        }
        bytes = bytes < PIPE_BUF ? bytes : PIPE_BUF;
    }
    return write(o->own >= 0 ? o->own : fd, data, bytes);
}

/* Whole lines, which no other process's can divide, if they are short enough. */
static size_t next_part(const struct outlet *o)
{
    const char *end;

    if (o->is_file || o->used <= PIPE_BUF)
        return o->used;
    end = memrchr(o->waiting, '\n', PIPE_BUF);
    return end ? (size_t)(end - o->waiting) + 1 : PIPE_BUF;
}

static void say_lost(struct outlet *o)
{
    if (!o->lost)
        return;
    o->used = (size_t)snprintf(o->waiting, sizeof(o->waiting),
                               "\nctitan: %lld line%s lost here, because nobody read them\n",
                               o->lost, o->lost == 1 ? " was" : "s were");
    o->lost = 0;
}

void ct_outlet_push(int fd)
{
    struct outlet *o = outlet_of(fd);

    while (o->used) {
        ssize_t n = offer(o, fd, o->waiting, next_part(o));

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno == EAGAIN)
            return;
        if (n < 0) { /* it has no reader any more */
            o->used = 0;
            return;
        }
        o->used -= (size_t)n;
        memmove(o->waiting, o->waiting + n, o->used);
        o->since = ct_now();
        if (!o->used)
            say_lost(o);
    }
}

/* ---- a reader that has stopped ---- */

static bool is_stuck(const struct outlet *o)
{
    return o->used && ct_now() - o->since > (hurried ? HURRY : CT_OUTLET_PATIENCE);
}

static void wait_a_little(const struct outlet *o, int fd)
{
    struct pollfd ready = {.fd = o->own >= 0 ? o->own : fd, .events = POLLOUT};

    poll(&ready, 1, 50);
}

static long long count_lines(const char *data, size_t bytes)
{
    long long count = 0;

    for (size_t i = 0; i < bytes; i++)
        count += data[i] == '\n';
    return count;
}

bool ct_outlet_has_room(int fd, size_t bytes)
{
    const struct outlet *o = outlet_of(fd);

    return o->used + bytes <= sizeof(o->waiting) || is_stuck(o);
}

void ct_outlet_write(int fd, const char *data, size_t bytes)
{
    struct outlet *o = outlet_of(fd);
    size_t n;

    for (; bytes; data += n, bytes -= n) {
        n = bytes < CT_OUTLET_ROOM / 2 ? bytes : CT_OUTLET_ROOM / 2;
        ct_outlet_push(fd);
        while (o->used + n > sizeof(o->waiting) && !is_stuck(o)) {
            wait_a_little(o, fd);
            ct_outlet_push(fd);
        }
        if (o->used + n > sizeof(o->waiting)) {
            o->lost += count_lines(data, n);
            continue;
        }
        if (!o->used)
            o->since = ct_now();
        o->owner = getpid();
        memcpy(o->waiting + o->used, data, n);
        o->used += n;
        ct_outlet_push(fd);
    }
}

void ct_outlet_print(int fd, const char *fmt, ...)
{
    va_list args;
    char *text;
    int n;

    va_start(args, fmt);
    n = vasprintf(&text, fmt, args);
    va_end(args);
    if (n < 0)
        return;
    ct_outlet_write(fd, text, (size_t)n);
    free(text);
}

struct pollfd ct_outlet_poll(int fd)
{
    const struct outlet *o = outlet_of(fd);

    if (!o->used)
        return (struct pollfd){.fd = -1};
    return (struct pollfd){.fd = o->own >= 0 ? o->own : fd, .events = POLLOUT};
}

/* ---- the end ---- */

void ct_outlet_interject(int fd, const char *data, size_t bytes)
{
    const struct outlet *o = &outlets[fd == STDERR_FILENO];
    int before = errno;

    if (o->opened)
        (void)!offer(o, fd, data, bytes);
    errno = before;
}

void ct_outlet_hurry(void)
{
    hurried = 1;
}

void ct_outlet_flush(int fd)
{
    struct outlet *o = outlet_of(fd);

    for (ct_outlet_push(fd); o->used && !(hurried && is_stuck(o)); ct_outlet_push(fd))
        wait_a_little(o, fd);
}
