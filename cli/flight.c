/*
 * `ctitan flight`: looks at the files of a run, or of a job that is running.
 */
#include <stdlib.h>
#include <string.h>

#include <ctitan/error.h>
#include <ctitan/file.h>
#include <ctitan/lib/flight.h>

#include "cli.h"

struct request {
    struct ct_arena arena;
    const char *folder, *trace, *attach;
    bool json;
};

static const struct ct_argument arguments[] = {
    CT_ARG_OPTIONAL(struct request, folder, "DIR", "Dump folder of a run"),
    CT_ARG_TEXT(struct request, attach, "attach", 0, "PID",
                "Look at the job of this process instead: a rank, or what started the ranks"),
    CT_ARG_TEXT(struct request, trace, "trace", 0, "FILE", "Also write a trace for Perfetto"),
    CT_ARG_FLAG(struct request, json, "json", 0, "Print JSON"),
    {0}};

static int parse(int argc, char **argv, struct request *r)
{
    int rc = ct_arguments_parse(arguments, argc, argv, &r->arena, r);

    return rc < 0 || !r->folder != !r->attach
               ? rc
               : ct_fail(CT_ECONFIG, "flight: expected DIR or --attach PID");
}

/* Whether a process has mapped the file of a rank, and in which dump folder. */
static int find_mapped(const char *pid, char folder[CT_PATH_ROOM])
{
    char path[64], line[CT_PATH_ROOM + 128], *at, *end;
    FILE *maps;

    snprintf(path, sizeof(path), "/proc/%.20s/maps", pid);
    maps = fopen(path, "re");
    if (!maps)
        return ct_fail(CT_ENOENT, "--attach %s: no such process, or not one of yours", pid);
    *folder = '\0';
    while (!*folder && fgets(line, sizeof(line), maps)) {
        at = strchr(line, '/');
        end = at ? strstr(at, "/flight/rank-") : NULL;
        if (end)
            snprintf(folder, CT_PATH_ROOM, "%.*s", (int)(end - at), at);
    }
    fclose(maps);
    return 0;
}

/* The dump folder of a rank, or of the process that started ranks. */
static int find_folder(const char *pid, char folder[CT_PATH_ROOM])
{
    char path[64], child[24];
    int rc = find_mapped(pid, folder);
    FILE *children;

    if (rc < 0 || *folder)
        return rc;
    snprintf(path, sizeof(path), "/proc/%.20s/task/%.20s/children", pid, pid);
    children = fopen(path, "re");
    while (children && !*folder && fscanf(children, "%23s", child) == 1)
        find_mapped(child, folder);
    if (children)
        fclose(children);
    return *folder
               ? 0
               : ct_fail(
                     CT_ENOENT,
                     "--attach %s: neither this process nor its children have a flight recorder; "
                     "give a rank or the launcher of a job that trains --with flight_recorder",
                     pid);
}

static int print_verdict(const struct request *r, struct ct_flight_run *files)
{
    struct ct_flight_verdict *verdict = calloc(1, sizeof(*verdict));
    int rc = verdict ? 0 : ct_fail(CT_ENOMEM, "a verdict");

    if (rc == 0) {
        ct_flight_analyse(files, verdict);
        if (r->json)
            rc = ct_flight_json(files, verdict, stdout);
        else
            ct_flight_page(files, verdict, stdout);
    }
    free(verdict);
    return rc;
}

static int look_at(const struct request *r)
{
    struct ct_flight_run files;
    int rc = ct_flight_run_open(r->folder, false, &files);

    if (rc < 0)
        return rc;
    rc = print_verdict(r, &files);
    if (rc == 0 && r->trace)
        rc = ct_flight_trace(&files, r->trace);
    ct_flight_run_close(&files);
    return rc;
}

static int flight(int argc, char **argv)
{
    char folder[CT_PATH_ROOM];
    struct request r = {0};
    int rc = parse(argc, argv, &r);

    if (rc == 0 && r.attach) {
        rc = find_folder(r.attach, folder);
        r.folder = folder;
    }
    if (rc == 0)
        rc = look_at(&r);
    ct_arena_finish(&r.arena);
    return rc;
}

const struct verb verb_flight = {
    .name = "flight",
    .summary = "find out which rank holds a run up, and why",
    .run = flight,
    .arguments = arguments,
    .examples = CT_NAMES("ctitan flight outputs/debug", "ctitan flight --attach 4711"),
    .details = "The run must load flight_recorder, as --with flight_recorder does.\n"};
