/*
 * Checkpoints for those who have no run (lib/checkpoint.h). A file has one box of a tensor, so the
 * boxes of a tensor that is written are each in a file of their own.
 */
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <ctitan/error.h>
#include <ctitan/file.h>
#include <ctitan/lib/checkpoint.h>

#include "ckpt.h"

/* ---- reading ---- */

struct opened {
    struct ckpt c;
    struct ckpt_seek seek;
};

static int open_one(struct ct_arena *arena, const char *path, struct ct_checkpoint *c)
{
    struct opened *o = ct_arena_new(arena, struct opened);
    int rc = ckpt_locate(arena, path, &o->c);

    *c = (struct ct_checkpoint){.own = o};
    if (rc == 0)
        rc = ckpt_beside_read(&o->c);
    if (rc == 0)
        rc = ckpt_seek_begin(&o->seek, &o->c);
    if (rc < 0)
        return rc;
    *c = (struct ct_checkpoint){.path = o->c.path,
                                .step = o->c.progress.step - 1,
                                .config = o->c.config,
                                .files = o->c.beside,
                                .tensors = o->c.tensors,
                                .count = o->c.tensor_count,
                                .own = o};
    return 0;
}

static int read_box(const struct ct_checkpoint *c, size_t tensor, const int64_t *offset,
                    const int64_t *shape, void *to)
{
    struct opened *o = c->own;

    return ckpt_seek_read(&o->seek, &o->c.tensors[tensor], offset, shape, to);
}

static void close_one(struct ct_checkpoint *c)
{
    struct opened *o = c->own;

    if (o)
        ckpt_seek_end(&o->seek);
}

/* ---- writing ---- */

struct files {
    struct ckpt *c;
    size_t room, *box_room, rooms;
};

static struct ckpt_file *file_of(struct files *f, size_t index)
{
    struct ckpt *c = f->c;

    while (c->file_count <= index) {
        c->files =
            ct_arena_grow(c->arena, c->files, &f->room, c->file_count + 1, sizeof(*c->files));
        f->box_room =
            ct_arena_grow(c->arena, f->box_room, &f->rooms, c->file_count + 1, sizeof(size_t));
        f->box_room[c->file_count] = 0;
        c->files[c->file_count] = (struct ckpt_file){
            .name = ct_arena_printf(c->arena, "rank-%05zu.safetensors", c->file_count)};
        c->file_count++;
    }
    return &c->files[index];
}

static struct ckpt_box box_of(const struct ct_checkpoint_tensor *t,
                              const struct ct_checkpoint_box *from)
{
    struct ckpt_box b = {.name = t->name, .dtype = t->dtype, .ndim = t->ndim, .given = from};

    memcpy(b.shape, from->shape, sizeof(b.shape));
    memcpy(b.offset, from->offset, sizeof(b.offset));
    b.bytes = (size_t)ct_shape_count(b.ndim, b.shape) * ct_dtype_size(b.dtype);
    return b;
}

static void list_files(struct ckpt *c, const struct ct_checkpoint *from,
                       const struct ct_checkpoint_box *boxes, size_t count)
{
    struct files f = {.c = c};
    size_t *before = ct_arena_array(c->arena, size_t, from->count + 1); /* boxes of each tensor */

    for (size_t i = 0; i < count; i++) {
        size_t index = before[boxes[i].tensor]++;
        struct ckpt_file *file = file_of(&f, index);

        file->boxes = ct_arena_grow(c->arena, file->boxes, &f.box_room[index], file->box_count + 1,
                                    sizeof(*file->boxes));
        file->boxes[file->box_count++] = box_of(&from->tensors[boxes[i].tensor], &boxes[i]);
    }
    for (size_t i = 0; i < c->file_count; i++)
        ckpt_place(c->arena, &c->files[i]);
    c->world = (int64_t)c->file_count;
}

static int write_file(struct ckpt *c, struct ckpt_file *file, const char *temporary)
{
    struct ckpt_write w = {.file = file, .ring = {aligned_alloc(PAGE, 2 * CHUNK), 2, CHUNK}};
    char *header = NULL;
    int rc = w.ring.memory ? ckpt_make_header(file, &header) : ct_fail(CT_ENOMEM, "a ring");

    w.path = ct_arena_printf(c->arena, "%s/%s", temporary, file->name);
    w.header = header;
    if (rc == 0)
        rc = ckpt_write(&w);
    free(header);
    free(w.ring.memory);
    return rc;
}

static int write_all(struct ckpt *c)
{
    const char *temporary = ct_arena_printf(c->arena, "%s.tmp-%ld", c->path, (long)getpid());
    int rc = ct_file_make_folder(temporary);
    char *text;
    size_t size;

    for (size_t i = 0; rc == 0 && i < c->file_count; i++)
        rc = write_file(c, &c->files[i], temporary);
    if (rc == 0)
        rc = ckpt_beside_write(c, temporary);
    if (rc == 0)
        rc = ckpt_index_text(c->arena, c, &text, &size);
    if (rc == 0)
        rc = ckpt_index_write(text, size, temporary);
    return rc < 0 ? rc : ckpt_publish(temporary, c->path);
}

static int write_one(struct ct_arena *arena, const char *folder, bool replace,
                     struct ct_checkpoint *from, const struct ct_checkpoint_box *boxes,
                     size_t count)
{
    struct ckpt c = {.arena = arena,
                     .path = ckpt_step_path(arena, folder, 0),
                     .progress = {.step = 1},
                     .time = (int64_t)time(NULL),
                     .model_only = true,
                     .mesh = "imported",
                     .recipe = "",
                     .config = from->config,
                     .beside = from->files,
                     .tensors = from->tensors,
                     .tensor_count = from->count,
                     .chunk = CHUNK};

    from->path = c.path;
    if (!access(c.path, F_OK) && !replace)
        return ct_fail(CT_ECONFIG,
                       "there is %s already: give another folder, or --force to replace it",
                       c.path);
    list_files(&c, from, boxes, count);
    return write_all(&c);
}

const struct ct_checkpoint_ops ckpt_format = {
    .size = sizeof(ckpt_format),
    .open = open_one,
    .read = read_box,
    .close = close_one,
    .write = write_one,
};
