/*
 * Blocks of guarded memory on a device: operands have addresses there before `prepare`, which may
 * ask for their distances, and the workspace after it. All but the workspace is copied there before
 * the kernel runs, and back after it.
 */
#include <string.h>

#include "mirror.h"

#define ALIGN 256
#define BLANK ((size_t)1 << 20) /* bytes that are copied at once */

static size_t room_of(const struct guarded *g)
{
    return (2 * GUARD + g->bytes + ALIGN - 1) / ALIGN * ALIGN;
}

/* Reserved memory stays for the next call. */
static int reserve(struct ct_checker *checker, int which, size_t bytes, char **base)
{
    const struct ct_device_ops *ops = checker->device->ops;
    int rc = 0;

    if (bytes > checker->reserved[which].bytes) {
        if (checker->reserved[which].base)
            ops->release(checker->device, checker->reserved[which].base,
                         checker->reserved[which].bytes);
        checker->reserved[which].base = NULL;
        checker->reserved[which].bytes = 2 * bytes;
        rc = ops->reserve(checker->device, 2 * bytes, &checker->reserved[which].base);
        if (rc < 0)
            checker->reserved[which].bytes = 0;
    }
    *base = checker->reserved[which].base;
    return rc;
}

int mirror_reserve(struct mirror *mirror, const struct memory *m)
{
    size_t bytes = 0, used = 0;
    char **at, *base;
    int rc;

    for (int i = mirror->count; i < m->count; i++)
        bytes += room_of(&m->block[i]);
    if (!bytes)
        return 0;
    rc = reserve(mirror->checker, mirror->count > 0, bytes, &base);
    if (rc < 0)
        return rc;
    at = ct_arena_array(m->arena, char *, m->count);
    for (int i = 0; i < m->count; i++) {
        if (i < mirror->count) {
            at[i] = mirror->at[i];
            continue;
        }
        at[i] = base + used + GUARD;
        used += room_of(&m->block[i]);
    }
    mirror->at = at;
    mirror->count = m->count;
    return 0;
}

static struct ct_tensor *moved(const struct mirror *mirror, const struct memory *m,
                               const struct ct_tensor *from, int count)
{
    struct ct_tensor *to = ct_arena_array(m->arena, struct ct_tensor, count + 1);

    memcpy(to, from, sizeof(*to) * (size_t)count);
    for (int i = 0; i < count; i++)
        for (int k = 0; from[i].data && k < m->count; k++) {
            const struct guarded *g = &m->block[k];
            const char *data = from[i].data;

            if (data >= g->data && data <= g->data + g->bytes)
                to[i].data = mirror->at[k] + (data - g->data);
        }
    return to;
}

void mirror_operands(const struct mirror *mirror, const struct memory *m, const struct ct_launch *l,
                     struct ct_launch *there)
{
    *there = *l;
    there->in = moved(mirror, m, l->in, l->ins);
    there->out = moved(mirror, m, l->out, l->outs);
}

/* A block that the device has alone begins as a new one in host memory does. */
static int blank(struct ct_device *device, char *data, size_t bytes)
{
    size_t most = bytes < BLANK ? bytes : BLANK;
    struct ct_arena scratch = {0};
    char *blank = ct_arena_alloc(&scratch, most + 1);
    int rc = 0;

    memory_blank(blank, most);
    for (size_t n; rc == 0 && bytes; data += n, bytes -= n) {
        n = bytes < most ? bytes : most;
        rc = device->ops->copy_in(device, data, blank, n);
    }
    ct_arena_finish(&scratch);
    return rc;
}

static int copy_block_in(struct ct_device *device, const struct guarded *g, char *at)
{
    int rc;

    if (!g->apart)
        return device->ops->copy_in(device, at - GUARD, g->data - GUARD, 2 * GUARD + g->bytes);
    rc = device->ops->copy_in(device, at - GUARD, g->data - GUARD, GUARD);
    if (rc == 0)
        rc = blank(device, at, g->bytes);
    return rc < 0 ? rc : device->ops->copy_in(device, at + g->bytes, memory_behind(g), GUARD);
}

static int copy_block_out(struct ct_device *device, const struct guarded *g, const char *at)
{
    int rc;

    if (!g->apart)
        return device->ops->copy_out(device, g->data - GUARD, at - GUARD, 2 * GUARD + g->bytes);
    rc = device->ops->copy_out(device, g->data - GUARD, at - GUARD, GUARD);
    return rc < 0 ? rc : device->ops->copy_out(device, memory_behind(g), at + g->bytes, GUARD);
}

int mirror_run(const struct mirror *mirror, const struct ct_kernel *kernel,
               const struct ct_launch *there, const struct memory *m)
{
    struct ct_device *device = mirror->checker->device;
    struct ct_launch l = *there;
    int rc = 0;

    if (l.workspace)
        l.workspace = mirror->at[m->count - 1];
    for (int i = 0; rc == 0 && i < m->count; i++)
        rc = copy_block_in(device, &m->block[i], mirror->at[i]);
    if (rc == 0)
        rc = device->ops->enqueue(device, CT_STREAM_COMPUTE, kernel, &l);
    if (rc == 0)
        rc = device->ops->synchronize(device);
    for (int i = 0; rc == 0 && i < m->count; i++)
        rc = copy_block_out(device, &m->block[i], mirror->at[i]);
    return rc;
}
