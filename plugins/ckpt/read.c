/*
 * Reading what is wanted of a checkpoint. Chunks of which some byte is wanted are read once, in the
 * order of the file, several at a time where they are adjacent, and compared with their hashes.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <ctitan/error.h>

#include "ckpt.h"

#define AT_ONCE ((size_t)16 << 20) /* bytes of one read, at least a chunk */

struct reader {
    const struct ckpt *c;
    const struct ckpt_file *file;
    const struct ckpt_sink *sink; /* NULL: only compare */
    char *path, *memory;
    int fd;
    size_t room;       /* chunks in memory */
    bool *chunk;       /* which are wanted */
    size_t *from, *to; /* by box: its wanted bytes */
};

const struct ckpt_tensor *ckpt_find(const struct ckpt *c, const char *name)
{
    for (size_t i = 0; i < c->tensor_count; i++)
        if (!strcmp(c->tensors[i].name, name))
            return &c->tensors[i];
    return NULL;
}

static int read_all(const struct reader *r, char *to, size_t bytes, size_t at)
{
    for (size_t done = 0; done < bytes;) {
        ssize_t n = pread(r->fd, to + done, bytes - done, (off_t)(at + done));

        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return ct_fail(CT_EIO, "%s, byte %zu: %s", r->path, at + done,
                           n < 0 ? strerror(errno) : "the file ends there");
        done += (size_t)n;
    }
    return 0;
}

/* ---- boxes ---- */

/*
 * Elements [begin, end) of a dense box, as boxes: each is some indices of one dimension, with all
 * of the dimensions after it. At most two for each dimension.
 */
static int put_elements(const struct reader *r, const struct ckpt_box *b, int64_t begin,
                        int64_t end, const char *data)
{
    int64_t stride[CT_MAX_DIMS + 1], offset[CT_MAX_DIMS], shape[CT_MAX_DIMS];
    int rc = 0;

    stride[b->ndim] = 1;
    for (int d = b->ndim - 1; d >= 0; d--)
        stride[d] = stride[d + 1] * b->shape[d];
    while (rc == 0 && begin < end) {
        int64_t at = begin, count = 1;
        int d = 0; /* the outermost dimension of which at least one index is whole */

        while (d < b->ndim && (begin % stride[d + 1] || end - begin < stride[d + 1]))
            d++;
        for (int k = 0; k < b->ndim; k++) {
            int64_t index = at / stride[k + 1];

            at %= stride[k + 1];
            offset[k] = b->offset[k] + (k <= d ? index : 0);
            shape[k] = k < d ? 1 : b->shape[k];
            if (k == d) {
                count = (end - begin) / stride[k + 1];
                count = count < b->shape[k] - index ? count : b->shape[k] - index;
                shape[k] = count;
            }
        }
        rc = r->sink->put(r->sink->context, b, offset, shape, data);
        count *= d < b->ndim ? stride[d + 1] : 1;
        data += (size_t)count * ct_dtype_size(b->dtype);
        begin += count;
    }
    return rc;
}

/* The bytes [begin, end) of the file's data are at `data`. */
static int put_data(const struct reader *r, size_t begin, size_t end, const char *data)
{
    int rc = 0;

    for (size_t i = 0; rc == 0 && i < r->file->box_count; i++) {
        const struct ckpt_box *b = &r->file->boxes[i];
        size_t item = ct_dtype_size(b->dtype);
        size_t first = b->at + r->from[i] > begin ? b->at + r->from[i] : begin;
        size_t last = b->at + r->to[i] < end ? b->at + r->to[i] : end;

        if (first < last)
            rc = put_elements(r, b, (int64_t)((first - b->at) / item),
                              (int64_t)((last - b->at) / item), data + (first - begin));
    }
    return rc;
}

/* ---- chunks ---- */

static int bad_chunk(const struct reader *r, size_t begin, size_t end)
{
    const struct ckpt_box *b = r->file->boxes;

    while (b->at + b->bytes <= begin)
        b++;
    return ct_fail(CT_EIO, "%s: bytes %zu to %zu are not what was written (%s from row %lld on)",
                   r->path, r->file->header + begin, r->file->header + end, b->name,
                   b->ndim
                       ? (long long)(b->offset[0] + (int64_t)((begin > b->at ? begin - b->at : 0) /
                                                              (b->bytes / (size_t)b->shape[0])))
                       : 0LL);
}

/* Chunks [first, last), which are adjacent and fit into memory. */
static int read_chunks(const struct reader *r, size_t first, size_t last)
{
    size_t chunk = r->c->chunk, begin = first * chunk;
    size_t end = last * chunk < r->file->bytes ? last * chunk : r->file->bytes;
    int rc = read_all(r, r->memory, end - begin, r->file->header + begin);

    for (size_t n = first; rc == 0 && n < last; n++) {
        size_t at = n * chunk, bytes = end - at < chunk ? end - at : chunk;

        if (ckpt_hash(r->memory + (at - begin), bytes) != r->file->hash[n])
            rc = bad_chunk(r, at, at + bytes);
    }
    return rc == 0 && r->sink ? put_data(r, begin, end, r->memory) : rc;
}

static int read_wanted(const struct reader *r)
{
    size_t chunks = ckpt_chunks(r->file, r->c->chunk), last;
    int rc = 0;

    for (size_t n = 0; rc == 0 && n < chunks; n = last) {
        for (last = n; last < chunks && r->chunk[last] && last - n < r->room; last++)
            ;
        if (last == n) {
            last++;
            continue;
        }
        /* The disk reads on while this is compared and copied. */
        posix_fadvise(r->fd, (off_t)(r->file->header + last * r->c->chunk),
                      (off_t)(r->room * r->c->chunk), POSIX_FADV_WILLNEED);
        rc = read_chunks(r, n, last);
    }
    return rc;
}

static int check_header(const struct reader *r)
{
    char *header = malloc(r->file->header);
    int rc = header ? read_all(r, header, r->file->header, 0) : ct_fail(CT_ENOMEM, "%s", r->path);

    if (rc == 0 && ckpt_hash(header, r->file->header) != r->file->header_hash)
        rc = ct_fail(CT_EIO, "%s: its header is not what was written", r->path);
    free(header);
    return rc;
}

/* False: nothing is wanted. */
static bool choose(struct reader *r)
{
    bool any = false;

    for (size_t i = 0; i < r->file->box_count; i++) {
        const struct ckpt_box *b = &r->file->boxes[i];

        r->to[i] = b->bytes;
        if (r->sink && !r->sink->want(r->sink->context, b, &r->from[i], &r->to[i]))
            r->from[i] = r->to[i] = 0;
        if (r->from[i] == r->to[i])
            continue;
        any = true;
        for (size_t n = (b->at + r->from[i]) / r->c->chunk;
             n <= (b->at + r->to[i] - 1) / r->c->chunk; n++)
            r->chunk[n] = true;
    }
    return any;
}

static int read_open(struct reader *r)
{
    int rc = 0;

    r->fd = open(r->path, O_RDONLY | O_CLOEXEC);
    if (r->fd < 0)
        return ct_fail(CT_EIO, "%s: %s", r->path, strerror(errno));
    r->room = AT_ONCE > r->c->chunk ? AT_ONCE / r->c->chunk : 1;
    r->memory = malloc(r->room * r->c->chunk);
    if (!r->memory)
        rc = ct_fail(CT_ENOMEM, "%zu bytes to read %s", r->room * r->c->chunk, r->path);
    if (rc == 0 && !r->sink)
        rc = check_header(r);
    if (rc == 0)
        rc = read_wanted(r);
    free(r->memory);
    close(r->fd);
    return rc;
}

int ckpt_read_file(const struct ckpt *c, const struct ckpt_file *file, const struct ckpt_sink *sink)
{
    struct ct_arena scratch = {0};
    struct reader r = {
        .c = c,
        .file = file,
        .sink = sink,
        .path = ct_arena_printf(&scratch, "%s/%s", c->path, file->name),
        .chunk = ct_arena_array(&scratch, bool, ckpt_chunks(file, c->chunk) + 1),
        .from = ct_arena_array(&scratch, size_t, file->box_count + 1),
        .to = ct_arena_array(&scratch, size_t, file->box_count + 1),
    };
    int rc = choose(&r) || !sink ? read_open(&r) : 0;

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
