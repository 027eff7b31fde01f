/*
 * JSON by jansson. The few tokens that Python writes and jansson refuses are first replaced in the
 * text, each by one of the same length, so that jansson's messages name the right column. A text
 * without such tokens is not copied.
 */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include <ctitan/error.h>
#include <ctitan/file.h>
#include <ctitan/lib/json.h>

#include "read.h"

#define LITERAL "\xEF\xB7\x90" /* U+FDD0, which no text has */
#define REPLACEMENT "\\ufffd"
#define ESCAPE 6 /* bytes of \uXXXX */

/* A text, and what replaces it up to `from`. */
struct rewriting {
    const char *from, *end;
    char *out;
    size_t size, room;
    bool literals, failed;
};

static void put(struct rewriting *r, const char *data, size_t size)
{
    size_t room = 2 * (r->size + size) + 256;
    char *out = r->out;

    if (size > r->room - r->size) {
        out = realloc(out, room);
        r->failed |= !out;
        if (!out)
            return;
        r->out = out;
        r->room = room;
    }
    if (size)
        memcpy(r->out + r->size, data, size);
    r->size += size;
}

/* Replace [begin, end) of the text. */
static void replace(struct rewriting *r, const char *begin, const char *end, const char *text)
{
    put(r, r->from, (size_t)(begin - r->from));
    put(r, text, strlen(text));
    r->from = end;
}

/* ---- strings ---- */

/* The unit of \uXXXX at `at`; -1: there is no such escape. */
static int unit_at(const char *at, const char *end)
{
    int unit = 0;

    if (end - at < ESCAPE || at[0] != '\\' || at[1] != 'u')
        return -1;
    for (int i = 2; i < ESCAPE; i++) {
        static const char digits[] = "00112233445566778899aAbBcCdDeEfF";
        const char *digit = at[i] ? strchr(digits, at[i]) : NULL;

        if (!digit)
            return -1;
        unit = unit << 4 | (int)(digit - digits) / 2;
    }
    return unit;
}

/* The end of the string that begins after `at`; half a pair of surrogates is replaced. */
static const char *scan_string(struct rewriting *r, const char *at)
{
    while (at < r->end && *at != '"') {
        int unit = *at == '\\' ? unit_at(at, r->end) : -1;

        if (*at != '\\') {
            at++;
        } else if (unit < 0xD800 || unit > 0xDFFF) {
            at += r->end - at < 2 ? 1 : 2;
        } else {
            int next = unit_at(at + ESCAPE, r->end);
            bool pair = unit < 0xDC00 && next >= 0xDC00 && next <= 0xDFFF;

            if (!pair)
                replace(r, at, at + ESCAPE, REPLACEMENT);
            at += pair ? 2 * ESCAPE : ESCAPE;
        }
    }
    return at < r->end ? at + 1 : at;
}

/* ---- numbers ---- */

static const char *skip_digits(const char *at, const char *end)
{
    while (at < end && *at >= '0' && *at <= '9')
        at++;
    return at;
}

/* Whether [at, end) is a number of JSON; *whole: an integer. */
static bool is_number(const char *at, const char *end, bool *whole)
{
    const char *digits = at += at < end && *at == '-';

    *whole = true;
    at = skip_digits(at, end);
    if (at == digits || (*digits == '0' && at > digits + 1))
        return false;
    if (at < end && *at == '.') {
        digits = ++at;
        *whole = false;
        at = skip_digits(at, end);
        if (at == digits)
            return false;
    }
    if (at < end && (*at == 'e' || *at == 'E')) {
        at++;
        *whole = false;
        digits = at += at < end && (*at == '+' || *at == '-');
        at = skip_digits(at, end);
        if (at == digits)
            return false;
    }
    return at == end;
}

static bool is_word(const char *at, size_t size)
{
    static const char *const words[] = {"NaN", "Infinity", "-Infinity"};

    for (size_t i = 0; i < CT_COUNT(words); i++)
        if (size == strlen(words[i]) && !memcmp(at, words[i], size))
            return true;
    return false;
}

/* A real of as many characters as the integer, which has at least 19 digits: 17 digits and an
   exponent, which is one of 17 digits less. */
static void shorten(char *text, double value)
{
    size_t size = strlen(text);
    char digits[32], shorter[64];

    snprintf(digits, sizeof(digits), "%.16e", fabs(value));
    snprintf(shorter, sizeof(shorter), "%s%c%.16se%d", value < 0 ? "-" : "", digits[0], digits + 2,
             atoi(strchr(digits, 'e') + 1) - 16);
    snprintf(text, size + 1, "%-*s", (int)size, shorter);
}

/* Replace the number in text, a copy of [at, end), if jansson does not read it. */
static void rewrite_number(struct rewriting *r, const char *at, const char *end, char *text)
{
    size_t size = (size_t)(end - at);
    double value = strtod(text, NULL);
    bool whole, number = is_number(text, text + size, &whole), fits;

    if (!number && !is_word(text, size))
        return;
    errno = 0;
    (void)strtoll(text, NULL, 10);
    fits = number && (whole ? errno == 0 : !r->literals && isfinite(value));
    if (fits)
        return;
    if (r->literals) {
        replace(r, at, at, "\"" LITERAL);
        replace(r, end, end, "\"");
        return;
    }
    if (isfinite(value))
        shorten(text, value);
    else
        snprintf(text, size + 1, "%-*s", (int)size, "{}");
    replace(r, at, end, text);
}

static bool is_word_character(char c)
{
    return c == '-' || (c >= '0' && c <= '9') || ((c | 32) >= 'a' && (c | 32) <= 'z');
}

/* The end of a number or a word. */
static const char *scan_word(struct rewriting *r, const char *at)
{
    const char *end = at;
    char small[64], *text = small;
    size_t size;

    while (end < r->end && (is_word_character(*end) || *end == '+' || *end == '.'))
        end++;
    size = (size_t)(end - at);
    if (*at == 't' || *at == 'f' || *at == 'n')
        return end;
    if (size >= sizeof(small))
        text = malloc(size + 1);
    r->failed |= !text;
    if (!text)
        return end;
    memcpy(text, at, size);
    text[size] = '\0';
    rewrite_number(r, at, end, text);
    if (text != small)
        free(text);
    return end;
}

static int rewrite(struct rewriting *r, const char *text, size_t size)
{
    const char *at = text;

    r->from = text;
    r->end = text + size;
    while (at < r->end && !r->failed) {
        at = *at == '"'               ? scan_string(r, at + 1)
             : is_word_character(*at) ? scan_word(r, at)
                                      : at + 1;
    }
    if (r->out)
        put(r, r->from, (size_t)(r->end - r->from));
    return r->failed ? ct_fail(CT_ENOMEM, "%zu bytes of JSON", size) : 0;
}

/* ---- reading ---- */

/* *early: the text ends before the value does. */
static int parse(const char *text, size_t size, const char *name, unsigned flags, json_t **value,
                 bool *early)
{
    size_t options = JSON_DECODE_ANY | (flags & CT_JSON_NUL ? JSON_ALLOW_NUL : 0) |
                     (flags & CT_JSON_UNIQUE ? JSON_REJECT_DUPLICATES : 0);
    struct rewriting r = {.literals = flags & CT_JSON_LITERALS};
    int rc = rewrite(&r, text, size);
    json_error_t error;

    *value =
        rc < 0 ? NULL : json_loadb(r.out ? r.out : text, r.out ? r.size : size, options, &error);
    free(r.out);
    *early = rc == 0 && !*value && json_error_code(&error) == json_error_premature_end_of_input;
    if (rc < 0 || *value)
        return rc;
    if (name)
        return ct_fail(CT_ECONFIG, "%s:%d:%d: %s", name, error.line, error.column, error.text);
    if (error.line > 1)
        return ct_fail(CT_ECONFIG, "line %d, column %d: %s", error.line, error.column, error.text);
    return ct_fail(CT_ECONFIG, "column %d: %s", error.column, error.text);
}

int json_read_early(const char *text, size_t size, const char *name, unsigned flags, json_t **value,
                    bool *early)
{
    int rc = parse(text ? text : "", size, name, flags & ~(unsigned)CT_JSON_LITERALS, value, early);

    if (rc < 0 || !(flags & CT_JSON_LITERALS))
        return rc;
    json_decref(*value); /* its columns were right */
    return parse(text, size, name, flags, value, early);
}

int ct_json_read(const char *text, size_t size, const char *name, unsigned flags, json_t **value)
{
    bool early;

    return json_read_early(text, size, name, flags, value, &early);
}

/* ---- members one by one ---- */

struct members {
    const char *at, *end;
};

static void skip_space(struct members *m)
{
    while (m->at < m->end && strchr(" \t\n\r", *m->at) && *m->at)
        m->at++;
}

/* Whether the next character is c, which is passed then. */
static bool accept(struct members *m, char c)
{
    skip_space(m);
    if (m->at == m->end || *m->at != c)
        return false;
    m->at++;
    return true;
}

static void skip_string(struct members *m)
{
    for (m->at++; m->at < m->end && *m->at != '"'; m->at++)
        m->at += *m->at == '\\' && m->at + 1 < m->end;
    m->at += m->at < m->end;
}

/* Pass a value, up to what follows it in an object. */
static void skip_value(struct members *m)
{
    for (size_t depth = 0; m->at < m->end;) {
        char c = *m->at;

        if (!depth && (c == ',' || c == '}'))
            return;
        depth += c == '{' || c == '[';
        depth -= c == '}' || c == ']';
        if (c == '"')
            skip_string(m);
        else
            m->at++;
    }
}

/* Read the next member. 1: there was one. CT_ECONFIG, without a message: there is none. */
static int read_member(struct members *m, unsigned flags, json_t **key, json_t **value)
{
    const char *begin;
    int rc;

    *key = *value = NULL;
    skip_space(m);
    begin = m->at;
    if (begin == m->end || *begin != '"')
        return CT_ECONFIG;
    skip_string(m);
    rc = ct_json_read(begin, (size_t)(m->at - begin), NULL, flags, key);
    if (rc < 0 || !accept(m, ':'))
        return rc < 0 ? rc : CT_ECONFIG;
    begin = m->at;
    skip_value(m);
    rc = ct_json_read(begin, (size_t)(m->at - begin), NULL, flags, value);
    return rc < 0 ? rc : 1;
}

/* The message about a text that is malformed is that of reading it as a whole. */
static int complain(const char *text, size_t size, const char *name, unsigned flags)
{
    json_t *whole;
    int rc = ct_json_read(text, size, name, flags, &whole);

    if (rc < 0)
        return rc;
    json_decref(whole);
    return ct_fail(CT_ECONFIG, "%s is not a JSON object", name);
}

int ct_json_each(const char *text, size_t size, const char *name, unsigned flags,
                 ct_json_member *take, void *context)
{
    struct members m = {text, text + size};
    bool open = accept(&m, '{'), some = open && !accept(&m, '}'), more = some;
    json_t *key, *value;
    int rc = 0;

    if (!open)
        return complain(text, size, name, flags);
    while (more) {
        rc = read_member(&m, flags, &key, &value);
        if (rc < 0)
            rc = rc == CT_ENOMEM ? rc : complain(text, size, name, flags);
        else
            rc = take(json_string_value(key), value, context);
        json_decref(key);
        json_decref(value);
        if (rc < 0)
            return rc;
        more = accept(&m, ',');
    }
    if (some && !accept(&m, '}'))
        return complain(text, size, name, flags);
    skip_space(&m);
    return m.at == m.end ? 0 : complain(text, size, name, flags);
}

int ct_json_read_file(const char *path, unsigned flags, json_t **value)
{
    const void *text;
    size_t size;
    int rc = ct_file_map(path, &text, &size);

    *value = NULL;
    if (rc == 0)
        rc = ct_json_read(text, size, path, flags, value);
    if (rc == 0 || size)
        ct_file_unmap(text, size);
    return rc;
}

int ct_json_read_stream(FILE *in, const char *name, unsigned flags, json_t **value)
{
    struct rewriting all = {0};
    char part[4096];
    size_t got;
    int rc;

    *value = NULL;
    while ((got = fread(part, 1, sizeof(part), in)) > 0 && !all.failed)
        put(&all, part, got);
    rc = all.failed   ? ct_fail(CT_ENOMEM, "%s: %zu bytes of JSON", name, all.size)
         : ferror(in) ? ct_fail(CT_EIO, "%s: %s", name, strerror(errno))
                      : ct_json_read(all.out, all.size, name, flags, value);
    free(all.out);
    return rc;
}

/* ---- writing ---- */

/* The text between the quotes of a literal at `at`, which is a quote; its size, or 0. */
static size_t literal_size(const char *at)
{
    const char *begin = at + 1 + strlen(LITERAL), *end;
    bool whole;

    if (strncmp(at + 1, LITERAL, strlen(LITERAL)) != 0)
        return 0;
    end = begin + strcspn(begin, "\"");
    return is_number(begin, end, &whole) || is_word(begin, (size_t)(end - begin))
               ? (size_t)(end - begin)
               : 0;
}

int ct_json_write(const json_t *value, FILE *out)
{
    char *text = json_dumps(value, JSON_INDENT(2) | JSON_REAL_PRECISION(15) | JSON_ENCODE_ANY);

    if (!text)
        return ct_fail(CT_ENOMEM, "JSON that is to be written");
    for (const char *at = text; *at; at++) {
        size_t size = *at == '"' ? literal_size(at) : 0;

        if (size) {
            at += 1 + strlen(LITERAL);
            fwrite(at, 1, size, out);
            at += size; /* the closing quote */
        } else {
            putc(*at, out);
        }
    }
    putc('\n', out);
    free(text);
    return ferror(out) ? ct_fail(CT_EIO, "%s", strerror(errno)) : 0;
}
