/*
 * Checkpoints whose files stay on the hosts that wrote them ([ckpt] files = local).
 *
 * Of the ranks that see one folder, the lowest is its keeper: it locks the folder, publishes, and
 * removes old checkpoints, as rank 0 does where all hosts share the folder. Each folder has the
 * whole index, made by rank 0, in which each file has the name of its host, and the small files. So
 * the folders of one step, copied into one, are a checkpoint like any other.
 *
 * A rank that wants bytes of a file which its host lacks gets the chunks from one whose host has
 * it, and compares them with their hashes itself.
 */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <ctitan/comm.h>
#include <ctitan/error.h>

#include "ckpt.h"

/* ---- whose folder it is ---- */

static const char *mark_of(struct ct_arena *arena, int64_t rank)
{
    return ct_arena_printf(arena, "%s/seen-%016llx-%lld", ckpt_own.folder,
                           (unsigned long long)ckpt_own.nonce, (long long)rank);
}

static int make_mark(const char *path)
{
    int rc = ct_file_make_folder(ckpt_own.folder), file;

    if (rc < 0)
        return ct_context(CT_ECONFIG, "[ckpt] folder");
    file = open(path, O_CREAT | O_CLOEXEC | O_WRONLY, 0644);
    return file < 0 ? ct_fail(CT_ECONFIG, "[ckpt] folder: %s cannot be written", path)
                    : close(file);
}

/* The lowest rank whose mark is seen here. */
static int find_keeper(struct ct_run *run)
{
    struct ct_arena scratch = {0};
    const char *own = mark_of(&scratch, run->rank);
    int rc = ct_group_agree(ct_run_world(run), make_mark(own));

    ckpt_own.keeper = 0;
    while (ckpt_own.keeper < run->rank && access(mark_of(&scratch, ckpt_own.keeper), F_OK) < 0)
        ckpt_own.keeper++;
    if (rc == 0)
        rc = ct_group_barrier(ct_run_world(run));
    unlink(own);
    ct_arena_finish(&scratch);
    return rc;
}

/* Names of the ranks' hosts, and the part of a checkpoint's bytes that comes into this folder. */
static int find_parts(struct ct_run *run)
{
    struct ct_arena scratch = {0};
    char name[CKPT_HOST] = "";
    struct ckpt_file file;
    int64_t mine[2] = {ckpt_own.keeper}, *all = ct_arena_array(&scratch, int64_t, 2 * run->world);
    double own = 0, sum = 0;
    int rc = ckpt_plan(&scratch, run, run->rank, &(struct ckpt_what){false, -1}, &file, NULL);

    gethostname(name, sizeof(name) - 1);
    if (rc == 0 && !ckpt_is_host(name))
        rc = ct_fail(CT_ECONFIG,
                     "[ckpt] files = local: this host's name \"%s\" is empty or has characters "
                     "other than letters, digits and .-_:",
                     name);
    ckpt_own.host = ct_arena_array(&run->arena, char, CKPT_HOST * run->world);
    rc = ct_group_agree(ct_run_world(run), rc);
    mine[1] = (int64_t)file.bytes;
    if (rc == 0)
        rc = ct_group_all_gather(ct_run_world(run), name, ckpt_own.host, CKPT_HOST, CT_U8);
    if (rc == 0)
        rc = ct_group_all_gather(ct_run_world(run), mine, all, 2, CT_I64);
    for (int64_t r = 0; rc == 0 && r < run->world; r++) {
        own += all[2 * r] == ckpt_own.keeper ? (double)all[2 * r + 1] : 0;
        sum += (double)all[2 * r + 1];
    }
    ckpt_own.part = sum > 0 ? own / sum : 1;
    ct_arena_finish(&scratch);
    return rc;
}

int ckpt_local_begin(struct ct_run *run)
{
    int rc = 0;

    ckpt_own.keeper = 0;
    ckpt_own.part = 1;
    if (ckpt_is_local(run) && !ckpt_config.load_only)
        rc = find_keeper(run);
    if (rc == 0 && ckpt_is_local(run) && !ckpt_config.load_only)
        rc = find_parts(run);
    ckpt_own.keeps = ckpt_own.keeper == run->rank;
    return rc;
}

/* ---- the index ---- */

/* Give all ranks the bytes that `from` has. */
static int share(struct ct_run *run, struct ct_arena *arena, int from, char **text, size_t *size)
{
    int64_t bytes = (int64_t)*size;
    int rc = ct_group_broadcast(ct_run_world(run), &bytes, 1, CT_I64, from);

    if (rc < 0)
        return rc;
    if (run->rank != from)
        *text = ct_arena_alloc(arena, (size_t)bytes + 1);
    *size = (size_t)bytes;
    return bytes ? ct_group_broadcast(ct_run_world(run), *text, *size, CT_U8, from) : 0;
}

/* Give all ranks the small files of rank 0. */
static int share_beside(struct ct_run *run, struct ct_arena *arena, struct ct_small_files *files)
{
    int64_t count = (int64_t)files->count;
    int rc = ct_group_broadcast(ct_run_world(run), &count, 1, CT_I64, 0);

    if (rc == 0 && run->rank != 0)
        *files = (struct ct_small_files){ct_arena_array(arena, struct ct_small_file, count + 1),
                                         (size_t)count};
    for (int64_t i = 0; rc == 0 && i < count; i++) {
        struct ct_small_file *f = &files->list[i];
        char *name = run->rank == 0 ? ct_arena_strdup(arena, f->name) : NULL,
             *data = (char *)(uintptr_t)f->data;
        size_t length = name ? strlen(name) : 0;

        rc = share(run, arena, 0, &name, &length);
        if (rc == 0)
            rc = share(run, arena, 0, &data, &f->size);
        f->name = name;
        f->data = data;
    }
    return rc;
}

int ckpt_local_share_index(struct ct_run *run, struct ct_arena *arena, struct ckpt *c, char **text,
                           size_t *size)
{
    int rc = run->rank == 0 ? ckpt_index_text(arena, c, text, size) : 0;

    rc = ct_group_agree(ct_run_world(run), rc);
    if (rc == 0)
        rc = share(run, arena, 0, text, size);
    return rc < 0 ? rc : share_beside(run, arena, &c->beside);
}

/* rc: of opening it here. A failure that says nothing about the checkpoint is one of all ranks, and
   comes before damage. */
static int agree_opened(struct ct_run *run, int rc)
{
    struct ct_error_kept kept = ct_error_keep();
    int32_t bad = ckpt_is_bad(rc), any = 0;
    int all = ct_group_agree(ct_run_world(run), bad ? 0 : rc);

    if (all == 0)
        all = ct_group_all_reduce(ct_run_world(run), &bad, &any, 1, CT_I32, CT_REDUCE_MAX);
    if (all < 0)
        return all;
    if (bad)
        return ct_error_restore(rc, &kept);
    return any ? ct_fail(CT_EDAMAGED, "it is not the same on all hosts") : 0;
}

int ckpt_local_open(struct ct_run *run, struct ct_arena *arena, const char *folder, struct ckpt *c)
{
    struct ct_group *world = ct_run_world(run);
    char *own = NULL, *text;
    size_t own_size = 0, size;
    int read = ckpt_index_read(arena, folder, &own, &own_size), rc;
    int32_t mine = read == 0 ? (int32_t)(run->world - run->rank) : 0, most = 0;

    rc = ct_group_agree(world, ckpt_is_bad(read) ? 0 : read);
    if (rc == 0)
        rc = ct_group_all_reduce(world, &mine, &most, 1, CT_I32, CT_REDUCE_MAX);
    if (rc < 0)
        return rc;
    if (!most)
        return ct_fail(CT_EDAMAGED, "no host of this run has a whole %s/" INDEX, folder);
    text = own;
    size = own_size;
    rc = share(run, arena, (int)(run->world - most), &text, &size);
    if (rc < 0)
        return rc;
    if (read == 0 && (size != own_size || memcmp(text, own, size) != 0))
        rc = ct_fail(CT_EDAMAGED, "%s/" INDEX " is of another save than that of rank %d's host",
                     folder, (int)(run->world - most));
    else
        rc = ckpt_open_text(arena, folder, text, size, c);
    return agree_opened(run, rc);
}

/* ---- reading ---- */

bool ckpt_is_own_host(const char *name)
{
    char own[CKPT_HOST] = "";

    gethostname(own, sizeof(own) - 1);
    return !strcmp(name, own);
}

int ckpt_elsewhere(const struct ckpt *c, const struct ckpt_file *file)
{
    return ct_fail(CT_ECONFIG,
                   "%s/%s is on host %s: copy the folders of this step from all hosts into one, as "
                   "`ctitan ckpt gather` does, or load it with [ckpt] files = local",
                   c->path, file->name, file->host);
}

/* One reading. After its first failure a rank only takes part in what is agreed and sent. */
struct reading {
    struct ct_run *run;
    const struct ckpt *c;
    const struct ckpt_sink *sink;
    char *room; /* a chunk */
    int rc;
    struct ct_error_kept failure;
};

static void note(struct reading *r, int rc)
{
    if (rc >= 0 || r->rc < 0)
        return;
    r->rc = rc;
    r->failure = ct_error_keep();
}

/* The ranks agree on who has the file, and on which of its chunks others want: mine and all have a
   number for each, behind a first one. *from: who sends; -1: nobody wants any, or has any. */
static int find_wanted(struct reading *r, const struct ckpt_reader *reader,
                       const struct ckpt_file *file, int32_t *mine, int32_t *all, int *from)
{
    size_t chunks = ckpt_chunks(file, r->c->chunk);
    int32_t wanted = 0;
    int rc;

    if (file->absent)
        ckpt_reader_wanted(reader, mine + 1);
    mine[0] = file->absent ? 0 : (int32_t)(r->run->world - r->run->rank);
    rc = ct_group_all_reduce(ct_run_world(r->run), mine, all, chunks + 1, CT_I32, CT_REDUCE_MAX);
    if (rc < 0)
        return rc;
    for (size_t n = 1; n <= chunks; n++)
        wanted |= all[n];
    *from = wanted && all[0] ? (int)(r->run->world - all[0]) : -1;
    if (wanted && !all[0])
        note(r, ct_fail(CT_EDAMAGED, "%s/%s is on host %s, which is not in this run or has lost it",
                        r->c->path, file->name, file->host));
    return 0;
}

/* Chunk n of a file, from the rank that has it to all. *good: it could be read there. */
static int send_chunk(struct reading *r, struct ckpt_reader *reader, const struct ckpt_file *file,
                      size_t n, int from, bool *good)
{
    bool mine = r->run->rank == from;
    int32_t code = mine ? ckpt_reader_read(reader, n, r->room) : 0;
    int rc;

    note(r, code);
    rc = ct_group_broadcast(ct_run_world(r->run), &code, 1, CT_I32, from);
    *good = rc == 0 && code == 0;
    if (rc == 0 && code < 0)
        note(r, ct_fail(code, "%s/%s on host %s", r->c->path, file->name, file->host));
    return *good ? ct_group_broadcast(ct_run_world(r->run), r->room,
                                      ckpt_chunk_bytes(r->c, file, n), CT_U8, from)
                 : rc;
}

static int read_one(struct reading *r, const struct ckpt_file *file)
{
    struct ct_arena scratch = {0};
    struct ckpt_reader *reader = ckpt_reader_make(&scratch, r->c, file, r->sink);
    size_t chunks = ckpt_chunks(file, r->c->chunk);
    int32_t *mine = ct_arena_array(&scratch, int32_t, chunks + 1),
            *all = ct_arena_array(&scratch, int32_t, chunks + 1);
    int from = -1, rc = find_wanted(r, reader, file, mine, all, &from);
    bool good = from >= 0;

    if (rc == 0 && !file->absent && r->rc == 0)
        note(r, ckpt_read_file(r->c, file, r->sink));
    for (size_t n = 0; rc == 0 && good && n < chunks; n++) {
        if (!all[n + 1])
            continue;
        rc = send_chunk(r, reader, file, n, from, &good);
        if (rc == 0 && good && mine[n + 1] && r->rc == 0)
            note(r, ckpt_reader_put(reader, n, r->room));
    }
    note(r, ckpt_reader_close(reader, 0));
    ct_arena_finish(&scratch);
    return rc;
}

int ckpt_local_read(struct ct_run *run, const struct ckpt *c, const struct ckpt_sink *sink)
{
    struct reading r = {.run = run, .c = c, .sink = sink};
    int rc;

    r.room = aligned_alloc(PAGE, (c->chunk / PAGE + 2) * PAGE);
    rc = ct_group_agree(ct_run_world(run),
                        r.room ? 0 : ct_fail(CT_ENOMEM, "a chunk of %s", c->path));
    for (size_t i = 0; rc == 0 && i < c->file_count; i++)
        rc = read_one(&r, &c->files[i]);
    free(r.room);
    return rc == 0 && r.rc < 0 ? ct_error_restore(r.rc, &r.failure) : rc;
}
