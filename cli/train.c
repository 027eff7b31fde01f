#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <ctitan/comm.h>
#include <ctitan/error.h>
#include <ctitan/file.h>
#include <ctitan/lib/hf.h>
#include <ctitan/lib/launch.h>
#include <ctitan/lib/outlet.h>
#include <ctitan/lib/rates.h>
#include <ctitan/recipe.h>
#include <ctitan/run.h>
#include <ctitan/text.h>
#include <ctitan/train.h>

#include "cli.h"
#include "crash.h"

/* Results of the last step, for the line at the end. */
static struct ct_step_result last;

/* resumed: the step that the run began with. */
static void report(const struct ct_run *run, int64_t resumed, double seconds)
{
    long long stands = (long long)run->progress.step - 1;
    char tokens[32], loss[48] = "";

    if (!last.step && resumed > ct_config.training.steps && ct_config.training.steps == 1)
        ct_info("the only step was done in an earlier run");
    else if (!last.step && resumed > ct_config.training.steps)
        ct_info("all %lld steps were done in an earlier run", (long long)ct_config.training.steps);
    if (!last.step)
        return;
    if (last.step == stands) /* else it was taken back */
        snprintf(loss, sizeof(loss), ", last loss %.5f", last.loss);
    ct_info("done: %lld step%s, %s tokens in %.1f s%s; see %s", stands, ct_plural(stands),
            ct_grouped(run->progress.tokens, tokens), seconds, loss, ct_config.job.dump_folder);
}

static void introduce(void)
{
    const char *name = ct_config.job.name, *description = ct_config.job.description;

    if (*name || *description)
        ct_info("job %s%s%s", name, *name && *description ? ": " : "", description);
}

/* ---- Ctrl-C ---- */

static struct ct_run *running;
static volatile sig_atomic_t interrupted;

static struct {
    int number;
    struct sigaction former;
} caught[] = {{.number = SIGINT}, {.number = SIGTERM}, {.number = SIGUSR1}};

static void call_former(int number)
{
    for (size_t i = 0; i < CT_COUNT(caught); i++)
        if (caught[i].number == number && caught[i].former.sa_handler != SIG_DFL &&
            caught[i].former.sa_handler != SIG_IGN)
            caught[i].former.sa_handler(number);
}

/* The first signal ends the run in order after the step; a second ends the process at once. */
static void interrupt(int number)
{
    static const char said[] =
        "\n[ctitan] the run ends after a step; interrupt again to end it at once\n";

    interrupted = number;
    ct_outlet_hurry();
    run_interrupted(number);
    call_former(number);
    if (running->rank == 0)
        ct_outlet_interject(STDERR_FILENO, said, sizeof(said) - 1);
}

/* SIGTERM also comes from a launcher that ends the ranks because one has failed, so a job with
   nothing to save ends at once. */
static bool catches(int number)
{
    return number != SIGTERM || running->world == 1 || *ct_config.model.save_to;
}

/* On the stack of crash_catch, as all handlers of signals here: one that ran on the thread's own
   stack amid a product of oneDNN damaged the heap now and then. */
static void catch_signals(struct ct_run *run)
{
    struct sigaction action = {.sa_handler = interrupt,
                               .sa_flags = (int)SA_RESETHAND | SA_RESTART | SA_ONSTACK};

    running = run;
    for (size_t i = 0; i < CT_COUNT(caught); i++)
        if (catches(caught[i].number))
            sigaction(caught[i].number, &action, &caught[i].former);
}

static void release_signals(void)
{
    for (size_t i = 0; i < CT_COUNT(caught); i++)
        if (catches(caught[i].number))
            sigaction(caught[i].number, &caught[i].former, NULL);
}

#define AGREE_SECONDS 0.5

static int64_t next_agreement, last_asked; /* steps; the same on all ranks */

/* Why this rank wants to end; the reason of the largest number counts. */
enum {
    GOES_ON,
    TIME_IS_UP,
    BY_SIGNAL /* and its number */
};

/* All ranks end after the same step, whichever of them want to by then. Several agree once
   in half a second, by the rank that took longest for the step, or after every longer step. */
static int stop_if_wanted(struct ct_run *run, const struct ct_step_result *step)
{
    double steps = fmin(fmax(AGREE_SECONDS / step->seconds, 1), 1000);
    int32_t reason = interrupted ? BY_SIGNAL + interrupted : until_passed() ? TIME_IS_UP : GOES_ON;
    int32_t mine[] = {reason, -(int32_t)steps}, most[2];
    int rc = 0;

    if (step->step < last_asked) /* the run went back */
        next_agreement = 0;
    last_asked = step->step;
    if (run->world > 1 && step->step < next_agreement)
        return 0;
    rc = ct_group_all_reduce(ct_run_world(run), mine, most, 2, CT_I32, CT_REDUCE_MAX);
    if (rc < 0)
        return rc;
    next_agreement = step->step - most[1];
    if (most[0] == GOES_ON)
        return 0;
    interrupted = most[0] == TIME_IS_UP ? 0 : most[0] - BY_SIGNAL;
    if (!interrupted && run->rank == 0)
        ct_info(
            "the time of --until or [training] stop_after has come: the run ends after step %lld",
            (long long)step->step);
    run->stop_signal = interrupted;
    ct_run_stop(run, interrupted ? "a signal" : "--until");
    return 0;
}

/* Plugins and the mesh have set options that it leaves open. The file of an earlier run in the
   folder stays until the run is open: a start that is refused leaves it alone. */
static int save_recipe(const struct ct_recipe *recipe, bool replace)
{
    char path[CT_PATH_ROOM];
    int rc = ct_run_path(NULL, path, "recipe.ini");

    if (rc == 0 && (replace || access(path, F_OK)))
        rc = ct_recipe_save(recipe, path);
    return rc < 0 ? ct_context(CT_ECONFIG, "[job] dump_folder") : 0;
}

/* A start after a failure: where the time went. */
static void report_start(const struct ct_run *run, int restart)
{
    char text[512] = "";
    double all = 0;

    for (int i = 0; i < CT_START_PART_COUNT; i++) {
        size_t used = strlen(text);

        all += run->spent[i];
        snprintf(text + used, sizeof(text) - used, "%s%s %.2f s", i ? ", " : "",
                 ct_start_part_name(i), run->spent[i]);
    }
    ct_info("restart %d: the first step ended after %.2f s: %s", restart, all, text);
}

static int on_event(const struct ct_event_data *data, void *context)
{
    const struct ct_identity *id = context;

    if (data->event == CT_EVENT_PLAN_READY) {
        int rc = check_memory(data->run, id->local_ranks == id->world);

        return rc == 0 && id->rank == 0 ? save_recipe(data->run->recipe, false) : rc;
    }
    if (id->restart && id->rank == 0 && !last.step)
        report_start(data->run, id->restart);
    last = *data->result;
    return stop_if_wanted(data->run, data->result);
}

static struct ct_hook hook = {.size = sizeof(struct ct_hook),
                              .events = 1u << CT_EVENT_PLAN_READY | 1u << CT_EVENT_STEP_END,
                              .call = on_event};

/* A batch system sends SIGTERM or SIGUSR1 and starts the command again later. A user's Ctrl-C is a
   failure, and so is a signal after which something is lost. */
static bool goes_on_later(const struct ct_run *run)
{
    return (run->stop_signal == SIGTERM || run->stop_signal == SIGUSR1) &&
           run->saved == run->progress.step - 1 && run->saved < ct_config.training.steps;
}

static int train_one(struct ct_run *run)
{
    int rc;

    catch_signals(run);
    rc = ct_run_train(run);
    release_signals();
    run_leave_crashes();
    ended_saved = rc == 0 && goes_on_later(run);
    if (rc == 0 && run->stop_signal && run->progress.step <= ct_config.training.steps &&
        !ended_saved)
        return ct_fail(CT_EPEER, "interrupted by signal %d after step %lld", run->stop_signal,
                       (long long)run->progress.step - 1);
    return rc;
}

/* Keep other jobs out of the dump folder until this process ends. The process that supervises ranks
   does so for them, and otherwise rank 0. */
static int take_folder(const struct ct_identity *id)
{
    const char *folder = ct_config.job.dump_folder;
    bool owner = !ct_launch_is_rank() && id->rank == 0;
    int rc = owner ? ct_file_lock_folder(folder) : 0;

    if (rc >= 0 && owner && id->world == id->local_ranks)
        ct_file_sweep(folder);
    if (rc == CT_EPEER)
        return ct_fail(CT_ECONFIG,
                       "another job is running in %s: give this one another [job] dump_folder",
                       folder);
    return rc < 0 ? ct_context(CT_ECONFIG, "[job] dump_folder") : 0;
}

/* The weights of a whole training would be lost at its end. */
static int try_save_to(const struct ct_identity *id)
{
    const char *folder = ct_config.model.save_to;

    return *folder && id->rank == 0 ? ct_hf_try_target("[model] save_to", folder) : 0;
}

int train_prepare(const struct ct_identity *id)
{
    int rc = take_folder(id);

    return rc == 0 && !ct_launch_is_rank() ? try_save_to(id) : rc;
}

/* Train in this process, as one rank. */
static int train(struct args *args, struct ct_recipe *recipe, const struct ct_identity *id)
{
    struct ct_run_options options = {.depth = CT_RUN_READY,
                                     .rank = id->rank,
                                     .world = id->world,
                                     .local_rank = id->local_rank,
                                     .local_ranks = id->local_ranks,
                                     .job = id->job};
    double begin = ct_now();
    struct ct_run *run = NULL;
    struct ct_dump dump;
    int64_t resumed;
    int rc;

    ct_dump_init(
        &dump, id->rank == 0 ? args->dump_after : NULL, stdout,
        ct_arena_printf(&args->arena, "%s/reproducer-%d.txt", ct_config.job.dump_folder, id->rank));
    options.passes.dump = &dump;
    hook.context = (void *)id;
    rc = ct_hook_register(&hook, NULL);
    run_catch_crashes(id->rank);
    introduce();
    if (rc == 0)
        rc = ct_run_open(recipe, &options, &run);
    if (rc < 0)
        return rc;
    resumed = run->progress.step;
    rc = id->rank == 0 ? save_recipe(recipe, true) : 0;
    if (rc == 0)
        rc = train_one(run);
    if (rc == 0 && id->rank == 0)
        report(run, resumed, ct_now() - begin);
    ct_run_close(run);
    return rc;
}

static int train_or_supervise(struct args *args, int argc, char **argv)
{
    struct ct_recipe *recipe;
    struct ct_identity id;
    int rc = rank_begin(args, &id);

    signal(SIGXFSZ, SIG_IGN); /* a file that may not grow is a failure to write, like a full disk */
    if (rc == 0)
        rc = args_recipe(args, &recipe);
    if (rc == 0)
        rc = until_set(args->until);
    if (rc < 0)
        return rc;
    if (!args->ranks && (args->restarts || args->elastic))
        return ct_fail(CT_ECONFIG, "--max-restarts and --elastic need -n RANKS");
    if (args->elastic && !args->restarts)
        return ct_fail(CT_ECONFIG, "--elastic needs --max-restarts N");
    rc = train_prepare(&id);
    if (rc < 0)
        return rc;
    if ((args->ranks > 1 || args->restarts) && !id.by)
        return supervise(args, recipe, argc, argv);
    return train(args, recipe, &id);
}

static const struct ct_argument arguments[] = {
    ARG_RECIPE,
    ARG_CHANGES,
    ARG_LOCAL,
    CT_ARG_INT(struct args, restarts, "max-restarts", 0, "N", 0, MOST_RANKS,
               "Start the ranks again, at most N times, after a failure"),
    CT_ARG_FLAG(struct args, elastic, "elastic", 0,
                "Restart with fewer ranks where some can no longer be started"),
    ARG_UNTIL,
    ARG_DUMPS,
    {0}};

static int train_verb(int argc, char **argv)
{
    struct args args = {0};
    int rc = args_parse(arguments, argc, argv, &args);

    if (rc < 0)
        return rc;
    rc = train_or_supervise(&args, argc, argv);
    return args_finish(&args, rc);
}

const struct verb verb_train = {
    .name = "train",
    .summary = "train a model as a recipe describes",
    .run = train_verb,
    .arguments = arguments,
    .examples = CT_NAMES("ctitan train recipes/quickstart.ini",
                         "ctitan train recipes/quickstart.ini -n 2 --with local,fsdp"),
    .details = "Metrics, checkpoints and the resolved recipe go to the folder [job] dump_folder.\n"
               "The same command again resumes from the newest checkpoint, if the recipe loads\n"
               "ckpt. Ctrl-C ends the run after a step.\n"};
