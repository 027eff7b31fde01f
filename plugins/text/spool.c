#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <ctitan/error.h>
#include <ctitan/file.h>

#include "spool.h"

static int failed(int rc, const struct spool *s)
{
    return ct_fail(rc, "cannot write to %s: %s; [text] spool_folder names another folder",
                   s->folder, strerror(errno));
}

int spool_open(struct spool *s, const char *folder)
{
    char path[CT_PATH_ROOM];
    int fd;

    *s = (struct spool){.folder = folder};
    snprintf(path, sizeof(path), "%s/ctitan-text-XXXXXX", folder);
    fd = mkstemp(path);
    if (fd < 0)
        return failed(errno == ENOSPC ? CT_EIO : CT_ECONFIG, s);
    unlink(path);
    s->file = fdopen(fd, "w+");
    if (!s->file) {
        close(fd);
        return ct_fail(CT_ENOMEM, "a file in %s", folder);
    }
    return 0;
}

int spool_write(struct spool *s, const void *data, size_t size)
{
    if (fwrite(data, 1, size, s->file) != size)
        return failed(CT_EIO, s);
    s->size += size;
    return 0;
}

int spool_map(struct spool *s)
{
    void *data;

    if (fflush(s->file))
        return failed(CT_EIO, s);
    if (!s->size)
        return 0;
    data = mmap(NULL, s->size, PROT_READ, MAP_PRIVATE, fileno(s->file), 0);
    if (data == MAP_FAILED)
        return ct_fail(CT_EIO, "a file of %zu bytes in %s cannot be mapped: %s", s->size, s->folder,
                       strerror(errno));
    s->data = data;
    return 0;
}

void spool_close(struct spool *s)
{
    if (s->data)
        munmap((void *)(uintptr_t)s->data, s->size);
    if (s->file)
        fclose(s->file);
    *s = (struct spool){0};
}
