#include <errno.h>
#include <ftw.h>
#include <stdio.h>
#include <string.h>

#include <ctitan/error.h>
#include <ctitan/lib/file.h>

#define DESCRIPTORS 16

static int remove_entry(const char *path, const struct stat *st, int kind, struct FTW *at)
{
    (void)st;
    (void)kind;
    (void)at;
    return remove(path) < 0 && errno != ENOENT ? errno : 0;
}

int ct_file_remove_folder(const char *path)
{
    int failed = nftw(path, remove_entry, DESCRIPTORS, FTW_DEPTH | FTW_PHYS);

    if (failed < 0)
        failed = errno == ENOENT ? 0 : errno;
    return failed ? ct_fail(CT_EIO, "removing %s: %s", path, strerror(failed)) : 0;
}
