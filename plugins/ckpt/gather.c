/*
 * One whole checkpoint from files on several hosts.
 *
 * It grows as step-N.part in the target folder. A file has its name there only when all of its
 * bytes have been compared with their hashes and are on the disk. Whatever ends the command, it
 * gets only the missing files when it runs again. The index is written first: a part with another
 * index is the rest of another checkpoint, and is removed.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <ctitan/error.h>
#include <ctitan/file.h>
#include <ctitan/lib/launch.h>
#include <ctitan/log.h>
#include <ctitan/space.h>

#include "ckpt.h"

#define COMING "coming" /* file during its copy */
#define SAID "said"     /* messages of the command that sends it */
#define MOST_SAID ((size_t)1 << 20)
#define SLOTS 4   /* chunks in memory */
#define NO_FILE 3 /* status of the command where its host cannot read the file */

struct host {
    const char *name;
    bool silent; /* not reached */
};

struct gathering {
    struct ct_arena arena;
    struct ckpt c;
    const char *path, *to; /* words of the command line */
    const struct ckpt_reach *reach;
    const char *step, *part; /* folders */
    struct host *hosts;      /* other hosts with files */
    size_t host_count;
    bool created; /* `part`, by this call */
    bool *lacks;  /* by file: missing in `part` */
    size_t whole; /* number of files in `part` */
    bool stuck;   /* `part` cannot be written */
};

static const char *in_part(struct gathering *g, const char *name)
{
    return ct_arena_printf(&g->arena, "%s/%s", g->part, name);
}

/* ---- where files are ---- */

static void note_host(struct gathering *g, const char *name)
{
    for (size_t i = 0; i < g->host_count; i++)
        if (!strcmp(g->hosts[i].name, name))
            return;
    g->hosts[g->host_count++].name = name;
}

static struct host *host_of(struct gathering *g, const struct ckpt_file *f)
{
    struct host *h = g->hosts;

    while (f->absent && strcmp(h->name, f->host) != 0)
        h++;
    return f->absent ? h : NULL;
}

/* --at with the path from DIR to the checkpoint. */
static const char *step_at(struct gathering *g)
{
    return ct_arena_printf(&g->arena, "%s%s", g->reach->at, g->c.path + strlen(g->path));
}

/* The same, with the name of a host for each {}. */
static const char *folder_at(struct gathering *g, const char *host)
{
    const char *text = "", *at = step_at(g), *mark;

    for (; (mark = strstr(at, "{}")); at = mark + 2)
        text = ct_arena_printf(&g->arena, "%s%.*s%s", text, (int)(mark - at), at, host);
    return ct_arena_printf(&g->arena, "%s%s", text, at);
}

/* The command that goes on with this step, whatever the newest one is then. */
static const char *command_again(struct gathering *g)
{
    const char *line =
        ct_arena_printf(&g->arena, "ctitan ckpt gather %s --to %s",
                        ct_launch_quote(&g->arena, g->c.path), ct_launch_quote(&g->arena, g->to));

    if (g->reach->at)
        return ct_arena_printf(&g->arena, "%s --at %s", line,
                               ct_launch_quote(&g->arena, step_at(g)));
    return strcmp(g->reach->shell, CT_LAUNCH_SSH)
               ? ct_arena_printf(&g->arena, "%s --shell %s", line,
                                 ct_launch_quote(&g->arena, g->reach->shell))
               : line;
}

/* ---- sources ---- */

/* Bytes in their order, from a file or from a command that a host runs. */
struct incoming {
    struct ckpt_io io; /* path: for messages, too */
    FILE *sent;        /* output of the command; NULL: a file */
    bool ended;        /* too early */
    struct host *host; /* NULL: this host */
};

static const char *line_for(struct gathering *g, const char *host, const char *path)
{
    char here[CT_PATH_ROOM];
    const char *line = ct_arena_printf(&g->arena, "{ cat %s || exit %d; }",
                                       ct_launch_quote(&g->arena, path), NO_FILE);

    if (*path != '/')
        line = ct_arena_printf(&g->arena, "cd %s && %s",
                               ct_launch_quote(&g->arena, getcwd(here, sizeof(here)) ? here : "."),
                               line);
    return ct_arena_printf(
        &g->arena, "%s </dev/null 2>%s",
        ct_launch_line(&g->arena, ct_launch_on_host(&g->arena, g->reach->shell, host, line)),
        ct_launch_quote(&g->arena, in_part(g, SAID)));
}

/* host NULL: this host. */
static int open_incoming(struct gathering *g, struct host *host, const char *name,
                         struct incoming *in)
{
    const char *path = ct_arena_printf(&g->arena, "%s/%s", g->c.path, name);

    *in = (struct incoming){.io.fd = -1, .host = host};
    if (!host)
        return ckpt_io_open(&in->io, path, O_RDONLY, false);
    if (g->reach->at)
        return ckpt_io_open(&in->io,
                            ct_arena_printf(&g->arena, "%s/%s", folder_at(g, host->name), name),
                            O_RDONLY, false);
    if (ckpt_is_own_host(host->name))
        return ct_fail(CT_EDAMAGED, "%s is not there", path);
    in->io.path = ct_arena_printf(&g->arena, "host %s: %s", host->name, path);
    in->sent = popen(line_for(g, host->name, path), "r");
    return in->sent ? 0 : ct_fail(CT_ENOMEM, "a process that reaches host %s", host->name);
}

static int take_bytes(struct incoming *in, char *to, size_t bytes, size_t at)
{
    if (!in->sent)
        return ckpt_io_read(&in->io, to, bytes, at);
    in->ended = fread(to, 1, bytes, in->sent) < bytes;
    return in->ended ? ct_fail(CT_EDAMAGED, "%s ends too early", in->io.path) : 0;
}

/* The last line of a command's messages, or NULL. */
static const char *last_said(struct gathering *g)
{
    char *text, *last = NULL, *rest = NULL;
    size_t size;

    if (ct_file_read(&g->arena, in_part(g, SAID), MOST_SAID, &text, &size) < 0)
        return NULL;
    for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest))
        last = line;
    return last;
}

/* rc, or the failure of the command. A host that was not reached is not asked again. */
static int close_incoming(struct gathering *g, struct incoming *in, int rc)
{
    int status;
    const char *said;

    if (!in->sent)
        return ckpt_io_close(&in->io, rc);
    status = pclose(in->sent);
    if (rc == 0 || !in->ended || status == 0)
        return rc;
    in->host->silent = !WIFEXITED(status) || WEXITSTATUS(status) != NO_FILE;
    said = last_said(g);
    return ct_fail(in->host->silent ? CT_EIO : CT_EDAMAGED, "host %s%s: %s", in->host->name,
                   in->host->silent ? " is not reached" : "", said ? said : "it does not answer");
}

/* ---- files of ranks ---- */

struct copying {
    struct gathering *g;
    const struct ckpt_file *file;
    struct incoming in;
    struct ckpt_io out;
};

/* A failure to write concerns all files. */
static int note_stuck(struct copying *k, int rc)
{
    k->g->stuck |= rc < 0;
    return rc;
}

static int fill(void *context, size_t number, char *slot)
{
    struct copying *k = context;
    const struct ckpt *c = &k->g->c;

    return take_bytes(&k->in, slot, ckpt_chunk_bytes(c, k->file, number),
                      k->file->header + number * c->chunk);
}

static int write_pages(struct copying *k, const char *data, size_t bytes, size_t at)
{
    return note_stuck(k, ckpt_io_write(&k->out, data, (bytes + PAGE - 1) / PAGE * PAGE, at));
}

static int empty(void *context, size_t number, char *slot)
{
    struct copying *k = context;
    const struct ckpt *c = &k->g->c;
    int rc = ckpt_check_chunk(c, k->file, &k->in.io, number, slot);

    return rc < 0 ? rc
                  : write_pages(k, slot, ckpt_chunk_bytes(c, k->file, number),
                                k->file->header + number * c->chunk);
}

static int copy_header(struct copying *k)
{
    size_t bytes = k->file->header, room = (bytes / PAGE + 1) * PAGE;
    char *memory = aligned_alloc(PAGE, room);
    int rc = memory ? 0 : ct_fail(CT_ENOMEM, "%zu bytes of a header", bytes);

    if (rc == 0)
        rc = take_bytes(&k->in, memset(memory, 0, room), bytes, 0);
    if (rc == 0 && ckpt_hash(memory, bytes) != k->file->header_hash)
        rc = ct_fail(CT_EDAMAGED, "%s: its header has a wrong checksum", k->in.io.path);
    if (rc == 0)
        rc = write_pages(k, memory, bytes, 0);
    free(memory);
    return rc;
}

static int copy_data(struct copying *k)
{
    struct ckpt_pipe pipe = {.ring = {.slots = SLOTS, .slot = (k->g->c.chunk / PAGE + 1) * PAGE},
                             .count = ckpt_chunks(k->file, k->g->c.chunk),
                             .fill = fill,
                             .empty = empty,
                             .context = k,
                             .fill_aside = true};
    int rc;

    pipe.ring.memory = aligned_alloc(PAGE, pipe.ring.slots * pipe.ring.slot);
    rc = pipe.ring.memory ? ckpt_pipe(&pipe)
                          : ct_fail(CT_ENOMEM, "%zu bytes to copy %s",
                                    pipe.ring.slots * pipe.ring.slot, k->in.io.path);
    free(pipe.ring.memory);
    return rc;
}

/* Copy the whole file to COMING. */
static int copy_all(struct copying *k, const char *coming)
{
    size_t bytes = k->file->header + k->file->bytes;
    int rc;

    unlink(coming);
    rc = note_stuck(k, ckpt_io_open(&k->out, coming, O_CREAT | O_EXCL | O_WRONLY, true));
    if (rc < 0)
        return rc;
    rc = note_stuck(k, ckpt_io_reserve(&k->out, bytes));
    if (rc == 0)
        rc = copy_header(k);
    if (rc == 0)
        rc = copy_data(k);
    if (rc == 0)
        rc = note_stuck(k, ckpt_io_settle(&k->out, bytes));
    return ckpt_io_close(&k->out, rc);
}

static int fetch(struct gathering *g, const struct ckpt_file *f)
{
    struct copying k = {.g = g, .file = f};
    struct host *host = host_of(g, f);
    const char *coming = in_part(g, COMING);
    int rc;

    if (host && host->silent)
        return ct_fail(CT_EIO, "host %s is not reached, which has %s", host->name, f->name);
    rc = open_incoming(g, host, f->name, &k.in);
    if (rc == 0)
        rc = copy_all(&k, coming);
    rc = close_incoming(g, &k.in, rc);
    return rc < 0 ? rc : note_stuck(&k, ct_file_rename(coming, in_part(g, f->name)));
}

/* ---- small files ---- */

static int fetch_small(struct gathering *g, struct host *host, size_t number)
{
    struct ct_small_file *f = &g->c.beside.list[number];
    char *data = ct_arena_array(&g->arena, char, f->size + 1);
    struct incoming in;
    int rc = open_incoming(g, host, ct_arena_printf(&g->arena, CKPT_BESIDE "/%s", f->name), &in);

    if (rc == 0)
        rc = take_bytes(&in, data, f->size, 0);
    rc = close_incoming(g, &in, rc);
    if (rc == 0 && ckpt_hash(data, f->size) != g->c.beside_hash[number])
        rc = ct_fail(CT_EDAMAGED, "%s: its checksum is wrong", in.io.path);
    f->data = rc == 0 ? data : NULL;
    return rc;
}

/* Each from the first host with a good one; this host comes first. */
static int fetch_smalls(struct gathering *g)
{
    int rc = 0;

    for (size_t i = 0; rc == 0 && i < g->c.beside.count; i++) {
        rc = fetch_small(g, NULL, i);
        for (size_t h = 0; rc < 0 && h < g->host_count; h++)
            rc = g->hosts[h].silent ? rc : fetch_small(g, &g->hosts[h], i);
    }
    return rc;
}

/* ---- the part ---- */

/* The index without hosts. */
static int whole_index(struct gathering *g, char **text, size_t *size)
{
    struct ckpt whole = g->c;

    whole.files = ct_arena_copy(&g->arena, g->c.files, sizeof(*g->c.files) * g->c.file_count);
    for (size_t i = 0; i < whole.file_count; i++)
        whole.files[i].host = NULL;
    return ckpt_index_text(&g->arena, &whole, text, size);
}

/* Whether `part` has the file, of its size and with its hashes. */
static bool has_good(struct gathering *g, const struct ckpt_file *f)
{
    struct ckpt part = g->c;
    struct ckpt_file file = *f;
    struct stat st;

    part.path = g->part;
    file.absent = false;
    return stat(in_part(g, f->name), &st) == 0 && (size_t)st.st_size == f->header + f->bytes &&
           ckpt_read_file(&part, &file, NULL) == 0;
}

struct parts {
    struct gathering *g;
    const char *text;
};

static void note_part(const char *name, void *context)
{
    struct parts *p = context;
    size_t length = strlen(name);

    if (!strncmp(name, "step-", 5) && length > 5 && !strcmp(name + length - 5, ".part") &&
        strcmp(name, strrchr(p->g->part, '/') + 1) != 0)
        p->text = ct_arena_printf(&p->g->arena, "%s%s%s", p->text,
                                  *p->text ? ", " : "; parts of other steps there: ", name);
}

static int fail_no_room(struct gathering *g, double bytes, double room)
{
    struct parts p = {g, ""};
    char needs[32], lacks[32];
    int rc = ckpt_each_name(g->to, note_part, &p);

    if (rc < 0)
        return rc;
    return ct_fail(CT_EIO,
                   "%s needs %s, and its disk lacks %s of them: make room, or give another "
                   "folder%s",
                   g->step, ckpt_spoken(bytes, needs), ckpt_spoken(bytes - room, lacks), p.text);
}

/* Find the files that `part` lacks, and whether the disk has room for them. */
static int find_lacking(struct gathering *g)
{
    double bytes = PAGE * (double)(g->c.file_count + g->c.beside.count), room;
    int rc = ct_file_room(g->part, &room);

    g->lacks = ct_arena_array(&g->arena, bool, g->c.file_count + 1);
    for (size_t i = 0; i < g->c.file_count; i++) {
        const struct ckpt_file *f = &g->c.files[i];

        g->lacks[i] = !has_good(g, f);
        g->whole += !g->lacks[i];
        bytes += g->lacks[i] ? (double)(f->header + f->bytes) : 0;
    }
    for (size_t i = 0; i < g->c.beside.count; i++)
        bytes += (double)g->c.beside.list[i].size;
    return rc < 0 || room >= bytes ? rc : fail_no_room(g, bytes, room);
}

/* Remove the files of this command alone. */
static void sweep_part(struct gathering *g)
{
    unlink(in_part(g, COMING));
    unlink(in_part(g, SAID));
    ct_file_sweep(g->part);
    ct_file_sweep(in_part(g, CKPT_BESIDE));
}

/* Give `part` the index. A part with another one, or without, is removed. */
static int put_index(struct gathering *g, const char *text, size_t size)
{
    char *former;
    size_t former_size;
    int rc = ckpt_index_read(&g->arena, g->part, &former, &former_size);

    if (rc < 0 && !ckpt_is_bad(rc))
        return rc;
    if (rc == 0 && former_size == size && !memcmp(former, text, size))
        return 0;
    g->created = true;
    rc = ct_file_remove_folder(g->part);
    return rc < 0 ? rc : ct_file_write(in_part(g, INDEX), text, size);
}

/* Begin step-N.part, or go on with it. */
static int begin_part(struct gathering *g)
{
    char *text;
    size_t size;
    int rc;

    g->created = ckpt_is_gone(g->part);
    rc = ct_file_make_folder(g->part);
    if (rc < 0)
        return rc;
    sweep_part(g);
    rc = fetch_smalls(g);
    if (rc == 0)
        rc = whole_index(g, &text, &size);
    if (rc == 0)
        rc = put_index(g, text, size);
    return rc < 0 ? rc : find_lacking(g);
}

/* ---- the whole ---- */

/* The failure of a part that lacks files. */
static int tell_missing(struct gathering *g, size_t missing, int rc)
{
    const char *folder = ct_arena_printf(&g->arena, "%s/..", g->c.path);
    int64_t *steps, gathered = g->c.progress.step - 1;
    size_t count, others = 0;

    if (ckpt_is_gone(g->c.path))
        return ct_fail(CT_EIO, "a run has removed %s meanwhile: gather a newer one", g->c.path);
    if (ckpt_steps(&g->arena, folder, &steps, &count) < 0)
        count = 0;
    for (size_t i = 0; i < count; i++)
        if (steps[i] != gathered)
            steps[others++] = steps[i];
    return ct_fail(
        rc,
        "%zu of %zu files of %s are missing; the others stay in %s, and `%s` gets the rest; other "
        "steps here: %s",
        missing, g->c.file_count, g->c.path, g->part, command_again(g),
        ckpt_steps_text(&g->arena, steps, others));
}

static int fetch_files(struct gathering *g)
{
    size_t missing = 0;
    int worst = 0;

    for (size_t i = 0; i < g->c.file_count; i++) {
        int rc = g->lacks[i] ? fetch(g, &g->c.files[i]) : 0;

        if (rc < 0 && g->stuck)
            return ct_context(rc, "whole files stay in %s, and `%s` goes on", g->part,
                              command_again(g));
        if (rc < 0)
            ct_warn("%s", ct_error_message());
        missing += rc < 0;
        g->whole += g->lacks[i] && rc == 0;
        worst = rc < 0 && !ckpt_is_bad(worst) ? rc : worst;
    }
    return missing ? tell_missing(g, missing, worst) : 0;
}

/* Open the part as a checkpoint and compare its small files, so that no damage is published. */
static int check_part(struct gathering *g)
{
    struct ckpt part;
    int rc = ckpt_open(&g->arena, g->part, &part);

    return rc < 0 ? rc : ckpt_beside_read(&part);
}

/* After a failure. Whole files stay, and so does a part of an earlier call. */
static int give_up(struct gathering *g, int rc)
{
    struct ct_error_kept kept = ct_error_keep();

    if (g->created && !g->whole)
        ct_file_remove_folder(g->part);
    return ct_error_restore(rc, &kept);
}

static int gather(struct gathering *g)
{
    int rc = begin_part(g);

    if (rc == 0)
        rc = fetch_files(g);
    if (rc == 0)
        rc = ckpt_beside_write(&g->c, g->part);
    sweep_part(g);
    if (rc == 0)
        rc = check_part(g);
    if (rc == 0)
        rc = ct_file_sync_folder(g->part);
    if (rc == 0)
        rc = ct_file_rename(g->part, g->step);
    return rc < 0 ? give_up(g, rc) : 0;
}

/* Take the target folder. */
static int find_place(struct gathering *g)
{
    int rc;

    if (ct_file_is_same(g->to, ct_arena_printf(&g->arena, "%s/..", g->c.path)))
        return ct_fail(CT_ECONFIG, "--to %s is the folder of %s itself: give another one", g->to,
                       g->c.path);
    g->step = ckpt_step_path(&g->arena, g->to, g->c.progress.step - 1);
    g->part = ct_arena_printf(&g->arena, "%s.part", g->step);
    rc = ckpt_folder_take(g->to);
    if (rc == CT_EPEER)
        return ct_fail(CT_ECONFIG,
                       "a running job or another `ckpt gather` writes to --to %s: wait for its "
                       "end, or give another folder",
                       g->to);
    if (rc < 0)
        return ct_context(rc, "--to");
    if (!ckpt_is_gone(g->step))
        return ct_fail(CT_ECONFIG, "there is %s already: give another folder, or remove it",
                       g->step);
    return 0;
}

int ckpt_gather(struct ct_arena *arena, const char *path, const char *to,
                const struct ckpt_reach *reach, struct ckpt *whole)
{
    struct gathering g = {.path = path, .to = to, .reach = reach};
    int rc = ckpt_locate(&g.arena, path, &g.c);

    if (rc == 0)
        rc = find_place(&g);
    if (rc == 0) {
        g.hosts = ct_arena_array(&g.arena, struct host, g.c.file_count + 1);
        for (size_t i = 0; i < g.c.file_count; i++)
            if (g.c.files[i].absent)
                note_host(&g, g.c.files[i].host);
        rc = gather(&g);
    }
    ckpt_folder_leave();
    if (rc == 0)
        rc = ckpt_open(arena, g.step, whole);
    ct_arena_finish(&g.arena);
    return rc;
}
