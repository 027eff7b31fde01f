#include <string.h>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <ctitan/error.h>

#include "pattern.h"
#include "unicode.h"

/* ---- scanners ---- */

static int class_at(const char *at, const char *end, size_t *size)
{
    *size = 0;
    return at < end ? unicode_class[unicode_at(at, size)] : 0;
}

static const char *skip(const char *at, const char *end, int class)
{
    size_t size;

    while (at < end && class_at(at, end, &size) & class)
        at += size;
    return at;
}

static const char *skip_others(const char *at, const char *end)
{
    size_t size;

    while (at < end &&
           !(class_at(at, end, &size) & (UNICODE_LETTER | UNICODE_NUMBER | UNICODE_SPACE)))
        at += size;
    return at;
}

/* 's 't 're 've 'm 'll 'd; NULL: none here. U+017F is an s without case. */
static const char *contraction(const char *at, const char *end, int fold)
{
    char first, second;

    if (end - at < 2 || at[0] != '\'')
        return NULL;
    if (fold && end - at > 2 && !memcmp(at + 1, "\xC5\xBF", 2))
        return at + 3;
    first = (char)(at[1] | fold);
    if (first == 's' || first == 't' || first == 'm' || first == 'd')
        return at + 2;
    second = end - at > 2 ? (char)(at[2] | fold) : 0;
    if (((first == 'r' || first == 'v') && second == 'e') || (first == 'l' && second == 'l'))
        return at + 3;
    return NULL;
}

/* \s+(?!\S)|\s+: white space leaves its last character to the word that follows. */
static const char *scan_space(const char *at, const char *end)
{
    const char *stop = skip(at, end, UNICODE_SPACE), *last = stop;

    if (stop == end)
        return stop;
    do
        last--;
    while (((unsigned char)*last & 0xC0) == 0x80);
    return last > at ? last : stop;
}

static const char *scan_gpt2(const char *at, const char *end, int digits)
{
    const char *stop = contraction(at, end, 0), *word = at + (*at == ' ');
    size_t size;
    int class = class_at(word, end, &size);

    (void)digits;
    if (stop)
        return stop;
    if (word == end || class & UNICODE_SPACE)
        return scan_space(at, end);
    if (class & (UNICODE_LETTER | UNICODE_NUMBER))
        return skip(word, end, class & (UNICODE_LETTER | UNICODE_NUMBER));
    return skip_others(word, end);
}

/* \s*[\r\n]+, else as above. */
static const char *scan_lines(const char *at, const char *end)
{
    const char *stop = skip(at, end, UNICODE_SPACE);

    while (stop > at && stop[-1] != '\n' && stop[-1] != '\r')
        stop--;
    return stop > at ? stop : scan_space(at, end);
}

static const char *scan_digits(const char *at, const char *end, int digits)
{
    size_t size;

    for (int i = 0; i < digits && class_at(at, end, &size) & UNICODE_NUMBER; i++)
        at += size;
    return at;
}

static const char *scan_llama(const char *at, const char *end, int digits)
{
    const char *stop = contraction(at, end, 0x20);
    size_t size, next;
    int class = class_at(at, end, &size), following = class_at(at + size, end, &next);

    if (stop)
        return stop;
    if (class & UNICODE_LETTER)
        return skip(at, end, UNICODE_LETTER);
    if (class & UNICODE_NUMBER)
        return scan_digits(at, end, digits);
    if (following & UNICODE_LETTER && *at != '\r' && *at != '\n')
        return skip(at + size, end, UNICODE_LETTER);
    if (*at == ' ' && at + 1 < end &&
        !(following & (UNICODE_LETTER | UNICODE_NUMBER | UNICODE_SPACE)))
        stop = skip_others(at + 1, end);
    else if (!(class & UNICODE_SPACE))
        stop = skip_others(at, end);
    else
        return scan_lines(at, end);
    while (stop < end && (*stop == '\r' || *stop == '\n'))
        stop++;
    return stop;
}

#define GPT2 "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"
#define LLAMA(digits)                                                                              \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|" digits                           \
    "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

static const struct {
    const char *source;
    const char *(*scan)(const char *at, const char *end, int digits);
    int digits;
} scanners[] = {
    {GPT2, scan_gpt2, 0},
    {LLAMA("\\p{N}{1,3}"), scan_llama, 3},
    {LLAMA("\\p{N}"), scan_llama, 1},
};

const char pattern_gpt2[] = GPT2, pattern_llama3[] = LLAMA("\\p{N}{1,3}");

/* ---- expressions ---- */

struct translation {
    struct text out;
    bool in_class, first; /* within [ ]; at its first character */
    int rc;
};

static void put(struct translation *t, const char *text)
{
    if (t->rc == 0)
        t->rc = text_append(&t->out, text, strlen(text));
}

static void refuse(struct translation *t, const char *what)
{
    if (t->rc == 0)
        t->rc = ct_fail(CT_ECONFIG, "%s in a regular expression is not supported", what);
}

/* Oniguruma's \w; outside of classes it has these Latin-1 characters, too. */
#define WORD "\\p{L}\\p{M}\\p{Nd}\\p{Pc}"
#define LATIN "\\x{B2}\\x{B3}\\x{B9}\\x{BC}-\\x{BE}"

static void translate_escape(struct translation *t, char c)
{
    if (c == 's' || c == 'S')
        put(t, c == 's' ? "\\p{White_Space}" : "\\P{White_Space}");
    else if (c == 'w')
        put(t, t->in_class ? WORD : "[" WORD LATIN "]");
    else if (c == 'W' && !t->in_class)
        put(t, "[^" WORD LATIN "]");
    else if (c && strchr("WbBhHRXKNgkQE", c)) /* another meaning, or none, in Oniguruma */
        refuse(t, (char[]){'\\', c, 0});
    else
        put(t, (char[]){'\\', c, 0});
}

static void translate_class(struct translation *t, const char *at)
{
    if (*at == '[')
        refuse(t, "a class within a class");
    else if (at[0] == '&' && at[1] == '&')
        refuse(t, "an intersection of classes");
    t->in_class = t->first || *at != ']';
    t->first = t->first && *at == '^';
    put(t, (char[]){*at, 0});
}

/* Oniguruma's expression as PCRE2's. */
static int translate(const char *source, struct text *out)
{
    struct translation t = {0};

    for (const char *at = source; *at && t.rc == 0; at++) {
        if (*at == '\\' && at[1]) {
            t.first = false;
            translate_escape(&t, *++at);
        } else if (t.in_class) {
            translate_class(&t, at);
        } else {
            t.in_class = t.first = *at == '[';
            put(&t, (char[]){*at, 0});
        }
    }
    *out = t.out;
    return t.rc;
}

static int compile(struct pattern *p, const char *source, size_t size, uint32_t options)
{
    PCRE2_SIZE at;
    char words[256];
    int code;

    p->code = pcre2_compile((PCRE2_SPTR)source, size, PCRE2_UTF | options, &code, &at, NULL);
    if (!p->code) {
        pcre2_get_error_message(code, (PCRE2_UCHAR *)words, sizeof(words));
        return ct_fail(CT_ECONFIG, "the expression '%.*s': %s, at byte %zu", (int)size, source,
                       words, at);
    }
    pcre2_jit_compile(p->code, PCRE2_JIT_COMPLETE);
    p->match = pcre2_match_data_create_from_pattern(p->code, NULL);
    return p->match ? 0 : ct_fail(CT_ENOMEM, "an expression");
}

int pattern_open(struct pattern *p, const char *source, bool literal)
{
    struct text translated = {0};
    int rc;

    for (size_t i = 0; !literal && i < CT_COUNT(scanners); i++)
        if (!strcmp(source, scanners[i].source)) {
            p->scan = scanners[i].scan;
            p->digits = scanners[i].digits;
            return 0;
        }
    if (literal)
        return compile(p, source, strlen(source), PCRE2_LITERAL);
    rc = translate(source, &translated);
    if (rc == 0)
        rc = compile(p, translated.data ? translated.data : "", translated.size,
                     PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C);
    text_finish(&translated);
    return rc;
}

void pattern_close(struct pattern *p)
{
    pcre2_match_data_free(p->match);
    pcre2_code_free(p->code);
    *p = (struct pattern){0};
}

/* The first match that is not empty. 0: none. */
static int find(const struct pattern *p, const char *text, const char *at, const char *end,
                const char **begin, const char **stop)
{
    const PCRE2_SIZE *bounds = pcre2_get_ovector_pointer(p->match);
    int rc =
        pcre2_match(p->code, (PCRE2_SPTR)text, (PCRE2_SIZE)(end - text), (PCRE2_SIZE)(at - text),
                    PCRE2_NOTEMPTY | PCRE2_NO_UTF_CHECK, p->match, NULL);

    if (rc == PCRE2_ERROR_NOMATCH)
        return 0;
    if (rc < 0)
        return ct_fail(CT_EINVAL, "an expression of the tokenizer takes too long on this text");
    *begin = text + bounds[0];
    *stop = text + bounds[1];
    return 1;
}

int pattern_next(const struct pattern *p, const char *text, const char *at, const char *end,
                 const char **begin, const char **stop)
{
    int rc;

    *begin = at;
    *stop = end;
    if (at == end)
        return 0;
    if (p->scan) {
        *stop = p->scan(at, end, p->digits);
        return 1;
    }
    rc = find(p, text, at, end, begin, stop);
    if (rc == 0)
        return !p->matches_only;
    if (rc > 0 && !p->matches_only && *begin > at) { /* text before the match is a part, too */
        *stop = *begin;
        *begin = at;
    }
    return rc;
}
