#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <ctitan/error.h>
#include <ctitan/file.h>

static int map(int fd, const char *path, const void **base, size_t *size)
{
    struct stat st;
    void *at;

    if (fstat(fd, &st) < 0)
        return ct_fail(CT_EIO, "%s: %s", path, strerror(errno));
    if (st.st_size == 0)
        return 0;
    at = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (at == MAP_FAILED)
        return ct_fail(CT_EIO, "%s: cannot be mapped: %s", path, strerror(errno));
    *base = at;
    *size = (size_t)st.st_size;
    return 0;
}

int ct_file_map(const char *path, const void **base, size_t *size)
{
    int fd = ct_file_open(path, 0), rc;

    *base = NULL;
    *size = 0;
    if (fd < 0)
        return fd == CT_ENOENT ? fd : CT_ECONFIG;
    rc = map(fd, path, base, size);
    close(fd);
    return rc;
}

void ct_file_unmap(const void *base, size_t size)
{
    if (base)
        munmap((void *)(uintptr_t)base, size);
}
