/*
 * Unicode for tokenizers: UTF-8, the classes of characters that pre-tokenizers tell apart, and
 * normalisation. Properties come from libunistring, once per process, as one byte for each
 * character.
 */
#ifndef UNICODE_H
#define UNICODE_H

#include <ctitan/base.h>

enum {
    UNICODE_LETTER = 1, /* \p{L} */
    UNICODE_NUMBER = 2, /* \p{N} */
    UNICODE_SPACE = 4,  /* White_Space, \s */
    UNICODE_WORD = 8,   /* \w around added tokens: alphabetic, marks, digits, connectors */
    UNICODE_STABLE = 16 /* NFC changes nothing at it, nor joins it with the character before it */
};

/* The names in tokenizer.json, in this order. */
enum unicode_form { UNICODE_NFC, UNICODE_NFD, UNICODE_NFKC, UNICODE_NFKD, UNICODE_FORMS };

/* By code point, up to U+10FFFF. */
extern const uint8_t *unicode_class;

/* Fill unicode_class. CT_ENOMEM. */
int unicode_init(void);

/* The character at `at`, and its bytes in *size. The text is valid UTF-8. */
static inline uint32_t unicode_at(const char *at, size_t *size)
{
    const unsigned char *b = (const unsigned char *)at;

    if (b[0] < 0x80)
        return *size = 1, b[0];
    if (b[0] < 0xE0)
        return *size = 2, (b[0] & 0x1Fu) << 6 | (b[1] & 0x3Fu);
    if (b[0] < 0xF0)
        return *size = 3, (b[0] & 0x0Fu) << 12 | (b[1] & 0x3Fu) << 6 | (b[2] & 0x3Fu);
    *size = 4;
    return (b[0] & 0x07u) << 18 | (b[1] & 0x3Fu) << 12 | (b[2] & 0x3Fu) << 6 | (b[3] & 0x3Fu);
}

/* The character before at, which is after begin. The text is valid UTF-8. */
const char *unicode_before(const char *begin, const char *at);

/* Whether all bytes are UTF-8. */
bool unicode_is_valid(const char *text, size_t size);

/* Bytes at the end of text that begin a character, which later bytes may complete. */
size_t unicode_unfinished(const char *text, size_t size);

/* Text in memory of its own. Zeros are an empty one. */
struct text {
    char *data;
    size_t size, room;
};

/* CT_ENOMEM. */
int text_append(struct text *text, const char *data, size_t size);
void text_finish(struct text *text);

/*
 * Valid UTF-8 for size bytes: *valid is text itself, or `copy` with U+FFFD for each longest part of
 * a broken character, as browsers and Python do. *size is updated. CT_ENOMEM.
 */
int unicode_repair(const char *text, size_t *size, struct text *copy, const char **valid);

/* The same for a normal form of valid UTF-8. */
int unicode_normalize(enum unicode_form form, const char *text, size_t *size, struct text *copy,
                      const char **normal);

/* Where the bytes of a normal form, and its end, come from: a token of bytes [i, k) of it stands
   for bytes [begin[i], end[k]) of the text. Both arrays have normal_size + 1 elements.
   CT_ENOMEM. */
int unicode_align(enum unicode_form form, const char *text, size_t size, size_t normal_size,
                  size_t *begin, size_t *end);

#endif
