/*
 * Reading a shared object (ELF) as data: segments, relocations, and one exported symbol.
 */
#include <elf.h>
#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <ctitan/error.h>

#include "plugin/image.h"

#define SEGMENTS 64
#define LARGEST ((uint64_t)1 << 32) /* bytes of an image */

#if defined(__x86_64__)
enum { MACHINE = EM_X86_64, RELATIVE = R_X86_64_RELATIVE, ABSOLUTE = R_X86_64_64 };
#elif defined(__aarch64__)
enum { MACHINE = EM_AARCH64, RELATIVE = R_AARCH64_RELATIVE, ABSOLUTE = R_AARCH64_ABS64 };
#elif defined(__riscv)
enum { MACHINE = EM_RISCV, RELATIVE = R_RISCV_RELATIVE, ABSOLUTE = R_RISCV_64 };
#else
enum { MACHINE = EM_NONE, RELATIVE = 0, ABSOLUTE = 0 };
#endif

struct file {
    int fd;
    uint64_t size;
    Elf64_Ehdr header;
    Elf64_Phdr segment[SEGMENTS];
};

/* ---- the file ---- */

static int damaged(const char *part)
{
    return ct_fail(CT_EABI, "%s is damaged: build the plugin again", part);
}

static int read_at(const struct file *f, uint64_t offset, void *data, uint64_t size)
{
    char *to = data;

    if (offset > f->size || size > f->size - offset)
        return ct_fail(CT_EABI,
                       "a truncated file: it has %llu bytes, and says that it has %llu more: build "
                       "the plugin again",
                       (unsigned long long)f->size, (unsigned long long)(offset + size - f->size));
    while (size) {
        ssize_t got = pread(f->fd, to, size, (off_t)offset);

        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return ct_fail(CT_EIO, "%s", strerror(errno));
        if (!got)
            return ct_fail(CT_EIO, "the file shrinks while it is read");
        to += got;
        offset += (uint64_t)got;
        size -= (uint64_t)got;
    }
    return 0;
}

static int check_header(const Elf64_Ehdr *h)
{
    int order = BYTE_ORDER == LITTLE_ENDIAN ? ELFDATA2LSB : ELFDATA2MSB;

    if (memcmp(h->e_ident, ELFMAG, SELFMAG) != 0)
        return ct_fail(CT_EABI, "not a shared object");
    if (h->e_ident[EI_CLASS] != ELFCLASS64 || h->e_ident[EI_DATA] != order ||
        h->e_machine != MACHINE)
        return ct_fail(CT_EABI, "a shared object for another machine: build the plugin for this "
                                "one");
    if (h->e_type != ET_DYN)
        return ct_fail(CT_EABI, "not a shared object: link it with -shared");
    if (h->e_phentsize != sizeof(Elf64_Phdr) || !h->e_phnum || h->e_phnum > SEGMENTS)
        return damaged("its table of segments");
    return 0;
}

static int open_file(struct file *f, const char *path)
{
    struct stat st;
    int rc;

    f->fd = open(path, O_RDONLY | O_CLOEXEC);
    if (f->fd < 0 || fstat(f->fd, &st) < 0)
        return ct_fail(CT_ENOENT, "%s", strerror(errno));
    f->size = S_ISREG(st.st_mode) ? (uint64_t)st.st_size : 0;
    if (!f->size)
        return ct_fail(CT_EABI, "an empty file: build the plugin again");
    if (f->size < sizeof(f->header))
        return ct_fail(CT_EABI, "not a shared object: a file of %llu bytes",
                       (unsigned long long)f->size);
    rc = read_at(f, 0, &f->header, sizeof(f->header));
    if (rc == 0)
        rc = check_header(&f->header);
    return rc == 0
               ? read_at(f, f->header.e_phoff, f->segment, f->header.e_phnum * sizeof(Elf64_Phdr))
               : rc;
}

/* ---- the image ---- */

static bool is_aligned(uint64_t address, uint64_t size)
{
    return !(address & (size >= 8 ? 7 : size >= 4 ? 3 : 0));
}

bool ct_image_has(const struct ct_image *image, const void *p, size_t size)
{
    uintptr_t at = (uintptr_t)p - (uintptr_t)image->base, room = image->size + CT_IMAGE_ZEROS;

    return at < room && size <= room - at && is_aligned(at, size);
}

/* The `count` elements at an address of the object; NULL: they are not in a segment, or not
   aligned. */
static void *at(const struct ct_image *image, uint64_t address, uint64_t count, uint64_t size)
{
    return address <= image->size && count <= (image->size - address) / size &&
                   is_aligned(address, size)
               ? image->base + address
               : NULL;
}

static int map(const struct file *f, struct ct_image *image)
{
    uint64_t end = 0;

    for (int i = 0; i < f->header.e_phnum; i++) {
        const Elf64_Phdr *s = &f->segment[i];

        if (s->p_type != PT_LOAD)
            continue;
        if (s->p_filesz > s->p_memsz || s->p_vaddr > LARGEST || s->p_memsz > LARGEST - s->p_vaddr)
            return damaged("its table of segments");
        end = s->p_vaddr + s->p_memsz > end ? s->p_vaddr + s->p_memsz : end;
    }
    image->base = mmap(NULL, end + CT_IMAGE_ZEROS, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (image->base == MAP_FAILED) {
        image->base = NULL;
        return ct_fail(CT_ENOMEM, "%llu bytes", (unsigned long long)end);
    }
    image->size = end;
    return 0;
}

static int read_segments(const struct file *f, const struct ct_image *image)
{
    int rc = 0;

    for (int i = 0; rc == 0 && i < f->header.e_phnum; i++) {
        const Elf64_Phdr *s = &f->segment[i];

        if (s->p_type == PT_LOAD)
            rc = read_at(f, s->p_offset, image->base + s->p_vaddr, s->p_filesz);
    }
    return rc;
}

static int read_tables(const struct file *f, const struct ct_image *image,
                       struct ct_image_tables *t)
{
    const Elf64_Dyn *entry = NULL;
    uint64_t count = 0, relocation_size = sizeof(Elf64_Rela);

    *t = (struct ct_image_tables){0};
    for (int i = 0; i < f->header.e_phnum; i++)
        if (f->segment[i].p_type == PT_DYNAMIC) {
            count = f->segment[i].p_memsz / sizeof(*entry);
            entry = at(image, f->segment[i].p_vaddr, count, sizeof(*entry));
        }
    for (; entry && count && entry->d_tag != DT_NULL; entry++, count--) {
        const struct {
            int64_t tag;
            uint64_t *value;
        } wanted[] = {
            {DT_SYMTAB, &t->symbols},
            {DT_STRTAB, &t->strings},
            {DT_HASH, &t->hash},
            {DT_GNU_HASH, &t->gnu_hash},
            {DT_RELA, &t->relocations},
            {DT_RELASZ, &t->relocations_size},
            {DT_RELAENT, &relocation_size},
            {36 /* DT_RELR */, &t->packed},
            {35 /* DT_RELRSZ */, &t->packed_size},
        };

        for (size_t i = 0; i < CT_COUNT(wanted); i++)
            if (entry->d_tag == wanted[i].tag)
                *wanted[i].value = entry->d_un.d_val;
    }
    return t->symbols && t->strings && relocation_size == sizeof(Elf64_Rela)
               ? 0
               : damaged("its dynamic section");
}

/* ---- relocations ---- */

/* Let the word at an address be a pointer into the image. */
static int point(const struct ct_image *image, uint64_t address, uint64_t target)
{
    char *word = at(image, address, sizeof(char *), 1);
    char *pointer = image->base + target;

    if (!word || target > image->size)
        return damaged("a relocation");
    memcpy(word, &pointer, sizeof(pointer));
    return 0;
}

static int relocate_one(const struct ct_image *image, const struct ct_image_tables *t,
                        const Elf64_Rela *r)
{
    uint64_t type = ELF64_R_TYPE(r->r_info);
    const Elf64_Sym *symbol;

    if (type == RELATIVE)
        return point(image, r->r_offset, (uint64_t)r->r_addend);
    if (type != ABSOLUTE)
        return 0;
    symbol = at(image, t->symbols + ELF64_R_SYM(r->r_info) * sizeof(*symbol), 1, sizeof(*symbol));
    if (!symbol)
        return damaged("a relocation");
    return point(image, r->r_offset,
                 symbol->st_shndx == SHN_UNDEF ? image->size
                                               : symbol->st_value + (uint64_t)r->r_addend);
}

/* A packed relative relocation holds its target in place. */
static int relocate_packed(const struct ct_image *image, uint64_t address)
{
    const char *word = at(image, address, sizeof(uint64_t), 1);
    uint64_t target = 0;

    if (word)
        memcpy(&target, word, sizeof(target));
    return point(image, address, target);
}

/* DT_RELR: an even word is an address; an odd one has a bit for each of the next 63 words. */
static int relocate_all_packed(const struct ct_image *image, const struct ct_image_tables *t)
{
    uint64_t count = t->packed_size / sizeof(uint64_t), next = 0;
    const uint64_t *word = at(image, t->packed, count, sizeof(*word));
    int rc = word || !count ? 0 : damaged("its table of relocations");

    for (uint64_t i = 0; rc == 0 && i < count; i++) {
        if (!(word[i] & 1)) {
            rc = relocate_packed(image, word[i]);
            next = word[i] + sizeof(uint64_t);
            continue;
        }
        for (int bit = 1; rc == 0 && bit < 64; bit++)
            if (word[i] >> bit & 1)
                rc = relocate_packed(image, next + (uint64_t)(bit - 1) * sizeof(uint64_t));
        next += 63 * sizeof(uint64_t);
    }
    return rc;
}

static int relocate(const struct ct_image *image, const struct ct_image_tables *t)
{
    uint64_t count = t->relocations_size / sizeof(Elf64_Rela);
    const Elf64_Rela *r = at(image, t->relocations, count, sizeof(*r));
    int rc = r || !count ? 0 : damaged("its table of relocations");

    for (uint64_t i = 0; rc == 0 && i < count; i++)
        rc = relocate_one(image, t, &r[i]);
    return rc == 0 ? relocate_all_packed(image, t) : rc;
}

/* ---- symbols ---- */

/* Symbols that the object exports. All reads are checked, as the table may be damaged. */
static uint64_t count_symbols(const struct ct_image *image, const struct ct_image_tables *t)
{
    const uint32_t *head = at(image, t->gnu_hash, 4, sizeof(*head)), *chain;
    uint64_t table, last = 0;

    if (t->hash && (head = at(image, t->hash, 2, sizeof(*head))))
        return head[1];
    if (!t->gnu_hash || !head)
        return 0;
    table = t->gnu_hash + 16 + (uint64_t)head[2] * 8;
    for (uint32_t i = 0; i < head[0]; i++) {
        const uint32_t *bucket = at(image, table + (uint64_t)i * 4, 1, sizeof(*bucket));

        if (!bucket)
            return 0;
        last = *bucket > last ? *bucket : last;
    }
    if (last < head[1])
        return 0;
    table += (uint64_t)head[0] * 4;
    do
        chain = at(image, table + (last++ - head[1]) * 4, 1, sizeof(*chain));
    while (chain && !(*chain & 1));
    return last;
}

static const void *find(const struct ct_image *image, const struct ct_image_tables *t,
                        const char *name, size_t size)
{
    uint64_t count = count_symbols(image, t), length = strlen(name) + 1;

    for (uint64_t i = 0; i < count; i++) {
        const Elf64_Sym *symbol = at(image, t->symbols + i * sizeof(*symbol), 1, sizeof(*symbol));
        const char *text = symbol ? at(image, t->strings + symbol->st_name, length, 1) : NULL;

        if (!symbol)
            return NULL;
        if (text && symbol->st_shndx != SHN_UNDEF && !memcmp(text, name, length))
            return symbol->st_size >= size ? at(image, symbol->st_value, 1, size) : NULL;
    }
    return NULL;
}

const void *ct_image_find(const struct ct_image *image, const char *name, size_t size)
{
    return find(image, &image->tables, name, size);
}

int ct_image_open(const char *path, struct ct_image *image)
{
    struct file f = {0};
    int rc = open_file(&f, path);

    *image = (struct ct_image){0};
    if (rc == 0)
        rc = map(&f, image);
    if (rc == 0)
        rc = read_segments(&f, image);
    if (rc == 0)
        rc = read_tables(&f, image, &image->tables);
    if (rc == 0)
        rc = relocate(image, &image->tables);
    if (f.fd >= 0)
        close(f.fd);
    if (rc < 0)
        ct_image_close(image);
    return rc;
}

void ct_image_close(struct ct_image *image)
{
    if (image->base)
        munmap(image->base, image->size + CT_IMAGE_ZEROS);
    *image = (struct ct_image){0};
}
