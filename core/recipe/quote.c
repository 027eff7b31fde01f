/*
 * Values in quotes. What would begin a comment needs them, " #" and " ;", or one of these at the
 * beginning, and an item of a list that begins with a quote which is not closed; nothing else has
 * them. A quote within is written twice. They are around all that a line has of a value.
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

/* Whether the text's last character but white space is a comma. */
static bool ends_item(const char *text, size_t length)
{
    while (length && ct_recipe_is_space(text[length - 1]))
        length--;
    return length && text[length - 1] == ',';
}

/* The quote that begins a word and is open at the end of a text; length: none. twice: each quote is
   written twice. */
static size_t find_open(const char *text, size_t length, bool twice)
{
    size_t closed = length, open = length;

    for (size_t i = 0; i < length; i++) {
        if (text[i] != '"')
            continue;
        if (open < length) {
            closed = i + twice;
            open = length;
        } else if (i == 0 || closed + 1 == i || ct_recipe_is_space(text[i - 1]) ||
                   text[i - 1] == ',') {
            open = i;
        }
        i += twice;
    }
    return open;
}

/* Whether an item of a list begins with a quote that is not closed. */
static bool opens_item(const char *text, size_t length, bool twice, bool in_list)
{
    size_t open = find_open(text, length, twice);

    return open < length && (ends_item(text, open) || (in_list && open == 0));
}

/* Whether a value, or a line of one, cannot be without quotes. */
static bool needs_quotes(const char *text, size_t length, bool twice)
{
    return ct_recipe_comment(text, length) < length || opens_item(text, length, twice, true);
}

size_t ct_recipe_quoted(const char *text, size_t length)
{
    size_t end = closing_quote(text, length), next = end + 1;

    if (!end || !needs_quotes(text + 1, end - 1, true))
        return 0;
    while (next < length && ct_recipe_is_space(text[next]))
        next++;
    return next == length || (next > end + 1 && strchr(";#", text[next])) ? end + 1 : 0;
}

const char *ct_recipe_misquoted(const char *text, size_t length, bool in_list, bool recorded)
{
    size_t quoted = ct_recipe_quoted(text, length), comment = ct_recipe_comment(text, length);

    if (quoted && (ct_recipe_is_space(text[1]) || ct_recipe_is_space(text[quoted - 2])))
        return "within quotes, a value neither begins nor ends with white space";
    if (quoted)
        return NULL;
    if (find_open(text, comment, false) < comment && memchr(text + comment, '"', length - comment))
        return "a comment begins within quotes; quote the whole value, as in \"/data/set #1\"";
    if (!recorded && opens_item(text, comment, false, in_list))
        return "a quote begins an item and is not closed; quotes are around the whole value, and a "
               "quote within is written twice, as in \"a, \"\"b\"";
    return NULL;
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

    if (!needs_quotes(value, length, false))
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

const char *ct_recipe_assign(struct ct_arena *arena, const char *name, const char *value)
{
    return ct_arena_printf(arena, "%s=%s", name, ct_recipe_quote(arena, value));
}
