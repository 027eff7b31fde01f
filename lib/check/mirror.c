/*
 * Blocks of guarded memory on a device: operands have addresses there before `prepare`, which may
 * ask for their distances, and the workspace after it. All is copied there before the kernel runs,
 * and back after it.
 */
#include <string.h>

#include "mirror.h"

#define ALIGN 256

static size_t room_of(const struct guarded *g)
{
    return (2 * GUARD + g->bytes + ALIGN - 1) / ALIGN * ALIGN;
}

int mirror_reserve(struct mirror *mirror, const struct memory *m)
{
    size_t bytes = 0, used = 0;
    void *base;
    int rc;

    for (int i = mirror->count; i < m->count; i++)
        bytes += room_of(&m->block[i]);
    if (!bytes)
        return 0;
    rc = mirror->device->ops->reserve(mirror->device, bytes, &base);
    if (rc < 0)
        return rc;
    mirror->reserved[mirror->count > 0].base = base;
    mirror->reserved[mirror->count > 0].bytes = bytes;
    for (; mirror->count < m->count; mirror->count++) {
        mirror->at[mirror->count] = (char *)base + used + GUARD;
        used += room_of(&m->block[mirror->count]);
    }
    return 0;
}

static void move(const struct mirror *mirror, const struct memory *m, const struct ct_tensor *from,
                 int count, struct ct_tensor *to)
{
    memcpy(to, from, sizeof(*to) * (size_t)count);
    for (int i = 0; i < m->count; i++)
        if (m->block[i].tensor >= from && m->block[i].tensor < from + count)
            to[m->block[i].tensor - from].data = mirror->at[i];
}

void mirror_operands(struct mirror *mirror, const struct memory *m, const struct ct_launch *l,
                     struct ct_launch *there)
{
    *there = *l;
    move(mirror, m, l->in, l->ins, mirror->in);
    move(mirror, m, l->out, l->outs, mirror->out);
    there->in = mirror->in;
    there->out = mirror->out;
}

int mirror_run(const struct mirror *mirror, const struct ct_kernel *kernel,
               const struct ct_launch *there, const struct memory *m)
{
    struct ct_device *device = mirror->device;
    struct ct_launch l = *there;
    int rc = 0;

    for (int i = 0; rc == 0 && i < m->count; i++) {
        const struct guarded *g = &m->block[i];

        if (!g->tensor)
            l.workspace = mirror->at[i];
        rc = device->ops->copy_in(device, mirror->at[i] - GUARD, g->data - GUARD,
                                  2 * GUARD + g->bytes);
    }
    if (rc == 0)
        rc = device->ops->enqueue(device, CT_STREAM_COMPUTE, kernel, &l);
    if (rc == 0)
        rc = device->ops->synchronize(device);
    for (int i = 0; rc == 0 && i < m->count; i++)
        rc = device->ops->copy_out(device, m->block[i].data - GUARD, mirror->at[i] - GUARD,
                                   2 * GUARD + m->block[i].bytes);
    return rc;
}

void mirror_release(struct mirror *mirror)
{
    for (int i = 0; i < 2; i++)
        if (mirror->reserved[i].base)
            mirror->device->ops->release(mirror->device, mirror->reserved[i].base,
                                         mirror->reserved[i].bytes);
}
