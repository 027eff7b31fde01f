/*
 * report: one page of HTML about one or several runs, without anything from elsewhere.
 *
 * Loss and speed are what the runs logged. Memory and traffic are planned again, from the resolved
 * recipe of each run, in a process of its own: the plan is what the run had, to the byte. The
 * timeline of a step is recorded or simulated (report_timeline.c).
 */
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <ctitan/error.h>
#include <ctitan/file.h>
#include <ctitan/lib/json.h>
#include <ctitan/lib/machine.h>

#include "child.h"
#include "cli.h"
#include "report.h"

FILE *report_ask(struct report *r, const struct report_run *run, const char *verb,
                 const char *const *options, const char **failure)
{
    struct argv argv = {0};
    struct child child;
    FILE *out = NULL;

    argv_add(&r->arena, &argv, "ctitan", verb,
             ct_arena_printf(&r->arena, "%s/recipe.ini", run->folder));
    if (run->status.ranks > 1) /* ranks of one machine share its processors, as then */
        argv_add(&r->arena, &argv, run->status.launcher > 0 ? "-n" : "--world",
                 ct_arena_printf(&r->arena, "%lld", (long long)run->status.ranks));
    argv_add_list(&r->arena, &argv, options);
    if (child_start(THIS_PROGRAM, argv.list, 0, &child) < 0) {
        *failure = ct_arena_strdup(&r->arena, ct_error_message());
        return NULL;
    }
    if (child_finish(&r->arena, &child, &out, failure) == 0)
        return out;
    if (out)
        fclose(out);
    return NULL;
}

static void take_plan(struct report *r, struct report_run *run)
{
    const char *options[] = {"--json", NULL}; /* for its own device, whatever --device says */
    FILE *out = report_ask(r, run, "plan", options, &run->plan_failure);

    if (out && ct_json_read_stream(out, "its plan", 0, &run->plan) < 0)
        run->plan_failure = ct_arena_strdup(&r->arena, ct_error_message());
    if (out)
        fclose(out);
}

/* The last part of a path: "outputs/one/" -> "one". */
static const char *base_name(struct ct_arena *arena, const char *path)
{
    char *copy = ct_arena_strdup(arena, path), *slash;
    size_t length = strlen(copy);

    while (length > 1 && copy[length - 1] == '/')
        copy[--length] = '\0';
    slash = strrchr(copy, '/');
    return slash && slash[1] ? slash + 1 : copy;
}

/* Two runs may have the same name in different folders. */
static void name_runs(struct report *r)
{
    for (size_t i = 0; i < r->count; i++) {
        r->run[i].name = base_name(&r->arena, r->run[i].folder);
        for (size_t j = 0; j < r->count; j++)
            if (j != i && !strcmp(r->run[i].name, base_name(&r->arena, r->run[j].folder)))
                r->run[i].name = r->run[i].folder;
    }
}

static int take_run(struct report *r, struct report_run *run)
{
    struct stat st;
    int rc;

    if (stat(run->folder, &st) < 0 || !S_ISDIR(st.st_mode))
        return ct_fail(CT_ECONFIG, "%s: expected the dump folder of a run ([job] dump_folder)",
                       run->folder);
    rc = run_read_log(&r->arena, run->folder, &run->log);
    if (rc < 0 && rc != CT_ENOENT)
        return CT_ECONFIG;
    if (rc < 0)
        return ct_fail(CT_ECONFIG,
                       "%s: expected the dump folder of a run with the plugin metrics: it has no "
                       "metrics.jsonl",
                       run->folder);
    run->status = run_read_status(&r->arena, run->folder);
    if (!run->log.count)
        return ct_fail(CT_ECONFIG, "%s: the run has logged no step%s%s", run->folder,
                       *run->status.message ? ": it failed: " : "", run->status.message);
    run_take_recipe(&r->arena, run->folder, &run->recipe);
    if (run->recipe.parsed)
        take_plan(r, run);
    else
        run->plan_failure = "it has no recipe.ini that can be read";
    report_take_timeline(r, run);
    return 0;
}

struct arguments {
    struct ct_arena arena;
    struct ct_texts runs;
    const char *device, *out;
};

static const struct ct_argument arguments[] = {
    CT_ARG_WORDS(struct arguments, runs, "RUN", 1, REPORT_RUNS, "Dump folder of a run"),
    CT_ARG_TEXT(struct arguments, device, "device", 0, "NAME",
                "Compare with predictions for a described machine: NAME or a file"),
    CT_ARG_TEXT(struct arguments, out, "out", 0, "FILE", "The page, report.html by default"),
    {0}};

static int parse(struct report *r, int argc, char **argv)
{
    struct arguments a = {.out = "report.html"};
    int rc = ct_arguments_parse(arguments, argc, argv, &a.arena, &a);

    *r = (struct report){.out = a.out, .device = a.device};
    for (size_t i = 0; rc == 0 && i < a.runs.count; i++)
        r->run[r->count++].folder = a.runs.at[i];
    ct_arena_finish(&a.arena);
    return rc;
}

static int write_page(const struct report *r)
{
    struct ct_new_file file;
    int rc = ct_file_begin(&file, r->out);

    if (rc < 0)
        return ct_context(CT_ECONFIG, "--out");
    report_print_page(r, file.out);
    rc = ct_file_end(&file, 0);
    if (rc == 0)
        printf("%s is written\n", r->out);
    return rc;
}

static int report(int argc, char **argv)
{
    struct report *r = calloc(1, sizeof(*r));
    int rc = r ? parse(r, argc, argv) : ct_fail(CT_ENOMEM, "report");

    if (rc == 0 && r->device && (rc = ct_machine_read(&r->arena, r->device, &r->machine)) < 0)
        rc = ct_context(rc, "--device %s", r->device);
    if (rc == 0 && !(r->scratch = scratch_folder(&r->arena, "report")))
        rc = CT_EIO;
    if (rc == 0)
        name_runs(r);
    for (size_t i = 0; rc == 0 && i < r->count; i++)
        rc = take_run(r, &r->run[i]);
    if (rc == 0)
        rc = write_page(r);
    if (r) {
        for (size_t i = 0; i < r->count; i++)
            json_decref(r->run[i].plan);
        scratch_remove(r->scratch);
        ct_arena_finish(&r->arena);
    }
    free(r);
    return rc;
}

const struct verb verb_report = {
    .name = "report",
    .summary = "write a page about runs: curves, memory, traffic, differences",
    .run = report,
    .arguments = arguments,
    .examples = CT_NAMES("ctitan report outputs/quickstart",
                         "ctitan report outputs/one outputs/two --out both.html")};
