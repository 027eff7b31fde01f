/*
 * Files of hosts whose dump folder is not that of the launcher.
 *
 * A file with a name of its own shows whether a host sees the launcher's folder. Those that do not
 * send their files through the remote shell.
 */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <ctitan/error.h>
#include <ctitan/file.h>
#include <ctitan/lib/launch.h>
#include <ctitan/log.h>
#include <ctitan/run.h>

#include "../child.h"
#include "launch.h"

#define PATIENCE 10.0 /* seconds for the files of a host */

/* The line that prints the files NAME* of the host's folder as an archive; nothing, if the mark is
   there or there are no such files. */
static const char *line_of(struct ct_arena *arena, const char *path, const char *mark,
                           const char *name)
{
    char here[CT_PATH_ROOM];

    return ct_arena_printf(arena,
                           "cd %s && cd %s && if [ ! -e %s ] && ls %s* >/dev/null 2>&1; then "
                           "tar -cf - %s*; fi",
                           ct_launch_quote(arena, getcwd(here, sizeof(here)) ? here : "."),
                           ct_launch_quote(arena, path), ct_launch_quote(arena, mark),
                           ct_launch_quote(arena, name), ct_launch_quote(arena, name));
}

/* Unpack what a host has sent. 1: something; 0: nothing. */
static int unpack(struct ct_arena *arena, FILE *archive, const char *folder)
{
    const char *source = ct_arena_printf(arena, "/proc/%d/fd/%d", (int)getpid(), fileno(archive)),
               *words;
    struct child child;
    int rc;

    if (lseek(fileno(archive), 0, SEEK_END) <= 0)
        return 0;
    rc = ct_file_make_folder(folder);
    if (rc == 0)
        rc = child_start("tar", CT_NAMES("tar", "-xf", source, "--no-same-owner", "-C", folder),
                         PATIENCE, &child);
    if (rc < 0)
        return rc;
    if (child_finish(arena, &child, NULL, &words))
        return ct_fail(CT_EIO, "%s: %s", folder, words);
    return 1;
}

static int finish(struct ct_arena *arena, struct child *child, const char *host, const char *path)
{
    const char *words;
    FILE *archive;
    int status = child_finish(arena, child, &archive, &words), rc = 0;

    if (!archive)
        return ct_fail(CT_ENOMEM, "the files of host %s", host);
    if (status)
        rc = ct_fail(CT_EPEER, "%s", *words ? words : "it does not answer");
    else
        rc = unpack(arena, archive, ct_arena_printf(arena, "%s/hosts/%s", path, host));
    fclose(archive);
    return rc;
}

int launch_gather(const struct ct_job_end *end, const char *folder, const char *name)
{
    const struct job *job = end->context;
    const struct hosts_job *on = job->context;
    struct ct_arena *arena = &job->args->arena;
    struct child *child = ct_arena_array(arena, struct child, on->hosts.count);
    const char *path = ct_arena_printf(arena, "%s/%s", ct_config.job.dump_folder, folder),
               *mark = ct_arena_printf(arena, ".launch-%d", (int)getpid()),
               *seen = ct_arena_printf(arena, "%s/%s", path, mark), *line;
    int count = 0, rc = ct_file_make_folder(path), file;

    file = rc == 0 ? open(seen, O_CREAT | O_CLOEXEC | O_WRONLY, 0644) : -1;
    if (file < 0)
        return 0; /* nothing can be copied there */
    close(file);
    line = line_of(arena, path, mark, name);
    for (int i = 0; i < on->hosts.count; i++) {
        const char *const *argv =
            ct_launch_on_host(arena, launch_shell(on->args), on->hosts.at[i].name, line);

        child[i].pid = 0;
        if (on->hosts.at[i].ranks && child_start(argv[0], argv, PATIENCE, &child[i]) < 0)
            child[i].pid = 0;
    }
    for (int i = 0; i < on->hosts.count; i++) {
        const char *host = on->hosts.at[i].name;

        rc = child[i].pid ? finish(arena, &child[i], host, path) : 0;
        if (rc < 0)
            ct_warn("host %s: its files in %s are not here: %s", host, path, ct_error_message());
        count += rc > 0;
    }
    unlink(seen);
    return count;
}
