/*
 * Normalizers of tokenizer.json: each makes another text of a text, and says where it comes from.
 */
#ifndef NORMALIZE_H
#define NORMALIZE_H

#include "charsmap.h"
#include "pattern.h"
#include "unicode.h"

/* A text that is made from another one: a token of bytes [i, k) stands for bytes [begin[i], end[k])
   of that. Zeros are an empty one. */
struct normal {
    struct text text;
    bool aligned; /* begin and end are filled, text.size + 1 each */
    size_t *begin, *end, room;
};

/* Empty it. CT_ENOMEM. */
int normal_reset(struct normal *normal, bool aligned);
void normal_finish(struct normal *normal);
/* Append bytes that stand for [from, to) of the other text; equal numbers of bytes are aligned one
   by one. CT_ENOMEM. */
int normal_put(struct normal *normal, const char *bytes, size_t size, size_t from, size_t to);

enum normalizer_kind {
    NORMALIZER_FORM,
    NORMALIZER_PREPEND,
    NORMALIZER_REPLACE,
    NORMALIZER_STRIP,
    NORMALIZER_NMT,
    NORMALIZER_CHARSMAP
};

struct normalizer {
    enum normalizer_kind kind;
    enum unicode_form form;
    struct pattern pattern; /* what is replaced */
    const char *content;    /* by this; or what is prepended */
    size_t content_size;
    bool left, right; /* where white space is stripped */
    struct charsmap charsmap;
    struct normal out; /* scratch */
};

/*
 * Normalise valid UTF-8: *text and *size become those of the result, which lives in the normalizer
 * or is the text itself, where out.text.data is not *text. *begins says whether the first character
 * comes from the text's first one, and stays false if it was. CT_ENOMEM; CT_EINVAL: an expression
 * takes too long.
 */
int normalizer_apply(struct normalizer *normalizer, bool aligned, const char **text, size_t *size,
                     bool *begins);
void normalizer_close(struct normalizer *normalizer);

#endif
