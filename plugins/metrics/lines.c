#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <ctitan/error.h>
#include <ctitan/file.h>
#include <ctitan/log.h>

#include "lines.h"

/* A run that begins anew in the folder of others keeps the metrics of each. */
static int keep_former(const char *path)
{
    char kept[CT_PATH_ROOM];
    struct stat former;
    int rc;

    if (stat(path, &former) < 0 || former.st_size == 0)
        return 0;
    rc = ct_file_keep_former(path, ".jsonl", kept);
    if (rc < 0)
        return rc;
    ct_info("the metrics of an earlier run in this folder are in %s now", kept);
    return 0;
}

static int part_path(const struct ct_run *run, int number, char path[CT_PATH_ROOM])
{
    return ct_run_path(run, path, "metrics-%d.jsonl", number);
}

/* Number of parts. */
static int count_parts(const struct ct_run *run)
{
    char path[CT_PATH_ROOM];
    int count = 0;

    while (part_path(run, count + 1, path) == 0 && !access(path, F_OK))
        count++;
    return count;
}

/* The last part goes first, so that what stays is always a beginning. */
static int keep_all(const struct ct_run *run, const char *path)
{
    char part[CT_PATH_ROOM];
    int rc = keep_former(path);

    for (int i = count_parts(run); rc == 0 && i > 0; i--) {
        rc = part_path(run, i, part);
        if (rc == 0)
            rc = keep_former(part);
    }
    return rc;
}

/* A full disk may have cut the last line off: the next one must not continue it. */
static int drop_part_of_line(const char *path)
{
    char *line = NULL;
    size_t room = 0;
    off_t end = 0, size = 0;
    FILE *in;
    int rc = ct_file_open_stream(path, &in);

    if (rc < 0)
        return rc == CT_ENOENT ? 0 : rc;
    for (ssize_t n; (n = getline(&line, &room, in)) > 0; size += n)
        if (line[n - 1] == '\n')
            end = size + n;
    if (size > end && truncate(path, end) < 0)
        rc = ct_fail(CT_EIO, "cannot shorten %s: %s", path, strerror(errno));
    free(line);
    fclose(in);
    return rc;
}

int lines_open(const struct ct_run *run, bool anew, FILE **out)
{
    char path[CT_PATH_ROOM];
    int rc = ct_run_path(run, path, "metrics.jsonl");

    if (rc == 0)
        rc = anew ? keep_all(run, path) : drop_part_of_line(path);
    if (rc < 0)
        return rc;
    *out = fopen(path, anew ? "w" : "a");
    return *out ? 0 : ct_fail(CT_EIO, "cannot write %s: %s", path, strerror(errno));
}

int lines_turn(const struct ct_run *run, double most, FILE **out)
{
    char path[CT_PATH_ROOM], part[CT_PATH_ROOM];
    int rc;

    if (!(most > 0) || (double)ftell(*out) <= most)
        return 0;
    rc = ct_run_path(run, path, "metrics.jsonl");
    if (rc == 0)
        rc = part_path(run, count_parts(run) + 1, part);
    if (rc == 0)
        rc = ct_file_rename(path, part);
    if (rc < 0)
        return rc;
    fclose(*out); /* its lines were flushed */
    *out = NULL;
    return lines_open(run, false, out);
}
