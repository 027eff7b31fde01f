/*
 * Preloaded into a run: counts the calls that write, sync, rename, make or remove something in a
 * folder "checkpoint", and does something at one of them.
 *
 *   FAULT_AT=N     at the N-th; 0: only counts
 *   FAULT=WORD     kill, ENOSPC, EIO; slow: each one takes 20 ms; indirect: no file is opened for
 *                  direct access; late: direct access fails when data is read or written
 *   FAULT_RANK=R   on this rank only (RANK, or that of mpirun; none: 0)
 *   FAULT_LOG=FILE gets the name of every call
 *   FAULT_REFUSE=1 the file system refuses what many do over a network: renames with flags, direct
 *                  access, reserving, locks, syncing a folder, shared mappings that are written
 *   FAULT_THREAD=N  the N-th thread of plugin ckpt is not created
 *   FAULT_ROOM=N   the file system of a folder has room for N bytes there in all
 *   FAULT_READ=N:ERRNO:WORD  to open, look at or read a file fails N times, if WORD is in its path;
 *                  on all ranks, or on that of FAULT_RANK
 */
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
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

static int is_rank(const char *number)
{
    return atoi(setting(getenv("RANK") ? "RANK" : "OMPI_COMM_WORLD_RANK")) == atoi(number);
}

/* 0: go on; else the errno to fail with. */
static int fault(const char *call)
{
    static int count;
    int number, at = atoi(setting("FAULT_AT"));
    const char *what = setting("FAULT");

    if (!is_rank(setting("FAULT_RANK")))
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

static const char *path_of(int fd, char path[PATH_MAX])
{
    char link[64];
    ssize_t n;

    snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
    n = readlink(link, path, PATH_MAX - 1);
    path[n < 0 ? 0 : n] = '\0';
    return path;
}

static int counts(int fd)
{
    char path[PATH_MAX];

    return counts_path(path_of(fd, path));
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

int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*work)(void *),
                   void *context)
{
    static int count;
    FIND(pthread_create);
    Dl_info where;
    int own = *setting("FAULT_THREAD") && dladdr(*(void **)&work, &where) &&
              strstr(where.dli_fname, "/ckpt.so");

    if (own && __atomic_add_fetch(&count, 1, __ATOMIC_RELAXED) == atoi(setting("FAULT_THREAD")))
        return EAGAIN;
    return original(thread, attributes, work, context);
}

static int refuses_all(void)
{
    return *setting("FAULT_REFUSE") == '1';
}

/* 0: go on; else the errno to fail with. */
static int read_fault(const char *path)
{
    static int count;
    static const struct {
        const char *name;
        int error;
    } errors[] = {{"EIO", EIO},
                  {"EMFILE", EMFILE},
                  {"ESTALE", ESTALE},
                  {"EACCES", EACCES},
                  {"ENOENT", ENOENT}};
    char name[16], word[64];
    int times, error = 0;

    if (sscanf(setting("FAULT_READ"), "%d:%15[A-Z]:%63s", &times, name, word) != 3 ||
        !strstr(path, word) || (*setting("FAULT_RANK") && !is_rank(setting("FAULT_RANK"))))
        return 0;
    pthread_mutex_lock(&lock);
    for (size_t i = 0; count < times && i < sizeof(errors) / sizeof(*errors); i++)
        if (!strcmp(errors[i].name, name))
            error = errors[i].error;
    count += error != 0;
    pthread_mutex_unlock(&lock);
    return error;
}

#define READ_FAULT(path, failed)                                                                   \
    do {                                                                                           \
        int error = read_fault(path);                                                              \
        if (error) {                                                                               \
            errno = error;                                                                         \
            return failed;                                                                         \
        }                                                                                          \
    } while (0)

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
    char path[PATH_MAX];

    FIND(pread64);
    READ_FAULT(path_of(fd, path), -1);
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
    if (command == F_SETFL && (argument & O_DIRECT) &&
        (refuses_all() || !strcmp(setting("FAULT"), "indirect")) && counts(fd)) {
        errno = EINVAL;
        return -1;
    }
    return original(fd, command, argument);
}

int fsync(int fd)
{
    struct stat st;

    FAULT(fsync, counts(fd), -1)
    if (refuses_all() && fstat(fd, &st) == 0 && S_ISDIR(st.st_mode)) {
        errno = EINVAL;
        return -1;
    }
    return original(fd);
}

int fallocate64(int fd, int mode, off64_t at, off64_t bytes)
{
    FAULT(fallocate64, counts(fd), -1)
    if (refuses_all()) {
        errno = EOPNOTSUPP;
        return -1;
    }
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
    if (refuses_all() && flags) {
        errno = EINVAL;
        return -1;
    }
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

int flock(int fd, int operation)
{
    FIND(flock);
    if (refuses_all()) {
        errno = ENOLCK;
        return -1;
    }
    return original(fd, operation);
}

/* Shared memory is not in a file system. */
void *mmap64(void *at, size_t bytes, int protection, int flags, int fd, off64_t offset)
{
    char path[PATH_MAX];

    FIND(mmap64);
    if (refuses_all() && fd >= 0 && flags & MAP_SHARED && protection & PROT_WRITE &&
        strncmp(path_of(fd, path), "/memfd:", 7) != 0 && strncmp(path, "/dev/", 5) != 0) {
        errno = ENODEV;
        return MAP_FAILED;
    }
    return original(at, bytes, protection, flags, fd, offset);
}

int open64(const char *path, int flags, ...)
{
    mode_t mode = 0;

    FIND(open64);
    if (flags & (O_CREAT | __O_TMPFILE)) {
        va_list args;

        va_start(args, flags);
        mode = va_arg(args, mode_t);
        va_end(args);
    }
    if ((flags & O_ACCMODE) == O_RDONLY)
        READ_FAULT(path, -1);
    return original(path, flags, mode);
}

ssize_t read(int fd, void *data, size_t bytes)
{
    char path[PATH_MAX];

    FIND(read);
    READ_FAULT(path_of(fd, path), -1);
    return original(fd, data, bytes);
}

int stat64(const char *path, struct stat64 *st)
{
    FIND(stat64);
    READ_FAULT(path, -1);
    return original(path, st);
}

DIR *opendir(const char *path)
{
    FIND(opendir);
    READ_FAULT(path, NULL);
    return original(path);
}

static double bytes_there;

static int add_bytes(const char *path, const struct stat *st, int is)
{
    (void)path;
    bytes_there += is == FTW_F ? (double)st->st_size : 0;
    return 0;
}

int statvfs64(const char *path, struct statvfs64 *fs)
{
    double room = atof(setting("FAULT_ROOM"));
    int rc;

    FIND(statvfs64);
    rc = original(path, fs);
    if (rc < 0 || !(room > 0))
        return rc;
    bytes_there = 0;
    ftw(path, add_bytes, 8);
    fs->f_frsize = 1;
    fs->f_bavail = room > bytes_there ? (fsblkcnt64_t)(room - bytes_there) : 0;
    return 0;
}
