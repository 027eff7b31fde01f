/*
 * Tokenizers: tokenizer.json of the tokenizers library, and tiktoken's list.
 *
 *   text -> added tokens, and the parts between them
 *        -> normalizers -> added tokens that are sought in the normal text
 *        -> pre-tokenizers, each splitting the parts of the one before
 *        -> merges (vocabulary.h), or the best split (unigram.h)
 *
 * Decoding is in decode.h.
 *
 * A tokenizer is used by one thread at a time, as it has a cache.
 */
#ifndef TOKENIZER_H
#define TOKENIZER_H

#include "added.h"
#include "decode.h"
#include "normalize.h"
#include "pattern.h"
#include "unicode.h"
#include "unigram.h"
#include "vocabulary.h"

#define TOKENIZER_STEPS 8 /* of each kind */
#define TOKENIZER_TEMPLATE 16

enum step_kind { STEP_SPLIT, STEP_BYTE_LEVEL, STEP_METASPACE };

enum metaspace_scheme { METASPACE_ALWAYS, METASPACE_FIRST, METASPACE_NEVER, METASPACE_SCHEMES };

/* A character in the place of spaces. */
struct metaspace {
    const char *mark;
    size_t size;
    enum metaspace_scheme scheme; /* where it is prepended, unless it is there */
};

struct tokenizer_step {
    enum step_kind kind;
    bool splits;
    struct split split;
    bool space; /* put a space before a part that does not begin with one */
    struct metaspace metaspace;
    struct normal out; /* scratch */
};

struct tokenizer {
    struct ct_arena arena;
    struct vocabulary vocabulary;
    bool is_unigram;
    struct unigram unigram;
    struct added raw, normalized; /* sought in the text, and in the normal text */
    struct normalizer normalizers[TOKENIZER_STEPS];
    int normalizer_count;
    struct tokenizer_step steps[TOKENIZER_STEPS];
    int step_count;
    bool byte_level;                                               /* the last step has been read */
    int32_t before[TOKENIZER_TEMPLATE], after[TOKENIZER_TEMPLATE]; /* post_processor */
    int before_count, after_count;
    struct decoder decoder;
    int32_t bos, eos;     /* -1: none */
    uint64_t identity;    /* of what determines ids: the file, and tables of Unicode */
    struct text repaired; /* scratch */
};

/*
 * Open a file, or what is in a folder: tokenizer.json, else tokenizer.model. tokenizer_config.json
 * beside it names the tokens that begin and end documents. CT_ENOENT; CT_ECONFIG: it is malformed,
 * or uses what is not supported, which the message names.
 */
int tokenizer_open(struct tokenizer *tokenizer, const char *path);
/* Files that it opens, for struct ct_tokenizer_ops. */
extern const struct ct_tokenizer_file tokenizer_files[];
void tokenizer_close(struct tokenizer *tokenizer);

/* Encode text; broken UTF-8 becomes U+FFFD. special: with the tokens that the post-processor puts
   around a text. CT_ENOMEM; CT_EINVAL: an expression takes too long. */
int tokenizer_encode(struct tokenizer *tokenizer, const char *text, size_t size, bool special,
                     struct ids *ids);

/* The id of an added token or a word of the vocabulary; -1: none. */
int32_t tokenizer_id(const struct tokenizer *tokenizer, const char *content);

/* Decode tokens one after the other; end: none follows. Text that no later token changes is
   appended to out of decoding. CT_EINVAL: a token is not in the vocabulary, or an expression takes
   too long. */
int tokenizer_decode(const struct tokenizer *tokenizer, struct decoding *decoding,
                     const int32_t *tokens, size_t count, bool end);
/* The bytes of one token within a text, of which it may be a part of a character. */
int tokenizer_bytes(const struct tokenizer *tokenizer, int32_t token, struct text *bytes);

/* Readers of the two forms. text ends with a zero, which size does not count. */
int tokenizer_read_json(struct tokenizer *tokenizer, const char *text, size_t size);
int tokenizer_read_tiktoken(struct tokenizer *tokenizer, const char *text, size_t size);

#endif
