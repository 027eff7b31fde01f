/*
 * Opening regular files. A pipe has no end to wait for: to open one waits for its writer, and to
 * read it for all that the writer has.
 */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <ctitan/error.h>
#include <ctitan/file.h>

/* Others can change a file of theirs, or one that its mode lets them write. */
static int check_own(const struct stat *s, const char *path, unsigned how)
{
    mode_t others = how & CT_FILE_OWN ? S_IWGRP | S_IWOTH : S_IWOTH;

    if (how & CT_FILE_OWN && s->st_uid != geteuid() && s->st_uid != 0)
        return ct_fail(CT_EINVAL, "%s belongs to another user (%u)", path, s->st_uid);
    if (s->st_mode & others)
        return ct_fail(CT_EINVAL, "%s can be written by other users (mode %04o)", path,
                       s->st_mode & 07777);
    return 0;
}

static int check(int fd, const char *path, unsigned how)
{
    struct stat s;

    if (fstat(fd, &s) < 0)
        return ct_fail(CT_EIO, "%s: %s", path, strerror(errno));
    if (!S_ISREG(s.st_mode))
        return ct_fail(CT_EINVAL, "%s is not a regular file", path);
    return how & (CT_FILE_OWN | CT_FILE_TEAM) ? check_own(&s, path, how) : 0;
}

int ct_file_open(const char *path, unsigned how)
{
    int flags = (how & CT_FILE_WRITE ? O_RDWR : O_RDONLY) |
                (how & (CT_FILE_OWN | CT_FILE_TEAM) ? O_NOFOLLOW : 0) | O_CLOEXEC | O_NONBLOCK |
                O_NOCTTY;
    int fd, tries = 0, rc;

    do
        fd = open(path, flags);
    while (fd < 0 && ct_file_again(&tries));
    if (fd < 0)
        return ct_fail(errno == ENOENT ? CT_ENOENT : CT_EIO, "%s: %s", path, strerror(errno));
    rc = check(fd, path, how);
    if (rc == 0)
        return fd;
    close(fd);
    return rc;
}

int ct_file_open_stream(const char *path, FILE **in)
{
    int fd = ct_file_open(path, 0);

    *in = fd < 0 ? NULL : fdopen(fd, "r");
    if (fd < 0)
        return fd;
    if (*in)
        return 0;
    close(fd);
    return ct_fail(CT_ENOMEM, "%s: %s", path, strerror(errno));
}
