/*
 * Files that are no text: datasets come with Parquet, Arrow or archives beside it, or instead.
 */
#include <stdio.h>
#include <string.h>

#include <ctitan/error.h>
#include <ctitan/reader.h>

#include "binary.h"

#define SEARCHED ((size_t)8192) /* bytes that have no NUL if a file is text */

#define UNPACK "unpack it, and name what it holds instead"

static const struct format {
    const char *name;
    const char *bytes;
    size_t size, at;
    const char *cure;
    const char *reader; /* what reads it, if a plugin offers that; NULL: nothing does */
} formats[] = {
    {"a Parquet file", "PAR1", 4, 0,
     "convert it: python3 -c \"import sys, pandas; pandas.read_parquet(sys.argv[1])"
     ".to_json(sys.argv[2], orient='records', lines=True)\" IN.parquet OUT.jsonl",
     "parquet"},
    {"an Arrow file", "ARROW1\0\0", 8, 0,
     "convert it: python3 -c \"import sys, pandas; pandas.read_feather(sys.argv[1])"
     ".to_json(sys.argv[2], orient='records', lines=True)\" IN.arrow OUT.jsonl",
     NULL},
    {"a stream of Arrow", "\xff\xff\xff\xff", 4, 0,
     "convert it: python3 -c \"import sys, datasets; datasets.Dataset.from_file(sys.argv[1])"
     ".to_json(sys.argv[2])\" IN.arrow OUT.jsonl",
     NULL},
    {"a file of xz",
     "\xfd"
     "7zXZ\0",
     6, 0, "unpack it with `xz -d`, or pack it by gzip or zstd", NULL},
    {"a file of bzip2", "1AY&SY", 6, 4, "unpack it with `bzip2 -d`, or pack it by gzip or zstd",
     NULL},
    {"a file of lz4", "\x04\x22\x4d\x18", 4, 0,
     "unpack it with `lz4 -d`, or pack it by gzip or zstd", NULL},
    {"a zip archive", "PK\3\4", 4, 0, UNPACK, NULL},
    {"a 7z archive", "7z\xbc\xaf\x27\x1c", 6, 0, UNPACK, NULL},
    {"a tar archive", "ustar\0", 6, 257, UNPACK, "tar"},
    {"a tar archive", "ustar  \0", 8, 257, UNPACK, "tar"},
    {"a PDF file", "%PDF-", 5, 0, "convert it to .txt, as with `pdftotext`", NULL},
    {"UTF-16", "\xff\xfe", 2, 0, "convert it: iconv -f UTF-16 -t UTF-8 IN >OUT", NULL},
    {"UTF-16", "\xfe\xff", 2, 0, "convert it: iconv -f UTF-16 -t UTF-8 IN >OUT", NULL},
};

/* UTF-16 is told by ASCII text, in which every other byte is NUL. */
static bool is_utf16(const char *data, size_t size, size_t first)
{
    for (size_t i = 0; i < 8 && i < size; i++)
        if ((data[i] == 0) != (i % 2 == first))
            return false;
    return true;
}

static int refuse_nul(const char *path, const char *data, size_t size)
{
    const char *nul = memchr(data, 0, size < SEARCHED ? size : SEARCHED);

    if (!nul)
        return 0;
    if (is_utf16(data, size, 0) || is_utf16(data, size, 1))
        return ct_fail(CT_ECONFIG,
                       "%s is UTF-16, and text must be UTF-8: convert it: iconv -f UTF-16%s -t "
                       "UTF-8 IN >OUT",
                       path, is_utf16(data, size, 0) ? "BE" : "LE");
    return ct_fail(CT_ECONFIG,
                   "%s is no text: byte %zu is NUL. Convert it to .txt or .jsonl in UTF-8, or "
                   "leave it out",
                   path, (size_t)(nul - data));
}

static int refuse(const char *path, const struct format *f)
{
    const struct ct_offer *offer;
    char reader[512] = "";

    if (f->reader && ct_offer_find(CT_READER, f->reader, &offer) < 0)
        snprintf(reader, sizeof(reader), "%s; or ", ct_error_message());
    else if (f->reader)
        snprintf(reader, sizeof(reader), "end its name in %s; or ",
                 ((const struct ct_reader_ops *)offer->ops)->suffixes[0]);
    return ct_fail(CT_ECONFIG, "%s is %s, and not text in UTF-8: %s%s", path, f->name, reader,
                   f->cure);
}

int binary_refuse(const char *path, const char *data, size_t size, bool plain)
{
    for (size_t i = 0; i < CT_COUNT(formats); i++) {
        const struct format *f = &formats[i];

        if (size >= f->at + f->size && !memcmp(data + f->at, f->bytes, f->size))
            return refuse(path, f);
    }
    return plain ? refuse_nul(path, data, size) : 0;
}
