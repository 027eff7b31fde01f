/*
 * When to save and to load: the options, the run's events, SIGTERM, and the verbs.
 *
 * After every interval-th step a save begins, which advances after every step (save.c). The ranks
 * then agree on whether one of them got SIGTERM, too.
 */
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <ctitan/clock.h>
#include <ctitan/comm.h>
#include <ctitan/error.h>
#include <ctitan/file.h>
#include <ctitan/lib/launch.h>
#include <ctitan/lib/outlet.h>
#include <ctitan/log.h>
#include <ctitan/option_use.h>
#include <ctitan/plugin.h>
#include <ctitan/state.h>
#include <ctitan/train.h>

#include "ckpt.h"

struct ckpt_config ckpt_config;
struct ckpt_own ckpt_own = {.saved = -1, .verified = -1};

enum { DISABLED, ASYNC };

static const struct ct_option options[] = {
    CT_OPT_BOOL(struct ckpt_config, enable, "enable", "true", "Save and load checkpoints"),
    CT_OPT_STRING(
        struct ckpt_config, folder, "folder", "checkpoint",
        "Folder of the checkpoints, relative to the dump folder unless it begins with '/'"),
    CT_OPT_ENUM(struct ckpt_config, files, "files", "shared", "shared|local",
                "shared: all hosts see the folder. local: each host keeps the files that its ranks "
                "write, in a folder of its own"),
    CT_OPT_INT(struct ckpt_config, interval, "interval", "500", 1, 1e15,
               "Number of steps between two checkpoints; the last step is always saved"),
    CT_OPT_BOOL(struct ckpt_config, first_step, "enable_first_step_checkpoint", "false",
                "Also save after step 1"),
    CT_OPT_BOOL(struct ckpt_config, load_only, "load_only", "false", "Never save"),
    CT_OPT_INT(struct ckpt_config, load_step, "load_step", "-1", -1, 1e15,
               "Step to resume from; checkpoints of later steps are renamed. -1: the newest "
               "undamaged checkpoint, which a job that was started again always takes"),
    CT_OPT_STRING(struct ckpt_config, initial_load_path, "initial_load_path", "",
                  "Checkpoint, folder of checkpoints, or Hugging Face folder to start from, if the "
                  "run has no checkpoint of its own"),
    CT_OPT_BOOL(struct ckpt_config, initial_model_only, "initial_load_model_only", "true",
                "Load only the weights of initial_load_path"),
    CT_OPT_STRING(struct ckpt_config, exclude, "exclude_from_loading", "",
                  "Parts not to load, separated by commas: optimizer, lr_scheduler, dataloader"),
    CT_OPT_BOOL(struct ckpt_config, last_model_only, "last_save_model_only", "false",
                "Save only the weights after the last step"),
    CT_OPT_ENUM(struct ckpt_config, export_dtype, "export_dtype", "same",
                "same|float32|bfloat16|float16",
                "Dtype of the weights that last_save_model_only saves"),
    CT_OPT_ENUM(struct ckpt_config, async_mode, "async_mode", "async", "disabled|async",
                "async: write in the background while the next steps run"),
    CT_OPT_INT(struct ckpt_config, staging, "staging", "256", 8, 1e9,
               "MiB of host memory per rank for copies that are not yet written; when it is full, "
               "the optimizer waits for the disk"),
    CT_OPT_INT(struct ckpt_config, keep_latest_k, "keep_latest_k", "10", 0, 1e15,
               "Complete checkpoints to keep, at least 2; 0: all"),
    CT_OPT_INT(struct ckpt_config, keep_every, "keep_every", "0", 0, 1e15,
               "Additionally keep checkpoints of steps that this divides; 0: none"),
    CT_OPT_BOOL(struct ckpt_config, keep_best, "keep_best", "false",
                "Save a checkpoint after each validation with the best loss so far, and keep that "
                "of the best one beside the latest"),
    CT_OPT_BOOL(struct ckpt_config, verify, "verify", "false",
                "Read each file back after writing it"),
    CT_OPT_ENUM(struct ckpt_config, on_error, "on_error", "stop", "stop|warn",
                "What to do when a checkpoint cannot be written: end the run (stop), or continue "
                "without it (warn)"),
    CT_OPT_INT(struct ckpt_config, rewinds, "rewinds", "3", 1, CKPT_REWINDS,
               "How many times the run may go back from a step that is not finite, or spikes"),
    {0}};

#define SAME_SIGNAL                                                                                \
    1.0 /* seconds: a cluster may signal a launcher's ranks as well as the launcher */

static volatile sig_atomic_t terminated; /* by SIGTERM */
static volatile double first_signal;     /* when */
static bool is_launched;                 /* the launcher kills after a second signal */
static bool catches;                     /* SIGTERM */
static struct sigaction former;          /* of SIGTERM; is called as well */

static void on_sigterm(int number)
{
    if (terminated && ct_now() - first_signal > SAME_SIGNAL && !is_launched) {
        signal(number, SIG_DFL);
        raise(number); /* when this returns */
        return;
    }
    if (!terminated)
        first_signal = ct_now();
    terminated = true;
    ct_outlet_hurry();
    /* Not one that is for a single signal, which would end the run as interrupted. */
    if (former.sa_handler != SIG_DFL && former.sa_handler != SIG_IGN &&
        !(former.sa_flags & (int)SA_RESETHAND))
        former.sa_handler(number);
}

static int parse_exclusions(void)
{
    static const char *const names[] = {"optimizer", "lr_scheduler", "dataloader"};
    bool *parts[] = {&ckpt_own.load.optimizer, &ckpt_own.load.lr, &ckpt_own.load.data};
    char *list = strdup(ckpt_config.exclude), *at = list, *word;
    int rc = list ? 0 : ct_fail(CT_ENOMEM, "a list");

    ckpt_own.load = (struct ckpt_load){true, true, true};
    while (rc == 0 && (word = strsep(&at, ", \t"))) {
        size_t i = 0;

        while (i < CT_COUNT(names) && strcmp(names[i], word) != 0)
            i++;
        if (i < CT_COUNT(names))
            *parts[i] = false;
        else if (*word)
            rc = ct_fail(CT_ECONFIG,
                         "[ckpt] exclude_from_loading: '%s' is none of optimizer, lr_scheduler, "
                         "dataloader%s",
                         word, ct_did_you_mean(word, names, CT_COUNT(names)));
    }
    free(list);
    if (rc == 0 && !ckpt_own.load.optimizer && ckpt_own.load.lr)
        rc = ct_fail(CT_ECONFIG, "[ckpt] exclude_from_loading: a new optimizer begins at step 1, "
                                 "so exclude lr_scheduler too");
    return rc;
}

static int check_config(void)
{
    const struct ct_option_use uses[] = {
        {"keep_every", ckpt_config.keep_latest_k, "all are kept: set keep_latest_k"},
        {"keep_best", ct_config.validation.freq, "set [validation] freq"},
        {0}};
    int rc = ct_options_check_use(options, &ckpt_config, "ckpt", uses);

    if (rc < 0)
        return rc;
    if (ckpt_config.keep_latest_k == 1)
        return ct_fail(CT_ECONFIG, "[ckpt] keep_latest_k = 1: a damaged checkpoint could then be "
                                   "the only one; expected 0 or at least 2");
    if (ckpt_config.export_dtype != CKPT_SAME && !ckpt_config.last_model_only)
        return ct_fail(
            CT_ECONFIG,
            "[ckpt] export_dtype applies to weights only: set last_save_model_only = true");
    return parse_exclusions();
}

static int make_ring(struct ct_run *run)
{
    struct ct_arena scratch = {0};
    struct ckpt_file file;
    size_t most = (size_t)ckpt_config.staging << 20;
    int rc = ckpt_plan(&scratch, run, run->rank, &(struct ckpt_what){false, -1}, &file, NULL);

    if (rc == 0) {
        most = file.bytes < most ? file.bytes : most;
        ckpt_own.ring.slot = CHUNK;
        ckpt_own.ring.slots = most / CHUNK + 2;
        rc = ct_run_staging(run, ckpt_own.ring.slots * CHUNK, (void **)&ckpt_own.ring.memory);
    }
    ct_arena_finish(&scratch);
    return rc;
}

static int make_nonce(struct ct_run *run)
{
    ckpt_own.nonce = (uint64_t)(1e6 * ct_wall_clock()) << 16 ^ (uint64_t)getpid();
    return ct_group_broadcast(ct_run_world(run), &ckpt_own.nonce, 1, CT_I64, 0);
}

/* The dump folder is locked for the whole run, and has files of others. */
static int check_folder(void)
{
    if (!ct_file_is_same(ckpt_own.folder, ct_config.job.dump_folder))
        return 0;
    return ct_fail(CT_ECONFIG,
                   "[ckpt] folder = %s is the dump folder itself: checkpoints need a folder of "
                   "their own, as in folder = checkpoint",
                   ckpt_config.folder);
}

static int take_own_folder(void)
{
    int rc = check_folder();

    if (rc < 0)
        return rc;
    rc = ckpt_folder_take(ckpt_own.folder);
    if (rc == CT_EPEER)
        return ct_fail(CT_ECONFIG,
                       "another running job saves its checkpoints in %s: give this run another "
                       "[ckpt] folder",
                       ckpt_own.folder);
    return rc == CT_ECONFIG ? ct_context(rc, "[ckpt] folder") : rc;
}

/* The keeper takes the folder; its failure is that of all. */
static int take_folder(struct ct_run *run)
{
    bool takes = ckpt_own.keeps && !ckpt_config.load_only;
    int mine = takes ? take_own_folder() : 0, sum;
    struct ct_error_kept kept;
    int32_t code, most = 0;

    kept = ct_error_keep();
    code = -mine;
    sum = ct_group_all_reduce(ct_run_world(run), &code, &most, 1, CT_I32, CT_REDUCE_MAX);
    if (sum < 0)
        return sum;
    if (mine < 0)
        return ct_error_restore(mine, &kept);
    return most > 0 ? ct_fail(-most, "another rank cannot use its folder of checkpoints") : 0;
}

/* Whether the command line names other weights than the run's own. */
static bool names_weights(const struct ct_run *run)
{
    return *ct_config.model.init_from && ct_recipe_overrides(run->recipe, "model", "init_from");
}

static int find_folder(const struct ct_run *run)
{
    int rc = check_config();

    if (rc < 0 || *ckpt_config.folder != '/')
        return rc < 0 ? rc : ct_run_path(run, ckpt_own.folder, "%s", ckpt_config.folder);
    snprintf(ckpt_own.folder, sizeof(ckpt_own.folder), "%s", ckpt_config.folder);
    return 0;
}

static int begin(struct ct_run *run)
{
    int rc = find_folder(run);

    return rc < 0 ? rc : ckpt_take_batch(run);
}

static int ready(struct ct_run *run)
{
    int rc = find_folder(run);

    ckpt_own.evaluates = !run->data;
    if (rc < 0)
        return rc;
    if (ckpt_own.evaluates) {
        ckpt_own.load = (struct ckpt_load){0};
        return names_weights(run) ? 0 : ckpt_resume(run);
    }
    rc = make_nonce(run);
    if (rc == 0)
        rc = ckpt_local_begin(run);
    if (rc == 0)
        rc = take_folder(run);
    if (rc == 0 && !ckpt_config.load_only && !ckpt_is_local(run))
        rc = ckpt_check_shared(run);
    if (rc == 0 && !ckpt_config.load_only)
        rc = make_ring(run);
    if (rc == 0)
        rc = ckpt_resume(run);
    return rc < 0 ? rc : ckpt_check_room(run);
}

/* A save is due after the last step. It begins with the next one, or at the end of the stage, when
   all that belongs to the last has happened, its validation too. */
static bool due;

/* Begin a save, if the disk has room for it. */
static int save(struct ct_run *run, bool aside, bool model_only, bool last)
{
    bool room;
    int rc = ckpt_has_room(run, model_only, last, &room);

    return rc == 0 && room ? ckpt_save_begin(run, aside, model_only) : rc;
}

static int begin_due(struct ct_run *run)
{
    bool any = terminated;
    int rc;

    if (!due)
        return 0;
    due = false;
    rc = ckpt_save_advance(run, true, &any);
    if (rc == 0)
        rc = save(run, ckpt_config.async_mode == ASYNC, false, false);
    return rc == 0 && ckpt_config.async_mode == DISABLED ? ckpt_save_advance(run, true, &any) : rc;
}

static int step_begin(struct ct_run *run)
{
    double begin = ct_now();
    int rc = begin_due(run);

    run->lost[CT_LOST_SAVE] += ct_now() - begin;

    is_launched = ct_launch_is_rank();
    if (!catches && !ckpt_config.load_only)
        catches = !sigaction(
            SIGTERM,
            &(struct sigaction){.sa_handler = on_sigterm, .sa_flags = SA_RESTART | SA_ONSTACK},
            &former);
    ckpt_skip_batches(run);
    return rc;
}

static int step_end(struct ct_run *run, const struct ct_step_result *r)
{
    bool any = terminated, saves = ckpt_save_is_running();
    double begin = ct_now();
    int rc;

    if (r->goes_back)
        return ckpt_rewind(run, r);
    if (ckpt_config.load_only)
        return 0;
    rc = ckpt_save_advance(run, false, &any);
    run->lost[CT_LOST_SAVE] += saves ? ct_now() - begin : 0;
    if (rc < 0)
        return rc;
    if (any && run->rank == 0)
        ct_info("SIGTERM: the run ends after step %lld, with a checkpoint", (long long)r->step);
    if (any) {
        run->stop_signal = SIGTERM;
        ct_run_stop(run, "SIGTERM");
    } else {
        due = r->step % ckpt_config.interval == 0 || (r->step == 1 && ckpt_config.first_step);
    }
    return 0;
}

/* Values that a save holds belong to the graphs of the stage, and the samples to its data: a save
   that is due begins and ends here. */
static int stage_end(struct ct_run *run)
{
    bool any = terminated;
    double begin = ct_now();
    int rc = begin_due(run);

    if (rc == 0)
        rc = ckpt_save_advance(run, true, &any);
    run->lost[CT_LOST_SAVE] += ct_now() - begin;
    return rc;
}

static void validated(const struct ct_event_data *data)
{
    due |= data->best && ckpt_config.keep_best && !ckpt_config.load_only;
}

static void tell_best(struct ct_run *run)
{
    if (ckpt_config.keep_best && run->best.step && run->rank == 0)
        ct_info("the best validation loss was %.5f, after step %lld: %s has these weights",
                run->best.loss, (long long)run->best.step,
                ckpt_step_path(&run->arena, ckpt_own.folder, run->best.step));
}

static void finish(struct ct_run *run)
{
    due = false;
    ckpt_save_finish();
    if (catches)
        sigaction(SIGTERM, &former, NULL);
    catches = false;
    if (ckpt_own.ring.memory)
        ct_run_staging_free(run, ckpt_own.ring.memory, ckpt_own.ring.slots * CHUNK);
    ckpt_folder_leave();
    ckpt_own.ring.memory = NULL;
}

static int run_end(struct ct_run *run)
{
    bool any = terminated, last = run->progress.step > ct_config.training.steps;
    int64_t step = run->progress.step - 1;
    double begin = ct_now();
    int rc = ckpt_save_advance(run, true, &any);

    if (rc == 0 && !ckpt_config.load_only && step > 0 && step != ckpt_own.saved) {
        rc = save(run, false, ckpt_config.last_model_only && last, true);
        if (rc == 0)
            rc = ckpt_save_advance(run, true, &any);
    }
    run->lost[CT_LOST_SAVE] += ct_now() - begin;
    if (rc == 0 && !ckpt_config.load_only) {
        run->saved = ckpt_own.saved;
        tell_best(run);
    }
    finish(run);
    return rc;
}

/* All ranks have failed, for the same reason, and can still agree. */
static bool fails_alike(const struct ct_event_data *data)
{
    const struct ct_step_result *r = data->result;

    return data->run->world == 1 ||
           (r && !r->skipped && !(isfinite(r->loss) && isfinite(r->grad_norm)));
}

/* Finishes the save that is under way, so that a failed run does not lose it. */
static void run_failed(const struct ct_event_data *data)
{
    bool any = terminated;

    if (ckpt_save_is_running() && fails_alike(data) && ckpt_save_advance(data->run, true, &any) < 0)
        ct_warn("%s", ct_error_message());
    finish(data->run);
}

/* In the process that supervises ranks: the newest checkpoint, if this host has the folder. */
static void job_end(const struct ct_job_end *job)
{
    struct ct_arena scratch = {0};
    int64_t *steps;
    size_t count;

    if (!ckpt_config.load_only && find_folder(NULL) == 0 &&
        ckpt_steps(&scratch, ckpt_own.folder, &steps, &count) == 0 && count &&
        *job->saved < steps[0])
        *job->saved = steps[0];
    ct_arena_finish(&scratch);
}

static int on_event(const struct ct_event_data *data, void *context)
{
    struct ct_run *run = data->run;

    (void)context;
    if (ckpt_config.enable && data->event == CT_EVENT_JOB_END)
        job_end(data->job);
    if (!ckpt_config.enable || !run)
        return 0;
    switch (data->event) {
    case CT_EVENT_RUN_OPEN:
        return begin(run);
    case CT_EVENT_PLAN_READY:
        ckpt_keep_skipped(run);
        ckpt_foresee(run);
        return 0;
    case CT_EVENT_RUN_LOAD:
        run->rewinds = true;
        return ready(run);
    case CT_EVENT_STEP_BEGIN:
        return step_begin(run);
    case CT_EVENT_STEP_END:
        return step_end(run, data->result);
    case CT_EVENT_STAGE_END:
        return stage_end(run);
    case CT_EVENT_VALIDATED:
        validated(data);
        return 0;
    case CT_EVENT_RUN_END:
        return run_end(run);
    default:
        run_failed(data);
        return 0;
    }
}

static const struct ct_hook hook = {.size = sizeof(struct ct_hook),
                                    .events = 1u << CT_EVENT_RUN_OPEN | 1u << CT_EVENT_PLAN_READY |
                                              1u << CT_EVENT_RUN_LOAD | 1u << CT_EVENT_STEP_BEGIN |
                                              1u << CT_EVENT_STEP_END | 1u << CT_EVENT_FAILURE |
                                              1u << CT_EVENT_VALIDATED | 1u << CT_EVENT_STAGE_END |
                                              1u << CT_EVENT_RUN_END | 1u << CT_EVENT_JOB_END,
                                    .call = on_event};

CT_PLUGIN(.name = "ckpt", .version = "1.0",
          .summary = "Checkpoints: saved while training goes on, loaded on any mesh",
          .options = options, .config = &ckpt_config, .config_size = sizeof(ckpt_config),
          .offers = CT_OFFERS({CT_HOOK, "rewind", &hook}, {CT_VERB, "ckpt", &ckpt_verb},
                              {CT_CHECKPOINTS, "ckpt", &ckpt_format}));
