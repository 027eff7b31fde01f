/*
 * The documents of a corpus as tokens.
 */
#ifndef ENCODE_H
#define ENCODE_H

#include <stdio.h>

#include "corpus.h"

struct ct_tokenizer_ops;

/* Header of a file of tokens. */
struct encoded {
    char magic[8];
    int64_t width; /* bytes per token */
    int64_t documents, tokens;
    int64_t malformed; /* lines that were skipped */
    int64_t broken;    /* bytes of text that are not UTF-8 */
    uint64_t hash;     /* XXH3 of the tokens and of the offsets of documents */
    uint64_t index;    /* XXH3 of all that follows the tokens */
    uint64_t check;    /* XXH3 of what is above */
};

/* A token with its weight as a label: ~token and 0 for one that is none. */
struct encoded_label {
    int32_t token;
    float weight;
};

#define ENCODED_MAGIC "ctokens7"
#define ENCODED_BLOCK ((size_t)64 << 10) /* bytes of tokens with a checksum of their own */

/* Bytes of tokens in the file, up to the offsets of documents. */
static inline size_t encoded_bytes(const struct encoded *header)
{
    return ((size_t)header->tokens * (size_t)header->width + 7) / 8 * 8;
}

/* Blocks of these bytes; the last may be shorter. */
static inline size_t encoded_blocks(const struct encoded *header)
{
    return (encoded_bytes(header) + ENCODED_BLOCK - 1) / ENCODED_BLOCK;
}

/* Write all of the file: see store.h. CT_EIO: out takes no more; failures of corpus_read. */
int encode(FILE *out, int width, const struct ct_tokenizer_ops *tokenizer, struct corpus *corpus);

#endif
