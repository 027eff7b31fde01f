/*
 * The number of sequences in a step of a run that goes on: that of its checkpoint, unless the
 * recipe says one. It decides how the program is laid out, so it is read before the run has a mesh.
 */
#include <stdio.h>

#include <ctitan/error.h>
#include <ctitan/lib/launch.h>
#include <ctitan/log.h>
#include <ctitan/stage.h>

#include "ckpt.h"

int64_t ckpt_batch(const struct ct_run *run)
{
    int64_t sequences;
    int microbatches;

    return ct_run_batch_sizes(run, &sequences, &microbatches) < 0 ? 0 : sequences * microbatches;
}

/* Open the checkpoint that the run will most likely go on from. If its data turns out to be
   damaged, an older one is loaded, and a difference is named then. */
static bool open_expected(struct ct_arena *arena, struct ckpt *c)
{
    const char *initial = ckpt_config.initial_load_path;
    int64_t *steps;
    size_t count;
    int rc = ckpt_steps(arena, ckpt_own.folder, &steps, &count);
    bool wanted = ckpt_config.load_step >= 0 && !ct_launch_is_restarted();

    if (rc < 0)
        return false;
    for (size_t i = 0; i < count; i++)
        if ((!wanted || steps[i] == ckpt_config.load_step) &&
            ckpt_open(arena, ckpt_step_path(arena, ckpt_own.folder, steps[i]), c) == 0)
            return true;
    return !count && *initial && !ckpt_config.initial_model_only &&
           ckpt_locate(arena, initial, c) == 0;
}

/* Whether the checkpoint's last step was in a stage with a batch of its own. */
static bool is_of_stage(const struct ct_run *run, const struct ckpt *c)
{
    return ct_recipe_get_at(run->recipe, c->progress.step - 1, "training", "global_batch_size") !=
           ct_recipe_get(run->recipe, "training", "global_batch_size");
}

int ckpt_take_batch(struct ct_run *run)
{
    struct ct_arena scratch = {0};
    struct ckpt c = {0};
    char value[32];
    int rc = 0;

    if (run->recipe && !ckpt_is_local(run) && ct_config.training.global_batch_size < 0 &&
        ckpt_own.load.lr && open_expected(&scratch, &c) && c.batch > 0 && c.progress.step > 1 &&
        !is_of_stage(run, &c)) {
        snprintf(value, sizeof(value), "%lld", (long long)c.batch);
        rc = ct_recipe_give(run->recipe, "training", "global_batch_size", value, c.path);
    }
    ct_arena_finish(&scratch);
    return rc;
}

void ckpt_tell_batch(const struct ckpt *c, const struct ct_run *run)
{
    long long before = c->batch, now = ckpt_batch(run),
              own =
                  ct_config.training.local_batch_size * ct_mesh_degree(&run->mesh, run->batch_axes);

    if (ct_stage_of(c->progress.step - 1) != run->stage)
        return;
    if (before && before != now)
        ct_info("changed since the checkpoint: [training] global_batch_size = %lld, now %lld: "
                "steps have another number of sequences from now on",
                before, now);
    else if (ct_recipe_given(run->recipe, "training", "local_batch_size"))
        ct_info("[training] local_batch_size = %lld, so that %lld data-parallel ranks share the "
                "%lld sequences of a step, as before",
                (long long)ct_config.training.local_batch_size,
                (long long)ct_mesh_degree(&run->mesh, run->batch_axes), now);
    else if (ct_recipe_given(run->recipe, "training", "global_batch_size") && now != own)
        ct_info("[training] global_batch_size = %lld, as before: local_batch_size x data-parallel "
                "degree would be %lld",
                now, own);
}
