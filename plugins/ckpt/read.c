/*
 * Reading what is wanted of a checkpoint. Chunks of which some byte is wanted are read once, in the
 * order of the file, by a thread that is a few chunks ahead of the one that compares them with
 * their hashes and copies what is wanted.
 */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#include <ctitan/error.h>

#include "ckpt.h"

#define SLOTS 4 /* chunks in memory */

struct ckpt_reader {
    const struct ckpt *c;
    const struct ckpt_file *file;
    const struct ckpt_sink *sink; /* NULL: only compare */
    struct ckpt_io io;
    size_t *chunk, count; /* the chunks that are wanted */
    size_t *from, *to;    /* by box: its wanted bytes */
};

/* ---- boxes ---- */

/* A box of a box, in bytes of its last dimension where these have several elements, becomes one of
   the whole tensor. */
static void in_elements(const struct ckpt_box *b, int64_t *offset, int64_t *shape)
{
    int last = b->ndim - 1, bits = ct_dtype_bits(b->dtype);

    if (bits < 8 && b->ndim) {
        offset[last] *= 8 / bits;
        shape[last] *= 8 / bits;
        if (shape[last] > b->shape[last] - offset[last])
            shape[last] = b->shape[last] - offset[last];
    }
    for (int d = 0; d < b->ndim; d++)
        offset[d] += b->offset[d];
}

/*
 * Elements [begin, end) of a dense box, as boxes: each is some indices of one dimension, with all
 * of the dimensions after it. At most two for each dimension. Bytes are counted in the place of
 * elements that are smaller, until a box is put.
 */
static int put_elements(const struct ckpt_reader *r, const struct ckpt_box *b, int64_t begin,
                        int64_t end, const char *data)
{
    int64_t stride[CT_MAX_DIMS + 1], offset[CT_MAX_DIMS], shape[CT_MAX_DIMS];
    struct ct_tensor dense = ct_tensor_dense(NULL, b->dtype, b->ndim, b->shape),
                     box = ct_tensor_packed(&dense);
    int rc = 0;

    stride[b->ndim] = 1;
    for (int d = b->ndim - 1; d >= 0; d--)
        stride[d] = stride[d + 1] * box.shape[d];
    while (rc == 0 && begin < end) {
        int64_t at = begin, count = 1;
        int d = 0; /* the outermost dimension of which at least one index is whole */

        while (d < b->ndim && (begin % stride[d + 1] || end - begin < stride[d + 1]))
            d++;
        for (int k = 0; k < b->ndim; k++) {
            int64_t index = at / stride[k + 1];

            at %= stride[k + 1];
            offset[k] = k <= d ? index : 0;
            shape[k] = k < d ? 1 : box.shape[k];
            if (k == d) {
                count = (end - begin) / stride[k + 1];
                count = count < box.shape[k] - index ? count : box.shape[k] - index;
                shape[k] = count;
            }
        }
        count *= d < b->ndim ? stride[d + 1] : 1;
        in_elements(b, offset, shape);
        rc = r->sink->put(r->sink->context, b, offset, shape, data);
        data += (size_t)count * ct_dtype_bytes(b->dtype, 0, NULL);
        begin += count;
    }
    return rc;
}

/* The bytes [begin, end) of the file's data are at `data`. */
static int put_data(const struct ckpt_reader *r, size_t begin, size_t end, const char *data)
{
    int rc = 0;

    for (size_t i = 0; rc == 0 && i < r->file->box_count; i++) {
        const struct ckpt_box *b = &r->file->boxes[i];
        size_t item = ct_dtype_bytes(b->dtype, 0, NULL);
        size_t first = b->at + r->from[i] > begin ? b->at + r->from[i] : begin;
        size_t last = b->at + r->to[i] < end ? b->at + r->to[i] : end;

        if (first < last)
            rc = put_elements(r, b, (int64_t)((first - b->at) / item),
                              (int64_t)((last - b->at) / item), data + (first - begin));
    }
    return rc;
}

/* ---- chunks ---- */

static int bad_chunk(const struct ckpt_io *io, const struct ckpt_file *file, size_t begin,
                     size_t end)
{
    const struct ckpt_box *b = file->boxes;

    while (b->at + b->bytes <= begin)
        b++;
    return ct_fail(CT_EDAMAGED, "%s: bytes %zu to %zu have a wrong checksum (%s from row %lld on)",
                   io->path, file->header + begin, file->header + end, b->name,
                   b->ndim
                       ? (long long)(b->offset[0] + (int64_t)((begin > b->at ? begin - b->at : 0) /
                                                              (b->bytes / (size_t)b->shape[0])))
                       : 0LL);
}

size_t ckpt_chunk_bytes(const struct ckpt *c, const struct ckpt_file *file, size_t number)
{
    size_t left = file->bytes - number * c->chunk;

    return left < c->chunk ? left : c->chunk;
}

int ckpt_check_chunk(const struct ckpt *c, const struct ckpt_file *file, const struct ckpt_io *io,
                     size_t number, const char *data)
{
    size_t bytes = ckpt_chunk_bytes(c, file, number), begin = number * c->chunk;

    return ckpt_hash(data, bytes) == file->hash[number] ? 0
                                                        : bad_chunk(io, file, begin, begin + bytes);
}

int ckpt_reader_read(struct ckpt_reader *r, size_t number, char *to)
{
    int rc = r->io.fd < 0 ? ckpt_io_open(&r->io, r->io.path, O_RDONLY, false) : 0;

    return rc < 0 ? rc
                  : ckpt_io_read(&r->io, to, ckpt_chunk_bytes(r->c, r->file, number),
                                 r->file->header + number * r->c->chunk);
}

int ckpt_reader_put(const struct ckpt_reader *r, size_t number, const char *data)
{
    size_t begin = number * r->c->chunk;
    int rc = ckpt_check_chunk(r->c, r->file, &r->io, number, data);

    return rc == 0 && r->sink
               ? put_data(r, begin, begin + ckpt_chunk_bytes(r->c, r->file, number), data)
               : rc;
}

static int fill_slot(void *context, size_t number, char *slot)
{
    struct ckpt_reader *r = context;

    return ckpt_reader_read(r, r->chunk[number], slot);
}

static int empty_slot(void *context, size_t number, char *slot)
{
    const struct ckpt_reader *r = context;

    return ckpt_reader_put(r, r->chunk[number], slot);
}

int ckpt_check_header(const struct ckpt_file *file, struct ckpt_io *io, char *memory, size_t room)
{
    XXH3_state_t *state = XXH3_createState();
    int rc = state ? 0 : ct_fail(CT_ENOMEM, "%s", io->path);

    if (state)
        XXH3_64bits_reset(state);
    for (size_t at = 0, part; rc == 0 && at < file->header; at += part) {
        part = file->header - at < room ? file->header - at : room;
        rc = ckpt_io_read(io, memory, part, at);
        if (rc == 0)
            XXH3_64bits_update(state, memory, part);
    }
    if (rc == 0 && XXH3_64bits_digest(state) != file->header_hash)
        rc = ct_fail(CT_EDAMAGED, "%s: its header has a wrong checksum", io->path);
    XXH3_freeState(state);
    return rc;
}

static void choose_chunks(struct ckpt_reader *r)
{
    for (size_t i = 0; i < r->file->box_count; i++) {
        const struct ckpt_box *b = &r->file->boxes[i];

        r->to[i] = b->bytes;
        if (r->sink && !r->sink->want(r->sink->context, b, &r->from[i], &r->to[i]))
            r->from[i] = r->to[i] = 0;
        if (r->from[i] == r->to[i])
            continue;
        for (size_t n = (b->at + r->from[i]) / r->c->chunk;
             n <= (b->at + r->to[i] - 1) / r->c->chunk; n++)
            if (!r->count || r->chunk[r->count - 1] < n) /* boxes are in the order of the file */
                r->chunk[r->count++] = n;
    }
}

static int read_open(struct ckpt_reader *r)
{
    struct ckpt_pipe pipe = {.ring = {.slots = r->count < SLOTS ? r->count + 1 : SLOTS,
                                      .slot = (r->c->chunk + PAGE - 1) / PAGE * PAGE},
                             .count = r->count,
                             .fill = fill_slot,
                             .empty = empty_slot,
                             .context = r,
                             .fill_aside = true};
    bool direct = r->file->header % PAGE == 0 && r->c->chunk % PAGE == 0;
    const char *path = r->io.path;
    int rc = ckpt_io_open(&r->io, path, O_RDONLY, direct && !(r->sink && r->sink->shared));

    if (rc < 0)
        return rc;
    if (!r->sink && !r->io.direct) /* from the disk, and not from memory */
        posix_fadvise(r->io.fd, 0, 0, POSIX_FADV_DONTNEED);
    pipe.ring.memory = aligned_alloc(PAGE, pipe.ring.slots * pipe.ring.slot);
    if (!pipe.ring.memory)
        rc = ct_fail(CT_ENOMEM, "%zu bytes to read %s", pipe.ring.slots * pipe.ring.slot, path);
    if (rc == 0)
        rc = ckpt_check_header(r->file, &r->io, pipe.ring.memory, pipe.ring.slot);
    if (rc == 0 && r->count)
        rc = ckpt_pipe(&pipe);
    free(pipe.ring.memory);
    return ckpt_io_close(&r->io, rc);
}

struct ckpt_reader *ckpt_reader_make(struct ct_arena *arena, const struct ckpt *c,
                                     const struct ckpt_file *file, const struct ckpt_sink *sink)
{
    struct ckpt_reader *r = ct_arena_new(arena, struct ckpt_reader);

    *r = (struct ckpt_reader){
        .c = c,
        .file = file,
        .sink = sink,
        .io = {.path = ct_arena_printf(arena, "%s/%s", c->path, file->name), .fd = -1},
        .chunk = ct_arena_array(arena, size_t, ckpt_chunks(file, c->chunk) + 1),
        .from = ct_arena_array(arena, size_t, file->box_count + 1),
        .to = ct_arena_array(arena, size_t, file->box_count + 1),
    };
    choose_chunks(r);
    return r;
}

void ckpt_reader_wanted(const struct ckpt_reader *r, int32_t *wanted)
{
    for (size_t i = 0; i < r->count; i++)
        wanted[r->chunk[i]] = 1;
}

int ckpt_reader_close(struct ckpt_reader *r, int rc)
{
    return ckpt_io_close(&r->io, rc);
}

int ckpt_read_file(const struct ckpt *c, const struct ckpt_file *file, const struct ckpt_sink *sink)
{
    struct ct_arena scratch = {0};
    struct ckpt_reader *r = ckpt_reader_make(&scratch, c, file, sink);
    int rc = 0;

    if (r->count || !sink)
        rc = file->absent ? ckpt_elsewhere(c, file) : read_open(r);
    ct_arena_finish(&scratch);
    return rc;
}

int ckpt_read(const struct ckpt *c, const struct ckpt_sink *sink)
{
    int rc = 0;

    for (size_t i = 0; rc == 0 && i < c->file_count; i++)
        rc = ckpt_read_file(c, &c->files[i], sink);
    return rc;
}
