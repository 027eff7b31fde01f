/*
 * Access to the memory of other ranks: directly if it is in the symmetric arena, else through the
 * kernel (process_vm_readv and process_vm_writev: one copy, no staging).
 */
#include <errno.h>
#include <string.h>
#include <sys/uio.h>

#include <ctitan/error.h>

#include "local.h"

struct place local_place(const struct comm *comm, const void *data, size_t bytes)
{
    const char *at = data;

    for (int i = 0; i < comm->region_count; i++) {
        const struct region *r = &comm->regions[i];
        const char *mine = r->base + (size_t)comm->base.rank * r->part;

        if (at >= mine && at + bytes <= mine + r->part)
            return (struct place){.region = i, .address = (uint64_t)(at - mine)};
    }
    return (struct place){.region = -1, .address = (uintptr_t)data};
}

static char *direct(const struct group *g, int position, struct place p, size_t offset)
{
    const struct region *r = &g->comm->regions[p.region];

    return r->base + (size_t)g->ranks[position] * r->part + p.address + offset;
}

static int unreachable(struct group *g, int position)
{
    int rank = g->ranks[position];

    return local_fail(g->comm, "group '%s': memory of rank %d (pid %d): %s", g->base.name, rank,
                      g->comm->control->members[rank].pid,
                      errno == ESRCH ? "the process died" : strerror(errno));
}

typedef ssize_t transfer(pid_t, const struct iovec *, unsigned long, const struct iovec *,
                         unsigned long, unsigned long);

static int through_kernel(struct group *g, int position, transfer *t, uint64_t there, void *here,
                          size_t bytes)
{
    pid_t pid = g->comm->control->members[g->ranks[position]].pid;

    for (size_t done = 0; done < bytes;) {
        struct iovec local = {.iov_base = (char *)here + done, .iov_len = bytes - done};
        struct iovec remote = {.iov_base = (void *)(uintptr_t)(there + done),
                               .iov_len = bytes - done};
        ssize_t n = t(pid, &local, 1, &remote, 1, 0);

        if (n <= 0)
            return unreachable(g, position);
        done += (size_t)n;
    }
    return 0;
}

int local_read(struct group *g, int position, struct place p, size_t offset, size_t bytes, void *to)
{
    const void *from;

    if (!bytes)
        return 0;
    if (p.region < 0 && position != g->base.position)
        return through_kernel(g, position, process_vm_readv, p.address + offset, to, bytes);
    from = local_peek(g, position, p, offset, bytes, NULL);
    if (from != to)
        memcpy(to, from, bytes);
    return 0;
}

int local_write(struct group *g, int position, struct place p, size_t offset, size_t bytes,
                const void *from)
{
    if (p.region < 0)
        return through_kernel(g, position, process_vm_writev, p.address + offset,
                              (void *)(uintptr_t)from, bytes);
    memcpy(direct(g, position, p, offset), from, bytes);
    return 0;
}

const void *local_peek(struct group *g, int position, struct place p, size_t offset, size_t bytes,
                       void *scratch)
{
    if (p.region >= 0)
        return direct(g, position, p, offset);
    if (position == g->base.position)
        return (const void *)(uintptr_t)(p.address + offset);
    return local_read(g, position, p, offset, bytes, scratch) < 0 ? NULL : scratch;
}
