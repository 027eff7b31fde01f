#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <ctitan/error.h>

#include "stream.h"

#define BLOCK ((size_t)64 << 10)
#define LINE 400 /* bytes of the last line, at most */

extern char **environ;

/* The last line of stderr that is not blank. */
struct last_line {
    char text[LINE], next[LINE];
    size_t size; /* of next */
};

struct process {
    pid_t pid;
    int out, err; /* -1: it has ended */
    struct last_line last;
    char block[BLOCK];
};

static void end_line(struct last_line *l)
{
    while (l->size && strchr(" \t\r", l->next[l->size - 1]))
        l->size--;
    l->next[l->size] = '\0';
    if (l->size)
        memcpy(l->text, l->next, l->size + 1);
    l->size = 0;
}

static void add_stderr(struct last_line *l, const char *text, size_t size)
{
    for (size_t i = 0; i < size; i++)
        if (text[i] == '\n')
            end_line(l);
        else if (text[i] && l->size + 1 < sizeof(l->next))
            l->next[l->size++] = text[i];
}

/* ---- starting ---- */

/* Signals that this process ignores or blocks are the child's again. */
static int spawn(const char *command, int out, int err, pid_t *pid)
{
    char *const arguments[] = {"sh", "-c", (char *)(uintptr_t)command, NULL};
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    sigset_t none, defaults;
    int rc;

    sigemptyset(&none);
    sigemptyset(&defaults);
    sigaddset(&defaults, SIGPIPE);
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_adddup2(&actions, out, STDOUT_FILENO);
    posix_spawn_file_actions_adddup2(&actions, err, STDERR_FILENO);
    posix_spawnattr_init(&attributes);
    posix_spawnattr_setsigmask(&attributes, &none);
    posix_spawnattr_setsigdefault(&attributes, &defaults);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
    rc = posix_spawn(pid, "/bin/sh", &actions, &attributes, arguments, environ);
    posix_spawnattr_destroy(&attributes);
    posix_spawn_file_actions_destroy(&actions);
    return rc ? ct_fail(CT_ECONFIG, "it cannot be started: %s", strerror(rc)) : 0;
}

static int start(struct process *p, const char *command)
{
    int out[2] = {-1, -1}, err[2] = {-1, -1}, rc = 0;

    if (pipe2(out, O_CLOEXEC) < 0 || pipe2(err, O_CLOEXEC) < 0)
        rc = ct_fail(CT_EIO, "a pipe: %s", strerror(errno));
    if (rc == 0)
        rc = spawn(command, out[1], err[1], &p->pid);
    if (out[1] >= 0)
        close(out[1]);
    if (err[1] >= 0)
        close(err[1]);
    p->out = out[0];
    p->err = err[0];
    return rc;
}

/* ---- reading ---- */

/* Returns the number of bytes in the block; 0: the end. */
static ssize_t read_block(int fd, char *block)
{
    ssize_t got;

    do
        got = read(fd, block, BLOCK);
    while (got < 0 && errno == EINTR);
    return got < 0 ? ct_fail(CT_EIO, "reading fails: %s", strerror(errno)) : got;
}

static void write_all(int fd, const char *text, size_t size)
{
    ssize_t put = 1;

    for (size_t at = 0; at < size && (put > 0 || errno == EINTR); at += put > 0 ? (size_t)put : 0)
        put = write(fd, text + at, size - at);
}

static void end_stream(int *fd)
{
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

static int take_output(struct process *p, struct spool *out)
{
    ssize_t got = read_block(p->out, p->block);

    if (got == 0)
        end_stream(&p->out);
    return got > 0 ? spool_write(out, p->block, (size_t)got) : (int)got;
}

static int take_errors(struct process *p)
{
    ssize_t got = read_block(p->err, p->block);

    if (got == 0)
        end_stream(&p->err);
    if (got <= 0)
        return (int)got;
    write_all(STDERR_FILENO, p->block, (size_t)got);
    add_stderr(&p->last, p->block, (size_t)got);
    return 0;
}

static int copy(struct process *p, struct spool *out)
{
    int rc = 0;

    while (rc == 0 && (p->out >= 0 || p->err >= 0)) {
        struct pollfd ready[] = {{.fd = p->out, .events = POLLIN},
                                 {.fd = p->err, .events = POLLIN}};

        if (poll(ready, CT_COUNT(ready), -1) < 0) {
            if (errno != EINTR)
                rc = ct_fail(CT_EIO, "waiting for output: %s", strerror(errno));
            continue;
        }
        if (ready[0].revents)
            rc = take_output(p, out);
        if (rc == 0 && ready[1].revents)
            rc = take_errors(p);
    }
    return rc;
}

static int check_end(struct process *p)
{
    const char *before;
    pid_t ended;
    int status;

    do
        ended = waitpid(p->pid, &status, 0);
    while (ended < 0 && errno == EINTR);
    end_line(&p->last);
    before = *p->last.text ? "; its last line: " : "";
    if (ended < 0)
        return ct_fail(CT_EIO, "how it ended is not known: %s", strerror(errno));
    if (WIFSIGNALED(status))
        return ct_fail(CT_ECONFIG, "it was ended by signal %d (%s)%s%s", WTERMSIG(status),
                       strsignal(WTERMSIG(status)), before, p->last.text);
    if (WEXITSTATUS(status))
        return ct_fail(CT_ECONFIG, "it failed with status %d%s%s", WEXITSTATUS(status), before,
                       p->last.text);
    return 0;
}

/* Where reading fails, the process is ended, too; those that it started get SIGPIPE. */
int stream_run(const char *command, struct spool *out)
{
    struct process *p = calloc(1, sizeof(*p));
    int rc;

    if (!p)
        return ct_fail(CT_ENOMEM, "a process");
    rc = start(p, command);
    if (rc == 0)
        rc = copy(p, out);
    end_stream(&p->out);
    end_stream(&p->err);
    if (p->pid && rc == 0) {
        rc = check_end(p);
    } else if (p->pid) {
        kill(p->pid, SIGKILL);
        waitpid(p->pid, NULL, 0);
    }
    free(p);
    return rc;
}

int stream_read(const char *path, struct spool *out)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    char *block = malloc(BLOCK);
    ssize_t got = 1;
    int rc = 0;

    if (fd < 0)
        rc = ct_fail(CT_ECONFIG, "%s: %s", path, strerror(errno));
    else if (!block)
        rc = ct_fail(CT_ENOMEM, "a block of %s", path);
    while (rc == 0 && got > 0) {
        got = read_block(fd, block);
        if (got < 0)
            rc = ct_context((int)got, "%s", path);
        else if (got > 0)
            rc = spool_write(out, block, (size_t)got);
    }
    free(block);
    if (fd >= 0)
        close(fd);
    return rc;
}
