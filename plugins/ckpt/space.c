/*
 * Whether the disk has room for a checkpoint, before it begins. Checkpoints that would be removed
 * after it make room for it first, so that at least one stays complete.
 */
#include <stdio.h>

#include <ctitan/comm.h>
#include <ctitan/error.h>
#include <ctitan/log.h>
#include <ctitan/space.h>

#include "ckpt.h"

#define PER_TENSOR 512.0 /* bytes of headers and index */

double ckpt_bytes(const struct ct_run *run, bool model_only)
{
    const struct ckpt_what what = ckpt_what_of(model_only);
    double bytes = PAGE * (double)(run->world + 1);

    for (size_t i = 0; i < run->state_count; i++) {
        double state = ckpt_state_bytes(run, &run->states[i], &what);

        bytes += state > 0 ? state + PER_TENSOR : 0;
    }
    return bytes;
}

const char *ckpt_spoken(double bytes, char text[32])
{
    static const char *const units[] = {"B", "kB", "MB", "GB", "TB", "PB"};
    size_t unit = 0;

    for (; bytes >= 1000 && unit + 1 < CT_COUNT(units); unit++)
        bytes /= 1000;
    snprintf(text, 32, "%.*f %s", unit && bytes < 10 ? 1 : 0, bytes, units[unit]);
    return text;
}

/* By who keeps the folder. *lacking: bytes; 0: there is room. */
static int make_room(const struct ct_run *run, double bytes, double *lacking)
{
    struct ckpt_retention r = ckpt_retention(run);
    double room = 0;
    int rc = ct_file_room(ckpt_own.folder, &room);

    if (rc == 0 && room < bytes && r.latest > 1) {
        r.latest--;
        ckpt_purge(ckpt_own.folder, &r);
        rc = ct_file_room(ckpt_own.folder, &room);
    }
    *lacking = rc == 0 && room < bytes ? bytes - room : 0;
    return rc;
}

static int tell(struct ct_run *run, double bytes, double lacking, bool last)
{
    char needs[32], lacks[32];

    ckpt_spoken(bytes, needs);
    ckpt_spoken(lacking, lacks);
    if (last && ckpt_config.on_error == CKPT_STOP)
        return ct_fail(CT_EIO,
                       "the checkpoint of step %lld needs %s, and %s lacks %s of them: what was "
                       "trained after step %lld is not saved",
                       (long long)run->progress.step - 1, needs, ckpt_own.folder, lacks,
                       (long long)(ckpt_own.saved < 0 ? 0 : ckpt_own.saved));
    if (run->rank != 0)
        ct_warn("%s lacks %s of %s for the checkpoint of step %lld", ckpt_own.folder, lacks, needs,
                (long long)run->progress.step - 1);
    return ct_run_note(run, run->progress.step - 1, "skipped save",
                       "the checkpoint of step %lld is not saved: it needs %s, and %s lacks %s of "
                       "them: make room, or lower [ckpt] keep_latest_k",
                       (long long)run->progress.step - 1, needs, ckpt_own.folder, lacks);
}

int ckpt_has_room(struct ct_run *run, bool model_only, bool last, bool *room)
{
    double bytes = ckpt_bytes(run, model_only) * ckpt_own.part, lacking = 0;
    int32_t lacks, any = 0;
    int rc = ckpt_own.keeps ? make_room(run, bytes, &lacking) : 0;

    if (rc == 0 && lacking > 0)
        rc = tell(run, bytes, lacking, last);
    rc = ct_group_agree(ct_run_world(run), rc);
    lacks = lacking > 0;
    if (rc == 0)
        rc = ct_group_all_reduce(ct_run_world(run), &lacks, &any, 1, CT_I32, CT_REDUCE_MAX);
    *room = !any;
    if (rc == 0 && any && !lacks && run->rank == 0)
        rc = ct_run_note(run, run->progress.step - 1, "skipped save",
                         "the checkpoint of step %lld is not saved: the disk of another host lacks "
                         "room for its part",
                         (long long)run->progress.step - 1);
    return rc;
}

/* ---- before the first step ---- */

/* How many a run writes from here on; 0: not known. */
static int64_t saves(const struct ct_run *run)
{
    int64_t done = run->progress.step - 1, steps = ct_config.training.steps;
    bool first = ckpt_config.first_step && !done && steps > 1 && ckpt_config.interval > 1;

    return ct_config.training_epochs ? 0
                                     : steps / ckpt_config.interval - done / ckpt_config.interval +
                                           (steps % ckpt_config.interval != 0) + first;
}

/* Checkpoints that are complete at once, with the one that is being written; 0: not known. */
static int64_t most_at_once(const struct ct_run *run)
{
    int64_t count = saves(run), most = ckpt_config.keep_latest_k;

    if (most)
        most += 1 + ckpt_config.keep_best;
    if (most && ckpt_config.keep_every)
        most += ct_config.training.steps / ckpt_config.keep_every;
    return count && (!most || most > count) ? count : most;
}

static const char *folder_name(struct ct_run *run)
{
    return *ckpt_config.folder == '/'
               ? ckpt_config.folder
               : ct_arena_printf(&run->arena, "%s/%s", ct_config.job.dump_folder,
                                 ckpt_config.folder);
}

void ckpt_foresee(struct ct_run *run)
{
    if (!ckpt_config.load_only)
        ct_run_foresee(run,
                       &(struct ct_written){"checkpoints", folder_name(run), ckpt_bytes(run, false),
                                            saves(run), most_at_once(run), false});
}

/* Bytes that the checkpoints of the folder take. */
static double bytes_of_former(void)
{
    struct ct_arena scratch = {0};
    int64_t *steps;
    size_t count;
    double bytes = 0;
    struct ckpt c;

    if (ckpt_steps(&scratch, ckpt_own.folder, &steps, &count) < 0)
        count = 0;
    for (size_t i = 0; i < count; i++)
        if (ckpt_open(&scratch, ckpt_step_path(&scratch, ckpt_own.folder, steps[i]), &c) == 0)
            for (size_t f = 0; f < c.file_count; f++)
                bytes += c.files[f].absent ? 0 : (double)(c.files[f].header + c.files[f].bytes);
    ct_arena_finish(&scratch);
    return bytes;
}

static int check_room(const struct ct_run *run)
{
    double bytes = ckpt_bytes(run, false) * ckpt_own.part, room = 0, former = 0;
    double others = ct_run_foreseen_last(run, ckpt_own.folder);
    int64_t most = most_at_once(run);
    char each[32], all[32], have[32], beside[96] = "";
    int rc;

    rc = ct_file_room(ckpt_own.folder, &room);
    if (rc < 0)
        return rc;
    if (ckpt_config.keep_latest_k && room < bytes * (double)most + others)
        former = bytes_of_former();
    ckpt_spoken(bytes, each);
    ckpt_spoken(room + former, have);
    /* The newest of them stays until another one is complete. */
    if (room + (former > bytes ? former - bytes : 0) < bytes && ckpt_config.on_error == CKPT_STOP)
        return ct_fail(CT_EIO,
                       "a checkpoint needs %s, and %s has room for %s: use another [ckpt] folder",
                       each, ckpt_own.folder, have);
    if (others > 0)
        snprintf(beside, sizeof(beside), ", beside %s that are written at the end",
                 ckpt_spoken(others, all));
    if (room + former < bytes * (double)most + others)
        ct_warn(
            "%lld checkpoint%s at once need %s, %s each%s, and %s has room for %s: lower [ckpt] "
            "keep_latest_k, or make room",
            (long long)most, ct_plural(most), ckpt_spoken(bytes * (double)most, all), each, beside,
            ckpt_own.folder, have);
    return 0;
}

int ckpt_check_room(struct ct_run *run)
{
    int rc = ckpt_own.keeps && !ckpt_config.load_only ? check_room(run) : 0;

    return ct_group_agree(ct_run_world(run), rc);
}
