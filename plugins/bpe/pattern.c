#include <stdarg.h>
#include <stdio.h>
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

#define GROUPS 64

struct group {
    bool caseless; /* here, letters match in either case */
    bool begun;    /* its current alternative has */
    bool late;     /* an option has been set after that */
};

struct translation {
    struct text out;
    bool in_class, first; /* within [ ]; at its first character */
    char before;          /* the letter before, in lower case, or 0 */
    struct group groups[GROUPS];
    int depth;
    int rc;
};

static void put(struct translation *t, const char *text)
{
    if (t->rc == 0)
        t->rc = text_append(&t->out, text, strlen(text));
}

CT_PRINTF(2, 3) static void refuse(struct translation *t, const char *fmt, ...)
{
    char what[128];
    va_list args;

    va_start(args, fmt);
    vsnprintf(what, sizeof(what), fmt, args);
    va_end(args);
    if (t->rc == 0)
        t->rc = ct_fail(CT_ECONFIG, "%s in a regular expression is not supported", what);
}

/* Oniguruma's \w; outside of classes it has these Latin-1 characters, too. */
#define WORD "\\p{L}\\p{M}\\p{Nd}\\p{Pc}"
#define LATIN "\\x{B2}\\x{B3}\\x{B9}\\x{BC}-\\x{BE}"

/* at: what follows the backslash. With (?i), Oniguruma takes the other cases of all characters of a
   class into it. */
static void translate_escape(struct translation *t, const char *at)
{
    char c = *at;

    if (t->groups[t->depth].caseless && strchr(t->in_class ? "wWpPx" : "wWx", c))
        refuse(t, "\\%c with (?i)", c);
    else if (c == 's' || c == 'S')
        put(t, c == 's' ? "\\p{White_Space}" : "\\P{White_Space}");
    else if (c == 'w')
        put(t, t->in_class ? WORD : "[" WORD LATIN "]");
    else if (c == 'W' && !t->in_class)
        put(t, "[^" WORD LATIN "]");
    else if (c == 'v')
        put(t, "\\x0B");
    else if ((c == 'p' || c == 'P') && at[1] != '{')
        refuse(t, "\\%c without braces", c);
    else if (strchr("WbBhHRXKNgkQE", c)) /* another meaning, or none, in Oniguruma */
        refuse(t, "\\%c", c);
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

/* Options up to `)` or `:`. Oniguruma's m is PCRE2's s. */
static void translate_options(struct translation *t, const char *at, const char *end,
                              struct group *group)
{
    bool on = true;

    for (; at < end; at++) {
        if (!strchr("imx-", *at))
            refuse(t, "the option %c", *at);
        on = on && *at != '-';
        if (*at == 'i')
            group->caseless = on;
        put(t, (char[]){*at == 'm' ? 's' : *at, 0});
    }
}

/* Translates a group, which begins with `(`. Returns its last character that is translated. */
static const char *translate_group(struct translation *t, const char *at)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ-";
    struct group *outer = &t->groups[t->depth], inner = {.caseless = outer->caseless};
    const char *end = at + (at[1] == '?' ? 2 + strspn(at + 2, letters) : 0);

    if (!strncmp(at, "(?#", 3))
        return (end = strchr(at, ')')) ? end : at + strlen(at) - 1;
    put(t, "(");
    if (end > at && (*end == ':' || *end == ')')) {
        put(t, "?");
        translate_options(t, at + 2, end, &inner);
        put(t, (char[]){*end, 0});
        at = end;
    }
    if (*at == ')') {
        outer->caseless = inner.caseless;
        outer->late |= outer->begun;
        return at;
    }
    outer->begun = true;
    if (t->depth == GROUPS - 1)
        refuse(t, "a group that is nested so deeply");
    else
        t->groups[++t->depth] = inner;
    return at;
}

/* `{n,m}`, or a brace. Returns its last character. */
static const char *translate_interval(struct translation *t, const char *at)
{
    const char *comma = at + 1 + strspn(at + 1, "0123456789");
    const char *end = *comma == ',' ? comma + 1 + strspn(comma + 1, "0123456789") : comma;

    put(t, "{");
    if (*end != '}' || end == at + 1 || (comma == at + 1 && end == comma + 1))
        return at;
    if (end[1] == '+' || (end[1] == '?' && end == comma)) /* it repeats the interval */
        refuse(t, "%.*s%c", (int)(end + 1 - at), at, end[1]);
    put(t, comma == at + 1 ? "0" : "");
    return at;
}

/* Without case, Oniguruma takes two letters for one: ss for U+00DF, fi for U+FB01. */
static void check_letter(struct translation *t, char c)
{
    static const char *const pairs[] = {"ss", "st", "ff", "fi", "fl"};
    bool letter = (c | 0x20) >= 'a' && (c | 0x20) <= 'z';
    char pair[] = {t->before, (char)(c | 0x20), 0};

    if (t->groups[t->depth].caseless) {
        if (c & 0x80)
            refuse(t, "a character beyond ASCII with (?i)");
        for (size_t i = 0; letter && i < CT_COUNT(pairs); i++)
            if (!strcmp(pair, pairs[i]))
                refuse(t, "%s with (?i)", pair);
    }
    if (c != ')')
        t->before = letter ? pair[1] : 0;
}

static void translate_character(struct translation *t, const char *at)
{
    struct group *group = &t->groups[t->depth];

    check_letter(t, *at);
    t->in_class = t->first = *at == '[';
    if (*at == '|' && group->late)
        refuse(t, "an option in the middle of an alternative");
    group->begun = *at != '|';
    if (*at == ')' && t->depth > 0)
        t->depth--;
    put(t, (char[]){*at, 0});
}

/* Oniguruma's expression as PCRE2's. */
static int translate(const char *source, struct text *out)
{
    struct translation t = {0};

    for (const char *at = source; *at && t.rc == 0; at++) {
        if (*at == '\\' && at[1]) {
            t.first = false;
            t.before = 0;
            t.groups[t.depth].begun = true;
            translate_escape(&t, ++at);
            if (at[1] == '{' && strchr("xpP", *at)) {
                put(&t, "{");
                at++;
            }
        } else if (t.in_class) {
            if (t.groups[t.depth].caseless && *at & 0x80)
                refuse(&t, "a character beyond ASCII with (?i)");
            translate_class(&t, at);
        } else if (*at == '(') {
            at = translate_group(&t, at);
        } else if (*at == '{') {
            t.before = 0;
            at = translate_interval(&t, at);
        } else {
            translate_character(&t, at);
        }
    }
    *out = t.out;
    return t.rc;
}

static int compile(struct pattern *p, const char *source, size_t size, uint32_t options)
{
    pcre2_compile_context *context = pcre2_compile_context_create(NULL);
    PCRE2_SIZE at;
    char words[256];
    int code;

    if (!context)
        return ct_fail(CT_ENOMEM, "an expression");
    pcre2_set_newline(context, PCRE2_NEWLINE_LF);
    p->code = pcre2_compile((PCRE2_SPTR)source, size, PCRE2_UTF | options, &code, &at, context);
    pcre2_compile_context_free(context);
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
                     PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C);
    text_finish(&translated);
    return rc;
}

void pattern_close(struct pattern *p)
{
    pcre2_match_data_free(p->match);
    pcre2_code_free(p->code);
    *p = (struct pattern){0};
}

/* The first match from `from` on. 0: none. */
static int match(const struct pattern *p, const char *text, const char *from, const char *end,
                 const char **begin, const char **stop)
{
    const PCRE2_SIZE *bounds = pcre2_get_ovector_pointer(p->match);
    int rc = pcre2_match(p->code, (PCRE2_SPTR)text, (PCRE2_SIZE)(end - text),
                         (PCRE2_SIZE)(from - text), PCRE2_NO_UTF_CHECK, p->match, NULL);

    if (rc == PCRE2_ERROR_NOMATCH)
        return 0;
    if (rc < 0)
        return ct_fail(CT_EINVAL, "an expression of the tokenizer takes too long on this text");
    *begin = text + bounds[0];
    *stop = text + bounds[1];
    return 1;
}

/* An empty match right after the match before it does not count: the library goes on one character
   after it. */
static int find(struct pattern_matches *m, const char **begin, const char **stop)
{
    int rc = match(m->pattern, m->text, m->at, m->end, begin, stop);
    size_t size;

    if (rc <= 0 || !m->begun || *stop > m->at)
        return rc;
    if (m->at == m->end)
        return 0;
    unicode_at(m->at, &size);
    return match(m->pattern, m->text, m->at + size, m->end, begin, stop);
}

int pattern_match(struct pattern_matches *m, const char **begin, const char **stop)
{
    int rc;

    if (m->text == m->end || (m->pattern->scan && m->at == m->end))
        return 0;
    if (m->pattern->scan) {
        *begin = m->at;
        m->at = *stop = m->pattern->scan(m->at, m->end, m->pattern->digits);
        return 1;
    }
    rc = find(m, begin, stop);
    if (rc > 0)
        m->at = *stop;
    m->begun = true;
    return rc;
}

/* ---- parts ---- */

const char *const split_behaviors[SPLIT_BEHAVIORS] = {
    [SPLIT_ISOLATED] = "Isolated",
    [SPLIT_REMOVED] = "Removed",
    [SPLIT_MERGED_WITH_PREVIOUS] = "MergedWithPrevious",
    [SPLIT_MERGED_WITH_NEXT] = "MergedWithNext",
    [SPLIT_CONTIGUOUS] = "Contiguous",
};

struct split_parts split_begin(const struct split *split, const char *text, const char *end)
{
    return (struct split_parts){
        .split = split, .matches = {&split->pattern, text, text, end, false}, .from = text};
}

/* The next range: a match, or the text before one. */
static int next_range(struct split_parts *p, const char **begin, const char **stop, bool *matched)
{
    int rc = 1;

    if (!p->match_begin) {
        rc = pattern_match(&p->matches, &p->match_begin, &p->match_stop);
        if (rc < 0)
            return rc;
        if (rc == 0) {
            p->match_begin = NULL;
            *begin = p->from;
            *stop = p->from = p->matches.end;
            *matched = p->split->invert;
            return *begin < *stop;
        }
    }
    *begin = p->from;
    *matched = p->match_begin == p->from;
    *stop = p->from = *matched ? p->match_stop : p->match_begin;
    if (*matched)
        p->match_begin = NULL;
    *matched ^= p->split->invert;
    return 1;
}

static bool joins(enum split_behavior behavior, bool before, bool matched)
{
    return behavior == SPLIT_CONTIGUOUS             ? before == matched
           : behavior == SPLIT_MERGED_WITH_PREVIOUS ? matched && !before
           : behavior == SPLIT_MERGED_WITH_NEXT     ? before && !matched
                                                    : false;
}

/* Take in one range. Returns 1 if it ends a part, which *begin and *stop get. */
static int take(struct split_parts *p, const char **begin, const char **stop)
{
    enum split_behavior behavior = p->split->behavior;
    const char *from, *to;
    bool matched;
    int rc = next_range(p, &from, &to, &matched);

    if (rc <= 0) {
        *begin = p->begin;
        *stop = p->stop;
        p->begin = NULL;
        return rc < 0 ? rc : *begin ? 1 : 0;
    }
    if (behavior == SPLIT_REMOVED && matched) {
        *begin = *stop = from;
        return 1;
    }
    if (p->begin && joins(behavior, p->matched, matched)) {
        p->stop = to;
        *begin = *stop = to;
    } else {
        *begin = p->begin ? p->begin : from;
        *stop = p->begin ? p->stop : from;
        p->begin = from;
        p->stop = to;
    }
    p->matched = matched;
    return 1;
}

int split_next(struct split_parts *p, const char **begin, const char **stop)
{
    int rc;

    do
        rc = take(p, begin, stop);
    while (rc > 0 && *begin == *stop);
    return rc;
}
