/*
 * Preloaded into a run: counts the calls that write, sync, rename, make or remove something in a
 * folder "checkpoint", and does something at one of them.
 *
 *   FAULT_AT=N     at the N-th; 0: only counts
 *   FAULT=WORD     kill, ENOSPC, EIO; slow: each one takes 20 ms; indirect: no file is opened for
 *                  direct access; late: direct access fails when data is read or written
 *   FAULT_RANK=R   on this rank only (RANK, or that of mpirun; none: 0)
 *   FAULT_LOG=FILE gets the name of every call
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static const char *setting(const char *name)
{
    const char *value = getenv(name);

    return value ? value : "";
}

static void note(const char *call)
{
    char line[64];
    int fd = open(setting("FAULT_LOG"), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
    int length = snprintf(line, sizeof(line), "%s\n", call);

    if (fd >= 0) {
        if (write(fd, line, (size_t)length) < 0)
            abort();
        close(fd);
    }
}

/* 0: go on; else the errno to fail with. */
static int fault(const char *call)
{
    static int count;
    int number, at = atoi(setting("FAULT_AT"));
    const char *what = setting("FAULT");

    if (atoi(setting(getenv("RANK") ? "RANK" : "OMPI_COMM_WORLD_RANK")) !=
        atoi(setting("FAULT_RANK")))
        return 0;
    pthread_mutex_lock(&lock);
    number = ++count;
    note(call);
    pthread_mutex_unlock(&lock);
    if (!strcmp(what, "slow"))
        usleep(20000);
    if (number != at)
        return 0;
    if (!strcmp(what, "kill"))
        kill(getpid(), SIGKILL);
    return !strcmp(what, "ENOSPC") ? ENOSPC : !strcmp(what, "EIO") ? EIO : 0;
}

static int counts_path(const char *path)
{
    return strstr(path, "/checkpoint") != NULL;
}

static int counts(int fd)
{
    char link[64], path[PATH_MAX];
    ssize_t n;

    snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
    n = readlink(link, path, sizeof(path) - 1);
    path[n < 0 ? 0 : n] = '\0';
    return counts_path(path);
}

/* The function that this one stands before. */
#define FIND(name)                                                                                 \
    __typeof__(name) *original;                                                                    \
    *(void **)&original = dlsym(RTLD_NEXT, #name)

/* Fail if it is this call's turn. */
#define FAULT(name, when, failed)                                                                  \
    FIND(name);                                                                                    \
    if (when) {                                                                                    \
        int error = fault(#name);                                                                  \
        if (error) {                                                                               \
            errno = error;                                                                         \
            return failed;                                                                         \
        }                                                                                          \
    }

/* Direct access to a file of checkpoints that fails late. */
static int refuses(int fd)
{
    if (strcmp(setting("FAULT"), "late") != 0 || !counts(fd) || !(fcntl(fd, F_GETFL) & O_DIRECT))
        return 0;
    errno = EINVAL;
    return 1;
}

ssize_t pwritev64(int fd, const struct iovec *parts, int count, off64_t at)
{
    FAULT(pwritev64, counts(fd), -1)
    return refuses(fd) ? -1 : original(fd, parts, count, at);
}

ssize_t pread64(int fd, void *data, size_t bytes, off64_t at)
{
    FIND(pread64);
    return refuses(fd) ? -1 : original(fd, data, bytes, at);
}

int fcntl64(int fd, int command, ...)
{
    FIND(fcntl64);
    va_list args;
    long argument;

    va_start(args, command);
    argument = va_arg(args, long);
    va_end(args);
    if (command == F_SETFL && (argument & O_DIRECT) && !strcmp(setting("FAULT"), "indirect") &&
        counts(fd)) {
        errno = EINVAL;
        return -1;
    }
    return original(fd, command, argument);
}

int fsync(int fd)
{
    FAULT(fsync, counts(fd), -1)
    return original(fd);
}

int fallocate64(int fd, int mode, off64_t at, off64_t bytes)
{
    FAULT(fallocate64, counts(fd), -1)
    return original(fd, mode, at, bytes);
}

int ftruncate64(int fd, off64_t bytes)
{
    FAULT(ftruncate64, counts(fd), -1)
    return original(fd, bytes);
}

int fflush(FILE *file)
{
    FAULT(fflush, file && counts(fileno(file)), EOF)
    return original(file);
}

int rename(const char *from, const char *to)
{
    FAULT(rename, counts_path(to), -1)
    return original(from, to);
}

int renameat2(int a, const char *from, int b, const char *to, unsigned flags)
{
    FAULT(renameat2, counts_path(to), -1)
    return original(a, from, b, to, flags);
}

int mkdir(const char *path, mode_t mode)
{
    FAULT(mkdir, counts_path(path) && strstr(path, "step-"), -1)
    return original(path, mode);
}

int unlink(const char *path)
{
    FAULT(unlink, counts_path(path), -1)
    return original(path);
}

int rmdir(const char *path)
{
    FAULT(rmdir, counts_path(path), -1)
    return original(path);
}
