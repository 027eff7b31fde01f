/*
 * Where a run writes its files.
 */
#include <stdarg.h>
#include <stdio.h>

#include <ctitan/config.h>
#include <ctitan/error.h>
#include <ctitan/file.h>

int ct_run_path(const struct ct_run *run, char path[CT_PATH_ROOM], const char *fmt, ...)
{
    const char *folder = ct_config.job.dump_folder;
    int rc = ct_file_make_folder(folder), at = snprintf(path, CT_PATH_ROOM, "%s/", folder);
    va_list arguments;

    (void)run;
    if (rc < 0)
        return rc;
    va_start(arguments, fmt);
    if (at < CT_PATH_ROOM)
        at += vsnprintf(path + at, CT_PATH_ROOM - (size_t)at, fmt, arguments);
    va_end(arguments);
    return at < CT_PATH_ROOM
               ? 0
               : ct_fail(CT_ECONFIG, "[job] dump_folder: a path of %d characters is too long", at);
}
