/*
 * Writing a rank's file. Chunks of data are copied into a ring and hashed while another thread
 * writes. A state is released as soon as its last byte has been copied, so the run waits for the
 * disk only with what does not fit into the ring.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <ctitan/error.h>
#include <ctitan/lib/safetensors.h>
#include <ctitan/lib/state.h>
#include <ctitan/log.h>

#include "ckpt.h"

#define BLOCK ((size_t)64 << 10) /* elements that are converted at a time */

/* ---- copying ---- */

struct copy {
    const struct ckpt_write *w;
    struct ckpt_io io;
    size_t box, released; /* the first box that is not copied, not released */
    void *raw;            /* elements to convert */
};

/* Copy elements, and convert them to the dtype in the file. */
static int convert(struct copy *c, const struct ckpt_box *b, size_t begin, size_t end, char *to)
{
    size_t in = ct_dtype_size(b->state->dtype), out = ct_dtype_size(b->dtype);
    int rc = 0;

    if (!c->raw && !(c->raw = malloc(BLOCK * 8)))
        return ct_fail(CT_ENOMEM, "%zu bytes to convert weights in", BLOCK * 8);
    for (size_t i = begin; rc == 0 && i < end; i += BLOCK) {
        int64_t n = (int64_t)(end - i < BLOCK ? end - i : BLOCK), zero = 0;
        struct ct_weight raw = {b->name, b->state->dtype, 1, {n}, c->raw};

        rc = ct_run_copy_out(c->w->run, b->state, b->from + i * in, (size_t)n * in, c->raw);
        if (rc == 0)
            rc = ct_weights_read(&raw, &zero, &n, b->dtype, to + (i - begin) * out);
    }
    return rc;
}

/* The bytes [begin, end) of a box in the file. */
static int copy_part(struct copy *c, const struct ckpt_box *b, size_t begin, size_t end, char *to)
{
    size_t item = ct_dtype_size(b->dtype);

    if (b->data) {
        memcpy(to, b->data + begin, end - begin);
        return 0;
    }
    if (b->dtype != b->state->dtype)
        return convert(c, b, begin / item, end / item, to);
    return ct_run_copy_out(c->w->run, b->state, b->from + begin, end - begin, to);
}

static void release(struct copy *c, size_t count)
{
    for (; c->w->hold && c->released < count; c->released++)
        ct_run_release(c->w->run, c->w->file->boxes[c->released].state);
}

static int copy_chunk(void *context, size_t number, char *slot)
{
    struct copy *c = context;
    struct ckpt_file *f = c->w->file;
    size_t begin = number * CHUNK, end = begin + CHUNK < f->bytes ? begin + CHUNK : f->bytes;
    int rc = 0;

    for (size_t at = begin; rc == 0 && at < end;) {
        const struct ckpt_box *b = &f->boxes[c->box];
        size_t to = b->at + b->bytes < end ? b->at + b->bytes : end;

        rc = copy_part(c, b, at - b->at, to - b->at, slot + (at - begin));
        at = to;
        c->box += at == b->at + b->bytes;
    }
    release(c, c->box);
    if (rc == 0)
        f->hash[number] = ckpt_hash(slot, end - begin);
    return rc;
}

/* ---- writing ---- */

static int write_chunk(void *context, size_t number, char *slot)
{
    struct copy *c = context;
    size_t at = c->w->file->header + number * CHUNK, left = c->w->file->bytes - number * CHUNK;

    /* The last one up to a whole page; what is too much is cut off at the end. */
    return ckpt_io_write(&c->io, slot, left < CHUNK ? (left + PAGE - 1) / PAGE * PAGE : CHUNK, at);
}

static int write_header(struct copy *c)
{
    size_t bytes = c->w->file->header;
    int rc = 0;

    for (size_t at = 0; rc == 0 && at < bytes; at += CHUNK) {
        size_t part = bytes - at < CHUNK ? bytes - at : CHUNK;

        memcpy(c->w->ring.memory, c->w->header + at, part); /* begins at a page */
        rc = ckpt_io_write(&c->io, c->w->ring.memory, part, at);
    }
    return rc;
}

/* A full disk shows at once. */
static int reserve(struct copy *c)
{
    size_t bytes = c->w->file->header + c->w->file->bytes;

    if (fallocate(c->io.fd, 0, 0, (off_t)bytes) < 0 && errno != EOPNOTSUPP && errno != ENOSYS)
        return ct_fail(CT_EIO, "%s, of %zu bytes: %s", c->io.path, bytes, strerror(errno));
    return 0;
}

static int write_data(struct copy *c)
{
    const struct ckpt_file *f = c->w->file;
    struct ckpt_pipe pipe = {.ring = c->w->ring,
                             .count = ckpt_chunks(f, CHUNK),
                             .fill = copy_chunk,
                             .empty = write_chunk,
                             .context = c};
    int rc = reserve(c);

    if (rc == 0)
        rc = write_header(c);
    if (rc == 0)
        rc = ckpt_pipe(&pipe);
    if (rc == 0 && (ftruncate(c->io.fd, (off_t)(f->header + f->bytes)) < 0 || fsync(c->io.fd) < 0))
        rc = ct_fail(CT_EIO, "%s: %s", c->io.path, strerror(errno));
    return rc;
}

/* Once. */
static void tell_cached(const struct ckpt_write *w)
{
    static bool told;

    if (!told && w->run && w->run->rank == 0)
        ct_info("%s: this file system has no direct access, so that checkpoints go through the "
                "page cache, and cost more processor time",
                w->path);
    told = true;
}

void ckpt_release(const struct ckpt_write *w)
{
    release(&(struct copy){.w = w}, w->file->box_count);
}

int ckpt_write(const struct ckpt_write *w)
{
    struct copy c = {.w = w};
    int rc = ckpt_io_open(&c.io, w->path, O_CREAT | O_EXCL | O_WRONLY, true);

    if (rc == 0)
        rc = write_data(&c);
    release(&c, w->file->box_count);
    free(c.raw);
    if (rc == 0 && !c.io.direct)
        tell_cached(w);
    return ckpt_io_close(&c.io, rc);
}
