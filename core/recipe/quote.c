/*
 * Values in quotes. Only what would begin a comment needs them, " #" and " ;", or one of these at
 * the beginning; a quote within is written twice. Each line of a value has quotes of its own.
 */
#include <string.h>

#include "recipe/settings.h"

size_t ct_recipe_comment(const char *text, size_t length)
{
    for (size_t i = 0; i < length; i++)
        if ((text[i] == ';' || text[i] == '#') && (i == 0 || ct_recipe_is_space(text[i - 1])))
            return i;
    return length;
}

/* Where the quotes that begin a text end; 0: it does not begin with any, or they do not end. */
static size_t closing_quote(const char *text, size_t length)
{
    for (size_t i = 1; length && *text == '"' && i < length; i++) {
        if (text[i] != '"')
            continue;
        if (i + 1 == length || text[i + 1] != '"')
            return i;
        i++;
    }
    return 0;
}

size_t ct_recipe_quoted(const char *text, size_t length)
{
    size_t end = closing_quote(text, length), next = end + 1;

    if (!end || ct_recipe_comment(text + 1, end - 1) == end - 1)
        return 0;
    while (next < length && ct_recipe_is_space(text[next]))
        next++;
    return next == length || (next > end + 1 && strchr(";#", text[next])) ? end + 1 : 0;
}

size_t ct_recipe_unquote(const char *quoted, size_t length, char *text)
{
    size_t used = 0;

    for (size_t i = 1; i + 1 < length; i++) {
        text[used++] = quoted[i];
        i += quoted[i] == '"';
    }
    text[used] = '\0';
    return used;
}

const char *ct_recipe_quote(struct ct_arena *arena, const char *value)
{
    size_t length = strlen(value);
    char *quoted, *to;

    if (ct_recipe_comment(value, length) == length)
        return value;
    to = quoted = ct_arena_alloc(arena, 2 * length + 3);
    *to++ = '"';
    for (; *value; value++) {
        *to++ = *value;
        if (*value == '"')
            *to++ = '"';
    }
    strcpy(to, "\"");
    return quoted;
}
