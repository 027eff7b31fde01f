/*
 * The CPU's host memory: a file, for data that does not fit into the main arena. The file has no
 * name while in use, so nothing is left behind however the run ends.
 */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <ctitan/error.h>

#include "cpu.h"

static int map(int fd, size_t bytes, void **base)
{
    int error = posix_fallocate(fd, 0, (off_t)bytes);

    if (error)
        return ct_fail(CT_ENOMEM, "[cpu] offload_folder = %s: a file of %zu bytes: %s",
                       cpu_config.offload_folder, bytes, strerror(error));
    *base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (*base == MAP_FAILED)
        return ct_fail(CT_ENOMEM, "mapping a file of %zu bytes: %s", bytes, strerror(errno));
    return 0;
}

int cpu_reserve_host(struct ct_device *device, size_t bytes, void **base)
{
    int fd, rc;

    (void)device;
    if (!*cpu_config.offload_folder)
        return ct_fail(CT_ECONFIG,
                       "device cpu has no host memory to offload to: set [cpu] offload_folder to a "
                       "folder on a disk, where it may create a file");
    fd = open(cpu_config.offload_folder, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (fd < 0)
        return ct_fail(CT_ECONFIG, "[cpu] offload_folder = %s: %s", cpu_config.offload_folder,
                       errno == EOPNOTSUPP ? "its file system has no unnamed files (O_TMPFILE)"
                                           : strerror(errno));
    rc = map(fd, bytes, base);
    close(fd);
    return rc;
}

void cpu_release_host(struct ct_device *device, void *base, size_t bytes)
{
    (void)device;
    munmap(base, bytes);
}

/* ---- kernels ---- */

static int copy(const struct ct_tensor *to, const struct ct_tensor *from)
{
    struct ct_matrix y, x;
    size_t item;

    if (ct_tensor_is_dense(to) && ct_tensor_is_dense(from)) {
        memcpy(to->data, from->data, ct_tensor_bytes(to));
        return 0;
    }
    if (!ct_tensor_as_matrix(to, &y) || !ct_tensor_as_matrix(from, &x))
        return ct_fail(CT_EINVAL, "a copy between rows of several strides");
    item = ct_dtype_size(to->dtype);
    for (int64_t i = 0; i < y.rows; i++)
        memcpy((char *)to->data + (size_t)(i * y.stride) * item,
               (const char *)from->data + (size_t)(i * x.stride) * item, (size_t)y.columns * item);
    return 0;
}

static bool accepts_offload(const struct ct_prepare *p)
{
    struct ct_matrix m;

    for (int i = 0; i < p->ins + p->outs; i++) {
        const struct ct_tensor *t = i < p->ins ? &p->in[i] : &p->out[i - p->ins];

        if (!ct_tensor_is_dense(t) && (ct_dtype_bits(t->dtype) < 8 || !ct_tensor_as_matrix(t, &m)))
            return false;
    }
    return true;
}

static int copy_out(const struct ct_launch *l)
{
    return copy(&l->out[0], &l->in[0]);
}

static int store(const struct ct_launch *l)
{
    return copy(&l->in[0], &l->in[1]);
}

const struct ct_kernel cpu_offload_kernels[] = {
    CT_KERNEL("load", "memcpy", CT_KERNEL_STRIDED, accepts_offload, NULL, copy_out),
    CT_KERNEL("store", "memcpy", CT_KERNEL_STRIDED, accepts_offload, NULL, store),
    CT_KERNEL("offload", "memcpy", CT_KERNEL_STRIDED, accepts_offload, NULL, copy_out),
    {0}};
