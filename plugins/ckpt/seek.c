/*
 * Boxes of a checkpoint's tensors, read in any order. A chunk is read whole and compared with its
 * hash when the first byte of it is needed; after that, bytes of it are read as they are needed.
 */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#include <ctitan/error.h>

#include "ckpt.h"

/* A box of a tensor, and its file. */
struct ckpt_seek_box {
    size_t file;
    const struct ckpt_box *box;
};

struct ckpt_seek_file {
    struct ckpt_io io; /* fd -1: not open */
    bool checked;      /* its header */
    bool *good;        /* by chunk: compared with its hash */
};

int ckpt_seek_begin(struct ckpt_seek *s, const struct ckpt *c)
{
    *s = (struct ckpt_seek){.c = c, .last = SIZE_MAX};
    s->first = ct_arena_array(&s->arena, size_t, c->tensor_count + 2);
    s->files = ct_arena_array(&s->arena, struct ckpt_seek_file, c->file_count + 1);
    for (size_t f = 0; f < c->file_count; f++) {
        const struct ckpt_file *file = &c->files[f];

        s->files[f].io = (struct ckpt_io){
            .path = ct_arena_printf(&s->arena, "%s/%s", c->path, file->name), .fd = -1};
        s->files[f].good = ct_arena_array(&s->arena, bool, ckpt_chunks(file, c->chunk) + 1);
        for (size_t b = 0; b < file->box_count; b++)
            s->first[file->boxes[b].tensor - c->tensors + 2]++;
    }
    for (size_t t = 0; t < c->tensor_count; t++)
        s->first[t + 2] += s->first[t + 1];
    s->boxes = ct_arena_array(&s->arena, struct ckpt_seek_box, s->first[c->tensor_count + 1] + 1);
    for (size_t f = 0; f < c->file_count; f++)
        for (size_t b = 0; b < c->files[f].box_count; b++) {
            const struct ckpt_box *box = &c->files[f].boxes[b];

            s->boxes[s->first[box->tensor - c->tensors + 1]++] = (struct ckpt_seek_box){f, box};
        }
    s->chunk = malloc(c->chunk + 1);
    return s->chunk ? 0 : ct_fail(CT_ENOMEM, "%zu bytes to read %s", c->chunk, c->path);
}

void ckpt_seek_end(struct ckpt_seek *s)
{
    for (size_t f = 0; s->files && f < s->c->file_count; f++)
        if (s->files[f].io.fd >= 0)
            ckpt_io_close(&s->files[f].io, 0);
    free(s->chunk);
    ct_arena_finish(&s->arena);
}

/* Close the file that was opened longest ago. */
static void make_room(struct ckpt_seek *s)
{
    size_t *slot = &s->open[s->opened++ % CKPT_SEEK_OPEN];

    if (s->opened > CKPT_SEEK_OPEN)
        ckpt_io_close(&s->files[*slot].io, 0);
}

static int open_file(struct ckpt_seek *s, size_t index)
{
    struct ckpt_seek_file *f = &s->files[index];
    int rc;

    if (f->io.fd >= 0)
        return 0;
    if (s->c->files[index].absent)
        return ckpt_elsewhere(s->c, &s->c->files[index]);
    make_room(s);
    rc = ckpt_io_open(&f->io, f->io.path, O_RDONLY, false);
    s->open[(s->opened - 1) % CKPT_SEEK_OPEN] = index;
    if (rc == 0 && !f->checked)
        rc = ckpt_check_header(&s->c->files[index], &f->io, s->chunk, s->c->chunk);
    s->last = SIZE_MAX; /* the header was in its place */
    f->checked = rc == 0;
    return rc;
}

/* Have chunk n of a file in s->chunk, compared with its hash. */
static int take_chunk(struct ckpt_seek *s, size_t index, size_t n)
{
    const struct ckpt_file *file = &s->c->files[index];
    struct ckpt_seek_file *f = &s->files[index];
    int rc;

    s->last = SIZE_MAX;
    rc = ckpt_io_read(&f->io, s->chunk, ckpt_chunk_bytes(s->c, file, n),
                      file->header + n * s->c->chunk);
    if (rc == 0)
        rc = ckpt_check_chunk(s->c, file, &f->io, n, s->chunk);
    if (rc < 0)
        return rc;
    f->good[n] = true;
    s->last = index;
    s->number = n;
    return 0;
}

/* Bytes of a file's data, from `at` on. */
static int read_bytes(struct ckpt_seek *s, size_t index, size_t at, size_t bytes, char *to)
{
    struct ckpt_seek_file *f = &s->files[index];
    int rc = open_file(s, index);

    while (rc == 0 && bytes) {
        size_t n = at / s->c->chunk, within = at % s->c->chunk, left = s->c->chunk - within;
        size_t part = bytes < left ? bytes : left;

        if (!f->good[n])
            rc = take_chunk(s, index, n);
        if (rc == 0 && s->last == index && s->number == n)
            memcpy(to, s->chunk + within, part);
        else if (rc == 0)
            rc = ckpt_io_read(&f->io, to, part, s->c->files[index].header + at);
        to += part;
        at += part;
        bytes -= part;
    }
    return rc;
}

/* The same for elements smaller than a byte, which lie differently in their bytes in the two boxes:
   `size` of them from `begin` on. */
static int read_codes(struct ckpt_seek *s, const struct ckpt_seek_box *from, const int64_t *begin,
                      const int64_t *size, const int64_t *offset, const int64_t *shape, char *to)
{
    const struct ckpt_box *b = from->box;
    int last = b->ndim - 1, in_byte = 8 / ct_dtype_bits(b->dtype), rc = 0;
    int64_t first = begin[last] - b->offset[last], rows = ct_shape_count(last, size);
    int64_t behind = first % in_byte, used[] = {behind + size[last]};
    size_t bytes = ct_dtype_bytes(b->dtype, 1, used);
    struct ct_tensor target = ct_tensor_dense(to, b->dtype, b->ndim, shape), row;
    char *room = malloc(bytes + 1);

    if (!room)
        return ct_fail(CT_ENOMEM, "a row of %s", b->name);
    row = ct_tensor_dense(room, b->dtype, 1, used);
    for (int64_t r = 0; rc == 0 && r < rows; r++) {
        int64_t rest = r, in_box = 0, in_target = 0, box_stride = 1, target_stride = 1;

        for (int d = last - 1; d >= 0; rest /= size[d--]) {
            int64_t i = begin[d] + rest % size[d];

            in_box += (i - b->offset[d]) * box_stride;
            in_target += (i - offset[d]) * target_stride;
            box_stride *= b->shape[d];
            target_stride *= shape[d];
        }
        rc = read_bytes(s, from->file,
                        b->at + (size_t)in_box * ct_dtype_bytes(b->dtype, 1, &b->shape[last]) +
                            (size_t)(first / in_byte),
                        bytes, room);
        for (int64_t i = 0; rc == 0 && i < size[last]; i++)
            ct_tensor_store(&target, in_target * shape[last] + begin[last] - offset[last] + i,
                            ct_tensor_load(&row, behind + i));
    }
    free(room);
    return rc;
}

/* Read what a box of a file has of the target box [offset, offset + shape), and put it to its place
   there. *count: the elements that it had. */
static int read_common(struct ckpt_seek *s, const struct ckpt_seek_box *from, const int64_t *offset,
                       const int64_t *shape, char *to, int64_t *count)
{
    const struct ckpt_box *b = from->box;
    int64_t begin[CT_MAX_DIMS], size[CT_MAX_DIMS], run = 1, runs = 1;
    size_t item = ct_dtype_bytes(b->dtype, 0, NULL);
    int outer = b->ndim, rc = 0;
    bool whole = true;

    for (int d = 0; d < b->ndim; d++) {
        int64_t end = b->offset[d] + b->shape[d], other = offset[d] + shape[d];

        begin[d] = b->offset[d] > offset[d] ? b->offset[d] : offset[d];
        size[d] = (end < other ? end : other) - begin[d];
        if (size[d] <= 0)
            return 0;
    }
    if (ct_dtype_bits(b->dtype) < 8) {
        *count += ct_shape_count(b->ndim, size);
        return read_codes(s, from, begin, size, offset, shape, to);
    }
    while (whole && outer > 0) {
        outer--;
        run *= size[outer];
        whole = size[outer] == b->shape[outer] && size[outer] == shape[outer];
    }
    for (int d = 0; d < outer; d++)
        runs *= size[d];
    for (int64_t r = 0; rc == 0 && r < runs; r++) {
        int64_t rest = r, in_box = 0, in_target = 0, box_stride = 1, target_stride = 1;

        for (int d = b->ndim - 1; d >= 0; d--) {
            int64_t i = begin[d] + (d < outer ? rest % size[d] : 0);

            rest /= d < outer ? size[d] : 1;
            in_box += (i - b->offset[d]) * box_stride;
            in_target += (i - offset[d]) * target_stride;
            box_stride *= b->shape[d];
            target_stride *= shape[d];
        }
        rc = read_bytes(s, from->file, b->at + (size_t)in_box * item, (size_t)run * item,
                        to + (size_t)in_target * item);
    }
    *count += run * runs;
    return rc;
}

int ckpt_seek_read(struct ckpt_seek *s, const struct ct_checkpoint_tensor *t, const int64_t *offset,
                   const int64_t *shape, void *to)
{
    size_t tensor = (size_t)(t - s->c->tensors);
    int64_t count = 0, wanted = ct_shape_count(t->ndim, shape);
    int rc = 0;

    for (size_t i = s->first[tensor]; rc == 0 && i < s->first[tensor + 1]; i++)
        rc = read_common(s, &s->boxes[i], offset, shape, to, &count);
    if (rc == 0 && count != wanted)
        rc = ct_fail(CT_EDAMAGED, "%s: %s: %lld of %lld values are there", s->c->path, t->name,
                     (long long)count, (long long)wanted);
    return rc;
}
