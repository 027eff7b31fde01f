/*
 * Writing a rank's file. Chunks of data are copied into a ring and hashed while another thread
 * writes. A state is released as soon as its last byte has been copied, so the run waits for the
 * disk only with what does not fit into the ring.
 *
 * A copy costs processor time and memory. So what lies in host memory, on the boundaries of the
 * disk's blocks, is written from there, unless the run already waits for it.
 */
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include <ctitan/error.h>
#include <ctitan/lib/safetensors.h>
#include <ctitan/log.h>
#include <ctitan/state.h>

#include "ckpt.h"

#define AT_ONCE ((size_t)64 << 10) /* elements that are converted at a time */
#define PARTS 64                   /* of a chunk that is written from where it lies, at most */

/* ---- copying ---- */

struct copy {
    const struct ckpt_write *w;
    struct ckpt_io io;
    void *raw; /* elements to convert */
    XXH3_state_t *hash;
    bool *in_place;   /* by slot */
    size_t box, next; /* the first box that is not wholly hashed, and written */
    /* Members from here on are for both threads. */
    pthread_mutex_t lock;
    bool *done;         /* by slot: copied, or written */
    size_t begun, over; /* chunks; up to `over` all are done */
    size_t released;    /* boxes */
};

/* Elements that the dtype in the file holds as infinity would be lost. */
static int check_range(const struct ckpt_box *b, const struct ct_weight *raw, int64_t count)
{
    double largest = 0;

    if (!ct_weights_beyond(raw, 0, count, b->dtype, &largest))
        return 0;
    return ct_fail(CT_ECONFIG,
                   "%s: a value of %g is beyond %s: set [ckpt] export_dtype = %sfloat32", b->name,
                   largest, ct_dtype_name(b->dtype), b->dtype == CT_F16 ? "bfloat16 or " : "");
}

/* Copy elements, and convert them to the dtype in the file. */
static int convert(struct copy *c, const struct ckpt_box *b, size_t begin, size_t end, char *to)
{
    size_t in = ct_dtype_size(b->state->dtype), out = ct_dtype_size(b->dtype);
    int rc = 0;

    if (!c->raw && !(c->raw = malloc(AT_ONCE * 8)))
        return ct_fail(CT_ENOMEM, "%zu bytes to convert weights in", AT_ONCE * 8);
    for (size_t i = begin; rc == 0 && i < end; i += AT_ONCE) {
        int64_t n = (int64_t)(end - i < AT_ONCE ? end - i : AT_ONCE), zero = 0;
        struct ct_weight raw = {b->name, b->state->dtype, 1, {n}, c->raw};

        rc = ct_run_copy_out(c->w->run, b->state, b->from + i * in, (size_t)n * in, c->raw);
        if (rc == 0)
            rc = check_range(b, &raw, n);
        if (rc == 0)
            rc = ct_weights_read(&raw, &zero, &n, b->dtype, to + (i - begin) * out);
    }
    return rc;
}

static void copy_given(const struct ct_checkpoint_box *b, size_t item, size_t begin, size_t end,
                       char *to)
{
    if (b->read)
        b->read(b->context, (int64_t)(begin / item), (int64_t)((end - begin) / item), to);
    else
        memcpy(to, (const char *)b->data + begin, end - begin);
}

/* The bytes [begin, end) of a box in the file. */
static int copy_part(struct copy *c, const struct ckpt_box *b, size_t begin, size_t end, char *to)
{
    size_t item = ct_dtype_bytes(b->dtype, 0, NULL);

    if (b->given) {
        copy_given(b->given, item, begin, end, to);
        return 0;
    }
    if (b->dtype != b->state->dtype)
        return convert(c, b, begin / item, end / item, to);
    return ct_run_copy_out(c->w->run, b->state, b->from + begin, end - begin, to);
}

/* ---- chunks ---- */

struct chunk {
    size_t begin, end; /* in the data of the file */
};

static struct chunk chunk_of(const struct copy *c, size_t number)
{
    size_t begin = number * CHUNK, left = c->w->file->bytes - begin;

    return (struct chunk){begin, begin + (left < CHUNK ? left : CHUNK)};
}

/* The next part of a chunk, of which `rest` is left, and its box; NULL: there is none. *box: the
   first one that is not over, before and after. */
static const struct ckpt_box *next_part(const struct copy *c, struct chunk *rest, size_t *box,
                                        struct chunk *part)
{
    const struct ckpt_box *b = &c->w->file->boxes[*box];
    size_t end = b->at + b->bytes;

    if (rest->begin == rest->end)
        return NULL;
    *part = (struct chunk){rest->begin, end < rest->end ? end : rest->end};
    rest->begin = part->end;
    *box += part->end == end;
    return b;
}

/* Where the parts of a chunk lie; 0: not all of them where they can be written from. */
static int parts_of(const struct copy *c, size_t number, size_t box, struct iovec parts[PARTS])
{
    struct chunk rest = chunk_of(c, number), part;
    const struct ckpt_box *b;
    int count = 0;

    while ((b = next_part(c, &rest, &box, &part))) {
        const char *data =
            b->state && b->dtype == b->state->dtype ? ct_run_memory(c->w->run, b->state) : NULL;

        if (!data || count == PARTS)
            return 0;
        data += b->from + part.begin - b->at;
        if ((uintptr_t)data % BLOCK || (part.end - part.begin) % BLOCK)
            return 0;
        parts[count++] = (struct iovec){(void *)(uintptr_t)data, part.end - part.begin};
    }
    return count;
}

static void release_boxes(struct copy *c, size_t end)
{
    const struct ckpt_file *f = c->w->file;

    for (; c->released < f->box_count; c->released++) {
        const struct ckpt_box *b = &f->boxes[c->released];

        if (b->at + b->bytes > end)
            return;
        if (c->w->hold)
            ct_run_release(c->w->run, b->state);
    }
}

static void begin_chunk(struct copy *c, size_t number)
{
    pthread_mutex_lock(&c->lock);
    c->done[number % c->w->ring.slots] = false;
    c->begun = number + 1;
    pthread_mutex_unlock(&c->lock);
}

/* The run may overwrite a chunk. */
static void finish_chunk(struct copy *c, size_t number)
{
    pthread_mutex_lock(&c->lock);
    c->done[number % c->w->ring.slots] = true;
    while (c->over < c->begun && c->done[c->over % c->w->ring.slots])
        c->over++;
    release_boxes(c, c->over * CHUNK);
    pthread_mutex_unlock(&c->lock);
}

/* ---- the two threads ---- */

static uint64_t hash_parts(struct copy *c, const struct iovec *parts, int count)
{
    XXH3_64bits_reset(c->hash);
    for (int i = 0; i < count; i++)
        XXH3_64bits_update(c->hash, parts[i].iov_base, parts[i].iov_len);
    return XXH3_64bits_digest(c->hash);
}

static int copy_chunk(struct copy *c, size_t number, char *slot)
{
    struct chunk all = chunk_of(c, number), rest = all, part;
    const struct ckpt_box *b;
    int rc = 0;

    while (rc == 0 && (b = next_part(c, &rest, &c->box, &part)))
        rc = copy_part(c, b, part.begin - b->at, part.end - b->at, slot + (part.begin - all.begin));
    if (rc < 0)
        return rc;
    finish_chunk(c, number);
    c->w->file->hash[number] = ckpt_hash(slot, all.end - all.begin);
    return 0;
}

/* Copying ahead is of use only to a run that waits, or from memory that must be copied. */
static bool copies(void *context)
{
    const struct copy *c = context;

    return c->w->hold && ct_run_waits(c->w->run);
}

static int fill(void *context, size_t number, char *slot)
{
    struct copy *c = context;
    struct iovec parts[PARTS];
    int count = copies(c) ? 0 : parts_of(c, number, c->box, parts);
    struct chunk rest = chunk_of(c, number), part;

    begin_chunk(c, number);
    c->in_place[number % c->w->ring.slots] = count > 0;
    if (!count)
        return copy_chunk(c, number, slot);
    c->w->file->hash[number] = hash_parts(c, parts, count);
    while (next_part(c, &rest, &c->box, &part))
        ;
    return 0;
}

static int empty(void *context, size_t number, char *slot)
{
    struct copy *c = context;
    struct chunk all = chunk_of(c, number), rest = all, part;
    size_t at = c->w->file->header + all.begin, bytes = all.end - all.begin;
    struct iovec parts[PARTS];
    bool in_place = c->in_place[number % c->w->ring.slots];
    /* A copy up to a whole page. The file is truncated to its size at the end. */
    int rc = in_place ? ckpt_io_writev(&c->io, parts, parts_of(c, number, c->next, parts), at)
                      : ckpt_io_write(&c->io, slot, (bytes + PAGE - 1) / PAGE * PAGE, at);

    while (next_part(c, &rest, &c->next, &part))
        ;
    if (rc == 0 && in_place)
        finish_chunk(c, number);
    return rc;
}

/* ---- files ---- */

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

/* Whether some of it may be written from where it lies. */
static bool in_host_memory(const struct copy *c)
{
    const struct ckpt_box *b = c->w->file->boxes;

    return c->w->run && ct_run_memory(c->w->run, b->state) && b->dtype == b->state->dtype;
}

static int write_data(struct copy *c)
{
    const struct ckpt_file *f = c->w->file;
    struct ckpt_pipe pipe = {.ring = c->w->ring,
                             .count = ckpt_chunks(f, CHUNK),
                             .ahead = in_host_memory(c) ? copies : NULL,
                             .fill = fill,
                             .empty = empty,
                             .context = c};
    size_t bytes = f->header + f->bytes;
    int rc = ckpt_io_reserve(&c->io, bytes);

    if (rc == 0)
        rc = write_header(c);
    if (rc == 0)
        rc = ckpt_pipe(&pipe);
    return rc < 0 ? rc : ckpt_io_settle(&c->io, bytes);
}

/* Once. */
static void tell_cached(const struct ckpt_write *w)
{
    static bool told;

    if (!told && w->run && w->run->rank == 0)
        ct_info("%s: this file system has no direct I/O, so checkpoints go through the page cache "
                "and cost more processor time",
                w->path);
    told = true;
}

void ckpt_release(const struct ckpt_write *w)
{
    release_boxes(&(struct copy){.w = w}, SIZE_MAX);
}

int ckpt_write(const struct ckpt_write *w)
{
    struct copy c = {.w = w,
                     .lock = PTHREAD_MUTEX_INITIALIZER,
                     .hash = XXH3_createState(),
                     .in_place = calloc(w->ring.slots, 2 * sizeof(bool))};
    int rc = ckpt_io_open(&c.io, w->path, O_CREAT | O_EXCL | O_WRONLY, true);

    if (rc == 0 && (!c.in_place || !c.hash))
        rc = ct_fail(CT_ENOMEM, "%zu slots", w->ring.slots);
    c.done = c.in_place + w->ring.slots;
    if (rc == 0)
        rc = write_data(&c);
    release_boxes(&c, SIZE_MAX);
    free(c.in_place);
    XXH3_freeState(c.hash);
    free(c.raw);
    if (rc == 0 && !c.io.direct)
        tell_cached(w);
    return ckpt_io_close(&c.io, rc);
}
