/*
 * Byte pair encoding (Sennrich et al. 2016) of parts of text: tokens by their bytes, and merges of
 * two adjacent tokens by rank. Merging begins with bytes, or with characters, as in SentencePiece's
 * models; then bytes of characters without a token have tokens <0x00> to <0xFF>. The lowest rank is
 * merged first, the leftmost of equals. Parts that were encoded before are found in a cache.
 */
#ifndef VOCABULARY_H
#define VOCABULARY_H

#include <ctitan/arena.h>
#include <ctitan/model.h>

#define VOCABULARY_LIMIT (1 << 24) /* ids are below this */
#define VOCABULARY_BYTES 4096      /* of a token, at most */

struct vocabulary_token {
    const char *bytes; /* NULL: there is no such token */
    size_t size;
    const char *shown; /* how it is decoded, where that differs; NULL: it does not */
    size_t shown_size;
};

struct vocabulary {
    struct ct_arena arena;
    struct vocabulary_token *tokens; /* by id */
    size_t count;                    /* largest id + 1 */
    int32_t byte[256];               /* the token of one byte; -1: none */
    bool characters;                 /* merging begins with characters, not with bytes: then .. */
    int32_t fallback[256];           /* a byte of a character without a token; [0] -1: none */
    int32_t unknown;                 /* a character that has none of them; -1: it is dropped */
    bool fuse_unknown;               /* .. and adjacent ones are one */
    bool whole_first;                /* a part that is a token is not merged ("ignore_merges") */
    struct vocabulary_table *table;
};

/* Where encode puts tokens. */
struct ids {
    int32_t *at;
    size_t count, room;         /* tokens beyond room are counted only */
    struct ct_text_span *spans; /* of each token in the text; NULL: not asked for */
};

/* Add a token that stands for bytes [begin, end) of the text. */
static inline void ids_put(struct ids *ids, int32_t id, size_t begin, size_t end)
{
    if (ids->count < ids->room) {
        ids->at[ids->count] = id;
        if (ids->spans)
            ids->spans[ids->count] = (struct ct_text_span){begin, end};
    }
    ids->count++;
}

/* An empty vocabulary for ids below count. */
int vocabulary_open(struct vocabulary *v, size_t count);
void vocabulary_close(struct vocabulary *v);

/* Add a token. found: text may become this token. bytes are copied. CT_ECONFIG: a wrong id. */
int vocabulary_add(struct vocabulary *v, int64_t id, const char *bytes, size_t size, bool found);
/* Decode a token as these bytes, which stay valid. */
void vocabulary_show(struct vocabulary *v, int32_t id, const char *bytes, size_t size);
/* The token with these bytes; -1: none. */
int32_t vocabulary_find(const struct vocabulary *v, const char *bytes, size_t size);
/* Make room for this many merges, once. */
int vocabulary_open_merges(struct vocabulary *v, size_t merges);
/* Merge left and right at this rank, into the token of both's bytes. CT_ECONFIG: there is none. */
int vocabulary_merge(struct vocabulary *v, int32_t left, int32_t right, uint32_t rank);
/* Call after the last token. CT_ECONFIG: a byte that occurs in UTF-8 has no token. */
int vocabulary_seal(struct vocabulary *v);

/* Set fallback to the tokens <0x00> to <0xFF>, if the vocabulary has all of them. */
void vocabulary_find_fallback(struct vocabulary *v);

/* Encode one part; spans are within it. CT_ENOMEM. */
int vocabulary_encode(struct vocabulary *v, const char *part, size_t size, struct ids *out);

#endif
