/*
 * Where a run begins, and where it goes back to: the checkpoint of its own folder, or the one that
 * the recipe names, and the batches that are skipped after going back.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <ctitan/clock.h>
#include <ctitan/comm.h>
#include <ctitan/config.h>
#include <ctitan/error.h>
#include <ctitan/model.h>
#include <ctitan/lib/launch.h>
#include <ctitan/log.h>

#include "ckpt.h"

/* Batches that are skipped, by the number of their first sample in the data of a stage. */
static struct skipped {
    int64_t count;
    struct {
        int64_t first, samples, since; /* since: the first step of the stage, run->samples_since */
    } batch[CKPT_REWINDS];
} skipped;

static int64_t first_sample; /* of the current step */

/* ---- loading ---- */

/* Agree on a result: a damaged checkpoint is one on all ranks. 1: it is good; 0: it is not. */
static int agree(struct ct_run *run, int rc, const char *path)
{
    enum { GOOD, DAMAGED, OTHER };
    int32_t mine = rc == 0 ? GOOD : ckpt_is_bad(rc) ? DAMAGED : OTHER, all;
    struct ct_error_kept kept = ct_error_keep();
    int sum = ct_group_all_reduce(ct_run_world(run), &mine, &all, 1, CT_I32, CT_REDUCE_MAX);

    if (sum < 0)
        return sum;
    if (mine == DAMAGED)
        ct_warn("%s is damaged and is not loaded: %s", path, kept.message);
    if (all == OTHER)
        return mine == OTHER ? ct_error_restore(rc, &kept)
                             : ct_fail(CT_EPEER, "another rank could not load %s", path);
    return all == GOOD;
}

/* Names the states that a load left out. */
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
    bool good = skipped.count >= 0 && skipped.count <= CKPT_REWINDS;

    for (int64_t i = 0; good && i < skipped.count; i++)
        good = skipped.batch[i].samples > 0;
    if (good)
        return 0;
    skipped = (struct skipped){0};
    return ct_fail(CT_EDAMAGED, "%s: its list of skipped batches makes no sense", path);
}

/* Load one checkpoint. 1: it was good; 0: it was not. */
static int load(struct ct_run *run, const char *path, struct ckpt_load what)
{
    const struct ct_weights_ops *weights = run->model_ops->weights;
    struct ct_arena scratch = {0};
    struct ckpt c;
    double begin = ct_now();
    int rc = ckpt_is_local(run) ? ckpt_local_open(run, &scratch, path, &c)
                                : ckpt_open(&scratch, path, &c);

    /* Before the first step and after the last only the weights are of use. */
    if (rc == 0 && c.model_only &&
        (c.progress.step == 1 || c.progress.step > ct_config.training.steps))
        what.optimizer = false;
    if (rc == 0)
        rc = ckpt_load(run, &c, &what);
    if (rc == 0)
        rc = check_skipped(path);
    if (rc == CT_EIO)
        ct_context(rc, "%s cannot be read, and may be good; to go on without it, rename it", path);
    rc = agree(run, rc, path);
    if (rc == 1 && run->rank == 0 && c.beside.count && weights && weights->take_small_files &&
        weights->take_small_files(ct_arena_printf(&scratch, "%s/" CKPT_BESIDE, path)) < 0)
        ct_warn("models that are saved lack a tokenizer: %s", ct_error_message());
    if (rc == 1)
        ct_weights_note(path);
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
                   count, ckpt_own.folder);
}

static int not_there(int64_t step)
{
    struct ct_arena scratch = {0};
    int64_t *steps;
    size_t count;
    int rc = ckpt_steps(&scratch, ckpt_own.folder, &steps, &count);

    if (rc == 0)
        rc = ct_fail(CT_ECONFIG,
                     "[ckpt] load_step: no undamaged checkpoint of step %lld in %s, which has: %s",
                     (long long)step, ckpt_own.folder, ckpt_steps_text(&scratch, steps, count));
    ct_arena_finish(&scratch);
    return rc;
}

/* The newest of the listed steps, on any rank, up to `last`; -1: there is none. */
static int find_step(struct ct_run *run, const int64_t *steps, size_t count, int64_t last,
                     int64_t *step)
{
    int64_t mine = -1;

    for (size_t i = 0; mine < 0 && i < count; i++) /* the newest first */
        mine = steps[i] <= last ? steps[i] : -1;
    return ct_group_all_reduce(ct_run_world(run), &mine, step, 1, CT_I64, CT_REDUCE_MAX);
}

/* Load the newest good checkpoint of the run's own folder, of steps `first` to `last`. 0: there is
   none; *tried: those that are damaged. Rank 0 lists them, or each rank, if files are local. */
static int load_between(struct ct_run *run, int64_t first, int64_t last,
                        const struct ckpt_load *what, size_t *tried)
{
    struct ct_arena scratch = {0};
    int64_t *steps = NULL, step = -1;
    size_t found = 0;
    int rc = 0;

    *tried = 0;
    if (run->rank == 0 || ckpt_is_local(run))
        rc = ckpt_steps(&scratch, ckpt_own.folder, &steps, &found);
    rc = ct_group_agree(ct_run_world(run), rc);
    while (rc == 0) {
        rc = find_step(run, steps, found, last, &step);
        if (rc < 0 || step < first)
            break;
        rc = load(run, ckpt_step_path(&scratch, ckpt_own.folder, step), *what);
        last = step - 1;
        ++*tried;
    }
    ct_arena_finish(&scratch);
    if (rc != 1)
        return rc;
    ckpt_own.alone = false;
    ckpt_own.loaded = run->progress.step - 1;
    if (what->lr)
        ckpt_own.saved = ckpt_own.verified = step;
    return 1;
}

/* The newest one up to step `last`; 0: there is none at all. */
static int load_newest(struct ct_run *run, int64_t last, const struct ckpt_load *what)
{
    size_t tried;
    int rc = load_between(run, 0, last, what, &tried);

    return rc == 0 && tried ? none_good(tried) : rc;
}

/* Loads the checkpoint of [ckpt] load_step; those of later steps make room for the ones that
   follow. */
static int load_wanted(struct ct_run *run)
{
    int64_t step = ckpt_config.load_step;
    size_t tried;
    int rc = load_between(run, step, step, &ckpt_own.load, &tried);

    if (rc == 1 && ckpt_own.load.lr && ckpt_own.keeps && !ckpt_config.load_only &&
        !ckpt_own.evaluates)
        ckpt_set_aside(ckpt_own.folder, step, step);
    return rc == 0 ? not_there(step) : rc;
}

/* Whether a folder is one of weights in files, as there is no checkpoint in it. */
static bool has_weights(struct ct_arena *scratch, const char *path)
{
    int64_t *steps;
    size_t count;

    return !access(path, F_OK) && access(ct_arena_printf(scratch, "%s/" INDEX, path), F_OK) &&
           ckpt_steps(scratch, ckpt_folder_of(scratch, path), &steps, &count) == 0 && !count;
}

static int fail_weights(int rc, const char *folder)
{
    return ct_context(rc, "there is no checkpoint in %s, and no weights that can be loaded",
                      folder);
}

/* Let all ranks compare what their model reads of the folder. */
static int compare_weights(struct ct_run *run, const char *folder)
{
    struct ct_error_kept kept = {0};
    char *text = NULL;
    size_t size;
    FILE *out = open_memstream(&text, &size);
    int own = out ? run->model_ops->weights->identify(folder, out)
                  : ct_fail(CT_ENOMEM, "lines about %s", folder),
        rc;

    if (out && fclose(out) && own == 0)
        own = ct_fail(CT_ENOMEM, "lines about %s", folder);
    if (own < 0) {
        fail_weights(own, folder);
        kept = ct_error_keep();
    }
    rc = ct_run_compare(run, own == 0 ? text : "reads nothing\n");
    free(text);
    return own < 0 ? ct_error_restore(own, &kept) : rc;
}

/* Before anything is read of the path. */
static int check_initial(struct ct_run *run, const char *path, bool weights)
{
    const char *text = weights ? "reads [ckpt] initial_load_path: a folder of weights\n"
                               : "reads [ckpt] initial_load_path: no folder of weights\n";
    int rc = 0;

    if (run->world > 1)
        rc = weights && run->model_ops->weights ? compare_weights(run, path)
                                                : ct_run_compare(run, text);
    if (rc == 0 && weights && !run->model_ops->weights)
        rc = ct_fail(CT_ECONFIG, "%s has no checkpoint, and the model %s has no format of weights",
                     path, ct_config.model.name);
    return rc;
}

/* A folder that is still being written, or that hosts see at different times, has other newest
   checkpoints on other ranks. */
static int locate_alike(struct ct_run *run, struct ct_arena *arena, const char *path,
                        struct ckpt *c)
{
    int located = ckpt_locate(arena, path, c), rc;
    struct ct_error_kept kept = ct_error_keep();
    int64_t mine[] = {INT64_MIN, INT64_MIN}, most[2];

    if (located == 0) {
        mine[0] = c->progress.step;
        mine[1] = -c->progress.step;
    }
    rc = ct_group_all_reduce(ct_run_world(run), mine, most, 2, CT_I64, CT_REDUCE_MAX);
    if (rc < 0)
        return rc;
    if (located < 0)
        return ct_error_restore(located, &kept);
    return most[0] == -most[1]
               ? 0
               : ct_fail(CT_EPEER,
                         "%s: its newest checkpoint is that of step %lld on this rank, and "
                         "of step %lld on another: give the folder of one step",
                         path, (long long)c->progress.step - 1,
                         (long long)(most[0] != c->progress.step ? most[0] : -most[1]) - 1);
}

/* Begin with other weights, or with another run's checkpoint. */
static int load_initial(struct ct_run *run)
{
    struct ckpt_load what = ckpt_own.load;
    struct ct_arena scratch = {0};
    const char *path = ckpt_config.initial_load_path;
    bool weights = has_weights(&scratch, path);
    int rc = check_initial(run, path, weights);
    struct ckpt c;

    if (ckpt_config.initial_model_only)
        what = (struct ckpt_load){.lacking = true};
    if (rc < 0) {
        rc = ct_context(rc, "[ckpt] initial_load_path");
        goto out;
    }
    rc = weights ? run->model_ops->weights->load(run, path) : locate_alike(run, &scratch, path, &c);
    if (rc < 0 && weights)
        fail_weights(rc, path);
    if (rc < 0)
        rc = ct_context(CT_ECONFIG, "[ckpt] initial_load_path");
    rc = agree(run, rc, path);
    if (rc == 1 && weights && run->rank == 0)
        ct_info("loaded %s, only weights", path);
    if (rc == 1 && !weights)
        rc = load(run, c.path, what);
out:
    ct_arena_finish(&scratch);
    return rc == 0 ? ct_fail(CT_ECONFIG, "[ckpt] initial_load_path = %s cannot be loaded", path)
                   : rc;
}

/* Whether this job was started again, and had saved. The same on all ranks. */
static int goes_on(struct ct_run *run, bool *again)
{
    int32_t saved = ct_launch_is_restarted() && ckpt_folder_saved(), any = 0;
    int rc = ct_group_all_reduce(ct_run_world(run), &saved, &any, 1, CT_I32, CT_REDUCE_MAX);

    *again = any;
    return rc == 0 && !any ? ckpt_folder_note(false) : rc;
}

int ckpt_resume(struct ct_run *run)
{
    bool again = false;
    int rc = ckpt_config.load_only || ckpt_own.evaluates ? 0 : goes_on(run, &again);

    if (rc < 0)
        return rc;
    if (again)
        rc = load_newest(run, INT64_MAX, &(struct ckpt_load){true, true, true});
    else if (ckpt_config.load_step >= 0)
        rc = load_wanted(run);
    else
        rc = load_newest(run, INT64_MAX, &ckpt_own.load);
    if (rc == 0 && *ckpt_config.initial_load_path && !(ckpt_own.evaluates && *ct_weights_noted()))
        rc = load_initial(run);
    return rc < 0 ? rc : 0;
}

/* ---- going back ---- */

/* Samples to skip at a position; 0: none. */
static int64_t skipped_at(const struct ct_run *run, int64_t sample)
{
    for (int64_t i = 0; i < skipped.count; i++)
        if (skipped.batch[i].first == sample && skipped.batch[i].since == run->samples_since)
            return skipped.batch[i].samples;
    return 0;
}

void ckpt_skip_batches(struct ct_run *run)
{
    for (int64_t i = 0; i < skipped.count; i++)
        run->progress.samples += skipped_at(run, run->progress.samples);
    first_sample = run->progress.samples;
}

int ckpt_rewind(struct ct_run *run, const struct ct_step_result *r)
{
    bool finite = isfinite(r->loss) && isfinite(r->grad_norm);
    const char *is = finite ? "spiked" : "was not finite";
    long long step = (long long)r->step;
    struct skipped before = skipped; /* loading restores an older list */
    int64_t first = first_sample, samples = run->progress.samples - first;
    int64_t since = run->samples_since;
    bool terminated = false;
    int rc = ckpt_save_advance(run, true, &terminated);

    if (rc < 0)
        return rc;
    if (skipped.count >= ckpt_config.rewinds)
        return ct_fail(CT_EINVAL, "step %lld %s, after %lld rewinds ([ckpt] rewinds)", step, is,
                       (long long)skipped.count);
    rc = load_newest(run, ckpt_own.saved, &(struct ckpt_load){true, true, true});
    if (rc == 0)
        rc = ct_fail(CT_EINVAL, "step %lld %s, and there is no checkpoint yet to go back to", step,
                     is);
    if (rc < 0)
        return rc;
    skipped = before;
    skipped.batch[skipped.count].first = first;
    skipped.batch[skipped.count].samples = samples;
    skipped.batch[skipped.count++].since = since;
    return ct_run_note(run, r->step, "rewind",
                       "step %lld %s: the run goes back to step %lld, and will skip the batch of "
                       "samples %lld to %lld (rewind %lld of %lld)",
                       step, is, (long long)run->progress.step - 1, (long long)first,
                       (long long)(first + samples - 1), (long long)skipped.count,
                       (long long)ckpt_config.rewinds);
}

void ckpt_keep_skipped(struct ct_run *run)
{
    ct_run_keep(run, "ckpt.skipped", &skipped, sizeof(skipped));
}
