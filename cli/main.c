#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <ctitan/error.h>
#include <ctitan/model.h>
#include <ctitan/lib/launch.h>
#include <ctitan/lib/ops.h>
#include <ctitan/lib/outlet.h>

#include "cli.h"

#define RECIPE_ARGS                                                                                \
    "RECIPE [--set section.key=value]... [--unset section.key]... [--with PLUGIN]... "             \
    "[--without PLUGIN]..."

const struct verb verbs[] = {
    {"train",
     RECIPE_ARGS " [-n RANKS [--max-restarts N] [--elastic]] [--dump-after NAME|all|changed] "
                 "[--dump-kernels]",
     "train a model as a recipe describes", verb_train},
#ifdef CT_HAVE_GENERATE
    {"generate",
     RECIPE_ARGS
     " [--prompt TEXT | --prompt-ids I,J,..]... [--tokens N] [--greedy | --temperature T]"
     " [--top-k K] [--top-p P] [--seed S] [--stop TEXT]... [--ignore-eos] [--chat] [--no-cache]"
     " [--logits FILE]",
     "generate text with a trained model", verb_generate},
#endif
    {"explain",
     RECIPE_ARGS " [-n RANKS | --world RANKS] [--rank RANK] [--dump-after NAME|all|changed] "
                 "[--dump-kernels]",
     "show the graph after each transform", verb_explain},
    {"plan",
     RECIPE_ARGS " [-n RANKS | --world RANKS] [--rank RANK] [--device NAME] [--json] [--program]",
     "memory, parameters and FLOPs of a run, without running it; with --device also its time",
     verb_plan},
    {"simulate",
     RECIPE_ARGS " --device NAME [-n RANKS | --world RANKS] [--slow RANK:FACTOR]... [--trace FILE] "
                 "[--svg FILE] [--json]",
     "simulate one step of all ranks on a virtual clock", verb_simulate},
    {"tune",
     RECIPE_ARGS " --device NAME --world RANKS [--memory BYTES] [--vary SECTION.KEY=VALUE,..]... "
                 "[--out FILE] [--json]",
     "search for the fastest settings that fit into memory", verb_tune},
    {"compare",
     "A B [-n RANKS] [--runs PAIRS] [--steps N] [--set|--a-set|--b-set SECTION.KEY=VALUE]... "
     "[--unset|--a-unset|--b-unset SECTION.KEY]... [--with|--a-with|--b-with PLUGIN]... "
     "[--without|..]... [--json]",
     "run two recipes in pairs, or read two finished runs: what differs, and which is faster",
     verb_compare},
    {"report", "RUN... [--device NAME] [--out FILE]",
     "a page about runs: curves, memory, the schedule, traffic, recipes, what differs",
     verb_report},
    {"watch", "RUN [--once] [--stall SECONDS]",
     "follow a run from another terminal: steps, pace, how it ends, whether it stalls", verb_watch},
    {"schedule",
     "NAME --ranks P --microbatches M [--stages S] [--set PLUGIN.KEY=VALUE]... [--csv FILE] "
     "[--costs F,I,W[,SEND]] [--comm] [--svg FILE] [--write-csv FILE]",
     "draw, time and verify a pipeline schedule", verb_schedule},
    {"check",
     "PLUGIN [--set SECTION.KEY=VALUE]... [--with PLUGIN]... [--tolerance T] [--mesh-tolerance T] "
     "[--quick] [--allow-untried]",
     "test everything that a plugin offers, and explain failures", verb_check},
    {"new",
     "model|op|transform|optimizer|lr_schedule|data|tokenizer|schedule|axis|hook|device|"
     "compiler|communicator|order|verb|objective NAME",
     "create a plugin that builds and passes its checks, to start from", verb_new},
    {"plugins", "", "list all plugins, and what each offers", verb_plugins},
    {"help", "[VERB|SECTION|PLUGIN|--man|--bash]",
     "explain a verb, a section or a plugin; print the manual page, or the completion for bash",
     verb_help},
    {"doctor",
     "[--describe NAME|FILE [RECIPE] [-n RANKS] [--set SECTION.KEY=VALUE]... [--with PLUGIN]...]",
     "examine this machine: what it has, what works, how fast it is; or measure it for plans",
     verb_doctor},
    {0}};

void print_overview(FILE *out)
{
    fprintf(out, "usage: ctitan VERB [arguments]\n\n");
    for (const struct verb *v = verbs; v->name; v++)
        fprintf(out, "  %-9s %s\n", v->name, v->summary);
}

static const struct verb *find_verb(const char *name)
{
    for (const struct verb *v = verbs; v->name; v++)
        if (!strcmp(v->name, name))
            return v;
    return NULL;
}

/* unreadable: plugins that may have it. */
static int unknown_verb(const char *name, size_t unreadable)
{
    const char *names[32], *near;
    size_t count = 0;

    while (verbs[count].name) {
        names[count] = verbs[count].name;
        count++;
    }
    near = ct_nearest(name, names, count);
    if (near)
        return ct_fail(CT_ECONFIG, "no verb %s; did you mean %s?", name, near);
    if (unreadable)
        return ct_fail(CT_ECONFIG,
                       "no verb %s; `ctitan help` lists them. %zu plugin%s, which may have it, "
                       "cannot be read: `ctitan plugins` says why",
                       name, unreadable, unreadable > 1 ? "s" : "");
    return ct_fail(CT_ECONFIG, "no verb %s; `ctitan help` lists them", name);
}

static int run_verb(int argc, char **argv)
{
    const struct verb *verb = find_verb(argv[0]);
    const struct plugin_verb *offered;
    struct ct_arena arena = {0};
    struct plugin_verbs all;
    int rc;

    if (verb)
        return verb->run(argc, argv);
    find_plugin_verbs(&arena, &all);
    rc = find_plugin_verb(&all, argv[0], &offered);
    if (rc == 0)
        rc = offered ? run_plugin_verb(offered, argc, argv) : unknown_verb(argv[0], all.unreadable);
    ct_arena_finish(&arena);
    return rc;
}

static int exit_status(int rc)
{
    if (rc >= 0)
        return 0;
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

static int run_program(int argc, char **argv)
{
    int rc;

    if (argc < 2) {
        print_overview(stderr);
        fprintf(stderr, "\n`ctitan help` says more.\n");
        return 2;
    }
    if (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h")) {
        print_overview(stdout);
        return 0;
    }
    if (!strcmp(argv[1], "--version")) {
        printf("ctitan %s\n", CT_VERSION);
        return 0;
    }
    rc = ct_ops_register();
    if (rc == 0)
        rc = run_verb(argc - 1, argv + 1);
    log_finish();
    if (rc < 0)
        ct_outlet_print(STDERR_FILENO, "ctitan: %s\n",
                        *ct_error_message() ? ct_error_message() : ct_strerror(rc));
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
