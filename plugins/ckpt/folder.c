/*
 * The folder of checkpoints. A new checkpoint grows under a temporary name, and an old one is
 * renamed before its files go, so that whatever is called step-N was complete once. One run at a
 * time has the folder, by a lock that ends with its process.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <ctitan/error.h>
#include <ctitan/lib/file.h>
#include <ctitan/log.h>

#include "ckpt.h"

#define SHOWN 8 /* steps in a message */

static int lock = -1;

/* N of "step-N", -1: another name. */
static int64_t step_of(const char *name)
{
    long long n;
    char end;

    return sscanf(name, "step-%lld%c", &n, &end) == 1 && n >= 0 ? n : -1;
}

static int newer_first(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;

    return (x < y) - (x > y);
}

size_t ckpt_steps(struct ct_arena *arena, const char *folder, int64_t **steps)
{
    DIR *dir = opendir(folder);
    size_t count = 0, room = 0;

    *steps = NULL;
    for (struct dirent *d; dir && (d = readdir(dir));) {
        if (step_of(d->d_name) < 0)
            continue;
        *steps = ct_arena_grow(arena, *steps, &room, count + 1, sizeof(**steps));
        (*steps)[count++] = step_of(d->d_name);
    }
    if (dir)
        closedir(dir);
    if (count)
        qsort(*steps, count, sizeof(**steps), newer_first);
    return count;
}

const char *ckpt_step_path(struct ct_arena *arena, const char *folder, int64_t step)
{
    return ct_arena_printf(arena, "%s/step-%lld", folder, (long long)step);
}

const char *ckpt_steps_text(struct ct_arena *arena, const int64_t *steps, size_t count)
{
    const char *text = count ? "" : "none";

    for (size_t i = 0; i < count && i < SHOWN; i++)
        text = ct_arena_printf(arena, "%s%s%lld", text, i ? ", " : "", (long long)steps[i]);
    return count > SHOWN ? ct_arena_printf(arena, "%s, and %zu older", text, count - SHOWN) : text;
}

const char *ckpt_folder_of(struct ct_arena *arena, const char *path)
{
    const char *inside = ct_arena_printf(arena, "%s/checkpoint", path);

    return access(inside, F_OK) ? path : inside;
}

/* The folder of checkpoints at path has none, if it can be read. */
static int find_in(const char *folder, const char *path)
{
    DIR *dir = opendir(folder);

    if (!dir)
        return ct_fail(CT_ECONFIG, "%s: %s", folder, strerror(errno));
    closedir(dir);
    return ct_fail(CT_ENOENT, "there is no checkpoint in %s", path);
}

int ckpt_none(struct ct_arena *arena, const char *path)
{
    const char *name = strrchr(path, '/'), *folder = ".";
    int64_t *steps;
    size_t count;

    if (!access(path, F_OK))
        return find_in(ckpt_folder_of(arena, path), path);
    if (step_of(name ? name + 1 : path) < 0)
        return ct_fail(CT_ENOENT, "%s: %s", path, strerror(errno));
    if (name)
        folder = ct_arena_printf(arena, "%.*s", (int)(name - path), path);
    count = ckpt_steps(arena, folder, &steps);
    return ct_fail(CT_ENOENT, "%s does not exist; steps of checkpoints in %s: %s", path, folder,
                   ckpt_steps_text(arena, steps, count));
}

int ckpt_locate(struct ct_arena *arena, const char *path, struct ckpt *c)
{
    const char *folder = ckpt_folder_of(arena, path);
    int64_t *steps;
    size_t count;

    if (!access(ct_arena_printf(arena, "%s/" INDEX, path), F_OK))
        return ckpt_open(arena, path, c);
    count = ckpt_steps(arena, folder, &steps);
    for (size_t i = 0; i < count; i++) {
        if (ckpt_open(arena, ckpt_step_path(arena, folder, steps[i]), c) == 0)
            return 0;
        ct_warn("%s", ct_error_message());
    }
    return count ? ct_fail(CT_EIO, "none of the %zu checkpoints in %s is undamaged", count, folder)
                 : ckpt_none(arena, path);
}

/* ---- removing ---- */

static bool is_left_over(const char *name)
{
    return !strncmp(name, "step-", 5) && (strstr(name, ".tmp-") || strstr(name, ".trash-"));
}

static void remove_left_overs(const char *folder)
{
    DIR *dir = opendir(folder);
    struct ct_arena scratch = {0};

    for (struct dirent *d; dir && (d = readdir(dir));)
        if (is_left_over(d->d_name) &&
            ct_file_remove_folder(ct_arena_printf(&scratch, "%s/%s", folder, d->d_name)) < 0)
            ct_warn("%s", ct_error_message());
    if (dir)
        closedir(dir);
    ct_arena_finish(&scratch);
}

int ckpt_folder_take(const char *folder)
{
    lock = ct_file_lock_folder(folder);
    if (lock == CT_EPEER)
        return ct_fail(CT_ECONFIG,
                       "another running job saves its checkpoints in %s: give this run another "
                       "[ckpt] folder",
                       folder);
    if (lock < 0)
        return ct_context(CT_ECONFIG, "[ckpt] folder");
    remove_left_overs(folder);
    return 0;
}

void ckpt_folder_leave(void)
{
    if (lock >= 0)
        close(lock);
    lock = -1;
}

bool ckpt_folder_saved(void)
{
    struct stat st;

    return lock >= 0 && fstat(lock, &st) == 0 && st.st_size > 0;
}

int ckpt_folder_note(bool saved)
{
    return lock < 0 || ckpt_folder_saved() == saved || ftruncate(lock, saved) == 0
               ? 0
               : ct_fail(CT_EIO, "the lock of the checkpoints: %s", strerror(errno));
}

int ckpt_publish(const char *temporary, const char *path)
{
    struct ct_arena scratch = {0};
    int rc;

    if (access(path, F_OK))
        return ct_file_rename(temporary, path);
    if (renameat2(AT_FDCWD, temporary, AT_FDCWD, path, RENAME_EXCHANGE) < 0)
        return ct_fail(CT_EIO, "%s: %s", path, strerror(errno));
    rc = ckpt_sync_folder(ct_arena_printf(&scratch, "%s/..", path));
    ct_arena_finish(&scratch);
    return rc < 0 ? rc : ct_file_remove_folder(temporary);
}

void ckpt_set_aside(const char *folder, int64_t step, int64_t own)
{
    struct ct_arena scratch = {0};
    int64_t *steps, when = (int64_t)time(NULL);
    size_t count = ckpt_steps(&scratch, folder, &steps), later = 0;

    for (size_t i = 0; i < count && steps[i] > step; i++)
        if (steps[i] != own)
            steps[later++] = steps[i];
    if (later)
        ct_warn("checkpoints of steps after %lld, with which this run begins, are renamed to "
                "step-N.old-%lld: %s",
                (long long)step, (long long)when, ckpt_steps_text(&scratch, steps, later));
    for (size_t i = 0; i < later; i++) {
        const char *path = ckpt_step_path(&scratch, folder, steps[i]), *old;

        do
            old = ct_arena_printf(&scratch, "%s.old-%lld", path, (long long)when);
        while (!access(old, F_OK) && when++);
        if (ct_file_rename(path, old) < 0)
            ct_warn("%s", ct_error_message());
    }
    ct_arena_finish(&scratch);
}

/* ---- retention ---- */

static void drop(struct ct_arena *arena, const char *path)
{
    const char *trash = ct_arena_printf(arena, "%s.trash-%ld", path, (long)getpid());
    int rc = ct_file_rename(path, trash);

    if (rc == 0)
        rc = ct_file_remove_folder(trash);
    if (rc < 0)
        ct_warn("%s", ct_error_message());
}

void ckpt_purge(const char *folder, const struct ckpt_retention *r)
{
    struct ct_arena scratch = {0};
    int64_t *steps, complete = 0;
    size_t count = r->latest ? ckpt_steps(&scratch, folder, &steps) : 0;
    struct ckpt c;

    for (size_t i = 0; i < count; i++) {
        const char *path = ckpt_step_path(&scratch, folder, steps[i]);

        if (ckpt_open(&scratch, path, &c) < 0) {
            ct_warn("ignored, as it is not a checkpoint: %s", ct_error_message());
            continue;
        }
        if (++complete > r->latest && steps[i] != r->verified &&
            !(r->every && steps[i] % r->every == 0))
            drop(&scratch, path);
    }
    ct_arena_finish(&scratch);
}
