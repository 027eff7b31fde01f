/*
 * The tokens of a corpus, in a mapped file.
 *
 *   header | tokens, two, four or eight bytes each | where each document begins, int64, and their
 *   end | checksums of the blocks of tokens
 *
 * Opening a file reads and checks all but the tokens, of which each block is checked when its first
 * token is read.
 *
 * Files are kept in a folder, under a hash of all that determines the tokens: the tokenizer, how
 * documents are found, and the path, size and times of each file. The first process that needs one
 * writes it; others, on the same host or with the same folder, wait for it, and later runs map it.
 * The file gets its name when it is complete. Until then, its writer holds a lock on it, which
 * ends with the process: what a killed process leaves is written again by the next. What can be
 * read once has, in the place of size and times, the folder of the process and a key of the user;
 * one process reads it, and those that waited for it fail if it did.
 */
#ifndef STORE_H
#define STORE_H

#include <ctitan/file.h>

#include "corpus.h"
#include "encode.h"
#include "spool.h"

struct ct_tokenizer_ops;

struct store_request {
    struct corpus_request corpus;
    const struct ct_tokenizer_ops *tokenizer;
    const char *cache; /* folder, "" (the user's), or "none": a file without a name, as spool.h */
};

struct store {
    const void *tokens;   /* document d is tokens[start[d] .. start[d + 1]) */
    const int64_t *start; /* count + 1 */
    int64_t count;
    const uint64_t *sums; /* of the blocks */
    bool *checked;        /* by block */
    uint64_t hash;        /* of all tokens and of where documents begin */
    int width;    /* bytes per token: 2; or 4, where ~token is a token that is no label; or 8, with
                  weights of labels (struct encoded_label) */
    size_t files; /* of the corpus */
    size_t streams; /* of the files: those that are read once */
    bool kept;      /* under `path` */
    char path[CT_PATH_ROOM];
    struct spool spool; /* unless kept */
    void *base;
    size_t size;
};

/* paths: as in corpus.h. CT_ECONFIG: no documents, or a file changed meanwhile. CT_EIO: the folder
   cannot be written to. CT_EPEER: the process that was to read a stream did not. */
int store_open(struct store *store, const struct store_request *request, const char *paths);
/* CT_EIO: the block is damaged. */
int store_check(struct store *store, size_t block);
/* Set *token to number `index` of all, and *weight to its weight as a label; 0: it is none. CT_EIO:
   its block is damaged. */
static inline int store_read(struct store *store, int64_t index, int32_t *token, float *weight)
{
    size_t block = (size_t)index * (size_t)store->width / ENCODED_BLOCK;
    int rc = store->checked[block] ? 0 : store_check(store, block);
    const struct encoded_label *labels = store->tokens;

    *token = store->width == 2   ? ((const uint16_t *)store->tokens)[index]
             : store->width == 4 ? ((const int32_t *)store->tokens)[index]
                                 : labels[index].token;
    *weight = *token < 0 ? 0 : store->width == 8 ? labels[index].weight : 1;
    *token = *token < 0 ? ~*token : *token;
    return rc;
}
/* store may be zeros. */
void store_close(struct store *store);

#endif
