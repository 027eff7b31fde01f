/*
 * `ctitan flight`: looks at the files of a run, or of a job that is running.
 */
#include <getopt.h>
#include <stdlib.h>
#include <string.h>

#include <ctitan/error.h>
#include <ctitan/model.h>

#include "flight.h"

#define USAGE "(DIR | --attach PID) [--trace FILE]"

static const struct option long_options[] = {
    {"trace", required_argument, NULL, 't'}, {"attach", required_argument, NULL, 'a'}, {0}};

struct arguments {
    const char *folder, *trace, *attach;
};

static int parse(int argc, char **argv, struct arguments *a)
{
    int option;

    opterr = 0;
    optind = 1;
    while ((option = getopt_long(argc, argv, ":", long_options, NULL)) != -1) {
        if (option == 't')
            a->trace = optarg;
        else if (option == 'a')
            a->attach = optarg;
        else
            return ct_fail(CT_ECONFIG, "flight: %s: expected %s", argv[optind - 1], USAGE);
    }
    if (optind < argc)
        a->folder = argv[optind++];
    if (optind < argc || !a->folder == !a->attach)
        return ct_fail(CT_ECONFIG, "flight: expected %s", USAGE);
    return 0;
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

static int run(int argc, char **argv)
{
    struct flight_verdict *verdict;
    struct arguments a = {0};
    struct flight_run files;
    char folder[CT_PATH_ROOM];
    int rc = parse(argc, argv, &a);

    if (rc == 0 && a.attach) {
        rc = find_folder(a.attach, folder);
        a.folder = folder;
    }
    if (rc == 0)
        rc = flight_run_open(a.folder, false, &files);
    if (rc < 0)
        return rc;
    verdict = calloc(1, sizeof(*verdict));
    if (!verdict)
        rc = ct_fail(CT_ENOMEM, "a verdict");
    if (rc == 0) {
        flight_analyse(&files, verdict);
        flight_page(&files, verdict, stdout);
    }
    if (rc == 0 && a.trace)
        rc = flight_trace(&files, a.trace);
    free(verdict);
    flight_run_close(&files);
    return rc;
}

const struct ct_verb_ops flight_verb = {.size = sizeof(flight_verb),
                                        .summary = "find out which rank holds a run up, and why",
                                        .usage = USAGE,
                                        .run = run};
