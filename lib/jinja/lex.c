#include <ctype.h>
#include <string.h>

#include <ctitan/error.h>

#include "lex.h"

struct lexer {
    struct ct_arena *arena;
    const char *name, *at, *end;
    int line;
    struct lexeme *tokens;
    size_t count, room;
    bool newline;     /* the newline after the last tag goes */
    bool all_space;   /* .. and all other white space */
    bool begins_line; /* the text before is empty, or ends with a newline that went */
};

static int fail(const struct lexer *l, const char *what)
{
    return ct_fail(CT_ECONFIG, "%s:%d: %s", l->name, l->line, what);
}

static void add(struct lexer *l, enum lex_kind kind, const char *text, size_t size)
{
    char *copy = ct_arena_alloc(l->arena, size + 1);

    memcpy(copy, text, size);
    l->tokens = ct_arena_grow(l->arena, l->tokens, &l->room, l->count + 1, sizeof(struct lexeme));
    l->tokens[l->count++] = (struct lexeme){kind, l->line, copy, size};
}

static void count_lines(struct lexer *l, const char *from, const char *to)
{
    for (; from < to; from++)
        l->line += *from == '\n';
}

static bool is_space(char c)
{
    return c && strchr(" \t\n\r\v\f", c);
}

/* ---- texts ---- */

/* The next tag, or the end. */
static const char *find_tag(const struct lexer *l)
{
    for (const char *at = l->at; at + 1 < l->end; at++)
        if (*at == '{' && (at[1] == '{' || at[1] == '%' || at[1] == '#'))
            return at;
    return l->end;
}

/* White space between the beginning of a line and a tag that is no {{. */
static const char *line_space(const struct lexer *l, const char *from, const char *tag)
{
    const char *line = tag;

    while (line > from && line[-1] != '\n')
        line--;
    if (line == from && !l->begins_line)
        return tag;
    for (const char *c = line; c < tag; c++)
        if (!is_space(*c))
            return tag;
    return line;
}

static void add_text(struct lexer *l, const char *tag)
{
    const char *from = l->at, *to = tag;

    if (l->all_space)
        while (from < to && is_space(*from))
            from++;
    else if (l->newline && from < to && *from == '\n') {
        from++;
        l->begins_line = true;
    }
    if (tag < l->end && tag + 2 < l->end && tag[2] == '-')
        while (to > from && is_space(to[-1]))
            to--;
    else if (tag < l->end && tag[1] != '{' && !(tag + 2 < l->end && tag[2] == '+'))
        to = line_space(l, from, tag);
    if (to > from)
        add(l, LEX_TEXT, from, (size_t)(to - from));
    count_lines(l, l->at, tag);
    l->begins_line = false;
    l->at = tag;
}

/* ---- tags ---- */

static void end_tag(struct lexer *l, char mark, bool block)
{
    l->all_space = mark == '-';
    l->newline = block && mark != '+';
}

static int skip_comment(struct lexer *l)
{
    const char *end = memmem(l->at, (size_t)(l->end - l->at), "#}", 2);

    if (!end)
        return fail(l, "the comment does not end");
    count_lines(l, l->at, end);
    l->at = end + 2;
    end_tag(l, end[-1] == '-' || end[-1] == '+' ? end[-1] : ' ', true);
    return 0;
}

static size_t put_utf8(char *to, unsigned long c)
{
    if (c < 0x80) {
        to[0] = (char)c;
        return 1;
    }
    if (c < 0x800) {
        to[0] = (char)(0xc0 | c >> 6);
        to[1] = (char)(0x80 | (c & 63));
        return 2;
    }
    to[0] = (char)(0xe0 | c >> 12);
    to[1] = (char)(0x80 | (c >> 6 & 63));
    to[2] = (char)(0x80 | (c & 63));
    return 3;
}

/* An escape of Python, of which at is behind the backslash. */
static const char *unescape(const char *at, const char *end, char *to, size_t *size)
{
    static const char letters[] = "ntrabfv\\'\"", values[] = "\n\t\r\a\b\f\v\\'\"";
    const char *found = *at ? strchr(letters, *at) : NULL;
    int digits = *at == 'x' ? 2 : *at == 'u' ? 4 : 0;
    unsigned long code = 0;
    int n = 0;

    if (found) {
        to[(*size)++] = values[found - letters];
        return at + 1;
    }
    while (n < digits && at + 1 + n < end && isxdigit((unsigned char)at[1 + n])) {
        int c = tolower((unsigned char)at[1 + n++]);

        code = 16 * code + (unsigned long)(isdigit(c) ? c - '0' : c - 'a' + 10);
    }
    if (digits && n == digits) {
        *size += put_utf8(to + *size, code);
        return at + 1 + digits;
    }
    if (*at == '\n')
        return at + 1;
    to[(*size)++] = '\\';
    return at;
}

static int lex_string(struct lexer *l)
{
    char quote = *l->at++, *text = ct_arena_alloc(l->arena, (size_t)(l->end - l->at) + 1);
    size_t size = 0;

    while (l->at < l->end && *l->at != quote) {
        l->line += *l->at == '\n';
        if (*l->at == '\\' && l->at + 1 < l->end)
            l->at = unescape(l->at + 1, l->end, text, &size);
        else
            text[size++] = *l->at++;
    }
    if (l->at == l->end)
        return fail(l, "the text in quotes does not end");
    l->at++;
    add(l, LEX_STRING, text, size);
    return 0;
}

static void lex_number(struct lexer *l)
{
    const char *from = l->at;
    bool real = false;

    while (l->at < l->end && isdigit((unsigned char)*l->at))
        l->at++;
    if (l->at + 1 < l->end && *l->at == '.' && isdigit((unsigned char)l->at[1])) {
        real = true;
        for (l->at++; l->at < l->end && isdigit((unsigned char)*l->at);)
            l->at++;
    }
    if (l->at + 1 < l->end && (*l->at | 32) == 'e' &&
        (isdigit((unsigned char)l->at[1]) ||
         (strchr("+-", l->at[1]) && l->at + 2 < l->end && isdigit((unsigned char)l->at[2])))) {
        real = true;
        for (l->at += 2; l->at < l->end && isdigit((unsigned char)*l->at);)
            l->at++;
    }
    add(l, real ? LEX_REAL : LEX_INT, from, (size_t)(l->at - from));
}

static int lex_word(struct lexer *l)
{
    static const char *const operators[] = {"**", "//", "==", "!=", "<=", ">=", "+", "-", "*",
                                            "/",  "%",  "~",  "<",  ">",  "=",  "(", ")", "[",
                                            "]",  "{",  "}",  ",",  ".",  ":",  "|"};
    const char *from = l->at;

    if (*l->at == '"' || *l->at == '\'')
        return lex_string(l);
    if (isdigit((unsigned char)*l->at)) {
        lex_number(l);
        return 0;
    }
    while (l->at < l->end && (isalnum((unsigned char)*l->at) || *l->at == '_'))
        l->at++;
    if (l->at > from) {
        add(l, LEX_NAME, from, (size_t)(l->at - from));
        return 0;
    }
    for (size_t i = 0; i < CT_COUNT(operators); i++)
        if ((size_t)(l->end - from) >= strlen(operators[i]) &&
            !strncmp(from, operators[i], strlen(operators[i]))) {
            l->at += strlen(operators[i]);
            add(l, LEX_OPERATOR, operators[i], strlen(operators[i]));
            return 0;
        }
    return ct_fail(CT_ECONFIG, "%s:%d: unexpected '%c'", l->name, l->line, *from);
}

/* Whether the tag ends here; braces of dicts hide the end of {{. */
static bool closes(struct lexer *l, const char *close, int depth)
{
    const char *at = l->at;
    char mark = *at == '-' || *at == '+' ? *at++ : ' ';

    if (l->end - at < 2 || strncmp(at, close, 2) != 0 || (depth && *close == '}'))
        return false;
    l->at = at + 2;
    end_tag(l, mark, *close == '%');
    return true;
}

static int lex_tag(struct lexer *l, const char *close)
{
    int depth = 0, rc = 0;

    add(l, *close == '%' ? LEX_BLOCK : LEX_PRINT, "", 0);
    while (rc == 0) {
        while (l->at < l->end && is_space(*l->at))
            l->line += *l->at++ == '\n';
        if (l->at == l->end)
            return fail(l, "the tag does not end");
        if (closes(l, close, depth))
            break;
        rc = lex_word(l);
        if (rc == 0 && l->tokens[l->count - 1].kind == LEX_OPERATOR) {
            depth += *l->tokens[l->count - 1].text == '{';
            depth -= *l->tokens[l->count - 1].text == '}';
        }
    }
    add(l, LEX_CLOSE, "", 0);
    return rc;
}

/* The text between {% raw %} and {% endraw %}. */
static int lex_raw(struct lexer *l)
{
    const char *at = l->at, *word = NULL;

    while ((at = memmem(at, (size_t)(l->end - at), "{%", 2))) {
        word = at + 2 + (at[2] == '-' || at[2] == '+');
        while (word < l->end && is_space(*word))
            word++;
        if (l->end - word >= 6 && !strncmp(word, "endraw", 6))
            break;
        at += 2;
    }
    if (!at)
        return fail(l, "{% raw %} has no {% endraw %}");
    add_text(l, at);
    l->at += 2 + (l->at[2] == '-' || l->at[2] == '+');
    word = memmem(l->at, (size_t)(l->end - l->at), "%}", 2);
    if (!word)
        return fail(l, "the tag does not end");
    end_tag(l, word[-1] == '-' || word[-1] == '+' ? word[-1] : ' ', true);
    l->at = word + 2;
    return 0;
}

static bool is_raw(const struct lexer *l)
{
    const struct lexeme *last = l->count >= 3 ? &l->tokens[l->count - 2] : NULL;

    return last && last->kind == LEX_NAME && !strcmp(last->text, "raw") &&
           last[-1].kind == LEX_BLOCK;
}

static int lex_all(struct lexer *l)
{
    int rc = 0;

    while (rc == 0 && l->at < l->end) {
        const char *tag = find_tag(l);

        add_text(l, tag);
        if (tag == l->end)
            break;
        l->at += 2;
        if (tag[1] == '#') {
            rc = skip_comment(l);
            continue;
        }
        l->at += l->at < l->end && (*l->at == '-' || *l->at == '+');
        rc = lex_tag(l, tag[1] == '{' ? "}}" : "%}");
        if (rc == 0 && is_raw(l)) {
            l->count -= 3;
            rc = lex_raw(l);
        }
    }
    return rc;
}

/* One newline at the end of the source goes, and other newlines become \n. */
int lex(struct ct_arena *arena, const char *name, const char *source, size_t size,
        struct lexeme **tokens)
{
    struct lexer l = {.arena = arena, .name = name, .line = 1, .begins_line = true};
    char *text = ct_arena_alloc(arena, size + 1);
    size_t n = 0;
    int rc;

    for (size_t i = 0; i < size; i++) {
        text[n++] = source[i] == '\r' ? '\n' : source[i];
        i += source[i] == '\r' && i + 1 < size && source[i + 1] == '\n';
    }
    n -= n && text[n - 1] == '\n';
    l.at = text;
    l.end = text + n;
    rc = lex_all(&l);
    add(&l, LEX_END, "", 0);
    *tokens = l.tokens;
    return rc;
}
