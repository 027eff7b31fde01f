/*
 * A template's source as tokens: texts between tags, and the words of tags. White space around tags
 * is removed here, as they and trim_blocks and lstrip_blocks say.
 */
#ifndef LEX_H
#define LEX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <ctitan/arena.h>

enum lex_kind {
    LEX_END,
    LEX_TEXT,
    LEX_PRINT, /* {{ */
    LEX_BLOCK, /* {% */
    LEX_CLOSE, /* %} or }} */
    LEX_NAME,
    LEX_STRING, /* without quotes and escapes */
    LEX_INT,
    LEX_REAL,
    LEX_OPERATOR,
};

struct lexeme {
    enum lex_kind kind;
    int line;
    const char *text; /* '\0' follows */
    size_t size;
};

/* All tokens of a source, the last LEX_END. CT_ECONFIG: a tag does not end, or has a character that
   begins no token. */
int lex(struct ct_arena *arena, const char *name, const char *source, size_t size,
        struct lexeme **tokens);

#endif
