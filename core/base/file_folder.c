#include <dirent.h>
#include <errno.h>
#include <ftw.h>
#include <inttypes.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <ctitan/error.h>
#include <ctitan/file.h>

#include "base/file.h"

#define DESCRIPTORS 16

static int remove_entry(const char *path, const struct stat *st, int kind, struct FTW *at)
{
    (void)st;
    (void)kind;
    (void)at;
    return remove(path) < 0 && errno != ENOENT ? errno : 0;
}

/* Process of a temporary name of this host, "NAME.HOST-PID.tmp"; 0: it is none. */
static pid_t writer_of(const char *name)
{
    char begin[16];
    const char *at = NULL;
    char *end;
    long pid;

    snprintf(begin, sizeof(begin), ".%08" PRIx32 "-", ct_file_host());
    for (const char *next = name; (next = strstr(next, begin)); next++)
        at = next;
    if (!at || at == name)
        return 0;
    pid = strtol(at + strlen(begin), &end, 10);
    return !strcmp(end, ".tmp") && pid > 0 && pid <= INT_MAX ? (pid_t)pid : 0;
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
