#include <dirent.h>
#include <errno.h>
#include <ftw.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <ctitan/error.h>
#include <ctitan/file.h>

#define DESCRIPTORS 16

static int remove_entry(const char *path, const struct stat *st, int kind, struct FTW *at)
{
    (void)st;
    (void)kind;
    (void)at;
    return remove(path) < 0 && errno != ENOENT ? errno : 0;
}

/* Process of a temporary name, "NAME.PID.tmp"; 0: it is none. */
static pid_t writer_of(const char *name)
{
    size_t length = strlen(name);
    const char *dot;
    char *end;
    long pid;

    if (length < 6 || strcmp(name + length - 4, ".tmp") != 0)
        return 0;
    dot = memrchr(name, '.', length - 4);
    if (!dot || dot == name)
        return 0;
    pid = strtol(dot + 1, &end, 10);
    return end == name + length - 4 && pid > 0 && pid <= INT_MAX ? (pid_t)pid : 0;
}

void ct_file_sweep(const char *folder)
{
    DIR *dir = opendir(folder);

    for (const struct dirent *entry; dir && (entry = readdir(dir));) {
        pid_t writer = writer_of(entry->d_name);

        if (writer && kill(writer, 0) < 0 && errno == ESRCH)
            unlinkat(dirfd(dir), entry->d_name, 0);
    }
    if (dir)
        closedir(dir);
}

int ct_file_remove_folder(const char *path)
{
    int failed = nftw(path, remove_entry, DESCRIPTORS, FTW_DEPTH | FTW_PHYS);

    if (failed < 0)
        failed = errno == ENOENT ? 0 : errno;
    return failed ? ct_fail(CT_EIO, "removing %s: %s", path, strerror(failed)) : 0;
}
