/*
 * Decoders of tokenizer.json: each makes other strings of the strings of tokens; the last ones are
 * joined. They run while tokens arrive: the joined text so far is that of the library once all have
 * arrived, and a byte is given as soon as no later token can change it.
 */
#ifndef DECODE_H
#define DECODE_H

#include "pattern.h"
#include "unicode.h"

#define DECODER_STAGES 8

enum decoder_kind {
    DECODER_REPLACE,
    DECODER_BYTE_FALLBACK, /* <0x41> is a byte */
    DECODER_FUSE,
    DECODER_STRIP,
    DECODER_METASPACE,
    DECODER_BYTE_LEVEL, /* alone: the strings are bytes */
    DECODER_JOIN        /* by spaces, where there is no decoder */
};

struct decoder_stage {
    enum decoder_kind kind;
    struct pattern pattern; /* what is replaced .. */
    bool character;         /* .. which is one character */
    const char *content;    /* by this; or the character that is stripped, or stands for a space */
    size_t size;
    int64_t start, stop; /* how many are stripped */
    bool never;          /* Metaspace removes none of the first string */
    bool fused;          /* a Fuse is before it: all is one string, which arrives in parts */
};

struct decoder {
    struct decoder_stage stages[DECODER_STAGES];
    int count;
};

void decoder_close(struct decoder *decoder);

struct decoding {
    const struct decoder *decoder;
    struct stage_state {
        struct text held;
        size_t strings;   /* that have begun */
        int64_t stripped; /* of the present one, at its beginning */
        bool begun;       /* the present one has a character that stays */
    } states[DECODER_STAGES];
    struct text out; /* what has been decoded; the caller empties it */
};

/* The byte that <0x41> names; -1: it names none. */
int decoder_byte(const char *text, size_t size);

/* The string of the next token. CT_ENOMEM; CT_EINVAL: an expression takes too long. */
int decoding_put(struct decoding *decoding, const char *string, size_t size);
/* No token follows: what is held goes to out. */
int decoding_end(struct decoding *decoding);
/* Free what it holds. */
void decoding_finish(struct decoding *decoding);

#endif
