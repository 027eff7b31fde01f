/*
 * Files and the ring. Data goes between the ring and the disk directly where the file system allows
 * it (O_DIRECT): a copy through the page cache would cost more processor time than all the rest.
 * One thread works on the disk, another one on memory.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <ctitan/calling.h>
#include <ctitan/error.h>

#include "ckpt.h"

uint64_t ckpt_hash(const void *data, size_t bytes)
{
    return XXH3_64bits(data, bytes);
}

/* ---- files ---- */

static int open_file(const char *path, int flags)
{
    int fd, tries = 0;

    if (flags == O_RDONLY)
        return ct_file_open(path, 0);
    do
        fd = open(path, flags | O_CLOEXEC, 0666);
    while (fd < 0 && ct_file_again(&tries));
    return fd < 0 ? ct_fail(CT_EIO, "%s: %s", path, strerror(errno)) : fd;
}

int ckpt_io_open(struct ckpt_io *io, const char *path, int flags, bool direct)
{
    *io = (struct ckpt_io){.path = path, .fd = open_file(path, flags)};
    if (io->fd < 0) /* a folder or a pipe in a file's place is damage */
        return io->fd == CT_EINVAL ? CT_EDAMAGED : CT_EIO;
    io->direct = direct && fcntl(io->fd, F_SETFL, O_DIRECT) == 0;
    return 0;
}

/* Whether a call is to be made again. Some file systems refuse direct access only here. */
static bool again(struct ckpt_io *io)
{
    if (errno == EINVAL && io->direct) {
        io->direct = false;
        return fcntl(io->fd, F_SETFL, 0) == 0;
    }
    return errno == EINTR;
}

int ckpt_io_writev(struct ckpt_io *io, struct iovec *parts, int count, size_t at)
{
    while (count) {
        ssize_t n = pwritev(io->fd, parts, count, (off_t)at);

        if (n < 0 && again(io))
            continue;
        if (n <= 0)
            return ct_fail(CT_EIO, "%s: %s", io->path, strerror(n < 0 ? errno : ENOSPC));
        ct_calling_alive();
        at += (size_t)n;
        for (; count && (size_t)n >= parts->iov_len; parts++, count--)
            n -= (ssize_t)parts->iov_len;
        if (count) {
            parts->iov_base = (char *)parts->iov_base + n;
            parts->iov_len -= (size_t)n;
        }
    }
    return 0;
}

int ckpt_io_write(struct ckpt_io *io, const void *data, size_t bytes, size_t at)
{
    struct iovec part = {(void *)(uintptr_t)data, bytes};

    return ckpt_io_writev(io, &part, bytes > 0, at);
}

int ckpt_io_reserve(struct ckpt_io *io, size_t bytes)
{
    int rc;

    do
        rc = fallocate(io->fd, 0, 0, (off_t)bytes);
    while (rc < 0 && errno == EINTR);
    if (rc < 0 && errno != EOPNOTSUPP && errno != ENOSYS)
        return ct_fail(CT_EIO, "%s, of %zu bytes: %s", io->path, bytes, strerror(errno));
    return 0;
}

int ckpt_io_settle(struct ckpt_io *io, size_t bytes)
{
    return ftruncate(io->fd, (off_t)bytes) == 0 && fsync(io->fd) == 0
               ? 0
               : ct_fail(CT_EIO, "%s: %s", io->path, strerror(errno));
}

/* Another client of a network file system may have replaced the file. False: it cannot be
   opened. */
static bool reopen(struct ckpt_io *io)
{
    int error = errno, fd = error == ESTALE ? ct_file_open(io->path, 0) : io->fd;

    if (fd < 0)
        return false;
    if (fd != io->fd) {
        close(io->fd);
        io->fd = fd;
        io->direct = false;
    }
    return true;
}

int ckpt_io_read(struct ckpt_io *io, void *data, size_t bytes, size_t at)
{
    int tries = 0;

    for (size_t done = 0; done < bytes;) {
        /* Direct reads are of whole pages; the last one ends with the file. */
        size_t most = io->direct ? (bytes - done + PAGE - 1) / PAGE * PAGE : bytes - done;
        ssize_t n = pread(io->fd, (char *)data + done, most, (off_t)(at + done));

        if (n < 0 && (again(io) || (ct_file_again(&tries) && reopen(io))))
            continue;
        if (n < 0)
            return ct_fail(CT_EIO, "%s, byte %zu: %s", io->path, at + done, strerror(errno));
        if (n == 0)
            return ct_fail(CT_EDAMAGED, "%s, byte %zu: the file ends there", io->path, at + done);
        done += (size_t)n;
    }
    return 0;
}

int ckpt_io_close(struct ckpt_io *io, int rc)
{
    if (io->fd >= 0 && close(io->fd) < 0 && rc == 0)
        rc = ct_fail(CT_EIO, "%s: %s", io->path, strerror(errno));
    io->fd = -1;
    return rc;
}

/* ---- the ring ---- */

struct pipe {
    const struct ckpt_pipe *p;
    pthread_mutex_t lock;
    pthread_cond_t moved;
    size_t filled, emptied; /* chunks */
    int rc;                 /* the first failure */
    struct ct_error_kept message;
};

static bool is_free(const struct pipe *s, size_t n)
{
    size_t full = n - s->emptied;

    return full < 2 || (full < s->p->ring.slots && (!s->p->ahead || s->p->ahead(s->p->context)));
}

/* Wait for the slot of chunk n; false: the other side has failed. */
static bool get_slot(struct pipe *s, size_t n, bool fills)
{
    bool go_on;

    pthread_mutex_lock(&s->lock);
    while (s->rc == 0 && !(fills ? is_free(s, n) : n < s->filled))
        pthread_cond_wait(&s->moved, &s->lock);
    go_on = s->rc == 0;
    pthread_mutex_unlock(&s->lock);
    return go_on;
}

static void pass_slot(struct pipe *s, bool fills, int rc)
{
    pthread_mutex_lock(&s->lock);
    if (rc == 0)
        ++*(fills ? &s->filled : &s->emptied);
    if (rc < 0 && s->rc == 0) {
        s->rc = rc;
        s->message = ct_error_keep();
    }
    pthread_cond_signal(&s->moved);
    pthread_mutex_unlock(&s->lock);
}

static void run_side(struct pipe *s, bool fills)
{
    const struct ckpt_ring *ring = &s->p->ring;

    for (size_t n = 0; n < s->p->count && get_slot(s, n, fills); n++)
        pass_slot(s, fills,
                  (fills ? s->p->fill : s->p->empty)(s->p->context, n,
                                                     ring->memory + n % ring->slots * ring->slot));
}

static void *run_aside(void *context)
{
    struct pipe *s = context;

    run_side(s, s->p->fill_aside);
    return NULL;
}

int ckpt_pipe(const struct ckpt_pipe *p)
{
    struct pipe s = {.p = p, .lock = PTHREAD_MUTEX_INITIALIZER, .moved = PTHREAD_COND_INITIALIZER};
    pthread_t thread;

    if (pthread_create(&thread, NULL, run_aside, &s))
        return ct_fail(CT_ENOMEM, "a thread that reads or writes a checkpoint");
    run_side(&s, !p->fill_aside);
    pthread_join(thread, NULL);
    return s.rc < 0 ? ct_error_restore(s.rc, &s.message) : 0;
}
