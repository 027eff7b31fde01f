/*
 * Files that are whole or absent: written beside their place, synced, and renamed.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <ctitan/base.h>
#include <ctitan/clock.h>
#include <ctitan/error.h>
#include <ctitan/file.h>
#include <ctitan/log.h>

#include "base/file.h"

#define PATIENCE 3.0 /* seconds */
#define LINKS 40     /* that follow each other */

static int read_all(int fd, char *text, size_t size, const char *path)
{
    size_t done = 0;
    int tries = 0;

    while (done < size) {
        ssize_t n = read(fd, text + done, size - done);

        if (n < 0 && ct_file_again(&tries))
            continue;
        if (n < 0)
            return ct_fail(CT_EIO, "%s: %s", path, strerror(errno));
        if (n == 0)
            return ct_fail(CT_EIO, "%s became shorter while it was read", path);
        done += (size_t)n;
    }
    return 0;
}

static int read_open(struct ct_arena *arena, int fd, const char *path, size_t limit, char **text,
                     size_t *size)
{
    struct stat st;

    if (fstat(fd, &st) < 0)
        return ct_fail(CT_EIO, "%s: %s", path, strerror(errno));
    if ((size_t)st.st_size > limit)
        return ct_fail(CT_EINVAL, "%s has %lld bytes; at most %zu are allowed", path,
                       (long long)st.st_size, limit);
    *size = (size_t)st.st_size;
    *text = ct_arena_alloc(arena, *size + 1);
    return read_all(fd, *text, *size, path);
}

static int read_as(unsigned how, struct ct_arena *arena, const char *path, size_t limit,
                   char **text, size_t *size)
{
    int fd = ct_file_open(path, how), rc;

    if (fd < 0)
        return fd;
    rc = read_open(arena, fd, path, limit, text, size);
    close(fd);
    return rc;
}

int ct_file_read(struct ct_arena *arena, const char *path, size_t limit, char **text, size_t *size)
{
    return read_as(0, arena, path, limit, text, size);
}

int ct_file_read_own(struct ct_arena *arena, const char *path, size_t limit, char **text,
                     size_t *size)
{
    return read_as(CT_FILE_OWN, arena, path, limit, text, size);
}

int ct_file_make_folder_mode(const char *path, unsigned mode)
{
    char part[PATH_MAX];
    struct stat st;

    if (!*path)
        return ct_fail(CT_EINVAL, "the path of a folder is empty");
    if (strlen(path) >= sizeof(part))
        return ct_fail(CT_EINVAL, "a path of %zu characters is too long", strlen(path));
    strcpy(part, path);
    for (char *slash = strchr(part + 1, '/');; slash = strchr(slash + 1, '/')) {
        if (slash)
            *slash = '\0';
        if (mkdir(part, mode) < 0 && errno != EEXIST)
            return ct_fail(CT_EIO, "cannot create the folder %s: %s", part, strerror(errno));
        if (!slash)
            break;
        *slash = '/';
    }
    if (stat(path, &st) < 0)
        return ct_fail(CT_EIO, "%s: %s", path, strerror(errno));
    if (!S_ISDIR(st.st_mode))
        return ct_fail(CT_EIO, "%s is not a folder", path);
    return 0;
}

int ct_file_make_folder(const char *path)
{
    return ct_file_make_folder_mode(path, 0777);
}

/* A process that was just killed may take a moment to be gone. */
static bool take_lock(int file, const char *path)
{
    double end = ct_now() + PATIENCE;

    while (flock(file, LOCK_EX | LOCK_NB) < 0) {
        if (errno != EWOULDBLOCK && errno != EINTR) {
            ct_warn("%s cannot be locked, so nothing keeps two jobs out of it: %s", path,
                    strerror(errno));
            return true;
        }
        if (ct_now() > end)
            return false;
        ct_nap(0.05);
    }
    return true;
}

int ct_file_lock_folder(const char *path)
{
    char name[PATH_MAX];
    int rc = ct_file_make_folder(path), file;

    if (rc < 0)
        return rc;
    snprintf(name, sizeof(name), "%s/lock", path);
    file = open(name, O_CREAT | O_RDWR | O_CLOEXEC, 0666);
    if (file < 0)
        return ct_fail(CT_EIO, "%s: %s", name, strerror(errno));
    if (take_lock(file, path))
        return file;
    close(file);
    return ct_fail(CT_EPEER, "another process has locked %s", path);
}

/* Create the parent folder of path. */
static int make_parent(const char *path)
{
    const char *slash = strrchr(path, '/');
    char folder[PATH_MAX];

    if (!slash || slash == path)
        return 0;
    if ((size_t)(slash - path) >= sizeof(folder))
        return ct_fail(CT_EINVAL, "a path of %zu characters is too long", strlen(path));
    memcpy(folder, path, (size_t)(slash - path));
    folder[slash - path] = '\0';
    return ct_file_make_folder(folder);
}

int ct_file_sync_folder(const char *path)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC), failed = fd < 0 ? errno : 0;

    if (fd >= 0 && fsync(fd) < 0 && errno != EINVAL && errno != EOPNOTSUPP && errno != ENOSYS)
        failed = errno;
    if (fd >= 0)
        close(fd);
    return failed ? ct_fail(CT_EIO, "%s: %s", path, strerror(failed)) : 0;
}

/* A rename is durable only once its folder is synced. */
int ct_file_rename(const char *from, const char *to)
{
    const char *slash = strrchr(to, '/');
    char folder[PATH_MAX] = ".";

    if (rename(from, to) < 0)
        return ct_fail(CT_EIO, "%s: %s", to, strerror(errno));
    if (slash)
        snprintf(folder, sizeof(folder), "%.*s", (int)(slash - to) + 1, to);
    return ct_file_sync_folder(folder);
}

int ct_file_keep_former(const char *path, const char *extension, char kept[CT_PATH_ROOM])
{
    int stem = (int)(strlen(path) - strlen(extension)), used;
    char number[16] = "";

    for (int n = 2;; n++) {
        used = snprintf(kept, CT_PATH_ROOM, "%.*s-before%s%s", stem, path, number, extension);
        if (used >= CT_PATH_ROOM)
            return ct_fail(CT_EINVAL, "a path of %d characters is too long", used);
        if (access(kept, F_OK))
            break;
        snprintf(number, sizeof(number), "-%d", n);
    }
    return rename(path, kept) < 0 ? ct_fail(CT_EIO, "cannot rename %s: %s", path, strerror(errno))
                                  : 0;
}

/* A file of /proc is what a process has open: /dev/stdout leads there. */
static bool is_open_file(const char *path)
{
    return !strncmp(path, "/proc/", 6);
}

/* Follow symbolic links: the file that a path leads to is replaced, and the links stay. */
static int follow_links(char path[CT_PATH_ROOM])
{
    char target[CT_PATH_ROOM], whole[2 * CT_PATH_ROOM];

    for (int links = 0; links < LINKS; links++) {
        ssize_t length = readlink(path, target, sizeof(target) - 1);
        const char *slash = strrchr(path, '/');

        if (length < 0 || is_open_file(path))
            return 0;
        target[length] = '\0';
        snprintf(whole, sizeof(whole), "%.*s%s",
                 slash && *target != '/' ? (int)(slash - path) + 1 : 0, path, target);
        if (strlen(whole) >= CT_PATH_ROOM)
            return ct_fail(CT_EINVAL, "a path of %zu characters is too long", strlen(whole));
        strcpy(path, whole);
    }
    return ct_fail(CT_EIO, "%s: %s", path, strerror(ELOOP));
}

uint32_t ct_file_host(void)
{
    char name[HOST_NAME_MAX + 1] = "";

    gethostname(name, sizeof(name) - 1);
    return (uint32_t)ct_hash(name);
}

/* Give a file the mode of another one. Some file systems have no modes to change. */
static void copy_mode(int fd, const struct stat *former)
{
    struct stat st;

    if (fstat(fd, &st) < 0 || (st.st_mode & 0777) != (former->st_mode & 0777))
        (void)fchmod(fd, former->st_mode & 0777);
}

/* Create a file; one that a killed process of this number has left goes. former: of the file that
   it will replace, whose mode it gets; NULL: there is none. NULL: errno says why. */
static FILE *open_new(const char *path, const struct stat *former)
{
    FILE *out;
    int fd, failed;

    unlink(path);
    fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd < 0)
        return NULL;
    if (former)
        copy_mode(fd, former);
    out = fdopen(fd, "w+");
    if (!out) {
        failed = errno;
        close(fd);
        unlink(path);
        errno = failed;
    }
    return out;
}

int ct_file_begin(struct ct_new_file *file, const char *path)
{
    struct stat st;
    int rc;

    if (snprintf(file->path, sizeof(file->path), "%s", path) >= (int)sizeof(file->path))
        return ct_fail(CT_EINVAL, "a path of %zu characters is too long", strlen(path));
    rc = follow_links(file->path);
    if (rc < 0)
        return rc;
    if (is_open_file(file->path) || (stat(path, &st) == 0 && !S_ISREG(st.st_mode))) {
        *file->temporary = '\0';
        file->out = fopen(path, "we");
        return file->out ? 0 : ct_fail(CT_EIO, "%s: %s", path, strerror(errno));
    }
    if (snprintf(file->temporary, sizeof(file->temporary), "%s.%08" PRIx32 "-%ld.tmp", file->path,
                 ct_file_host(), (long)getpid()) >= (int)sizeof(file->temporary))
        return ct_fail(CT_EINVAL, "a path of %zu characters is too long", strlen(file->path));
    file->out = open_new(file->temporary, stat(file->path, &st) == 0 ? &st : NULL);
    return file->out ? 0 : ct_fail(CT_EIO, "cannot write %s: %s", path, strerror(errno));
}

/* A device or a pipe has nothing to sync. */
static int sync_file(const struct ct_new_file *file)
{
    if (ferror(file->out) || fflush(file->out))
        return -1;
    return *file->temporary ? fsync(fileno(file->out)) : 0;
}

static int close_file(struct ct_new_file *file, bool sync)
{
    int failed = 0;

    if (sync && sync_file(file) < 0)
        failed = errno ? errno : EIO;
    if (fclose(file->out) && !failed)
        failed = errno;
    file->out = NULL;
    return sync && failed ? ct_fail(CT_EIO, "%s: %s", file->path, strerror(failed)) : 0;
}

int ct_file_close(struct ct_new_file *file)
{
    return close_file(file, true);
}

int ct_file_end(struct ct_new_file *file, int rc)
{
    int closed = file->out ? close_file(file, rc >= 0) : 0;

    if (rc >= 0)
        rc = closed;
    if (rc >= 0 && *file->temporary)
        rc = ct_file_rename(file->temporary, file->path);
    if (rc < 0 && *file->temporary)
        unlink(file->temporary);
    return rc < 0 ? rc : 0;
}

int ct_file_try(const char *path)
{
    struct ct_new_file file;
    struct stat st;
    int rc = make_parent(path);

    if (rc == 0 && stat(path, &st) == 0 && S_ISDIR(st.st_mode))
        return ct_fail(CT_EIO, "%s: %s", path, strerror(EISDIR));
    if (rc == 0 && stat(path, &st) == 0 && !S_ISREG(st.st_mode))
        return 0; /* to open a pipe may take for ever */
    if (rc == 0)
        rc = ct_file_begin(&file, path);
    if (rc < 0)
        return rc;
    fclose(file.out);
    if (*file.temporary)
        unlink(file.temporary);
    return 0;
}

bool ct_file_is_same(const char *a, const char *b)
{
    struct stat x, y;

    return stat(a, &x) == 0 && stat(b, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

int ct_file_try_folder(const char *path)
{
    char name[CT_PATH_ROOM];
    int rc = ct_file_make_folder(path);

    if (rc == 0 && snprintf(name, sizeof(name), "%s/write", path) >= (int)sizeof(name))
        return ct_fail(CT_EINVAL, "a path of %zu characters is too long", strlen(path));
    return rc == 0 ? ct_file_try(name) : rc;
}

int ct_file_print(const char *path, ct_file_printer *print, const void *object)
{
    struct ct_new_file file;
    int rc = make_parent(path);

    if (rc == 0)
        rc = ct_file_begin(&file, path);
    if (rc < 0)
        return rc;
    print(object, file.out);
    return ct_file_end(&file, 0);
}

struct bytes {
    const void *data;
    size_t size;
};

static void print_bytes(const void *object, FILE *out)
{
    const struct bytes *bytes = object;

    fwrite(bytes->data, 1, bytes->size, out);
}

int ct_file_write(const char *path, const void *data, size_t size)
{
    return ct_file_print(path, print_bytes, &(struct bytes){data, size});
}
