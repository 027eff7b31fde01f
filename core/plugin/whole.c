/*
 * Whether a shared object is whole. The linker maps what the file says that it has: behind the end
 * of a truncated file, the first access ends the process by SIGBUS.
 */
#include <elf.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <ctitan/error.h>

#include "plugin/abi.h"

static bool is_object(const Elf64_Ehdr *h)
{
    return !memcmp(h->e_ident, ELFMAG, SELFMAG) && h->e_ident[EI_CLASS] == ELFCLASS64 &&
           h->e_phentsize == sizeof(Elf64_Phdr);
}

/* The end of the last segment in the file; 0: the linker has words for it. */
static uint64_t end_of(int fd)
{
    Elf64_Ehdr header;
    Elf64_Phdr segment;
    uint64_t end = 0;

    if (pread(fd, &header, sizeof(header), 0) != sizeof(header) || !is_object(&header))
        return 0;
    for (int i = 0; i < header.e_phnum; i++) {
        off_t at = (off_t)(header.e_phoff + (uint64_t)i * sizeof(segment));

        if (pread(fd, &segment, sizeof(segment), at) != sizeof(segment))
            break;
        if (segment.p_type == PT_LOAD && segment.p_offset + segment.p_filesz > end)
            end = segment.p_offset + segment.p_filesz;
    }
    return end;
}

int ct_plugin_is_whole(const char *path)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    struct stat s;
    uint64_t end;

    if (fd < 0)
        return 0;
    end = fstat(fd, &s) == 0 && S_ISREG(s.st_mode) ? end_of(fd) : 0;
    close(fd);
    return end <= (uint64_t)s.st_size || !end
               ? 0
               : ct_fail(CT_EABI,
                         "a truncated file: it has %llu of %llu bytes: build the plugin again",
                         (unsigned long long)s.st_size, (unsigned long long)end);
}
