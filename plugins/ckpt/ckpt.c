/*
 * When to save and to load.
 *
 * After every interval-th step the states are held, and a thread of each rank writes its file while
 * the next steps run (write.c). The ranks agree on how far they are after every step, together with
 * whether one of them got SIGTERM. When all files are on the disk, rank 0's thread writes the index
 * and gives the folder its name.
 */
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <ctitan/error.h>
#include <ctitan/lib/state.h>
#include <ctitan/log.h>
#include <ctitan/plugin.h>
#include <ctitan/lib/comm.h>
#include <ctitan/lib/file.h>
#include <ctitan/lib/hf.h>
#include <ctitan/lib/launch.h>
#include <ctitan/lib/train.h>

#include "ckpt.h"

#define REWINDS 64 /* most of [ckpt] rewinds */

static struct config {
    bool enable, load_only, first_step, last_model_only, initial_model_only, verify;
    const char *folder, *initial_load_path, *exclude, *export_dtype;
    int64_t interval, load_step, keep_latest_k, keep_every, staging, rewinds;
    unsigned async_mode, on_error;
} config;

enum { DISABLED, ASYNC };
enum { STOP, WARN };

static const struct ct_option options[] = {
    CT_OPT_BOOL(struct config, enable, "enable", "true", "Save and load checkpoints"),
    CT_OPT_STRING(
        struct config, folder, "folder", "checkpoint",
        "Folder of the checkpoints, relative to the dump folder unless it begins with '/'"),
    CT_OPT_INT(struct config, interval, "interval", "500", 1, 1e15,
               "Number of steps between two checkpoints; the last step is always saved"),
    CT_OPT_BOOL(struct config, first_step, "enable_first_step_checkpoint", "false",
                "Also save after step 1"),
    CT_OPT_BOOL(struct config, load_only, "load_only", "false", "Never save"),
    CT_OPT_INT(struct config, load_step, "load_step", "-1", -1, 1e15,
               "Step to resume from; checkpoints of later steps are renamed. -1: the newest "
               "undamaged checkpoint, which a job that was started again always takes"),
    CT_OPT_STRING(struct config, initial_load_path, "initial_load_path", "",
                  "Checkpoint, folder of checkpoints, or Hugging Face folder to start from, if the "
                  "run has no checkpoint of its own"),
    CT_OPT_BOOL(struct config, initial_model_only, "initial_load_model_only", "true",
                "Load only the weights of initial_load_path"),
    CT_OPT_STRING(struct config, exclude, "exclude_from_loading", "",
                  "Parts not to load, separated by commas: optimizer, lr_scheduler, dataloader"),
    CT_OPT_BOOL(struct config, last_model_only, "last_save_model_only", "false",
                "Save only the weights after the last step"),
    CT_OPT_CHOICE(struct config, export_dtype, "export_dtype", "same",
                  "same|float32|bfloat16|float16",
                  "Dtype of the weights that last_save_model_only saves"),
    CT_OPT_ENUM(struct config, async_mode, "async_mode", "async", "disabled|async",
                "async: write in the background while the next steps run"),
    CT_OPT_INT(struct config, staging, "staging", "256", 8, 1e9,
               "MiB of host memory per rank for copies that are not yet written; when it is full, "
               "the optimizer waits for the disk"),
    CT_OPT_INT(struct config, keep_latest_k, "keep_latest_k", "10", 0, 1e15,
               "Complete checkpoints to keep, at least 2; 0: all"),
    CT_OPT_INT(struct config, keep_every, "keep_every", "0", 0, 1e15,
               "Additionally keep checkpoints of steps that this divides; 0: none"),
    CT_OPT_BOOL(struct config, verify, "verify", "false", "Read each file back after writing it"),
    CT_OPT_ENUM(struct config, on_error, "on_error", "stop", "stop|warn",
                "What to do when a checkpoint cannot be written: end the run (stop), or continue "
                "without it (warn)"),
    CT_OPT_INT(struct config, rewinds, "rewinds", "3", 1, REWINDS,
               "How many times [training] non_finite = rewind may go back"),
    {0}};

static struct {
    char folder[CT_PATH_ROOM];
    uint64_t nonce; /* in temporary names; the same on all ranks */
    struct ckpt_load load;
    struct ckpt_ring ring;
    bool evaluates;       /* not trained: weights are read, and nothing is saved */
    int64_t saved;        /* last step of this run that has a complete checkpoint; -1: none */
    int64_t verified;     /* newest step that was read; -1: none */
    int64_t loaded;       /* step after which the run goes on */
    bool alone;           /* checkpoints of later steps that are not of this run were set aside */
    bool catches;         /* SIGTERM */
    int64_t first_sample; /* of the current step */
} now = {.saved = -1, .verified = -1};

/* The current save. */
static struct {
    enum { IDLE, WRITING, PUBLISHING } phase;
    bool aside;  /* in a thread */
    bool joined; /* the thread of this phase has ended, or there is none */
    struct ct_arena arena;
    const char *path, *temporary;
    struct ckpt_what what;
    struct ckpt_write write;
    struct ckpt_file *files; /* of all ranks; only rank 0 has those of others */
    struct ckpt index;       /* rank 0 */
    char *header;
    int64_t step;
    double begin, end;
    double loop, held; /* seconds that training waited: here; before it all, for held states */
    pthread_t thread;
    int rc; /* of this phase */
    char message[1024];
} save;

/* Batches that are skipped, by the number of their first sample. */
static struct skipped {
    int64_t count, sample[REWINDS];
    int64_t samples; /* of a batch */
} skipped;

static volatile sig_atomic_t told;
static struct sigaction catcher; /* SIGTERM's: told as well */

static void be_told(int number)
{
    told = number;
    /* Not one that is for a single signal, which would end the run as interrupted. */
    if (catcher.sa_handler != SIG_DFL && catcher.sa_handler != SIG_IGN &&
        !(catcher.sa_flags & (int)SA_RESETHAND))
        catcher.sa_handler(number);
}

/* ---- writing ---- */

static void keep_result(int rc)
{
    save.rc = rc;
    if (rc < 0) /* a thread has its own message */
        snprintf(save.message, sizeof(save.message), "%s", ct_error_message());
}

static int plan(struct ct_run *run, bool model_only)
{
    enum ct_dtype dtype;
    int rc = 0;

    save.what = (struct ckpt_what){.model_only = model_only, .dtype = -1};
    if (model_only && ct_dtype_parse(config.export_dtype, &dtype) == 0)
        save.what.dtype = (int)dtype;
    save.files = ct_arena_array(&save.arena, struct ckpt_file, run->world);
    if (run->rank == 0)
        rc = ckpt_describe(&save.arena, run, &save.what, &save.index);
    save.index.files = save.files;
    save.index.file_count = (size_t)run->world;
    return rc < 0 ? rc
                  : ckpt_plan(&save.arena, run, run->rank, &save.what, &save.files[run->rank],
                              &save.header);
}

/* Rank 0 lists the files of all ranks. */
static int plan_others(struct ct_run *run)
{
    int rc = 0;

    for (int64_t r = 1; rc == 0 && run->rank == 0 && r < run->world; r++)
        rc = ckpt_plan(&save.arena, run, r, &save.what, &save.files[r], NULL);
    return rc;
}

static void *write_file(void *context)
{
    struct ckpt c = {.path = save.temporary, .chunk = CHUNK};
    int rc = ct_file_make_folder(save.temporary);

    (void)context;
    if (rc == 0 && save.write.file->box_count)
        rc = ckpt_write(&save.write);
    else
        ckpt_release(&save.write);
    if (rc == 0 && config.verify && save.write.file->box_count)
        rc = ckpt_read_file(&c, save.write.file, NULL);
    if (rc == 0)
        rc = ckpt_sync_folder(save.temporary);
    if (rc == 0)
        rc = plan_others(save.write.run);
    keep_result(rc);
    return NULL;
}

/* Checkpoints of later steps than a run begins with would count as its newest. They make room for
   its first one; until then a run that is started again begins as it did. A damaged one is
   replaced, that of a former run is kept. */
static void stand_alone(void)
{
    if (!now.alone)
        ckpt_set_aside(now.folder, now.loaded, now.saved < 0 ? -1 : save.step);
    now.alone = true;
}

/* All files are on the disk. */
static void *publish(void *context)
{
    int rc = ckpt_index_write(&save.index, save.temporary);

    (void)context;
    if (rc == 0)
        stand_alone();
    if (rc == 0)
        rc = ckpt_publish(save.temporary, save.path);
    if (rc == 0)
        rc = ckpt_folder_note(true);
    keep_result(rc);
    if (rc < 0)
        return NULL;
    save.end = ct_now();
    if (config.verify)
        now.verified = save.step;
    ckpt_purge(now.folder,
               &(struct ckpt_retention){config.keep_latest_k, config.keep_every, now.verified});
    return NULL;
}

static int start(void *(*work)(void *))
{
    save.joined = true;
    if (!save.aside)
        work(NULL);
    else if (pthread_create(&save.thread, NULL, work, NULL))
        return ct_fail(CT_ENOMEM, "cannot create the thread that writes checkpoints");
    save.joined = !save.aside;
    return 0;
}

static bool ended(bool block)
{
    if (!save.joined)
        save.joined =
            (block ? pthread_join(save.thread, NULL) : pthread_tryjoin_np(save.thread, NULL)) == 0;
    return save.joined;
}

static void forget(void)
{
    free(save.header);
    ct_arena_finish(&save.arena);
    memset(&save, 0, sizeof(save));
}

static int begin_save(struct ct_run *run, bool aside, bool model_only)
{
    struct ckpt_file *file;
    int rc;

    save.step = run->progress.step - 1;
    save.begin = ct_now();
    save.held = ct_run_waited(run);
    save.aside = aside;
    save.path = ckpt_step_path(&save.arena, now.folder, save.step);
    save.temporary =
        ct_arena_printf(&save.arena, "%s.tmp-%016llx", save.path, (unsigned long long)now.nonce);
    rc = plan(run, model_only);
    if (rc < 0)
        return rc;
    file = &save.files[run->rank];
    save.write = (struct ckpt_write){
        .run = run,
        .file = file,
        .path = ct_arena_printf(&save.arena, "%s/%s", save.temporary, file->name),
        .header = save.header,
        .ring = now.ring,
        .hold = aside};
    for (size_t i = 0; aside && i < file->box_count; i++)
        ct_run_hold(run, file->boxes[i].state);
    save.phase = WRITING;
    rc = start(write_file);
    if (rc < 0)
        ckpt_release(&save.write);
    save.loop = ct_now() - save.begin;
    return rc;
}

/* ---- agreement ---- */

/* Rank 0 gets the hashes of all chunks. */
static int gather_hashes(struct ct_run *run)
{
    const struct ckpt_file *mine = &save.files[run->rank];
    int64_t own = (int64_t)ckpt_chunks(mine, CHUNK), most = 0;
    uint64_t *in, *out;
    int rc = ct_group_all_reduce(ct_run_world(run), &own, &most, 1, CT_I64, CT_REDUCE_MAX);

    if (rc < 0 || !most)
        return rc;
    in = ct_arena_array(&save.arena, uint64_t, most);
    out = ct_arena_array(&save.arena, uint64_t, most * run->world);
    memcpy(in, mine->hash, sizeof(*in) * (size_t)own);
    rc = ct_group_all_gather(ct_run_world(run), in, out, (size_t)most, CT_I64);
    for (int64_t r = 0; rc == 0 && run->rank == 0 && r < run->world; r++)
        memcpy(save.files[r].hash, out + r * most,
               sizeof(*out) * ckpt_chunks(&save.files[r], CHUNK));
    return rc;
}

static int fail(struct ct_run *run)
{
    bool mine = save.rc < 0;
    long long step = (long long)save.step;
    int rc = mine ? ct_fail(save.rc, "%s", save.message)
                  : ct_fail(CT_EPEER, "another rank could not write its part of it");

    if (run->rank == 0) {
        char message[1024];

        snprintf(message, sizeof(message), "%s", ct_error_message());
        ckpt_remove(save.temporary);
        ct_fail(rc, "%s", message);
    }
    forget();
    ct_context(rc, "the checkpoint of step %lld", step);
    if (config.on_error == STOP)
        return rc;
    if (mine)
        ct_warn("training continues without %s", ct_error_message());
    return 0;
}

/* All ranks have ended this phase. begin: when this rank began to wait for that. */
static int next_phase(struct ct_run *run, double begin)
{
    int rc = 0;

    if (save.phase == WRITING) {
        rc = gather_hashes(run);
        save.phase = PUBLISHING;
        if (rc == 0 && run->rank == 0)
            rc = start(publish);
    } else {
        now.saved = save.step;
        if (run->rank == 0)
            ct_info("saved %s in %.2f s; training waited %.3f s", save.path, save.end - save.begin,
                    save.loop + ct_now() - begin + ct_run_waited(run) - save.held);
        forget();
    }
    return rc;
}

/* Advance the current save; block: to its end. *any_told: whether a rank got SIGTERM. All ranks
   call this. */
static int advance(struct ct_run *run, bool block, bool *any_told)
{
    enum { DONE, FAILED, GOES_ON };
    double begin = ct_now();
    int rc = 0;

    do {
        bool over = save.phase == IDLE || ended(block);
        int32_t mine[2] = {!over ? GOES_ON : save.rc < 0 ? FAILED : DONE, told}, all[2];

        rc = ct_group_all_reduce(ct_run_world(run), mine, all, 2, CT_I32, CT_REDUCE_MAX);
        if (rc < 0)
            return rc;
        *any_told = all[1] != 0;
        if (save.phase == IDLE)
            return 0;
        if (all[0] == FAILED)
            return fail(run);
        if (all[0] == DONE)
            rc = next_phase(run, begin);
    } while (rc == 0 && block && save.phase != IDLE);
    save.loop += ct_now() - begin;
    return rc;
}

/* ---- loading ---- */

/* Agree on a result: a damaged checkpoint is one on all ranks. 1: it is good; 0: it is not. */
static int agree(struct ct_run *run, int rc, const char *path)
{
    enum { GOOD, DAMAGED, OTHER };
    int32_t mine = rc == 0 ? GOOD : rc == CT_EIO || rc == CT_ENOENT ? DAMAGED : OTHER, all;
    char message[1024];
    int sum;

    snprintf(message, sizeof(message), "%s", ct_error_message());
    sum = ct_group_all_reduce(ct_run_world(run), &mine, &all, 1, CT_I32, CT_REDUCE_MAX);
    if (sum < 0)
        return sum;
    if (mine == DAMAGED)
        ct_warn("%s is damaged and is not loaded: %s", path, message);
    if (all == OTHER)
        return mine == OTHER ? ct_fail(rc, "%s", message)
                             : ct_fail(CT_EPEER, "another rank could not load %s", path);
    return all == GOOD;
}

/* What was left out. */
static const char *left_out(const struct ckpt_load *what)
{
    static char text[64];

    snprintf(text, sizeof(text), "%s%s%s", what->optimizer ? "" : ", without optimizer",
             what->lr ? "" : ", without lr_scheduler", what->data ? "" : ", without dataloader");
    return what->optimizer || what->lr || what->data ? text : ", only weights";
}

/* The list of batches to skip, as a checkpoint has it. */
static int check_skipped(const char *path)
{
    if (skipped.count >= 0 && skipped.count <= REWINDS && (!skipped.count || skipped.samples > 0))
        return 0;
    skipped = (struct skipped){0};
    return ct_fail(CT_EIO, "%s: its list of skipped batches makes no sense", path);
}

/* Load one checkpoint. 1: it was good; 0: it was not. */
static int load(struct ct_run *run, const char *path, struct ckpt_load what)
{
    struct ct_arena scratch = {0};
    struct ckpt c;
    double begin = ct_now();
    int rc = ckpt_open(&scratch, path, &c);

    /* Before the first step and after the last only the weights are of use. */
    if (rc == 0 && c.model_only &&
        (c.progress.step == 1 || c.progress.step > ct_config.training.steps))
        what.optimizer = false;
    if (rc == 0)
        rc = ckpt_load(run, &c, &what);
    if (rc == 0)
        rc = check_skipped(path);
    rc = agree(run, rc, path);
    if (rc == 1 && run->rank == 0) {
        ct_info("loaded %s (%s) in %.2f s%s", path, c.mesh, ct_now() - begin, left_out(&what));
        if (what.lr)
            ckpt_tell_changes(&c, run);
    }
    ct_arena_finish(&scratch);
    return rc;
}

static int none_good(size_t count)
{
    return ct_fail(CT_EIO,
                   "none of the %zu checkpoints in %s is undamaged; set another [ckpt] folder to "
                   "start a new run",
                   count, now.folder);
}

static int not_there(int64_t step)
{
    struct ct_arena scratch = {0};
    int64_t *steps;
    size_t count = ckpt_steps(&scratch, now.folder, &steps);
    int rc = ct_fail(CT_ECONFIG,
                     "[ckpt] load_step: no undamaged checkpoint of step %lld in %s, which has: %s",
                     (long long)step, now.folder, ckpt_steps_text(&scratch, steps, count));

    ct_arena_finish(&scratch);
    return rc;
}

/* Load the newest good checkpoint of the run's own folder, of steps `first` to `last`. 0: there is
   none; *tried: those that are damaged. Rank 0 lists them. */
static int load_between(struct ct_run *run, int64_t first, int64_t last,
                        const struct ckpt_load *what, size_t *tried)
{
    struct ct_arena scratch = {0};
    int64_t *steps = NULL, step = -1, count = 0;
    int rc = 0;

    *tried = 0;
    if (run->rank == 0)
        count = (int64_t)ckpt_steps(&scratch, now.folder, &steps);
    rc = ct_group_broadcast(ct_run_world(run), &count, 1, CT_I64, 0);
    for (int64_t i = 0; rc == 0 && i < count; i++) {
        step = steps ? steps[i] : 0;
        rc = ct_group_broadcast(ct_run_world(run), &step, 1, CT_I64, 0);
        if (rc < 0 || step < first || step > last)
            continue;
        rc = load(run, ckpt_step_path(&scratch, now.folder, step), *what);
        ++*tried;
    }
    ct_arena_finish(&scratch);
    if (rc != 1)
        return rc;
    now.alone = false;
    now.loaded = run->progress.step - 1;
    if (what->lr)
        now.saved = now.verified = step;
    return 1;
}

/* The newest one up to step `last`; 0: there is none at all. */
static int load_newest(struct ct_run *run, int64_t last, const struct ckpt_load *what)
{
    size_t tried;
    int rc = load_between(run, 0, last, what, &tried);

    return rc == 0 && tried ? none_good(tried) : rc;
}

/* That of [ckpt] load_step; those of later steps make room for the ones that follow. */
static int load_wanted(struct ct_run *run)
{
    int64_t step = config.load_step;
    size_t tried;
    int rc = load_between(run, step, step, &now.load, &tried);

    if (rc == 1 && now.load.lr && run->rank == 0 && !config.load_only && !now.evaluates)
        ckpt_set_aside(now.folder, step, step);
    return rc == 0 ? not_there(step) : rc;
}

/* Begin with other weights, or with another run's checkpoint. */
static int load_initial(struct ct_run *run)
{
    struct ckpt_load what = now.load;
    struct ct_arena scratch = {0};
    const char *path = config.initial_load_path;
    struct ckpt c;
    bool hf;
    int rc;

    if (config.initial_model_only)
        what = (struct ckpt_load){0};
    hf = !access(ct_arena_printf(&scratch, "%s/config.json", path), F_OK);
    rc = hf ? ct_hf_load(run, path) : ckpt_locate(&scratch, path, &c);
    if (rc < 0)
        rc = ct_context(CT_ECONFIG, "[ckpt] initial_load_path");
    rc = agree(run, rc, path);
    if (rc == 1 && hf && run->rank == 0)
        ct_info("loaded %s, only weights", path);
    if (rc == 1 && !hf)
        rc = load(run, c.path, what);
    ct_arena_finish(&scratch);
    return rc == 0 ? ct_fail(CT_ECONFIG, "[ckpt] initial_load_path = %s cannot be loaded", path)
                   : rc;
}

/* Whether this job was started again, and had saved. The same on all ranks. */
static int goes_on(struct ct_run *run, bool *again)
{
    struct ct_identity identity;
    bool restarted = ct_launch_identify(&identity) == 0 && identity.restart;
    int32_t saved = run->rank == 0 && restarted && ckpt_folder_saved();
    int rc = ct_group_broadcast(ct_run_world(run), &saved, 1, CT_I32, 0);

    *again = saved;
    return rc == 0 && run->rank == 0 && !saved ? ckpt_folder_note(false) : rc;
}

/* A job that is started again goes on from what it saved, whatever it began with. */
static int resume(struct ct_run *run)
{
    bool again = false;
    int rc = config.load_only || now.evaluates ? 0 : goes_on(run, &again);

    if (rc < 0)
        return rc;
    if (again)
        rc = load_newest(run, INT64_MAX, &(struct ckpt_load){true, true, true});
    else if (config.load_step >= 0)
        rc = load_wanted(run);
    else
        rc = load_newest(run, INT64_MAX, &now.load);
    if (rc == 0 && *config.initial_load_path)
        rc = load_initial(run);
    return rc < 0 ? rc : 0;
}

/* ---- going back ---- */

static bool is_skipped(int64_t sample)
{
    for (int64_t i = 0; i < skipped.count; i++)
        if (skipped.sample[i] == sample)
            return true;
    return false;
}

/* If the step would read a batch that is to be skipped, it reads the next one. */
static void skip_batches(struct ct_run *run)
{
    for (int64_t i = 0; i < skipped.count && is_skipped(run->progress.samples); i++)
        run->progress.samples += skipped.samples;
    now.first_sample = run->progress.samples;
}

static int rewind_run(struct ct_run *run, int64_t step)
{
    struct skipped before = skipped; /* loading restores an older list */
    int64_t first = now.first_sample;
    bool any_told;
    int rc = advance(run, true, &any_told);

    if (rc < 0)
        return rc;
    if (skipped.count >= config.rewinds)
        return ct_fail(CT_EINVAL, "step %lld is not finite, after %lld rewinds ([ckpt] rewinds)",
                       (long long)step, (long long)skipped.count);
    before.samples = run->progress.samples - first;
    rc = load_newest(run, now.saved, &(struct ckpt_load){true, true, true});
    if (rc == 0)
        rc = ct_fail(CT_EINVAL,
                     "step %lld is not finite, and there is no checkpoint yet to go "
                     "back to",
                     (long long)step);
    if (rc < 0)
        return rc;
    skipped = before;
    skipped.sample[skipped.count++] = first;
    if (run->rank == 0)
        ct_warn("step %lld was not finite: the run goes back to step %lld, and will skip the "
                "batch of samples %lld to %lld (rewind %lld of %lld)",
                (long long)step, (long long)run->progress.step - 1, (long long)first,
                (long long)(first + skipped.samples - 1), (long long)skipped.count,
                (long long)config.rewinds);
    return 0;
}

/* ---- events ---- */

static int parse_exclusions(void)
{
    static const char *const names[] = {"optimizer", "lr_scheduler", "dataloader"};
    bool *parts[] = {&now.load.optimizer, &now.load.lr, &now.load.data};
    char *list = strdup(config.exclude), *at = list, *word;
    int rc = list ? 0 : ct_fail(CT_ENOMEM, "a list");

    now.load = (struct ckpt_load){true, true, true};
    while (rc == 0 && (word = strsep(&at, ", \t"))) {
        size_t i = 0;

        while (i < CT_COUNT(names) && strcmp(names[i], word) != 0)
            i++;
        if (i < CT_COUNT(names))
            *parts[i] = false;
        else if (*word)
            rc = ct_fail(CT_ECONFIG,
                         "[ckpt] exclude_from_loading: '%s' is none of optimizer, lr_scheduler, "
                         "dataloader",
                         word);
    }
    free(list);
    if (rc == 0 && !now.load.optimizer && now.load.lr)
        rc = ct_fail(CT_ECONFIG, "[ckpt] exclude_from_loading: a new optimizer begins at step 1, "
                                 "so exclude lr_scheduler too");
    return rc;
}

static int check_config(void)
{
    if (config.keep_latest_k == 1)
        return ct_fail(CT_ECONFIG, "[ckpt] keep_latest_k = 1: a damaged checkpoint could then be "
                                   "the only one; expected 0 or at least 2");
    if (strcmp(config.export_dtype, "same") != 0 && !config.last_model_only)
        return ct_fail(
            CT_ECONFIG,
            "[ckpt] export_dtype applies to weights only: set last_save_model_only = true");
    return parse_exclusions();
}

static int make_ring(struct ct_run *run)
{
    struct ct_arena scratch = {0};
    struct ckpt_file file;
    size_t most = (size_t)config.staging << 20;
    int rc = ckpt_plan(&scratch, run, run->rank, &(struct ckpt_what){false, -1}, &file, NULL);

    if (rc == 0) {
        most = file.bytes < most ? file.bytes : most;
        now.ring.slot = CHUNK;
        now.ring.slots = most / CHUNK + 2;
        rc = ct_run_staging(run, now.ring.slots * CHUNK, (void **)&now.ring.memory);
    }
    ct_arena_finish(&scratch);
    return rc;
}

static int make_nonce(struct ct_run *run)
{
    struct timespec t;

    clock_gettime(CLOCK_REALTIME, &t);
    now.nonce = (uint64_t)t.tv_sec << 32 ^ (uint64_t)t.tv_nsec << 16 ^ (uint64_t)getpid();
    return ct_group_broadcast(ct_run_world(run), &now.nonce, 1, CT_I64, 0);
}

/* The dump folder is locked for the whole run, and has files of others. */
static int check_folder(void)
{
    struct stat own, dump;

    if (stat(now.folder, &own) < 0 || stat(ct_config.job.dump_folder, &dump) < 0 ||
        own.st_dev != dump.st_dev || own.st_ino != dump.st_ino)
        return 0;
    return ct_fail(CT_ECONFIG,
                   "[ckpt] folder = %s is the dump folder itself: checkpoints need a folder of "
                   "their own, as in folder = checkpoint",
                   config.folder);
}

/* Rank 0 takes the folder; its failure is that of all. */
static int take_folder(struct ct_run *run)
{
    int32_t rc = 0;
    int mine = run->rank == 0 && !config.load_only ? check_folder() : 0, sum;
    char message[1024];

    if (mine == 0 && run->rank == 0 && !config.load_only)
        mine = ckpt_folder_take(now.folder);
    snprintf(message, sizeof(message), "%s", ct_error_message());
    rc = mine;
    sum = ct_group_broadcast(ct_run_world(run), &rc, 1, CT_I32, 0);
    if (sum < 0)
        return sum;
    if (mine < 0)
        return ct_fail(mine, "%s", message);
    return rc < 0 ? ct_fail(rc, "rank 0 cannot use the folder of checkpoints") : 0;
}

static int ready(struct ct_run *run)
{
    int rc = check_config();

    now.evaluates = !run->data;
    if (rc == 0 && *config.folder == '/')
        snprintf(now.folder, sizeof(now.folder), "%s", config.folder);
    else if (rc == 0)
        rc = ct_run_path(run, now.folder, "%s", config.folder);
    if (rc < 0)
        return rc;
    if (now.evaluates) {
        now.load = (struct ckpt_load){0};
        return resume(run);
    }
    rc = take_folder(run);
    if (rc == 0)
        rc = make_nonce(run);
    if (rc == 0 && !config.load_only)
        rc = make_ring(run);
    return rc < 0 ? rc : resume(run);
}

static void step_begin(struct ct_run *run)
{
    if (!now.catches && !config.load_only)
        sigaction(SIGTERM, &(struct sigaction){.sa_handler = be_told, .sa_flags = SA_RESTART},
                  &catcher);
    now.catches = true;
    skip_batches(run);
}

static int step_end(struct ct_run *run, const struct ct_step_result *r)
{
    bool last = r->step == ct_config.training.steps, any_told = false;
    bool due = r->step % config.interval == 0 || (r->step == 1 && config.first_step);
    int rc;

    if (r->skipped && !strcmp(ct_config.training.non_finite, "rewind"))
        return rewind_run(run, r->step);
    if (config.load_only)
        return 0;
    rc = advance(run, due && !last, &any_told);
    if (rc < 0)
        return rc;
    if (any_told && run->rank == 0)
        ct_info("SIGTERM: the run ends after step %lld, with a checkpoint", (long long)r->step);
    if (any_told)
        ct_run_stop(run, "SIGTERM");
    else if (due && !last)
        rc = begin_save(run, config.async_mode == ASYNC, false);
    return rc == 0 && config.async_mode == DISABLED ? advance(run, true, &any_told) : rc;
}

static void finish(struct ct_run *run)
{
    if (save.phase != IDLE)
        ended(true);
    forget();
    if (now.catches)
        signal(SIGTERM, SIG_DFL);
    if (now.ring.memory)
        ct_run_staging_free(run, now.ring.memory, now.ring.slots * CHUNK);
    ckpt_folder_leave();
    now.ring.memory = NULL;
}

static int run_end(struct ct_run *run)
{
    bool any_told, last = run->progress.step > ct_config.training.steps;
    int64_t step = run->progress.step - 1;
    int rc = advance(run, true, &any_told);

    if (rc == 0 && !config.load_only && step > 0 && step != now.saved) {
        rc = begin_save(run, false, config.last_model_only && last);
        if (rc == 0)
            rc = advance(run, true, &any_told);
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

/* What the run has reached by the last save is not lost. */
static void run_failed(const struct ct_event_data *data)
{
    bool any_told;

    if (save.phase != IDLE && fails_alike(data) && advance(data->run, true, &any_told) < 0)
        ct_warn("%s", ct_error_message());
    finish(data->run);
}

static int hear(const struct ct_event_data *data, void *context)
{
    struct ct_run *run = data->run;

    (void)context;
    if (!config.enable || !run)
        return 0;
    switch (data->event) {
    case CT_EVENT_PLAN_READY:
        ct_run_keep(run, "ckpt.skipped", &skipped, sizeof(skipped));
        return 0;
    case CT_EVENT_RUN_READY:
        ct_run_rewinds(run);
        return ready(run);
    case CT_EVENT_STEP_BEGIN:
        step_begin(run);
        return 0;
    case CT_EVENT_STEP_END:
        return step_end(run, data->result);
    case CT_EVENT_RUN_END:
        return run_end(run);
    default:
        run_failed(data);
        return 0;
    }
}

static const struct ct_hook hook = {.size = sizeof(struct ct_hook),
                                    .events = 1u << CT_EVENT_PLAN_READY | 1u << CT_EVENT_RUN_READY |
                                              1u << CT_EVENT_STEP_BEGIN | 1u << CT_EVENT_STEP_END |
                                              1u << CT_EVENT_FAILURE | 1u << CT_EVENT_RUN_END,
                                    .call = hear};

static const struct ct_verb_ops verb = {
    .size = sizeof(struct ct_verb_ops),
    .summary = "list, verify, show and compare checkpoints",
    .usage = "ls FOLDER | verify FOLDER | show FOLDER | diff FOLDER FOLDER",
    .run = ckpt_verb};

static const struct ct_verb_ops export_verb = {
    .size = sizeof(struct ct_verb_ops),
    .summary = "write a checkpoint's weights as a Hugging Face folder",
    .usage = "CHECKPOINT HF_FOLDER [--dtype float32|bfloat16|float16] [--max-shard-size GB] "
             "[--state PREFIX]",
    .run = ckpt_export};

static const struct ct_verb_ops import_verb = {
    .size = sizeof(struct ct_verb_ops),
    .summary = "write a Hugging Face folder's weights as a checkpoint to start from",
    .usage = "HF_FOLDER CHECKPOINTS",
    .run = ckpt_import};

CT_PLUGIN(.name = "ckpt", .version = "1.0",
          .summary = "Checkpoints: saved while training goes on, loaded on any mesh",
          .options = options, .config = &config, .config_size = sizeof(config),
          .offers = CT_OFFERS({CT_HOOK, "ckpt", &hook}, {CT_VERB, "ckpt", &verb},
                              {CT_VERB, "export", &export_verb},
                              {CT_VERB, "import", &import_verb}));
