/*
 * [training] epochs: the steps of a run by the samples of its data. The position of a run is the
 * number of samples that it has read, in whatever steps; the samples that are left make the rest of
 * its steps.
 */
#include <ctitan/error.h>
#include <ctitan/log.h>
#include <ctitan/recipe.h>
#include <ctitan/run.h>

#include "run/size.h"

static int check_schedule(int64_t steps)
{
    int64_t total = ct_config.lr_total_steps;

    if (total == 0 || total >= steps)
        return 0;
    return ct_fail(CT_ECONFIG,
                   "[lr_scheduler] total_steps = %lld ends before the run, which has %lld steps by "
                   "[training] epochs: expected at least as many, or 0",
                   (long long)total, (long long)steps);
}

int ct_run_count_epochs(const struct ct_run *run)
{
    const struct ct_data_ops *ops = run->data_ops;
    int64_t epochs = ct_config.training_epochs, each = ct_run_batch(run), samples, left, steps;
    int64_t done = run->progress.step - 1;

    if (!epochs)
        return 0;
    samples = ops->samples ? ops->samples(run->data) : 0;
    if (samples < 1)
        return ct_fail(CT_ECONFIG,
                       "[training] epochs: the data source does not tell how many samples an "
                       "epoch has: set steps instead");
    if (samples > INT64_MAX / epochs)
        return ct_fail(CT_ECONFIG, "[training] epochs = %lld of %lld samples are too many",
                       (long long)epochs, (long long)samples);
    left = samples * epochs - run->progress.samples;
    steps = done + (left > 0 ? left / each : 0);
    if (!steps)
        return ct_fail(CT_ECONFIG,
                       "[training] epochs = %lld: %lld samples an epoch are less than one step of "
                       "%lld: use more data or epochs, or a lower local_batch_size or "
                       "global_batch_size",
                       (long long)epochs, (long long)samples, (long long)each);
    if (done && steps == ct_config.training.steps)
        return 0;
    ct_config.training.steps = steps;
    if (run->rank == 0 && done)
        ct_info("[training] epochs = %lld, of %lld samples each, of which %lld are read: %lld more "
                "steps of %lld, to step %lld",
                (long long)epochs, (long long)samples, (long long)run->progress.samples,
                (long long)(steps - done), (long long)each, (long long)steps);
    else if (run->rank == 0)
        ct_info("[training] epochs = %lld, of %lld samples each: %lld steps of %lld",
                (long long)epochs, (long long)samples, (long long)steps, (long long)each);
    return check_schedule(steps);
}
