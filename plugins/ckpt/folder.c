/*
 * The folder of checkpoints. A new checkpoint grows under a temporary name, and an old one is
 * renamed before its files go, so that whatever is called step-N was complete once. One run at a
 * time has the folder, by a lock that ends with its process.
 *
 * Names beside step-N: step-N.tmp-X grows, step-N.trash-X goes, and step-N.aside-X is a checkpoint
 * that makes room for a new one of its step: a run that finds it without step-N renames it back.
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
#include <ctitan/file.h>
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

bool ckpt_is_gone(const char *path)
{
    struct stat st;

    return stat(path, &st) < 0 && errno == ENOENT;
}

int ckpt_each_name(const char *folder, void (*see)(const char *name, void *context), void *context)
{
    int tries = 0, failed;
    DIR *dir;

    do
        dir = opendir(folder);
    while (!dir && ct_file_again(&tries));
    if (!dir)
        return errno == ENOENT ? 0
                               : ct_fail(errno == ENOTDIR ? CT_ECONFIG : CT_EIO, "%s: %s", folder,
                                         strerror(errno));
    errno = 0;
    for (struct dirent *d; (d = readdir(dir)); errno = 0)
        see(d->d_name, context);
    failed = errno;
    closedir(dir);
    return failed ? ct_fail(CT_EIO, "%s: %s", folder, strerror(failed)) : 0;
}

struct steps {
    struct ct_arena *arena;
    int64_t *list;
    size_t count, room;
};

static void add_step(const char *name, void *context)
{
    struct steps *s = context;

    if (step_of(name) < 0)
        return;
    s->list = ct_arena_grow(s->arena, s->list, &s->room, s->count + 1, sizeof(*s->list));
    s->list[s->count++] = step_of(name);
}

int ckpt_steps(struct ct_arena *arena, const char *folder, int64_t **steps, size_t *count)
{
    struct steps s = {.arena = arena};
    int rc = ckpt_each_name(folder, add_step, &s);

    if (s.count)
        qsort(s.list, s.count, sizeof(*s.list), newer_first);
    *steps = s.list;
    *count = rc < 0 ? 0 : s.count;
    return rc;
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
    int rc;

    if (!access(path, F_OK))
        return find_in(ckpt_folder_of(arena, path), path);
    if (step_of(name ? name + 1 : path) < 0)
        return ct_fail(CT_ENOENT, "%s: %s", path, strerror(errno));
    if (name)
        folder = ct_arena_printf(arena, "%.*s", (int)(name - path), path);
    rc = ckpt_steps(arena, folder, &steps, &count);
    if (rc < 0)
        return rc;
    return ct_fail(CT_ENOENT, "%s does not exist; steps of checkpoints in %s: %s", path, folder,
                   ckpt_steps_text(arena, steps, count));
}

int ckpt_locate(struct ct_arena *arena, const char *path, struct ckpt *c)
{
    const char *folder = ckpt_folder_of(arena, path);
    int64_t *steps;
    size_t count;
    int rc;

    if (!access(ct_arena_printf(arena, "%s/" INDEX, path), F_OK))
        return ckpt_open(arena, path, c);
    rc = ckpt_steps(arena, folder, &steps, &count);
    if (rc < 0)
        return rc;
    for (size_t i = 0; i < count; i++) {
        const char *step = ckpt_step_path(arena, folder, steps[i]);

        rc = ckpt_open(arena, step, c);
        if (!ckpt_is_bad(rc))
            return rc;
        if (!ckpt_is_gone(step))
            ct_warn("%s", ct_error_message());
    }
    return count ? ct_fail(CT_EDAMAGED, "none of the %zu checkpoints in %s is undamaged", count,
                           folder)
                 : ckpt_none(arena, path);
}

/* ---- removing ---- */

#define ASIDE ".aside-"

static void drop(struct ct_arena *arena, const char *path)
{
    const char *trash = ct_arena_printf(arena, "%s.trash-%ld", path, (long)getpid());
    int rc = ct_file_rename(path, trash);

    if (rc == 0)
        rc = ct_file_remove_folder(trash);
    if (rc < 0)
        ct_warn("%s", ct_error_message());
}

void ckpt_drop(const char *path)
{
    struct ct_arena scratch = {0};

    drop(&scratch, path);
    ct_arena_finish(&scratch);
}

/* A process ended between the two renames of ckpt_publish, or after them. */
static void restore(struct ct_arena *arena, const char *aside)
{
    const char *path = ct_arena_printf(arena, "%.*s", (int)(strstr(aside, ASIDE) - aside), aside);

    if (!ckpt_is_gone(path))
        drop(arena, aside);
    else if (ct_file_rename(aside, path) < 0)
        ct_warn("%s", ct_error_message());
}

struct left_overs {
    struct ct_arena arena;
    const char *folder;
};

static void clean(const char *name, void *context)
{
    struct left_overs *l = context;
    const char *path = ct_arena_printf(&l->arena, "%s/%s", l->folder, name);

    if (strncmp(name, "step-", 5) != 0)
        return;
    if (strstr(name, ".tmp-") || strstr(name, ".trash-")) {
        if (ct_file_remove_folder(path) < 0)
            ct_warn("%s", ct_error_message());
    } else if (strstr(name, ASIDE)) {
        restore(&l->arena, path);
    }
}

static int remove_left_overs(const char *folder)
{
    struct left_overs l = {.folder = folder};
    int rc = ckpt_each_name(folder, clean, &l);

    ct_arena_finish(&l.arena);
    return rc;
}

int ckpt_folder_take(const char *folder)
{
    lock = ct_file_lock_folder(folder);
    if (lock < 0)
        return lock == CT_EPEER ? lock : CT_ECONFIG;
    return remove_left_overs(folder);
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

/* NFS, Lustre, CIFS and most file systems in user space cannot exchange two names. */
static int exchange(struct ct_arena *arena, const char *temporary, const char *path)
{
    int rc;

    if (renameat2(AT_FDCWD, temporary, AT_FDCWD, path, RENAME_EXCHANGE) < 0)
        return errno == EINVAL || errno == ENOSYS || errno == EOPNOTSUPP
                   ? 1
                   : ct_fail(CT_EIO, "%s: %s", path, strerror(errno));
    rc = ct_file_sync_folder(ct_arena_printf(arena, "%s/..", path));
    return rc < 0 ? rc : ct_file_remove_folder(temporary);
}

static int move_aside(struct ct_arena *arena, const char *temporary, const char *path)
{
    const char *aside = ct_arena_printf(arena, "%s" ASIDE "%ld", path, (long)getpid());
    struct ct_error_kept kept;
    int rc = ct_file_rename(path, aside);

    if (rc < 0)
        return rc;
    rc = ct_file_rename(temporary, path);
    if (rc == 0) {
        drop(arena, aside);
        return 0;
    }
    kept = ct_error_keep();
    if (ckpt_is_gone(path) && ct_file_rename(aside, path) < 0)
        ct_warn("%s stays: %s", aside, ct_error_message());
    return ct_error_restore(rc, &kept);
}

int ckpt_publish(const char *temporary, const char *path)
{
    struct ct_arena scratch = {0};
    int rc;

    if (ckpt_is_gone(path))
        return ct_file_rename(temporary, path);
    rc = exchange(&scratch, temporary, path);
    if (rc == 1)
        rc = move_aside(&scratch, temporary, path);
    ct_arena_finish(&scratch);
    return rc;
}

void ckpt_set_aside(const char *folder, int64_t step, int64_t own)
{
    struct ct_arena scratch = {0};
    int64_t *steps, when = (int64_t)time(NULL);
    size_t count, later = 0;

    if (ckpt_steps(&scratch, folder, &steps, &count) < 0)
        ct_warn("%s", ct_error_message());
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

void ckpt_purge(const char *folder, const struct ckpt_retention *r)
{
    struct ct_arena scratch = {0};
    int64_t *steps, complete = 0;
    size_t count = 0;
    struct ckpt c;

    if (r->latest && ckpt_steps(&scratch, folder, &steps, &count) < 0)
        ct_warn("no older checkpoint is removed: %s", ct_error_message());
    for (size_t i = 0; i < count; i++) {
        const char *path = ckpt_step_path(&scratch, folder, steps[i]);

        if (ckpt_open(&scratch, path, &c) < 0) {
            ct_warn("not counted among the checkpoints to keep: %s", ct_error_message());
            continue;
        }
        if (++complete > r->latest && steps[i] != r->verified && steps[i] != r->best &&
            !(r->every && steps[i] % r->every == 0))
            drop(&scratch, path);
    }
    ct_arena_finish(&scratch);
}
