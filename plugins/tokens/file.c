#include <endian.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <ctitan/error.h>
#include <ctitan/file.h>

#include "file.h"

#define LLMC_HEADER 1024
#define MEGATRON_MAGIC "MMIDIDX\0\0"
#define MEGATRON_HEADER 34 /* magic, version, type, sequences, documents */

static uint64_t number(const unsigned char *at, int bytes)
{
    uint64_t value = 0;

    while (bytes--)
        value = value << 8 | at[bytes];
    return value;
}

static int map(struct mapping *m, const char *path)
{
    return ct_file_map(path, &m->base, &m->size);
}

static void unmap(struct mapping *m)
{
    ct_file_unmap(m->base, m->size);
    *m = (struct mapping){0};
}

/* ---- llm.c ---- */

static bool is_llmc(const struct mapping *m)
{
    uint64_t magic = m->size >= LLMC_HEADER ? number(m->base, 4) : 0;

    return magic == 20240520 || magic == 20240801;
}

static int read_llmc(struct token_file *f)
{
    const unsigned char *header = f->data.base;
    bool wide = number(header, 4) == 20240801;
    uint64_t version = number(header + 4, 4), count = number(header + 8, 4);

    f->width = wide ? 4 : 2;
    if (version != (wide ? 7 : 1))
        return ct_fail(CT_ECONFIG, "%s: version %llu of llm.c's format is not supported", f->path,
                       (unsigned long long)version);
    if (count != (f->data.size - LLMC_HEADER) / (unsigned)f->width ||
        (f->data.size - LLMC_HEADER) % (unsigned)f->width)
        return ct_fail(
            CT_ECONFIG,
            "%s: its header says %llu tokens of %d bytes, but the file has %zu bytes of tokens",
            f->path, (unsigned long long)count, f->width, f->data.size - LLMC_HEADER);
    f->tokens = header + LLMC_HEADER;
    f->count = (int64_t)count;
    return 0;
}

/* ---- Megatron ---- */

/* 1: path, with .idx instead of .bin, is an index, which is then mapped; 0: there is none. */
static int find_index(struct token_file *f, const char *path, char *index, size_t room)
{
    size_t size = strlen(path);
    int rc;

    if (size < 5 || strcmp(path + size - 4, ".bin"))
        return 0;
    if (snprintf(index, room, "%.*s.idx", (int)size - 4, path) >= (int)room)
        return ct_fail(CT_ECONFIG, "a path of %zu characters is too long", size);
    rc = map(&f->index, index);
    if (rc < 0)
        return rc == CT_ENOENT ? 0 : rc;
    if (f->index.size >= MEGATRON_HEADER && !memcmp(f->index.base, MEGATRON_MAGIC, 9))
        return 1;
    return ct_fail(CT_ECONFIG,
                   "%s, of %zu bytes, is truncated, or no index of Megatron's: make it again; "
                   "without it, %s is read as raw uint32 tokens",
                   index, f->index.size, path);
}

static int width_of(unsigned type)
{
    static const int widths[] = {[1] = 1, [4] = 4, [8] = 2}; /* uint8, int32, uint16 */

    return type < CT_COUNT(widths) ? widths[type] : 0;
}

/* Sequences follow each other without gaps, so their lengths are where documents begin. */
static int read_sequences(struct token_file *f, const char *path, const unsigned char *lengths)
{
    const unsigned char *pointers = lengths + 4 * f->documents;
    int64_t at = 0;

    f->begin = malloc((size_t)(f->documents + 1) * sizeof(*f->begin));
    if (!f->begin)
        return ct_fail(CT_ENOMEM, "%lld sequences", (long long)f->documents);
    for (int64_t i = 0; i < f->documents; i++) {
        uint64_t length = number(lengths + 4 * i, 4), pointer = number(pointers + 8 * i, 8);

        f->begin[i] = at;
        if (length > INT32_MAX || pointer != (uint64_t)(at * f->width))
            return ct_fail(CT_ECONFIG,
                           "%s: sequence %lld has length %llu and begins at byte %llu; "
                           "byte %lld was expected",
                           path, (long long)i, (unsigned long long)length,
                           (unsigned long long)pointer, (long long)(at * f->width));
        at += (int64_t)length;
    }
    f->begin[f->documents] = at;
    if (at == f->count && f->data.size % (unsigned)f->width == 0)
        return 0;
    return ct_fail(CT_ECONFIG, "%s lists %lld tokens of %d bytes, but %s has %zu bytes", path,
                   (long long)at, f->width, f->path, f->data.size);
}

static int read_megatron(struct token_file *f, const char *path)
{
    const unsigned char *header = f->index.base;
    uint64_t version = number(header + 9, 8), sequences = number(header + 18, 8);
    uint64_t documents = number(header + 26, 8), room = f->index.size - MEGATRON_HEADER;

    f->width = width_of(header[17]);
    if (version != 1)
        return ct_fail(CT_ECONFIG, "%s: version %llu is not supported", path,
                       (unsigned long long)version);
    if (!f->width)
        return ct_fail(CT_ECONFIG,
                       "%s: tokens of type %d are not supported; uint8 (1), int32 (4) "
                       "and uint16 (8) are",
                       path, header[17]);
    if (sequences > room / 12 || documents > room / 8 || 12 * sequences + 8 * documents > room)
        return ct_fail(CT_ECONFIG,
                       "%s: %llu sequences and %llu documents do not fit in its %zu "
                       "bytes",
                       path, (unsigned long long)sequences, (unsigned long long)documents,
                       f->index.size);
    f->documents = (int64_t)sequences;
    f->tokens = f->data.base;
    f->count = (int64_t)(f->data.size / (unsigned)f->width);
    return read_sequences(f, path, header + MEGATRON_HEADER);
}

/* ---- any ---- */

static int read_raw(struct token_file *f)
{
    if (f->data.size % 4)
        return ct_fail(CT_ECONFIG,
                       "%s is not a file of uint32 tokens: its size is not a multiple "
                       "of 4",
                       f->path);
    f->tokens = f->data.base;
    f->width = 4;
    f->count = (int64_t)(f->data.size / 4);
    return 0;
}

int token_file_open(struct token_file *f, const char *path)
{
    char index[PATH_MAX];
    int rc;

    *f = (struct token_file){.path = path};
    rc = map(&f->data, path);
    if (rc < 0)
        return rc;
    if (is_llmc(&f->data))
        rc = read_llmc(f);
    else if ((rc = find_index(f, path, index, sizeof(index))) == 0)
        rc = read_raw(f);
    else if (rc > 0)
        rc = read_megatron(f, index);
    if (rc < 0)
        token_file_close(f);
    return rc;
}

void token_file_close(struct token_file *f)
{
    unmap(&f->data);
    unmap(&f->index);
    free(f->begin);
    f->begin = NULL;
}

int64_t token_file_document(const struct token_file *f, int64_t i)
{
    int64_t low = 0, high = f->documents - 1;

    while (low < high) {
        int64_t middle = (low + high + 1) / 2;

        if (f->begin[middle] <= i)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}
