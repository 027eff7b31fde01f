/*
 * The ctitan program: thin verbs over libctitan.
 *
 * A verb is one file with one function. It returns 0 or a CT_E* code with the failure recorded;
 * main() prints the message and turns the code into the exit status (2: the user's input is wrong,
 * 1: the run failed). Results go to stdout, log lines and progress to stderr.
 */
#ifndef CT_CLI_H
#define CT_CLI_H

#include <ctitan/config.h>
#include <ctitan/lib/app/simulate.h>
#include <ctitan/log.h>
#include <ctitan/stage.h>
#include <ctitan/verb.h>

struct verb {
    const char *name, *summary;
    int (*run)(int argc, char **argv); /* argv[0] is the verb */
    const struct ct_argument *arguments;
    const char *const *examples; /* command lines, NULL ends */
    const char *details;         /* more sentences, in lines of at most 80 columns; NULL */
};

/* All verbs of the program by groups; NULL after the last. */
struct verb_group {
    const char *title;
    const struct verb *verbs[8];
};
extern const struct verb_group verb_groups[]; /* {0} ends */
/* Verb number index of all groups, or NULL. */
const struct verb *verb_at(size_t index);
const struct verb *verb_find(const char *name);

extern const struct verb verb_train;
extern const struct verb verb_launch;
extern const struct verb verb_data;
extern const struct verb verb_explain;
extern const struct verb verb_plan;
extern const struct verb verb_simulate;
/* Write a simulated step as SVG. CT_EIO: `out` cannot be written. */
int simulate_draw(const struct ct_simulate_request *request, const struct ct_simulated *result,
                  FILE *out);
extern const struct verb verb_tune;
extern const struct verb verb_compare;
extern const struct verb verb_report;
extern const struct verb verb_watch;
extern const struct verb verb_flight;
extern const struct verb verb_plugins;
extern const struct verb verb_help;
extern const struct verb verb_doctor;
extern const struct verb verb_generate;
extern const struct verb verb_tokenize;
extern const struct verb verb_schedule;
extern const struct verb verb_check;
extern const struct verb verb_new;

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
/* Finds the verb called name, or NULL. CT_ECONFIG: two plugins have it. */
int find_plugin_verb(const struct plugin_verbs *all, const char *name,
                     const struct plugin_verb **verb);
/* Plugins that are not installed, as a list of JSON. */
struct json_t *plugins_absent_json(struct ct_arena *arena);
/* Load its plugin and run it. */
int run_plugin_verb(const struct plugin_verb *verb, int argc, char **argv);
/* ---- help ---- */

#define HELP_COLUMNS 80

/* Print `label` at column `indent`, and text, in lines that end before column 80, at column
   `column`: behind the label, or below it if there is no room. NULL: no text. */
void print_item(int indent, const char *label, int column, const char *text);
/* Print text as a sentence in lines that end before column 80: the first letter is made a capital,
   and a final stop is added. */
void print_sentence(const char *text);

/* The sentence of an argument, with the choices of a word that the usage does not show. */
const char *argument_sentence(struct ct_arena *arena, const struct ct_argument *argument);

/* The beginning of `ctitan help`. */
void print_overview(FILE *out);
/* Prints the page of `ctitan VERB --help`. */
void print_verb(const struct verb *verb);
void print_plugin_verb(const struct plugin_verb *verb);
/* The same for options of a recipe, of ops and of plugins. */
void print_option_list(const struct ct_option *options);

/* Everything that pages list: verbs, sections of recipes, and plugins. */
struct page_entry {
    const char *name, *summary, *usage, *details;
    const struct ct_argument *arguments;
    const char *const *examples;
    const struct ct_option *options;
};
struct page_list {
    struct page_entry *entry;
    size_t count, room;
};
struct pages {
    struct ct_arena arena;
    struct page_list verbs, sections, plugins;
};
void print_manual(const struct pages *pages);
void print_bash(const struct pages *pages);
void print_zsh(const struct pages *pages);
void print_fish(const struct pages *pages);

/* Send log lines of this level and above to stderr. */
void log_to_terminal(enum ct_log_level level);
/* quiet: no levels but warnings and errors from now on; verbose: all levels. */
void log_limit(bool quiet, bool verbose);
/* Erase a progress line from the terminal. */
void log_finish(void);

/* ---- arguments of verbs that take a recipe ---- */

#define MOST_RANKS (1 << 20)

struct argv;
struct json_t;

struct slow_ranks {
    struct ct_slow *at;
    int count;
    size_t room;
};

/* A verb's own struct begins with this one, so that the rows below are its rows, too. */
struct args {
    struct ct_arena arena;
    const char *path;         /* the recipe; NULL: not given */
    struct ct_recipe *recipe; /* NULL: not read yet */
    struct ct_recipe_changes changes;
    int64_t local, world; /* -n, --world; 0: not given */
    int64_t ranks;        /* the one that was given */
    int64_t rank;         /* the rank to look at */
    int64_t stage;        /* the stage to look at alone, from 1; 0: all */
    const char *dump_after;
    const char *until;
    int64_t restarts; /* at most */
    bool json, program, elastic, dump_kernels;
    bool reads; /* rank 0 of those that are started reads standard input */
    const char *device, *trace, *svg;
    bool all_ranks; /* are simulated; otherwise one pipeline stands for all, if no rank is slow */
    const struct ct_machine *machine; /* set by args_recipe where there is a device */
    struct slow_ranks slow;
};

/* Rows of tables of arguments. */
#define ARG_RECIPE                                                                                 \
    CT_ARG_WORD(struct args, path, "RECIPE",                                                       \
                "An INI file, - for standard input, a run's folder, or a Hugging Face folder")
#define ARG_CHANGES CT_ARG_CHANGES(struct args, changes)
#define ARG_LOCAL                                                                                  \
    CT_ARG_INT(struct args, local, "ranks", 'n', "RANKS", 1, MOST_RANKS,                           \
               "How many ranks, processes of this machine, train together")
#define ARG_WORLD                                                                                  \
    CT_ARG_INT(struct args, world, "world", 0, "RANKS", 1, MOST_RANKS,                             \
               "How many ranks there are, on any number of machines")
#define ARG_RANK                                                                                   \
    CT_ARG_INT(struct args, rank, "rank", 0, "RANK", 0, MOST_RANKS, "The rank to look at, from 0")
#define ARG_STAGE                                                                                  \
    CT_ARG_INT(struct args, stage, "stage", 0, "N", 1, CT_STAGES,                                  \
               "Look at stage N alone, as if the whole run were like it; 1: the recipe's own")
#define ARG_DUMPS                                                                                  \
    CT_ARG_TEXT(struct args, dump_after, "dump-after", 0, "NAME|all|changed",                      \
                "Print the graph after the transform NAME, after all, or after those that change " \
                "it"),                                                                             \
        CT_ARG_FLAG(struct args, dump_kernels, "dump-kernels", 0,                                  \
                    "Print the source of kernels that the plugin fuse compiles")
#define ARG_DEVICE(doc) CT_ARG_TEXT(struct args, device, "device", 0, "NAME", doc)
#define ARG_JSON CT_ARG_FLAG(struct args, json, "json", 0, "Print JSON")

int args_take_slow(void *at, struct ct_arena *arena, const char *option, const char *value);

/* Parse into a struct that begins with `args`, all 0 before. CT_ECONFIG: wrong usage. */
int args_parse(const struct ct_argument *table, int argc, char **argv, struct args *args);
/* CT_ECONFIG: an argument that the verb does not have may be an option of the recipe, and the
   message says how to write it. 0: all others, and verbs without --set. */
int args_explain_unknown(const struct ct_argument *table, int argc, char **argv);
/* Read the recipe and change it as the command line says (ct_hf_recipe). It is in args->arena. */
int args_read(struct args *args, struct ct_recipe **recipe);
/* The same, then put --device in, and apply it. */
int args_recipe(struct args *args, struct ct_recipe **recipe);
/* Add --set and the like to the arguments of another call. */
void args_changes(struct args *args, struct argv *argv);
/* As --set does. The text is kept. */
void args_add_set(struct args *args, const char *assignment);
/* Let a plugin be the only device of a recipe that is not applied. */
int args_use_device(struct ct_recipe *recipe, const char *plugin);
/* rc, after the failure's message got the source of the setting that it names. */
int args_finish(struct args *args, int rc);

/* ---- programs of a pipeline ---- */

/* A run that is only planned, with the programs of all ranks of its pipeline. */
struct planned_stage {
    int64_t seq_len, sequences, tokens; /* of a step */
    int microbatches;
    size_t bytes;       /* with validation */
    double flops, sent; /* by the rank in a step */
};
struct planned {
    struct ct_run *run;
    struct ct_run **peer; /* by index; NULL: run itself */
    const struct ct_program **program;
    int64_t *rank;
    int count;                   /* 1 without a pipeline */
    struct planned_stage *stage; /* by plan_stages */
};

/* Plan as one of args->ranks ranks. On failure everything is undone. */
int plan_open(struct ct_recipe *recipe, struct args *args, struct planned *planned);
void plan_close(struct planned *planned);
/* Prove that the programs come to their end. */
int plan_prove(const struct planned *planned);
/* Let the run be in a stage of training, and prove its programs. */
int plan_look_at(struct planned *planned, size_t stage);
/* Look at all stages, and go back to the first. */
int plan_stages(struct planned *planned, struct args *args);
void print_stages(const struct planned *planned);
struct json_t *stages_json(const struct planned *planned);
/* Simulate a step on args->machine. The result is in args->arena. */
int plan_simulate(const struct planned *planned, struct args *args,
                  struct ct_simulate_request *request, struct ct_simulated *result);
/* Print where the time of a step goes. */
void print_times(const struct planned *planned, const struct args *args,
                 const struct ct_simulated *result);
struct json_t *times_json(const struct planned *planned, const struct args *args,
                          const struct ct_simulated *result);

/* The worth of predictions on a machine that was not measured (ct_machine_is_measured), and the
   published runs that its description names: null in JSON where it names none. */
#define UPPER_BOUND 320
const char *upper_bound(const struct ct_machine *machine, char text[UPPER_BOUND]);
struct json_t *published_json(const struct ct_machine *machine);

/* Find out which rank this process is, and prepare it, before the recipe brings plugins in.
   CT_ECONFIG: a launcher has started other ranks than args->ranks. */
struct ct_identity; /* launch.h */
int rank_begin(const struct args *args, struct ct_identity *identity);
/* Run args->ranks copies of this process, as often as --max-restarts allows. The recipe has been
   applied. */
int supervise(struct args *args, struct ct_recipe *recipe, int argc, char **argv);

/* Whether the run's device has so many bytes. memory: how many it has, in words. */
bool plan_fits(const struct ct_run *run, int64_t bytes, char memory[96]);
/* Whether this host has memory for so many ranks like this one: for their plans on a CPU, for what
   they offload on other devices. */
bool plans_fit(const struct ct_run *run, int64_t ranks, char memory[96]);
/* CT_ECONFIG: the plan needs more memory than the device has. one_host: all ranks, or the only one,
   are on this host; also if it has less than their plans need together on a CPU, or what they
   offload on other devices. All ranks call it. */
int check_memory(struct ct_run *run, bool one_host);

/* The time at which the run ends, of this process and those that it starts: that of --until (NULL:
   not given), or else of the recipe, which was applied. CT_ECONFIG. */
int until_set(const char *text);
bool until_passed(void);
#define ARG_UNTIL                                                                                  \
    CT_ARG_TEXT(struct args, until, "until", 0, "TIME",                                            \
                "End the run in order at a time like 14:30, or after a while like +90m")

/* Before ranks train, or are started: keep other jobs out of the dump folder, and look whether the
   weights can be saved at the end. */
struct ct_identity;
int train_prepare(const struct ct_identity *id);
/* The exit status after CT_EPEER, from which the launcher of several hosts learns more; 0: none. */
extern int failure_status;
/* The exit status of success is CT_LAUNCH_SAVED: a signal has ended the run before its last step,
   and the same command goes on. */
extern bool ended_saved;

/* Print where a step's memory is largest, and what is alive there. */
void print_peak(const struct ct_program *program);
/* Add the same, and its course over the step, to a JSON object. */
void add_memory_json(const struct ct_program *program, struct json_t *plan);

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
