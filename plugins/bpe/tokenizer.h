/*
 * Tokenizers of bytes with merges: tokenizer.json of the tokenizers library, and tiktoken's list.
 *
 *   text -> added tokens, and the parts between them
 *        -> normal form -> added tokens that are sought in it
 *        -> pre-tokenizers, each cutting the parts of the one before
 *        -> merges (vocabulary.h)
 *
 * A tokenizer is used by one thread at a time, as it has a cache.
 */
#ifndef TOKENIZER_H
#define TOKENIZER_H

#include "added.h"
#include "pattern.h"
#include "unicode.h"
#include "vocabulary.h"

#define TOKENIZER_STEPS 8
#define TOKENIZER_TEMPLATE 16

struct tokenizer_step {
    bool cuts; /* else it only adds a space */
    struct pattern pattern;
    bool space;           /* put a space before a part that does not begin with one */
    struct text prefixed; /* scratch */
};

struct tokenizer {
    struct ct_arena arena;
    struct vocabulary vocabulary;
    struct added raw, normalized; /* sought in the text, and in its normal form */
    enum unicode_form forms[UNICODE_FORMS];
    int form_count;
    struct tokenizer_step steps[TOKENIZER_STEPS];
    int step_count;
    bool byte_level;                                               /* the last step has been read */
    int32_t before[TOKENIZER_TEMPLATE], after[TOKENIZER_TEMPLATE]; /* post_processor */
    int before_count, after_count;
    int32_t bos, eos;                /* -1: none */
    uint64_t identity;               /* of what determines ids: the file, and tables of Unicode */
    struct text repaired, normal[2]; /* scratch */
};

/*
 * Open a file, or what is in a folder: tokenizer.json, else tokenizer.model. tokenizer_config.json
 * beside it names the tokens that begin and end documents. CT_ENOENT; CT_ECONFIG: it is malformed,
 * or uses what is not supported, which the message names.
 */
int tokenizer_open(struct tokenizer *tokenizer, const char *path);
void tokenizer_close(struct tokenizer *tokenizer);

/* Encode text; broken UTF-8 becomes U+FFFD. special: with the tokens that the post-processor puts
   around a text. CT_ENOMEM; CT_EINVAL: an expression takes too long. */
int tokenizer_encode(struct tokenizer *tokenizer, const char *text, size_t size, bool special,
                     struct ids *ids);

/* The id of an added token or a word of the vocabulary; -1: none. */
int32_t tokenizer_id(const struct tokenizer *tokenizer, const char *content);

/* Readers of the two forms. text ends with a zero, which size does not count. */
int tokenizer_read_json(struct tokenizer *tokenizer, const char *text, size_t size);
int tokenizer_read_tiktoken(struct tokenizer *tokenizer, const char *text, size_t size);

#endif
