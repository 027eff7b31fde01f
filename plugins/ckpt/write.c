/*
 * Writing a rank's file. One thread copies chunks of data into a ring while there are free slots,
 * and then hashes and writes the oldest chunk. A state is released as soon as its last byte has
 * been copied, so the run waits for the disk only with what does not fit into the ring.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#include <ctitan/error.h>
#include <ctitan/lib/safetensors.h>
#include <ctitan/lib/state.h>

#include "ckpt.h"

#define BLOCK ((size_t)64 << 10) /* elements that are converted at a time */

uint64_t ckpt_hash(const void *data, size_t bytes)
{
    return XXH3_64bits(data, bytes);
}

int ckpt_write_all(int fd, const char *path, const void *data, size_t bytes, size_t at)
{
    for (size_t done = 0; done < bytes;) {
        ssize_t n = pwrite(fd, (const char *)data + done, bytes - done, (off_t)(at + done));

        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return ct_fail(CT_EIO, "%s: %s", path, strerror(n < 0 ? errno : ENOSPC));
        done += (size_t)n;
    }
    return 0;
}

int ckpt_sync_folder(const char *path)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int failed = fd < 0 || (fsync(fd) < 0 && errno != EINVAL) ? errno : 0; /* EINVAL: unsupported */

    if (fd >= 0)
        close(fd);
    return failed ? ct_fail(CT_EIO, "%s: %s", path, strerror(failed)) : 0;
}

/* ---- copying ---- */

struct copy {
    const struct ckpt_write *w;
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

static int copy_chunk(struct copy *c, size_t number, char *slot)
{
    const struct ckpt_file *f = c->w->file;
    size_t begin = number * CHUNK, end = begin + CHUNK < f->bytes ? begin + CHUNK : f->bytes;
    int rc = 0;

    for (size_t at = begin; rc == 0 && at < end;) {
        const struct ckpt_box *b = &f->boxes[c->box];
        size_t to = b->at + b->bytes < end ? b->at + b->bytes : end;

        rc = copy_part(c, b, at - b->at, to - b->at, slot + (at - begin));
        at = to;
        c->box += at == b->at + b->bytes;
    }
    return rc;
}

static void release(struct copy *c, size_t count)
{
    for (; c->w->hold && c->released < count; c->released++)
        ct_run_release(c->w->run, c->w->file->boxes[c->released].state);
}

/* ---- writing ---- */

static int write_chunk(const struct ckpt_write *w, int fd, size_t number, const char *slot)
{
    struct ckpt_file *f = w->file;
    size_t at = number * CHUNK, bytes = f->bytes - at < CHUNK ? f->bytes - at : CHUNK;
    int rc;

    f->hash[number] = ckpt_hash(slot, bytes);
    rc = ckpt_write_all(fd, w->path, slot, bytes, f->header + at);
    if (rc == 0) /* the disk begins at once; a failure shows at the end */
        sync_file_range(fd, (off_t)(f->header + at), (off_t)bytes, SYNC_FILE_RANGE_WRITE);
    return rc;
}

static int write_data(struct copy *c, int fd)
{
    const struct ckpt_ring *ring = c->w->ring;
    size_t chunks = ckpt_chunks(c->w->file, CHUNK), copied = 0;
    int rc = ckpt_write_all(fd, c->w->path, c->w->header, c->w->file->header, 0);

    for (size_t n = 0; rc == 0 && n < chunks; n++) {
        for (; rc == 0 && copied < chunks && copied - n < ring->slots; copied++) {
            rc = copy_chunk(c, copied, ring->memory + copied % ring->slots * CHUNK);
            if (rc == 0)
                release(c, c->box);
        }
        if (rc == 0)
            rc = write_chunk(c->w, fd, n, ring->memory + n % ring->slots * CHUNK);
    }
    return rc;
}

void ckpt_release(const struct ckpt_write *w)
{
    release(&(struct copy){.w = w}, w->file->box_count);
}

int ckpt_write(const struct ckpt_write *w)
{
    struct copy c = {.w = w};
    int fd = open(w->path, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0666);
    int rc = fd < 0 ? ct_fail(CT_EIO, "%s: %s", w->path, strerror(errno)) : write_data(&c, fd);

    release(&c, w->file->box_count);
    free(c.raw);
    if (rc == 0 && fsync(fd) < 0)
        rc = ct_fail(CT_EIO, "%s: %s", w->path, strerror(errno));
    if (rc == 0 && w->verify) /* from the disk, and not from memory */
        posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    if (fd >= 0 && close(fd) < 0 && rc == 0)
        rc = ct_fail(CT_EIO, "%s: %s", w->path, strerror(errno));
    return rc;
}
