/*
 * A mapped file of tokens, in any of these forms:
 *
 *   raw       little-endian uint32
 *   llm.c     a header of 256 int32 (20240520, 1, number of tokens: uint16; 20240801, 7, number:
 *             uint32), and tokens
 *   Megatron  PREFIX.bin: tokens; PREFIX.idx: their type, and the length of each sequence
 *
 * The first bytes, or an .idx file beside a .bin file, tell which.
 */
#ifndef FILE_H
#define FILE_H

#include <ctitan/base.h>

struct token_file {
    const char *path;
    const unsigned char *tokens; /* little-endian */
    int width;                   /* bytes per token */
    int64_t count;
    int64_t *begin; /* of each document, and the end of the last; NULL: unknown */
    int64_t documents;
    struct mapping {
        const void *base;
        size_t size;
    } data, index;
};

/* path must live as long as the file. CT_ECONFIG: it is none of these, or contradicts itself. */
int token_file_open(struct token_file *file, const char *path);
void token_file_close(struct token_file *file);

static inline uint32_t token_file_at(const struct token_file *f, int64_t i)
{
    const unsigned char *at = f->tokens + i * f->width;

    if (f->width == 1)
        return at[0];
    if (f->width == 2)
        return (uint32_t)at[0] | (uint32_t)at[1] << 8;
    return (uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

/* The document that token i is in. */
int64_t token_file_document(const struct token_file *file, int64_t i);

#endif
