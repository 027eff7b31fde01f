#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <ctitan/app/exhausted.h>
#include <ctitan/error.h>
#include <ctitan/model.h>
#include <ctitan/plugins.h>
#include <ctitan/lib/launch.h>
#include <ctitan/lib/ops.h>
#include <ctitan/lib/outlet.h>

#include "cli.h"

const struct verb_group verb_groups[] = {
    {"Train and use models",
     {&verb_train, &verb_launch,
#ifdef CT_HAVE_GENERATE
      &verb_generate,
#endif
      &verb_tokenize, NULL}},
    {"Plan before training",
     {&verb_data, &verb_plan, &verb_simulate, &verb_tune, &verb_explain, NULL}},
    {"Look at runs", {&verb_watch, &verb_report, &verb_compare, &verb_flight, NULL}},
    {"Look at this machine", {&verb_doctor, &verb_plugins, NULL}},
    {"Write plugins", {&verb_new, &verb_check, &verb_schedule, NULL}},
    {"Get help", {&verb_help, NULL}},
    {0}};

const struct verb *verb_at(size_t index)
{
    for (const struct verb_group *g = verb_groups; g->title; g++)
        for (const struct verb *const *v = g->verbs; *v; v++)
            if (!index--)
                return *v;
    return NULL;
}

const struct verb *verb_find(const char *name)
{
    const struct verb *v;

    for (size_t i = 0; (v = verb_at(i)); i++)
        if (!strcmp(v->name, name))
            return v;
    return NULL;
}

/* Verbs of other systems. */
static const struct {
    const char *name, *here;
} habits[] = {{"run", "train"},          {"fit", "train"},       {"finetune", "train"},
              {"pretrain", "train"},     {"chat", "generate"},   {"infer", "generate"},
              {"inference", "generate"}, {"sample", "generate"}, {"list", "plugins"},
              {"info", "doctor"}};

/* CT_ECONFIG with words about what is not a verb; 0: there are none. */
static int explain_verb(const char *name)
{
    for (size_t i = 0; i < CT_COUNT(habits); i++)
        if (!strcmp(habits[i].name, name) && verb_find(habits[i].here))
            return ct_fail(CT_ECONFIG, "no verb %s: write ctitan %s", name, habits[i].here);
    if (*name == '-')
        return ct_fail(CT_ECONFIG, "%s: a verb comes first: ctitan VERB %s", name, name);
    return access(name, R_OK) == 0
               ? ct_fail(CT_ECONFIG, "no verb %s, but a file: write ctitan train %s", name, name)
               : 0;
}

/* A failure with words about the plugin that has the verb, and that is not found; 0: there is none.
   A file verbs/VERB beside plugins names it. */
static int explain_absent(const char *name)
{
    char path[PATH_MAX], plugin[256] = "";
    FILE *in;
    int rc;

    if (strchr(name, '/') || !ct_plugin_file("verbs", name, path, sizeof(path)))
        return 0;
    in = fopen(path, "re");
    if (in && fgets(plugin, sizeof(plugin), in))
        plugin[strcspn(plugin, "\n")] = '\0';
    if (in)
        fclose(in);
    rc = *plugin ? ct_plugin_path(plugin, path, sizeof(path)) : 0;
    return ct_context(rc, "the verb %s comes with the plugin %s", name, plugin);
}

static int unknown_verb(const char *name, const struct plugin_verbs *all)
{
    const char *names[128], *near;
    char more[128] = "";
    size_t count = 0;

    if (explain_verb(name) < 0 || explain_absent(name) < 0)
        return CT_ECONFIG;
    for (; verb_at(count); count++)
        names[count] = verb_at(count)->name;
    for (size_t i = 0; i < all->count && count < CT_COUNT(names); i++)
        names[count++] = all->verb[i].name;
    near = ct_nearest(name, names, count);
    if (all->unreadable)
        snprintf(more, sizeof(more),
                 "%s %zu plugin%s, which may have it, cannot be read: `ctitan plugins` says why",
                 near ? "" : ".", all->unreadable, ct_plural(all->unreadable));
    if (near)
        return ct_fail(CT_ECONFIG, "no verb %s; did you mean %s?%s", name, near, more);
    return ct_fail(CT_ECONFIG, "no verb %s; `ctitan help` lists them%s", name, more);
}

/* Handles the options that all verbs have. 1: the verb has nothing more to do. */
static int take_common(const struct ct_argument *table, int argc, char **argv)
{
    struct ct_common_arguments common;

    ct_arguments_common(table, argc, argv, &common);
    log_limit(common.quiet, common.verbose);
    return common.help;
}

static int run_offered(const struct plugin_verbs *all, int argc, char **argv)
{
    const struct plugin_verb *verb;
    int rc = find_plugin_verb(all, argv[0], &verb);

    if (rc < 0)
        return rc;
    if (!verb)
        return unknown_verb(argv[0], all);
    if (take_common(verb->ops->arguments, argc, argv)) {
        print_plugin_verb(verb);
        return 0;
    }
    return run_plugin_verb(verb, argc, argv);
}

static int run_verb(int argc, char **argv)
{
    const struct verb *verb = verb_find(argv[0]);
    struct ct_arena arena = {0};
    struct plugin_verbs all;
    int rc;

    if (verb && take_common(verb->arguments, argc, argv)) {
        print_verb(verb);
        return 0;
    }
    if (verb)
        return verb->run(argc, argv);
    find_plugin_verbs(&arena, &all);
    rc = run_offered(&all, argc, argv);
    ct_arena_finish(&arena);
    return rc;
}

int failure_status;
bool ended_saved;

static int exit_status(int rc)
{
    if (rc >= 0)
        return ended_saved ? CT_LAUNCH_SAVED : 0;
    if (rc == CT_EPEER && failure_status)
        return failure_status;
    if (rc == CT_EPEER && ct_launch_is_rank())
        return CT_LAUNCH_FOLLOWS;
    return rc == CT_ECONFIG || rc == CT_EABI || rc == CT_ENOENT ? 2 : 1;
}

/* The first files that are opened must not become a stdin, stdout or stderr that was closed. */
static void open_closed(void)
{
    int fd = open("/dev/null", O_RDWR);

    while (fd >= 0 && fd <= STDERR_FILENO)
        fd = open("/dev/null", O_RDWR);
    if (fd >= 0)
        close(fd);
}

/* The exit status, after the results that stdout still holds are written. */
static int finish_output(int status)
{
    bool lost = ferror(stdout);

    errno = 0;
    if (!fflush(stdout) && !lost)
        return status;
    fprintf(stderr, "ctitan: stdout: %s\n", errno ? strerror(errno) : "output was lost");
    return status ? status : 1;
}

/* Arenas have no place to fail to. */
static void end_without_memory(size_t bytes)
{
    char human[32];

    ct_outlet_print(STDERR_FILENO,
                    "ctitan: out of memory: the system has no %s more. Graphs and programs take "
                    "most of it: fewer layers, microbatches or ranks on a host need less\n",
                    human_bytes((double)bytes, human));
    ct_outlet_flush(STDERR_FILENO);
    _exit(1);
}

static void print_failure(int rc)
{
    const char *words = *ct_error_message() ? ct_error_message() : ct_strerror(rc);

    log_finish();
    if (rc == CT_ENOMEM && *ct_error_message())
        ct_outlet_print(STDERR_FILENO,
                        "ctitan: out of memory: no room for %s (`ctitan plan` says what a run "
                        "takes)\n",
                        words);
    else
        ct_outlet_print(STDERR_FILENO, "ctitan: %s\n", words);
}

static int run_program(int argc, char **argv)
{
    int rc;

    if (argc < 2) {
        print_overview(stderr);
        fprintf(stderr, "\n`ctitan help` says more.\n");
        return 2;
    }
    if (!strcmp(argv[1], "--version")) {
        printf("ctitan %s\n", CT_VERSION);
        return 0;
    }
    ct_arena_on_exhausted(end_without_memory);
    rc = ct_ops_register();
    if (rc == 0 && (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h")))
        rc = verb_help.run(1, argv);
    else if (rc == 0)
        rc = run_verb(argc - 1, argv + 1);
    log_finish();
    if (rc < 0)
        print_failure(rc);
    ct_outlet_flush(STDOUT_FILENO);
    ct_outlet_flush(STDERR_FILENO);
    return exit_status(rc);
}

int main(int argc, char **argv)
{
    open_closed();
    signal(SIGCHLD, SIG_DFL); /* where the parent ignores it, ends of children would be lost */
    log_to_terminal(CT_LOG_WARNING);
    return finish_output(run_program(argc, argv));
}
