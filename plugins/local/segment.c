/*
 * The segment: one memfd, allocated from its start.
 *
 * It grows by ftruncate under a robust lock, and each rank maps the extents that it needs. Pages
 * cost memory only once they are touched, so blocks and regions may be generous.
 */
#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <ctitan/error.h>
#include <ctitan/lib/numa.h>

#include "local.h"

#define MAGIC 0x6c746331u

static size_t control_bytes(int world)
{
    size_t bytes = sizeof(struct control) + (size_t)world * sizeof(struct member);

    return (bytes + 4095) & ~(size_t)4095;
}

static int init_lock(pthread_mutex_t *lock)
{
    pthread_mutexattr_t attr;
    int rc = pthread_mutexattr_init(&attr);

    if (!rc)
        rc = pthread_mutexattr_setpshared(&attr, PTHREAD_PROCESS_SHARED);
    if (!rc)
        rc = pthread_mutexattr_setrobust(&attr, PTHREAD_MUTEX_ROBUST);
    if (!rc)
        rc = pthread_mutex_init(lock, &attr);
    return rc ? ct_fail(CT_EIO, "shared lock: %s", strerror(rc)) : 0;
}

int local_segment_map(struct comm *comm, int fd)
{
    void *map;

    comm->fd = fd;
    comm->control_bytes = control_bytes(comm->base.world);
    map = mmap(NULL, comm->control_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (map == MAP_FAILED)
        return ct_fail(CT_ENOMEM, "mapping the shared segment: %s", strerror(errno));
    comm->control = map;
    if (comm->control->magic && comm->control->magic != MAGIC)
        return ct_fail(CT_ECONFIG, "ranks run different versions of the local communicator");
    return 0;
}

int local_segment_create(struct comm *comm, const char *job)
{
    int fd = memfd_create(job, MFD_CLOEXEC), rc;
    size_t bytes = control_bytes(comm->base.world);

    if (fd < 0)
        return ct_fail(CT_EIO, "memfd_create: %s", strerror(errno));
    if (ftruncate(fd, (off_t)bytes) < 0) {
        close(fd);
        return ct_fail(CT_ENOMEM, "shared segment of %zu bytes: %s", bytes, strerror(errno));
    }
    rc = local_segment_map(comm, fd);
    if (rc < 0)
        return rc;
    comm->control->magic = MAGIC;
    comm->control->world = (uint32_t)comm->base.world;
    comm->control->end = bytes;
    return init_lock(&comm->control->lock);
}

int local_segment_lock(struct comm *comm)
{
    struct timespec deadline;
    double t = local_deadline(comm);
    int rc;

    deadline.tv_sec = (time_t)t;
    deadline.tv_nsec = (long)((t - (double)deadline.tv_sec) * 1e9);
    rc = pthread_mutex_clocklock(&comm->control->lock, CLOCK_MONOTONIC, &deadline);
    if (!rc)
        return 0;
    if (rc == EOWNERDEAD) {
        pthread_mutex_consistent(&comm->control->lock);
        pthread_mutex_unlock(&comm->control->lock);
        return local_fail(comm, "a rank died while it changed the shared segment");
    }
    return local_fail(comm, "the lock of the shared segment: %s", strerror(rc));
}

void local_segment_unlock(struct comm *comm)
{
    pthread_mutex_unlock(&comm->control->lock);
}

int local_segment_extend(struct comm *comm, size_t bytes, size_t align, uint64_t *offset)
{
    struct control *c = comm->control;
    uint64_t at = (c->end + align - 1) / align * align;

    if (ftruncate(comm->fd, (off_t)(at + bytes)) < 0)
        return ct_fail(CT_ENOMEM, "growing the shared segment by %zu bytes: %s", bytes,
                       strerror(errno));
    c->end = at + bytes;
    *offset = at;
    return 0;
}

/* Memory has the same alignment as the file, so that the system can use huge pages. Each rank
   chooses the nodes of its own part, which others touch only in calls that it takes part in. */
int local_region_map(struct comm *comm, uint64_t offset, size_t part, void **base)
{
    size_t bytes = part * (size_t)comm->base.world;
    int index = comm->region_count;
    char *room, *at;

    if (index == MAX_REGIONS)
        return ct_fail(CT_ENOMEM, "more than %d symmetric segments", MAX_REGIONS);
    room = mmap(NULL, bytes + HUGE_PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1,
                0);
    if (room == MAP_FAILED)
        return ct_fail(CT_ENOMEM,
                       "%zu bytes of address space, as a rank maps the memory of all %d: %s", bytes,
                       comm->base.world, strerror(errno));
    at = (char *)(((uintptr_t)room + HUGE_PAGE - 1) & ~(uintptr_t)(HUGE_PAGE - 1));
    if (mmap(at, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, comm->fd, (off_t)offset) ==
        MAP_FAILED) {
        munmap(room, bytes + HUGE_PAGE);
        return ct_fail(CT_ENOMEM, "mapping %zu symmetric bytes: %s", bytes, strerror(errno));
    }
    if (at > room)
        munmap(room, (size_t)(at - room));
    if (at < room + HUGE_PAGE)
        munmap(at + bytes, (size_t)(room + HUGE_PAGE - at));
    madvise(at, bytes, MADV_HUGEPAGE);
    comm->regions[index] = (struct region){.base = at, .part = part};
    comm->region_count = index + 1;
    *base = at + (size_t)comm->base.rank * part;
    ct_numa_place(*base, part);
    return 0;
}
