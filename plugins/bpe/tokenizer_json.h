/*
 * The parts of the reader of tokenizer.json. Everything that is not supported is refused by its key
 * and value.
 */
#ifndef TOKENIZER_JSON_H
#define TOKENIZER_JSON_H

#include <jansson.h>

#include "tokenizer.h"

struct reader {
    struct tokenizer *t;
    const json_t *words;  /* model.vocab of a BPE model */
    int16_t byte_of[512]; /* the byte that a character stands for in a vocabulary of bytes; -1 */
};

/* The value of "type"; "": none. */
const char *tokenizer_type(const json_t *object);
/* The value of key; "": it is absent or no string. */
const char *tokenizer_text(const json_t *object, const char *key);
bool tokenizer_flag(const json_t *object, const char *key);

/* Fail with CT_ECONFIG: `type` is not one of those supported. */
int tokenizer_unsupported(const char *where, const char *type, const char *supported);
/* CT_ECONFIG: object has a key other than these, which NULL ends. */
int tokenizer_check_keys(const char *where, const json_t *object, const char *const *keys);
/* Call read with each member of a sequence, or with the object itself; null: with none. */
int tokenizer_each(struct tokenizer *t, const json_t *object, const char *key,
                   int (*read)(struct tokenizer *t, const json_t *object));

/* Members of the normalizer, pre_tokenizer and decoder. */
int tokenizer_read_normalizer(struct tokenizer *t, const json_t *object);
int tokenizer_read_pre_tokenizer(struct tokenizer *t, const json_t *object);
int tokenizer_read_decoder(struct tokenizer *t, const json_t *object);

/* The model, and the vocabulary with room for the added tokens. */
int tokenizer_read_model(struct reader *r, const json_t *model, const json_t *added);
/* The id that a word has in the model; -1: none. */
int64_t tokenizer_find_word(const struct reader *r, const char *word);

#endif
