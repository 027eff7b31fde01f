#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "value.h"

struct value value_undefined = {.kind = VALUE_UNDEFINED}, value_none = {.kind = VALUE_NONE},
             value_true = {.kind = VALUE_BOOL, .integer = 1}, value_false = {.kind = VALUE_BOOL};

struct value *value_new(struct ct_arena *arena, enum value_kind kind)
{
    struct value *v = ct_arena_new(arena, struct value);

    v->kind = kind;
    return v;
}

struct value *value_int(struct ct_arena *arena, int64_t integer)
{
    struct value *v = value_new(arena, VALUE_INT);

    v->integer = integer;
    return v;
}

struct value *value_real(struct ct_arena *arena, double real)
{
    struct value *v = value_new(arena, VALUE_REAL);

    v->real = real;
    return v;
}

struct value *value_bool(bool truth)
{
    return truth ? &value_true : &value_false;
}

struct value *value_text(struct ct_arena *arena, const char *text, size_t size)
{
    struct value *v = value_new(arena, VALUE_STRING);

    v->text = text;
    v->size = size;
    return v;
}

static struct value *copy_text(struct ct_arena *arena, const char *text, size_t size)
{
    return value_text(arena, size ? ct_arena_copy(arena, text, size) : "", size);
}

struct value *value_of_json(struct ct_arena *arena, const json_t *json)
{
    struct value *v;
    const char *key;
    json_t *item;
    size_t i;

    switch (json_typeof(json)) {
    case JSON_STRING:
        return copy_text(arena, json_string_value(json), json_string_length(json));
    case JSON_INTEGER:
        return value_int(arena, json_integer_value(json));
    case JSON_REAL:
        return value_real(arena, json_real_value(json));
    case JSON_TRUE:
    case JSON_FALSE:
        return value_bool(json_is_true(json));
    case JSON_ARRAY:
        v = value_new(arena, VALUE_LIST);
        json_array_foreach(json, i, item) value_append(arena, v, value_of_json(arena, item));
        return v;
    case JSON_OBJECT:
        v = value_new(arena, VALUE_DICT);
        json_object_foreach((json_t *)(uintptr_t)json, key, item)
            value_put(arena, v, copy_text(arena, key, strlen(key)), value_of_json(arena, item));
        return v;
    default:
        return &value_none;
    }
}

/* ---- lists and dicts ---- */

void value_append(struct ct_arena *arena, struct value *list, struct value *item)
{
    list->items =
        ct_arena_grow(arena, list->items, &list->room, list->count + 1, sizeof(struct value *));
    list->items[list->count++] = item;
}

static size_t find_key(const struct value *dict, const struct value *key)
{
    for (size_t i = 0; i < dict->count; i++)
        if (value_equal(dict->keys[i], key))
            return i;
    return dict->count;
}

struct value *value_get(const struct value *dict, const struct value *key)
{
    size_t i = find_key(dict, key);

    return i < dict->count ? dict->items[i] : NULL;
}

struct value *value_find(const struct value *dict, const char *key, size_t size)
{
    return value_get(dict, &(struct value){.kind = VALUE_STRING, .text = key, .size = size});
}

void value_put(struct ct_arena *arena, struct value *dict, struct value *key, struct value *item)
{
    size_t i = find_key(dict, key), room = dict->room;

    if (i < dict->count) {
        dict->items[i] = item;
        return;
    }
    dict->keys = ct_arena_grow(arena, dict->keys, &room, dict->count + 1, sizeof(struct value *));
    value_append(arena, dict, item);
    dict->keys[dict->count - 1] = key;
}

/* ---- truth and order ---- */

bool value_is_number(const struct value *v)
{
    return v->kind == VALUE_BOOL || v->kind == VALUE_INT || v->kind == VALUE_REAL;
}

double value_double(const struct value *v)
{
    return v->kind == VALUE_REAL ? v->real : (double)v->integer;
}

bool value_truth(const struct value *v)
{
    switch (v->kind) {
    case VALUE_UNDEFINED:
    case VALUE_NONE:
        return false;
    case VALUE_BOOL:
    case VALUE_INT:
        return v->integer != 0;
    case VALUE_REAL:
        return v->real != 0;
    case VALUE_STRING:
        return v->size > 0;
    case VALUE_LIST:
    case VALUE_DICT:
        return v->count > 0;
    default:
        return true;
    }
}

int value_depth(const struct value *v)
{
    int deepest = 0;

    if (v->kind != VALUE_LIST && v->kind != VALUE_DICT)
        return 0;
    for (size_t i = 0; i < v->count; i++) {
        int depth = value_depth(v->items[i]);

        deepest = depth > deepest ? depth : deepest;
    }
    return 1 + deepest;
}

static bool equal_dicts(const struct value *a, const struct value *b)
{
    for (size_t i = 0; i < a->count; i++) {
        const struct value *other = value_get(b, a->keys[i]);

        if (!other || !value_equal(a->items[i], other))
            return false;
    }
    return a->count == b->count;
}

bool value_equal(const struct value *a, const struct value *b)
{
    if (value_is_number(a) && value_is_number(b))
        return a->kind == VALUE_REAL || b->kind == VALUE_REAL ? value_double(a) == value_double(b)
                                                              : a->integer == b->integer;
    if (a->kind != b->kind)
        return false;
    switch (a->kind) {
    case VALUE_UNDEFINED:
    case VALUE_NONE:
        return true;
    case VALUE_STRING:
        return a->size == b->size && !memcmp(a->text, b->text, a->size);
    case VALUE_LIST:
        for (size_t i = 0; i < a->count && i < b->count; i++)
            if (!value_equal(a->items[i], b->items[i]))
                return false;
        return a->count == b->count;
    case VALUE_DICT:
        return equal_dicts(a, b);
    default:
        return a == b;
    }
}

bool value_order(const struct value *a, const struct value *b, int *order)
{
    size_t least = a->size < b->size ? a->size : b->size;

    if (value_is_number(a) && value_is_number(b)) {
        double x = value_double(a), y = value_double(b);

        *order = (x > y) - (x < y);
        return true;
    }
    if (a->kind != VALUE_STRING || b->kind != VALUE_STRING)
        return false;
    *order = least ? memcmp(a->text, b->text, least) : 0;
    if (!*order)
        *order = (a->size > b->size) - (a->size < b->size);
    return true;
}

/* ---- characters ---- */

static bool begins(char c)
{
    return ((unsigned char)c & 0xc0) != 0x80;
}

size_t value_characters(const char *text, size_t size)
{
    size_t n = 0;

    for (size_t i = 0; i < size; i++)
        n += begins(text[i]);
    return n;
}

size_t value_character(const char *text, size_t size, size_t n)
{
    size_t at = 0;

    for (; n && at < size; n--)
        for (at++; at < size && !begins(text[at]);)
            at++;
    return at;
}

/* ---- as texts ---- */

/* Where `size` more bytes go, before a '\0'; NULL: there is no room. */
static char *extend(struct buffer *b, size_t size)
{
    if (b->over && size > BUFFER_LONGEST - b->size) {
        *b->over = true;
        return NULL;
    }
    b->data = ct_arena_grow(b->arena, b->data, &b->room, b->size + size + 1, 1);
    b->size += size;
    b->data[b->size] = '\0';
    return b->data + b->size - size;
}

void buffer_put(struct buffer *b, const char *text, size_t size)
{
    char *to = size ? extend(b, size) : NULL;

    if (to)
        memcpy(to, text, size);
}

void buffer_spaces(struct buffer *b, int64_t count)
{
    char *to = count > 0 ? extend(b, (size_t)count) : NULL;

    if (to)
        memset(to, ' ', (size_t)count);
}

void buffer_text(struct buffer *b, const char *text)
{
    buffer_put(b, text, strlen(text));
}

struct value *buffer_value(struct buffer *b)
{
    return value_text(b->arena, b->size ? b->data : "", b->size);
}

/* The shortest digits that give the number, in Python's form. */
static void put_real(struct buffer *b, double real)
{
    char digits[64], *e;
    int exponent, precision = 0;

    if (isnan(real) || isinf(real)) {
        buffer_text(b, isnan(real) ? "nan" : real > 0 ? "inf" : "-inf");
        return;
    }
    do
        snprintf(digits, sizeof(digits), "%.*e", precision++, real);
    while (strtod(digits, NULL) != real);
    e = strchr(digits, 'e');
    exponent = atoi(e + 1);
    if (exponent >= -4 && exponent < 16) {
        int decimals = precision - 1 - exponent;

        snprintf(digits, sizeof(digits), "%.*f", decimals > 1 ? decimals : 1, real);
    }
    buffer_text(b, digits);
}

static void put_int(struct buffer *b, int64_t integer)
{
    char text[32];

    snprintf(text, sizeof(text), "%lld", (long long)integer);
    buffer_text(b, text);
}

static void repr_text(struct buffer *b, const struct value *v)
{
    char quote = memchr(v->text, '\'', v->size) && !memchr(v->text, '"', v->size) ? '"' : '\'';

    buffer_put(b, &quote, 1);
    for (size_t i = 0; i < v->size; i++) {
        char c = v->text[i], escaped[8];

        if (c == quote || c == '\\')
            snprintf(escaped, sizeof(escaped), "\\%c", c);
        else if (c == '\n' || c == '\t' || c == '\r')
            snprintf(escaped, sizeof(escaped), "\\%c", c == '\n' ? 'n' : c == '\t' ? 't' : 'r');
        else if ((unsigned char)c < 32 || c == 127)
            snprintf(escaped, sizeof(escaped), "\\x%02x", (unsigned)c);
        else
            snprintf(escaped, sizeof(escaped), "%c", c);
        buffer_text(b, escaped);
    }
    buffer_put(b, &quote, 1);
}

static void repr_items(struct buffer *b, const struct value *v)
{
    for (size_t i = 0; i < v->count; i++) {
        buffer_text(b, i ? ", " : "");
        if (v->kind == VALUE_DICT) {
            buffer_repr(b, v->keys[i]);
            buffer_text(b, ": ");
        }
        buffer_repr(b, v->items[i]);
    }
}

void buffer_repr(struct buffer *b, const struct value *v)
{
    switch (v->kind) {
    case VALUE_UNDEFINED:
        buffer_text(b, "Undefined");
        break;
    case VALUE_NONE:
        buffer_text(b, "None");
        break;
    case VALUE_BOOL:
        buffer_text(b, v->integer ? "True" : "False");
        break;
    case VALUE_INT:
        put_int(b, v->integer);
        break;
    case VALUE_REAL:
        put_real(b, v->real);
        break;
    case VALUE_STRING:
        repr_text(b, v);
        break;
    case VALUE_LIST:
    case VALUE_DICT:
        buffer_text(b, v->kind == VALUE_LIST ? "[" : "{");
        repr_items(b, v);
        buffer_text(b, v->kind == VALUE_LIST ? "]" : "}");
        break;
    default:
        b->textless = true;
    }
}

void buffer_str(struct buffer *b, const struct value *v)
{
    if (v->kind == VALUE_STRING)
        buffer_put(b, v->text, v->size);
    else if (v->kind != VALUE_UNDEFINED)
        buffer_repr(b, v);
}

/* ---- JSON ---- */

/* The code point of the character that `size` bytes of UTF-8 are. */
static unsigned code_of(const char *text, size_t size)
{
    unsigned code = (unsigned char)*text;

    if (size > 1)
        code &= 0x7fU >> size;
    for (size_t i = 1; i < size; i++)
        code = code << 6 | ((unsigned char)text[i] & 0x3f);
    return code;
}

/* "\uXXXX", or two of these that are a surrogate pair. */
static void json_code(struct buffer *b, unsigned code)
{
    char escaped[16];

    if (code < 0x10000)
        snprintf(escaped, sizeof(escaped), "\\u%04x", code);
    else
        snprintf(escaped, sizeof(escaped), "\\u%04x\\u%04x", 0xd7c0 + (code >> 10),
                 0xdc00 + (code & 0x3ff));
    buffer_text(b, escaped);
}

static void json_text(struct buffer *b, const char *text, size_t size, bool ascii)
{
    static const char marks[] = "\"\\\n\r\t\b\f", letters[] = "\"\\nrtbf";

    buffer_text(b, "\"");
    for (size_t i = 0, n; i < size; i += n) {
        const char *mark = text[i] ? strchr(marks, text[i]) : NULL;
        unsigned code;

        n = value_character(text + i, size - i < 4 ? size - i : 4, 1);
        code = code_of(text + i, n);
        if (mark)
            buffer_put(b, (char[]){'\\', letters[mark - marks]}, 2);
        else if (code < 32 || (ascii && code > 126))
            json_code(b, code);
        else
            buffer_put(b, text + i, n);
    }
    buffer_text(b, "\"");
}

static void json_line(struct buffer *b, const struct json_style *style, int depth)
{
    if (style->lines)
        buffer_text(b, "\n");
    for (int i = 0; style->lines && i < depth; i++)
        buffer_spaces(b, style->indent);
}

static int by_key(const void *a, const void *b)
{
    const struct value *const *x = a, *const *y = b;
    int order = 0;

    value_order((*x)->self, (*y)->self, &order);
    return order;
}

/* The numbers of a dict's items, by key. */
static void sort_items(struct ct_arena *arena, const struct value *v, size_t *at)
{
    struct value **entries = ct_arena_array(arena, struct value *, v->count + 1);

    for (size_t i = 0; i < v->count; i++) {
        entries[i] = value_int(arena, (int64_t)i);
        entries[i]->self = v->keys[i];
    }
    qsort(entries, v->count, sizeof(struct value *), by_key);
    for (size_t i = 0; i < v->count; i++)
        at[i] = (size_t)entries[i]->integer;
}

static bool json_items(struct buffer *b, const struct value *v, const struct json_style *style,
                       int depth)
{
    bool dict = v->kind == VALUE_DICT;
    size_t *at = ct_arena_array(b->arena, size_t, v->count + 1);

    for (size_t i = 0; i < v->count; i++)
        at[i] = i;
    if (dict && style->sort_keys)
        sort_items(b->arena, v, at);
    for (size_t i = 0; i < v->count; i++) {
        buffer_text(b, !i ? "" : style->lines ? "," : ", ");
        json_line(b, style, depth + 1);
        if (dict) {
            const struct value *key = v->keys[at[i]];

            if (key->kind != VALUE_STRING)
                return false;
            json_text(b, key->text, key->size, style->ensure_ascii);
            buffer_text(b, ": ");
        }
        if (!buffer_json(b, v->items[at[i]], style, depth + 1))
            return false;
    }
    if (v->count)
        json_line(b, style, depth);
    return true;
}

bool buffer_json(struct buffer *b, const struct value *v, const struct json_style *style, int depth)
{
    bool made;

    switch (v->kind) {
    case VALUE_NONE:
        buffer_text(b, "null");
        return true;
    case VALUE_BOOL:
        buffer_text(b, v->integer ? "true" : "false");
        return true;
    case VALUE_INT:
    case VALUE_REAL:
        if (v->kind == VALUE_REAL && !isfinite(v->real))
            buffer_text(b, isnan(v->real) ? "NaN" : v->real > 0 ? "Infinity" : "-Infinity");
        else
            buffer_repr(b, v);
        return true;
    case VALUE_STRING:
        json_text(b, v->text, v->size, style->ensure_ascii);
        return true;
    case VALUE_LIST:
    case VALUE_DICT:
        buffer_text(b, v->kind == VALUE_LIST ? "[" : "{");
        made = json_items(b, v, style, depth);
        buffer_text(b, v->kind == VALUE_LIST ? "]" : "}");
        return made;
    default:
        return false;
    }
}
