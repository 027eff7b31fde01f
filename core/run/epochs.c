/*
 * [training] epochs: the steps of a run by the samples of its data. The position of a run is the
 * number of samples that it has read, in whatever steps; the samples that are left make the rest of
 * its steps.
 */
#include <stdio.h>

#include <ctitan/error.h>
#include <ctitan/log.h>
#include <ctitan/recipe.h>
#include <ctitan/run.h>
#include <ctitan/stage.h>

#include "run/size.h"

static int check_schedule(int64_t steps)
{
    int64_t total = ct_config.lr_total_steps;

    if (total == 0 || total >= steps)
        return 0;
    return ct_fail(
        CT_ECONFIG,
        "[lr_scheduler] total_steps = %lld ends before the run, which has %lld step%s by "
        "[training] epochs: expected at least as many, or 0",
        (long long)total, (long long)steps, ct_plural(steps));
}

/* The steps of a run that reads `left` more samples, each with the batch of its stage. */
static int count_steps(struct ct_run *run, int64_t left, int64_t *steps)
{
    size_t now = run->stage;
    int64_t done = run->progress.step - 1;
    int rc = 0;

    for (size_t k = ct_stage_of(done + 1); rc == 0 && k < ct_stage_count(); k++) {
        int64_t most = k + 1 < ct_stage_count() ? ct_stage_at(k + 1)->begin - 1 - done : INT64_MAX;
        int64_t each, more;

        rc = ct_stage_enter(k);
        each = ct_run_batch(run);
        more = left > 0 ? left / each : 0;
        more = more < most ? more : most;
        done += more;
        left -= more * each;
        if (more < most)
            break;
    }
    *steps = done;
    return rc < 0 ? rc : ct_stage_enter(now);
}

static void tell(const struct ct_run *run, int64_t samples, int64_t steps)
{
    int64_t done = run->progress.step - 1;
    char each[32] = "";

    if (ct_stage_count() == 1)
        snprintf(each, sizeof(each), " of %lld", (long long)ct_run_batch(run));
    if (done)
        ct_info("[training] epochs = %lld, of %lld samples each, of which %lld are read: %lld more "
                "steps%s, to step %lld",
                (long long)ct_config.training_epochs, (long long)samples,
                (long long)run->progress.samples, (long long)(steps - done), each,
                (long long)steps);
    else
        ct_info("[training] epochs = %lld, of %lld samples each: %lld step%s%s",
                (long long)ct_config.training_epochs, (long long)samples, (long long)steps,
                ct_plural(steps), each);
}

int ct_run_count_epochs(struct ct_run *run)
{
    const struct ct_data_ops *ops = run->data_ops;
    int64_t epochs = ct_config.training_epochs, samples, left, steps;
    int64_t done = run->progress.step - 1;
    int rc;

    if (!epochs)
        return 0;
    for (size_t k = 1; k < ct_stage_count(); k++)
        if (ct_stage_at(k)->own_data)
            return ct_fail(CT_ECONFIG,
                           "[training] epochs counts passes over one data, and the stage from step "
                           "%lld on has other samples (%s): set steps instead",
                           (long long)ct_stage_at(k)->begin, ct_stage_at(k)->what);
    samples = ops->samples ? ops->samples(run->data) : 0;
    if (samples < 1)
        return ct_fail(CT_ECONFIG,
                       "[training] epochs: the data source does not tell how many samples an "
                       "epoch has: set steps instead");
    if (samples > INT64_MAX / epochs)
        return ct_fail(CT_ECONFIG, "[training] epochs = %lld of %lld samples are too many",
                       (long long)epochs, (long long)samples);
    left = samples * epochs - run->progress.samples;
    rc = count_steps(run, left, &steps);
    if (rc < 0)
        return rc;
    if (!steps)
        return ct_fail(CT_ECONFIG,
                       "[training] epochs = %lld: %lld samples an epoch are less than one step of "
                       "%lld: use more data or epochs, or a lower local_batch_size or "
                       "global_batch_size",
                       (long long)epochs, (long long)samples, (long long)ct_run_batch(run));
    if (done && steps == ct_config.training.steps)
        return 0;
    ct_config.training.steps = steps;
    if (run->rank == 0)
        tell(run, samples, steps);
    return check_schedule(steps);
}
