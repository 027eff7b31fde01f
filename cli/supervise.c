/*
 * Supervision: a job whose ranks fail is started again by the same command, so it resumes if the
 * recipe has checkpoints.
 *
 * A failure that would repeat is final: the user's input (status 2), an interrupt, or twice the
 * same words of a rank without a step that was saved in between. --elastic goes on with fewer
 * ranks: those that did not end by themselves are given up, and the largest number of the rest is
 * taken that the recipe's mesh allows.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <ctitan/clock.h>
#include <ctitan/error.h>
#include <ctitan/hook.h>
#include <ctitan/run.h>

#include "child.h"
#include "runs.h"
#include "supervise.h"

#define CHECKPOINT_SECONDS 60  /* after a signal, for the step and a checkpoint */
#define RANKS_PER_PROCESSOR 64 /* most for -n: a typing error must not stop the machine */
#define PAUSE 1.0              /* seconds before the first restart; each next one twice .. */
#define LONGEST_PAUSE 60.0     /* .. up to these. They begin anew behind a start .. */
#define WORKED 4               /* .. that lasted so many times as long as the next pause */

static void hear(void *context, int rank, const char *text)
{
    struct job *job = context;

    if (rank >= job->ranks)
        return;
    snprintf(job->words[rank].text, sizeof(job->words[rank].text), "%s", text);
    job->words[rank].time = ct_now();
}

static const char *told(const struct ct_job_end *end, int rank, double *time)
{
    const struct job *job = end->context;

    if (rank >= job->ranks || !*job->words[rank].text)
        return NULL;
    *time = job->words[rank].time;
    return job->words[rank].text;
}

/* Forget the words of the last start. */
static void begin_to_hear(struct job *job, struct ct_launch_request *request)
{
    if (job->word_room < job->ranks) {
        job->words = ct_arena_array(&job->args->arena, struct job_word, job->ranks);
        job->word_room = job->ranks;
    }
    for (int i = 0; i < job->ranks; i++)
        *job->words[i].text = '\0';
    request->hear = hear;
    request->context = job;
}

int job_launch(struct job *job, struct ct_launch_request *request)
{
    struct ct_job_end end = {.ranks = request->commands ? 0 : request->ranks,
                             .status = job->status,
                             .rank0 = request->rank0,
                             .gather = job->gather,
                             .context = job,
                             .saved = &job->safe,
                             .told = request->commands ? told : NULL};
    struct ct_error_kept kept;
    bool saved = false;
    int rc;

    job->brief = 0;
    request->leave = CHECKPOINT_SECONDS;
    request->restart = job->restart;
    request->status = job->status;
    request->first = &job->first;
    request->brief = &job->brief;
    request->after = &job->after;
    request->saved = &saved;
    job->safe = -1;
    if (request->commands)
        begin_to_hear(job, request);
    rc = ct_launch(request);
    kept = ct_error_keep();
    ended_saved = rc == 0 && saved;
    end.first = job->first < 0 ? -1 : request->rank0 + job->first;
    ct_hook_fire(&(struct ct_event_data){.event = CT_EVENT_JOB_END,
                                         .message = rc < 0 ? kept.message : NULL,
                                         .code = rc,
                                         .job = &end});
    return rc < 0 ? ct_error_restore(rc, &kept) : 0;
}

/* Sequences in a step on this many ranks; 0: the recipe's mesh cannot have them. */
static int64_t batch_of(struct ct_recipe *recipe, int ranks)
{
    struct ct_run_options options = {.depth = CT_RUN_GRAPH, .world = ranks};
    struct ct_run *run;
    int64_t sequences;
    int microbatches;

    if (ct_run_open(recipe, &options, &run) < 0 ||
        ct_run_batch_sizes(run, &sequences, &microbatches) < 0)
        return 0;
    return sequences * microbatches;
}

/* The same, found in a process of its own. */
static int64_t try_ranks(const struct job *job, int ranks)
{
    int64_t batch = 0;
    int ends[2], status;
    pid_t child;

    if (pipe(ends) < 0)
        return 0;
    fflush(NULL);
    child = fork();
    if (child == 0) {
        batch = batch_of(job->recipe, ranks);
        _exit(write(ends[1], &batch, sizeof(batch)) != sizeof(batch));
    }
    close(ends[1]);
    if (child > 0 && read(ends[0], &batch, sizeof(batch)) != sizeof(batch))
        batch = 0;
    close(ends[0]);
    if (child > 0)
        waitpid(child, &status, 0);
    return batch;
}

/* Steps have as many sequences on fewer ranks: those that the recipe or a checkpoint said, or as
   many as the first ranks had. */
static void hold_batch(struct job *job)
{
    struct ct_arena *arena = &job->args->arena;
    int64_t *batch = &ct_config.training.global_batch_size;
    struct run_recipe saved;
    struct run_option option;

    if (*batch > 0)
        return;
    run_take_recipe(arena, ct_config.job.dump_folder, &saved);
    if (run_option_find(&saved, "training.global_batch_size", &option))
        *batch = strtoll(option.value, NULL, 10);
    if (*batch <= 0)
        *batch = try_ranks(job, job->ranks);
    if (*batch > 0)
        job->batch = ct_arena_printf(arena, "training.global_batch_size=%lld", (long long)*batch);
}

int job_fit(struct job *job, int left)
{
    int ranks = left;

    hold_batch(job);
    while (ranks > 0 && !try_ranks(job, ranks))
        ranks--;
    if (ranks < 1)
        return ct_fail(CT_EPEER,
                       "%s; the recipe's mesh fits no number of ranks up to the %d that are left",
                       job->failure.message, left);
    job->ranks = ranks;
    return 0;
}

/* A shell, mpirun and ssh say by such a status that a signal or a lost connection ended a rank. */
static bool ended_by_itself(int status)
{
    return WIFEXITED(status) && WEXITSTATUS(status) < 128;
}

/* Whether a failed job is worth another attempt. Being killed twice says nothing, and neither does
   a failure behind steps that were saved after the one before it. */
static bool may_help(struct job *job, int rc)
{
    bool again = !strcmp(job->failure.message, ct_error_message()) && job->first >= 0 &&
                 job->safe <= job->safe_before && ended_by_itself(job->status[job->first]);

    job->failure = ct_error_keep();
    job->safe_before = job->safe;
    if (rc == CT_ECONFIG || job->first < 0)
        return false;
    if (again)
        ct_warn("the same failure happened again, and nothing was saved in between, so a restart "
                "will not help");
    return !again;
}

/* Report the failure for the terminal, where the rank has printed its last line. */
static int shorten(const struct job *job, int rc)
{
    struct ct_error_kept kept = ct_error_keep();

    return job->brief ? ct_fail(rc, "%.*s" LAST_LINE_ABOVE, job->brief, kept.message) : rc;
}

/* Wait for the next start. The failure is the last one recorded. */
static void await_restart(struct job *job, double *pause)
{
    char took[96] = "";

    if (job->after > 0)
        snprintf(took, sizeof(took), "; the last start ended %.2f s after its first failure",
                 job->after);
    job->after = 0; /* said */
    ct_warn("%s", ct_error_message());
    ct_warn("restart %d of %lld, with %d rank%s, in %g s%s", ++job->restart,
            (long long)job->args->restarts, job->ranks, ct_plural(job->ranks), *pause, took);
    ct_nap(*pause);
    *pause = 2 * *pause < LONGEST_PAUSE ? 2 * *pause : LONGEST_PAUSE;
}

/* Find what the job goes on with, as often as restarts are left. rc: of its failure. */
static int renew(struct job *job, int rc, double *pause)
{
    for (;;) {
        int lacks = job->renew ? job->renew(job) : 0;

        if (lacks == 0)
            break;
        if (!job->absent || job->restart == job->args->restarts)
            return lacks;
        await_restart(job, pause);
    }
    ct_error_restore(rc, &job->failure);
    shorten(job, rc);
    await_restart(job, pause);
    return 0;
}

int job_run(struct job *job)
{
    double pause = PAUSE;

    job->safe_before = -1;

    for (;;) {
        double begin = ct_now();
        int rc = job->start(job);

        if (ct_now() - begin > WORKED * pause)
            pause = PAUSE;

        if (rc == 0 || job->restart == job->args->restarts)
            return rc < 0 ? shorten(job, rc) : 0;
        if (!may_help(job, rc))
            return shorten(job, ct_error_restore(rc, &job->failure));
        rc = renew(job, rc, &pause);
        if (rc < 0)
            return rc;
    }
}

/* ---- ranks of this host ---- */

/* Compare the number of ranks on the command line with that of a launcher around this process. */
static int check_ranks(int64_t asked, const struct ct_identity *id)
{
    if (!id->by || asked == 0 || asked == id->world || ct_launch_is_rank())
        return 0;
    return ct_fail(CT_ECONFIG,
                   "-n %lld, but %s has started %d rank%s: drop -n or start one process",
                   (long long)asked, id->by, id->world, ct_plural(id->world));
}

/*
 * Threads that wait leave their cores to other ranks and programs. libgomp's would keep them for
 * milliseconds. It reads how often they look before they sleep when a plugin brings it in, so this
 * comes before any plugin.
 */
static void wait_briefly(void)
{
    if (!getenv("OMP_WAIT_POLICY"))
        setenv("GOMP_SPINCOUNT", "5000", 0); /* 0.1 to 0.3 ms */
}

int rank_begin(const struct args *args, struct ct_identity *id)
{
    int rc = ct_launch_identify(id);

    if (rc == 0)
        rc = check_ranks(args->ranks, id);
    log_to_terminal(id->rank == 0 ? CT_LOG_INFO : CT_LOG_WARNING);
    wait_briefly();
    return rc;
}

/* The command line that they are started with, which has room for one more setting. */
struct command {
    char **argv;
    int argc;
};

static int start(struct job *job)
{
    struct command *command = job->context;
    struct ct_launch_request request = {
        .ranks = job->ranks, .argv = command->argv, .reads = job->args->reads};

    if (job->batch && !command->argv[command->argc]) {
        command->argv[command->argc] = "--set";
        command->argv[command->argc + 1] = (char *)(uintptr_t)job->batch;
    }
    return job_launch(job, &request);
}

/* Ranks that did not end by themselves; at least the one that failed. */
static int lost(const struct job *job)
{
    int count = 0;

    for (int i = 0; i < job->ranks; i++)
        count += WIFSIGNALED(job->status[i]) != 0;
    return count ? count : 1;
}

static int shrink(struct job *job)
{
    return job_fit(job, job->ranks - lost(job));
}

int supervise(struct args *args, struct ct_recipe *recipe, int argc, char **argv)
{
    char **copy = ct_arena_array(&args->arena, char *, argc + 4);
    int64_t processors = sysconf(_SC_NPROCESSORS_ONLN);
    struct command command = {copy, argc + 1};
    struct job job = {.args = args,
                      .recipe = recipe,
                      .start = start,
                      .renew = args->elastic ? shrink : NULL,
                      .context = &command,
                      .ranks = (int)args->ranks};

    if (args->ranks > RANKS_PER_PROCESSOR * processors)
        return ct_fail(CT_ECONFIG,
                       "-n %lld on %lld processors: at most %lld ranks are allowed; `ctitan plan "
                       "--world %lld` plans for any number",
                       (long long)args->ranks, (long long)processors,
                       (long long)(RANKS_PER_PROCESSOR * processors), (long long)args->ranks);
    copy[0] = "ctitan";
    memcpy(copy + 1, argv, sizeof(*copy) * (size_t)argc);
    job.status = ct_arena_array(&args->arena, int, args->ranks);
    return job_run(&job);
}
