/*
 * Saving: one checkpoint at a time, in three phases.
 *
 * WRITING: the states are held, and a thread of each rank writes its file while the next steps run
 * (write.c). The ranks agree after every step on whether all have written theirs.
 * PUBLISHING: rank 0 has the hashes of all files; its thread writes the index, and gives the folder
 * its name. Where files are local, the keeper of each folder does so with rank 0's index.
 * PURGING: all folders have the checkpoint, and older ones go. Before that they stay, since one
 * folder may have a step that another could not publish.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <ctitan/clock.h>
#include <ctitan/comm.h>
#include <ctitan/error.h>
#include <ctitan/file.h>
#include <ctitan/log.h>
#include <ctitan/state.h>

#include "ckpt.h"

/* The current save. */
static struct {
    enum { IDLE, WRITING, PUBLISHING, PURGING } phase;
    bool aside;  /* in a thread */
    bool joined; /* the thread of this phase has ended, or there is none */
    struct ct_arena arena;
    const char *path, *temporary;
    struct ckpt_what what;
    struct ckpt_write write;
    struct ckpt_file *files; /* of all ranks; only rank 0 has those of others */
    struct ckpt index;       /* rank 0 */
    char *text;              /* of index.json, where it is published */
    size_t text_size;
    char *header;
    int64_t step;
    struct ckpt_retention retention;
    double begin, end;
    double loop, held; /* seconds that training waited: here; before it all, for held states */
    pthread_t thread;
    int rc; /* of this phase */
    struct ct_error_kept message;
} save;

/* ---- writing ---- */

static void keep_result(int rc)
{
    save.rc = rc;
    if (rc < 0) /* a thread has its own message */
        save.message = ct_error_keep();
}

static int plan(struct ct_run *run, bool model_only)
{
    int rc = 0;

    save.what = ckpt_what_of(model_only);
    save.files = ct_arena_array(&save.arena, struct ckpt_file, run->world);
    if (run->rank == 0)
        rc = ckpt_describe(&save.arena, run, &save.what, &save.index);
    save.index.files = save.files;
    save.index.file_count = (size_t)run->world;
    return rc < 0 ? rc
                  : ckpt_plan(&save.arena, run, run->rank, &save.what, &save.files[run->rank],
                              &save.header);
}

struct ckpt_retention ckpt_retention(const struct ct_run *run)
{
    return (struct ckpt_retention){.latest = ckpt_config.keep_latest_k,
                                   .every = ckpt_config.keep_every,
                                   .verified = ckpt_own.verified,
                                   .best = ckpt_config.keep_best ? run->best.step : 0};
}

/* Rank 0 lists the files of all ranks. */
static int plan_others(struct ct_run *run)
{
    int rc = 0;

    for (int64_t r = 1; rc == 0 && run->rank == 0 && r < run->world; r++)
        rc = ckpt_plan(&save.arena, run, r, &save.what, &save.files[r], NULL);
    for (int64_t r = 0; ckpt_is_local(run) && r < run->world; r++)
        save.files[r].host = ckpt_own.host + CKPT_HOST * r;
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
    if (rc == 0 && ckpt_config.verify && save.write.file->box_count)
        rc = ckpt_read_file(&c, save.write.file, NULL);
    if (rc == 0)
        rc = ct_file_sync_folder(save.temporary);
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
    if (!ckpt_own.alone)
        ckpt_set_aside(ckpt_own.folder, ckpt_own.loaded, ckpt_own.saved < 0 ? -1 : save.step);
    ckpt_own.alone = true;
}

/* All files are on the disk. */
static void *publish(void *context)
{
    int rc = ckpt_beside_write(&save.index, save.temporary);

    (void)context;
    if (rc == 0 && !save.text)
        rc = ckpt_index_text(&save.arena, &save.index, &save.text, &save.text_size);
    if (rc == 0)
        rc = ckpt_index_write(save.text, save.text_size, save.temporary);
    if (rc == 0)
        stand_alone();
    if (rc == 0)
        rc = ckpt_publish(save.temporary, save.path);
    if (rc == 0)
        rc = ckpt_folder_note(true);
    keep_result(rc);
    save.end = ct_now();
    return NULL;
}

static void *purge(void *context)
{
    (void)context;
    ckpt_purge(ckpt_own.folder, &save.retention);
    keep_result(0);
    return NULL;
}

/* False: the phase has failed, as all ranks learn when they agree on its end. */
static bool start(void *(*work)(void *))
{
    bool begun = true;

    if (!save.aside)
        work(NULL);
    else
        begun = pthread_create(&save.thread, NULL, work, NULL) == 0;
    save.joined = !save.aside || !begun;
    if (!begun)
        keep_result(ct_fail(CT_ENOMEM, "a thread that writes checkpoints"));
    return begun;
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

int ckpt_save_begin(struct ct_run *run, bool aside, bool model_only)
{
    struct ckpt_file *file;
    int rc;

    save.step = run->progress.step - 1;
    save.retention = ckpt_retention(run);
    save.begin = ct_now();
    save.held = ct_run_waited(run);
    save.aside = aside;
    save.path = ckpt_step_path(&save.arena, ckpt_own.folder, save.step);
    save.temporary = ct_arena_printf(&save.arena, "%s.tmp-%016llx", save.path,
                                     (unsigned long long)ckpt_own.nonce);
    rc = plan(run, model_only);
    if (rc < 0)
        return rc;
    file = &save.files[run->rank];
    save.write = (struct ckpt_write){
        .run = run,
        .file = file,
        .path = ct_arena_printf(&save.arena, "%s/%s", save.temporary, file->name),
        .header = save.header,
        .ring = ckpt_own.ring,
        .hold = aside};
    for (size_t i = 0; aside && i < file->box_count; i++)
        ct_run_hold(run, file->boxes[i].state);
    save.phase = WRITING;
    if (!start(write_file))
        ckpt_release(&save.write);
    save.loop = ct_now() - save.begin;
    return 0;
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

static int fail(void)
{
    bool mine = save.rc < 0;
    long long step = (long long)save.step;
    int rc = mine ? ct_error_restore(save.rc, &save.message)
                  : ct_fail(CT_EPEER, "another rank could not write its part of it");

    if (ckpt_own.keeps) {
        struct ct_error_kept kept = ct_error_keep();

        if (save.phase == PUBLISHING && !mine)
            ckpt_drop(save.path); /* another folder lacks it */
        ct_file_remove_folder(save.temporary);
        ct_error_restore(rc, &kept);
    }
    forget();
    ct_context(rc, "the checkpoint of step %lld", step);
    if (ckpt_config.on_error == CKPT_STOP)
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
        if (rc == 0 && ckpt_is_local(run))
            rc = ckpt_local_share_index(run, &save.arena, &save.index, &save.text, &save.text_size);
        save.phase = PUBLISHING;
        if (rc == 0 && ckpt_own.keeps)
            start(publish);
    } else if (save.phase == PUBLISHING) {
        ckpt_own.saved = save.step;
        if (ckpt_config.verify)
            ckpt_own.verified = save.retention.verified = save.step;
        if (run->rank == 0)
            ct_info("saved %s in %.2f s; training waited %.3f s", save.path, save.end - save.begin,
                    save.loop + ct_now() - begin + ct_run_waited(run) - save.held);
        save.phase = PURGING;
        if (ckpt_own.keeps && !start(purge))
            purge(NULL);
    } else {
        forget();
    }
    return rc;
}

int ckpt_save_advance(struct ct_run *run, bool block, bool *terminated)
{
    enum { DONE, FAILED, GOES_ON };
    double begin = ct_now();
    int rc = 0;

    do {
        bool over = save.phase == IDLE || ended(block);
        int32_t mine[2] = {!over ? GOES_ON : save.rc < 0 ? FAILED : DONE, *terminated}, all[2];

        rc = ct_group_all_reduce(ct_run_world(run), mine, all, 2, CT_I32, CT_REDUCE_MAX);
        if (rc < 0)
            return rc;
        *terminated = all[1] != 0;
        if (save.phase == IDLE)
            return 0;
        if (all[0] == FAILED)
            return fail();
        if (all[0] == DONE)
            rc = next_phase(run, begin);
    } while (rc == 0 && block && save.phase != IDLE);
    save.loop += ct_now() - begin;
    return rc;
}

bool ckpt_save_is_running(void)
{
    return save.phase != IDLE;
}

void ckpt_save_finish(void)
{
    if (save.phase != IDLE)
        ended(true);
    forget();
}
