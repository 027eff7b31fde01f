/*
 * The ctitan program: thin verbs over libctitan.
 *
 * A verb is one file with one function. It returns 0 or a CT_E* code with the failure recorded;
 * main() prints the message and turns the code into the exit status (2: the user's input is wrong,
 * 1: the run failed). Results go to stdout, log lines and progress to stderr.
 */
#ifndef CT_CLI_H
#define CT_CLI_H

#include <ctitan/lib/recipe.h>
#include <ctitan/lib/app/simulate.h>
#include <ctitan/log.h>
#include <ctitan/recipe.h>

struct verb {
    const char *name, *usage, *summary;
    int (*run)(int argc, char **argv); /* argv[0] is the verb */
};

/* All verbs of the program, {0} after the last. */
extern const struct verb verbs[];

int verb_train(int argc, char **argv);
int verb_explain(int argc, char **argv);
int verb_plan(int argc, char **argv);
int verb_simulate(int argc, char **argv);
/* Write a simulated step as SVG. CT_EIO: `out` cannot be written. */
int simulate_draw(const struct ct_simulate_request *request, const struct ct_simulated *result,
                  FILE *out);
int verb_tune(int argc, char **argv);
int verb_compare(int argc, char **argv);
int verb_report(int argc, char **argv);
int verb_watch(int argc, char **argv);
int verb_plugins(int argc, char **argv);
int verb_help(int argc, char **argv);
int verb_doctor(int argc, char **argv);
int verb_generate(int argc, char **argv);
int verb_schedule(int argc, char **argv);
int verb_check(int argc, char **argv);
int verb_new(int argc, char **argv);

/* The overview that `ctitan help` and `ctitan` alone print. */
void print_overview(FILE *out);

struct ct_verb_ops;
/* A verb that a plugin offers. The plugin is not loaded: `ops` can be read, not called. */
struct plugin_verb {
    const char *name, *plugin;
    const struct ct_verb_ops *ops;
};
struct plugin_verbs {
    struct plugin_verb *verb;
    size_t count;
    size_t unreadable; /* plugins whose descriptor cannot be read; they may have others */
};
/* The verbs of all plugins in the folders, by plugin. */
void find_plugin_verbs(struct ct_arena *arena, struct plugin_verbs *found);
/* That called name, or NULL. CT_ECONFIG: two plugins have it. */
int find_plugin_verb(const struct plugin_verbs *all, const char *name,
                     const struct plugin_verb **verb);
/* Load its plugin and run it. */
int run_plugin_verb(const struct plugin_verb *verb, int argc, char **argv);
/* Print "--man", the manual page, or "--bash", the completion. false: `which` is neither. */
bool help_page(const char *which);

/* Send log lines of this level and above to stderr. */
void log_to_terminal(enum ct_log_level level);
/* Erase a progress line from the terminal. */
void log_finish(void);

/* ---- arguments of verbs that take a recipe ---- */

#define ARG_RANKS 1u      /* -n RANKS */
#define ARG_DUMP_AFTER 2u /* --dump-after NAME|all|changed, --dump-kernels */
#define ARG_JSON 4u       /* --json */
#define ARG_PROGRAM 8u    /* --program */
#define ARG_WORLD 16u     /* --world RANKS, --rank RANK: as one rank of many */
#define ARG_RESTARTS 32u  /* --max-restarts N, --elastic */
#define ARG_DEVICE 64u    /* --device NAME: a described device in the place of the recipe's */
#define ARG_PICTURES 128u /* --trace FILE, --svg FILE, --slow RANK:FACTOR */
#define ARG_TUNE 256u     /* --memory BYTES, --out FILE, --vary SECTION.KEY=VALUE,.. */
#define ARG_DESCRIBE 512u /* --describe NAME or FILE; the recipe may be missing: path NULL */

struct argv;
struct change; /* one --set, --with or --without */

struct args {
    struct ct_arena arena;
    const char *path;         /* the recipe */
    struct ct_recipe *recipe; /* NULL: not read yet */
    struct change *changes;
    size_t count, room;
    int64_t ranks; /* 0: not given */
    bool here;     /* all ranks are on this machine: -n */
    int64_t rank;  /* the rank to look at */
    const char *dump_after;
    int64_t restarts; /* at most */
    bool json, program, elastic, dump_kernels;
    const char *device, *trace, *svg;
    const struct ct_machine *machine; /* set by args_recipe where there is a device */
    struct ct_slow *slow;
    int slow_count;
    size_t slow_room;
    double memory; /* bytes; 0: not given */
    const char *out, *describe;
    const char **vary;
    size_t vary_count, vary_room;
};

/* Parse RECIPE, --set, --with, --without, and the options in `accepts`. CT_ECONFIG: wrong usage. */
int args_parse(int argc, char **argv, unsigned accepts, struct args *args);
/* Read a recipe, that of a run's folder, or one that is made for a Hugging Face folder. CT_ECONFIG;
   CT_ENOENT. */
int args_read_path(struct ct_arena *arena, const char *path, struct ct_recipe **recipe);
/* Load the model that config.json in [model] init_from is of, where the recipe lists none. */
int args_choose_model(struct ct_arena *arena, struct ct_recipe *recipe);
/* Read the recipe and change it as the command line says. It is in args->arena. */
int args_read(struct args *args, struct ct_recipe **recipe);
/* The same, then put --device in, and apply it. */
int args_recipe(struct args *args, struct ct_recipe **recipe);
/* Add the --set, --with and --without to the arguments of another call. */
void args_changes(struct args *args, struct argv *argv);
/* As --set does. The text is kept. */
void args_add_set(struct args *args, const char *assignment);
/* rc, after the failure's message got the source of the setting that it names. */
int args_finish(struct args *args, int rc);

/* ---- programs of a pipeline ---- */

/* A run that is only planned, with the programs of all ranks of its pipeline. */
struct planned {
    struct ct_run *run;
    struct ct_run **peer; /* by index; NULL: run itself */
    const struct ct_program **program;
    int64_t *rank;
    int count; /* 1 without a pipeline */
};

/* Plan as one of args->ranks ranks. On failure everything is undone. */
int plan_open(struct ct_recipe *recipe, struct args *args, struct planned *planned);
void plan_close(struct planned *planned);
/* Prove that the programs come to their end. */
int plan_prove(const struct planned *planned);
/* Simulate a step on args->machine. The result is in args->arena. */
int plan_simulate(const struct planned *planned, struct args *args,
                  struct ct_simulate_request *request, struct ct_simulated *result);
/* Print where the time of a step goes. */
void print_times(const struct planned *planned, const struct args *args,
                 const struct ct_simulated *result);
void print_times_json(const struct planned *planned, const struct args *args,
                      const struct ct_simulated *result);

/* For predictions on a machine that was not measured (ct_machine_is_measured). */
#define UPPER_BOUND "the device was not measured, so expect fewer tokens per second"

/* Run args->ranks copies of this process, as often as --max-restarts allows. The recipe has been
   applied. */
int supervise(struct args *args, struct ct_recipe *recipe, int argc, char **argv);

/* Whether the run's device has so many bytes. memory: how many it has, in words. */
bool plan_fits(const struct ct_run *run, int64_t bytes, char memory[96]);
/* CT_ECONFIG: the run needs more memory than there is; one_host: all ranks together. All ranks call
   it. */
int check_memory(struct ct_run *run, bool one_host);

/* Print where a step's memory is largest, and what is alive there. */
void print_peak(const struct ct_program *program);
/* The same, and its course over the step, as members of a JSON object. */
void print_memory_json(const struct ct_program *program);

/* Measure this machine while args->path trains (NULL: a recipe of its own) as args->ranks ranks,
   and write its description. */
int describe_machine(struct args *args, const char *name);

/* ---- schedules ---- */

struct ct_schedule;
struct ct_schedule_ops;
struct ct_simulation;

/* Print a timeline to stdout, with one row per rank. */
void draw_timeline(const struct ct_schedule *schedule, const struct ct_simulation *simulation);
/* Write the same as SVG to path. */
int write_svg(const struct ct_schedule *schedule, const struct ct_simulation *simulation,
              const char *path);

/* ---- numbers for people ---- */

/* "1.50 GiB" */
const char *human_bytes(double bytes, char text[32]);
/* "1.23 T" */
const char *human_count(double count, char text[32]);

#endif
