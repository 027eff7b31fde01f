/*
 * Functions, and methods of texts, lists and dicts.
 */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "eval.h"

#define LONGEST_RANGE 100000

/* ---- functions ---- */

static struct value *raise(struct eval *e, const struct call *c)
{
    struct buffer b = eval_buffer(e);

    if (c->count)
        eval_put(e, &b, c->args[0], c->line);
    return eval_fail(e, c->line, "the template refuses this: %s", b.size ? b.data : "");
}

static struct value *range(struct eval *e, const struct call *c)
{
    struct value *list = value_new(e->arena, VALUE_LIST);
    int64_t from = 0, to, step = 1;

    for (size_t i = 0; i < c->count; i++)
        if (c->args[i]->kind != VALUE_INT && c->args[i]->kind != VALUE_BOOL)
            return eval_fail(e, c->line, "range takes integers");
    if (c->count < 1 || c->count > 3)
        return eval_fail(e, c->line, "range takes one to three integers");
    to = c->args[c->count > 1]->integer;
    from = c->count > 1 ? c->args[0]->integer : 0;
    step = c->count > 2 ? c->args[2]->integer : 1;
    if (!step)
        return eval_fail(e, c->line, "the step of range is 0");
    for (int64_t i = from; step > 0 ? i < to : i > to;) {
        if (list->count == LONGEST_RANGE)
            return eval_fail(e, c->line, "a range of more than %d", LONGEST_RANGE);
        value_append(e->arena, list, value_int(e->arena, i));
        if (__builtin_add_overflow(i, step, &i))
            break;
    }
    return list;
}

static struct value *make_dict(struct eval *e, const struct call *c, enum value_kind kind)
{
    struct value *v = value_new(e->arena, kind);

    for (size_t i = 0; i < c->count; i++) {
        const struct value *of = c->args[i];

        if (c->names[i])
            value_put(e->arena, v, value_text(e->arena, c->names[i], strlen(c->names[i])),
                      c->args[i]);
        else if (of->kind == VALUE_DICT)
            for (size_t k = 0; k < of->count; k++)
                value_put(e->arena, v, of->keys[k], of->items[k]);
        else
            return eval_fail(e, c->line, "dict and namespace take dicts and NAME=value");
    }
    return v;
}

static struct value *strftime_now(struct eval *e, const struct call *c)
{
    struct tm when = {0};
    char format[128], text[256];
    time_t at;

    if (c->count != 1 || c->args[0]->kind != VALUE_STRING || c->args[0]->size >= sizeof(format))
        return eval_fail(e, c->line, "strftime_now takes one short text");
    if (sscanf(e->date, "%d-%d-%d", &when.tm_year, &when.tm_mon, &when.tm_mday) != 3)
        return eval_fail(e, c->line, "the date %s: expected YYYY-MM-DD", e->date);
    when.tm_year -= 1900;
    when.tm_mon--;
    at = timegm(&when);
    gmtime_r(&at, &when);
    snprintf(format, sizeof(format), "%.*s", (int)c->args[0]->size, c->args[0]->text);
    text[0] = '\0';
    strftime(text, sizeof(text), format, &when);
    return value_text(e->arena, ct_arena_strdup(e->arena, text), strlen(text));
}

bool has_function(const struct eval *e, const char *name)
{
    static const char *const names[] = {"raise_exception", "range", "namespace", "dict"};

    for (size_t i = 0; i < CT_COUNT(names); i++)
        if (!strcmp(name, names[i]))
            return true;
    return !strcmp(name, "strftime_now") && *e->date;
}

struct value *call_function(struct eval *e, const char *name, const struct call *c)
{
    if (!strcmp(name, "raise_exception"))
        return raise(e, c);
    if (!strcmp(name, "range"))
        return range(e, c);
    if (!strcmp(name, "strftime_now"))
        return strftime_now(e, c);
    return make_dict(e, c, *name == 'd' ? VALUE_DICT : VALUE_NAMESPACE);
}

/* ---- methods of texts ---- */

static bool is_text(const struct value *v)
{
    return v && v->kind == VALUE_STRING;
}

/* Characters of a set at the ends go; set NULL: white space. */
static struct value *strip(struct eval *e, const struct value *self, const struct value *set,
                           const char *name)
{
    const char *text = self->text;
    size_t size = self->size;
    bool left = *name != 'r', right = *name != 'l';

    if (!is_text(set)) {
        ct_jinja_strip(&text, &size, left, right);
        return value_text(e->arena, text, size);
    }
    while (left && size) {
        size_t n = value_character(text, size, 1);

        if (!memmem(set->text, set->size, text, n))
            break;
        text += n;
        size -= n;
    }
    while (right && size) {
        size_t n = 1;

        while (n < size && ((unsigned char)text[size - n] & 0xc0) == 0x80)
            n++;
        if (!memmem(set->text, set->size, text + size - n, n))
            break;
        size -= n;
    }
    return value_text(e->arena, text, size);
}

static struct value *split_white(struct eval *e, const struct value *self)
{
    struct value *list = value_new(e->arena, VALUE_LIST);
    const char *text = self->text;
    size_t size = self->size;

    for (ct_jinja_strip(&text, &size, true, true); size;) {
        size_t n = 0, rest = size;
        const char *after = text;

        while (rest == size - n && n < size) {
            n += value_character(text + n, size - n, 1);
            after = text + n;
            rest = size - n;
            ct_jinja_strip(&after, &rest, true, false);
        }
        value_append(e->arena, list, value_text(e->arena, text, n));
        text = after;
        size = rest;
    }
    return list;
}

/* At most `most` times, from the left. */
static struct value *split(struct eval *e, const struct value *self, const struct value *by,
                           int64_t most)
{
    struct value *list = value_new(e->arena, VALUE_LIST);
    const char *at = self->text, *end = at + self->size, *next;

    for (; most && eval_has_room(e) && (next = memmem(at, (size_t)(end - at), by->text, by->size));
         most--) {
        value_append(e->arena, list, value_text(e->arena, at, (size_t)(next - at)));
        at = next + by->size;
    }
    value_append(e->arena, list, value_text(e->arena, at, (size_t)(end - at)));
    return list;
}

static const char *find_last(const char *text, size_t size, const struct value *what)
{
    for (size_t n = size + 1; n-- > 0;)
        if (n + what->size <= size && !memcmp(text + n, what->text, what->size))
            return text + n;
    return NULL;
}

static struct value *split_right(struct eval *e, const struct value *self, const struct value *by,
                                 int64_t most)
{
    struct value *reversed = value_new(e->arena, VALUE_LIST);
    struct value *list = value_new(e->arena, VALUE_LIST);
    size_t size = self->size;
    const char *at;

    for (; most && eval_has_room(e) && (at = find_last(self->text, size, by)); most--) {
        const char *from = at + by->size;

        value_append(e->arena, reversed,
                     value_text(e->arena, from, (size_t)(self->text + size - from)));
        size = (size_t)(at - self->text);
    }
    value_append(e->arena, reversed, value_text(e->arena, self->text, size));
    for (size_t i = reversed->count; i-- > 0;)
        value_append(e->arena, list, reversed->items[i]);
    return list;
}

static struct value *split_any(struct eval *e, const struct value *self, const char *name,
                               const struct call *c)
{
    const struct value *by = call_argument(c, 0, "sep"), *most = call_argument(c, 1, "maxsplit");
    int64_t times = most ? most->integer : -1;

    if (!by || by->kind == VALUE_NONE)
        return most ? eval_fail(e, c->line, "%s by white space with a limit is not supported", name)
                    : split_white(e, self);
    if (!is_text(by) || !by->size)
        return eval_fail(e, c->line, "%s takes a text that is not empty", name);
    return *name == 'r' ? split_right(e, self, by, times) : split(e, self, by, times);
}

static bool matches(const struct value *self, const struct value *part, bool begin)
{
    return is_text(part) && part->size <= self->size &&
           !memcmp(self->text + (begin ? 0 : self->size - part->size), part->text, part->size);
}

static struct value *begins_or_ends(struct eval *e, const struct value *self, const char *name,
                                    const struct call *c)
{
    const struct value *of = call_argument(c, 0, "");
    bool found = false;

    if (c->count != 1 || !of || (of->kind != VALUE_STRING && of->kind != VALUE_LIST))
        return eval_fail(e, c->line, "%s takes one text, or several in parentheses", name);
    if (of->kind == VALUE_STRING)
        return value_bool(matches(self, of, *name == 's'));
    for (size_t i = 0; i < of->count; i++)
        found |= matches(self, of->items[i], *name == 's');
    return value_bool(found);
}

static struct value *replace(struct eval *e, const struct value *self, const struct call *c)
{
    const struct value *from = call_argument(c, 0, "old"), *to = call_argument(c, 1, "new");
    const struct value *most = call_argument(c, 2, "count");
    int64_t times = most && most->kind == VALUE_INT ? most->integer : -1;
    const char *at = self->text, *end = at + self->size, *next;
    struct buffer b = eval_buffer(e);

    if (!is_text(from) || !is_text(to) || !from->size)
        return eval_fail(e, c->line, "replace takes two texts, the first of them not empty");
    for (; times && (next = memmem(at, (size_t)(end - at), from->text, from->size)); times--) {
        buffer_put(&b, at, (size_t)(next - at));
        buffer_put(&b, to->text, to->size);
        at = next + from->size;
    }
    buffer_put(&b, at, (size_t)(end - at));
    return buffer_value(&b);
}

/* upper, lower, capitalize, title: of ASCII. */
static struct value *change_case(struct eval *e, const struct value *self, const char *name,
                                 int line)
{
    struct buffer text = eval_buffer(e);
    bool inside = false;

    buffer_put(&text, self->text, self->size);
    for (size_t i = 0; i < text.size; i++) {
        char c = text.data[i];
        bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
        bool up = *name == 'u' || (*name == 'c' && i == 0) || (*name == 't' && !inside);

        if ((unsigned char)c >= 128)
            return eval_fail(e, line, "%s of letters beyond ASCII is not supported", name);
        text.data[i] = (char)(!letter ? c : up ? c & ~32 : c | 32);
        inside = letter;
    }
    return buffer_value(&text);
}

static struct value *find(struct eval *e, const struct value *self, const char *name,
                          const struct call *c)
{
    const struct value *what = call_argument(c, 0, "");
    const char *at;

    if (c->count != 1 || !is_text(what))
        return eval_fail(e, c->line, "%s takes one text", name);
    at = *name == 'r'  ? find_last(self->text, self->size, what)
         : !what->size ? self->text
                       : memmem(self->text, self->size, what->text, what->size);
    return value_int(e->arena,
                     at ? (int64_t)value_characters(self->text, (size_t)(at - self->text)) : -1);
}

static struct value *count(struct eval *e, const struct value *self, const struct call *c)
{
    const struct value *what = call_argument(c, 0, "");
    int64_t n = 0;

    if (c->count != 1 || !what || (self->kind == VALUE_STRING && (!is_text(what) || !what->size)))
        return eval_fail(e, c->line, "count takes one value");
    if (self->kind == VALUE_STRING)
        return value_int(e->arena, (int64_t)split(e, self, what, -1)->count - 1);
    for (size_t i = 0; i < self->count; i++)
        n += value_equal(self->items[i], what);
    return value_int(e->arena, n);
}

static struct value *join(struct eval *e, const struct value *self, const struct call *c)
{
    struct buffer b = eval_buffer(e);
    const struct value *items = c->count == 1 ? eval_items(e, c->args[0], c->line) : NULL;

    if (!items)
        return eval_fail(e, c->line, "join takes one list");
    for (size_t i = 0; i < items->count; i++) {
        if (!is_text(items->items[i]))
            return eval_fail(e, c->line, "join takes a list of texts");
        buffer_put(&b, self->text, i ? self->size : 0);
        buffer_put(&b, items->items[i]->text, items->items[i]->size);
    }
    return buffer_value(&b);
}

static struct value *has_only(const struct value *self, const char *name)
{
    const char *low = *name == 'i' && name[2] == 'd' ? "09" : "az", *high = "AZ";
    bool digits = *low == '0';

    for (size_t i = 0; i < self->size; i++) {
        char c = self->text[i];

        if (!(c >= low[0] && c <= low[1]) && (digits || !(c >= high[0] && c <= high[1])))
            return &value_false;
    }
    return value_bool(self->size > 0);
}

static struct value *split_lines(struct eval *e, const struct value *self)
{
    struct value *list =
        split(e, self, &(struct value){.kind = VALUE_STRING, .text = "\n", .size = 1}, -1);

    list->count -= !list->items[list->count - 1]->size;
    return list;
}

static struct value *without(struct eval *e, const struct value *self, const char *name,
                             const struct call *c)
{
    const struct value *part = call_argument(c, 0, "");
    bool begin = !strcmp(name, "removeprefix");

    if (c->count != 1 || !is_text(part))
        return eval_fail(e, c->line, "%s takes one text", name);
    if (!matches(self, part, begin))
        return value_text(e->arena, self->text, self->size);
    return value_text(e->arena, self->text + (begin ? part->size : 0), self->size - part->size);
}

static struct value *text_method(struct eval *e, struct value *self, const char *name,
                                 const struct call *c)
{
    if (strstr(name, "strip"))
        return strip(e, self, call_argument(c, 0, "chars"), name);
    if (!strcmp(name, "split") || !strcmp(name, "rsplit"))
        return split_any(e, self, name, c);
    if (!strcmp(name, "splitlines"))
        return split_lines(e, self);
    if (!strcmp(name, "startswith") || !strcmp(name, "endswith"))
        return begins_or_ends(e, self, name, c);
    if (!strcmp(name, "replace"))
        return replace(e, self, c);
    if (!strcmp(name, "find") || !strcmp(name, "rfind"))
        return find(e, self, name, c);
    if (!strcmp(name, "count"))
        return count(e, self, c);
    if (!strcmp(name, "join"))
        return join(e, self, c);
    if (!strncmp(name, "is", 2))
        return has_only(self, name);
    if (!strncmp(name, "remove", 6))
        return without(e, self, name, c);
    return change_case(e, self, name, c->line);
}

/* ---- methods of dicts ---- */

static struct value *dict_method(struct eval *e, struct value *self, const char *name,
                                 const struct call *c)
{
    struct value *list = value_new(e->arena, VALUE_LIST), *item;

    if (!strcmp(name, "get")) {
        if (c->count < 1 || c->count > 2)
            return eval_fail(e, c->line, "get takes a key, and a value for when it is absent");
        item = value_get(self, c->args[0]);
        return item ? item : c->count > 1 ? c->args[1] : &value_none;
    }
    for (size_t i = 0; i < self->count; i++) {
        item = *name == 'k' ? self->keys[i] : self->items[i];
        if (*name == 'i') {
            item = value_new(e->arena, VALUE_LIST);
            value_append(e->arena, item, self->keys[i]);
            value_append(e->arena, item, self->items[i]);
        }
        value_append(e->arena, list, item);
    }
    return list;
}

bool has_method(const struct value *self, const char *name)
{
    static const char *const of_texts[] = {
        "strip",      "lstrip",   "rstrip",    "split", "rsplit",       "splitlines",
        "startswith", "endswith", "replace",   "find",  "rfind",        "count",
        "join",       "isdigit",  "isalpha",   "lower", "removeprefix", "removesuffix",
        "upper",      "title",    "capitalize"};
    static const char *const of_dicts[] = {"get", "items", "keys", "values"};

    for (size_t i = 0; self->kind == VALUE_STRING && i < CT_COUNT(of_texts); i++)
        if (!strcmp(name, of_texts[i]))
            return true;
    for (size_t i = 0; self->kind == VALUE_DICT && i < CT_COUNT(of_dicts); i++)
        if (!strcmp(name, of_dicts[i]))
            return true;
    return self->kind == VALUE_LIST && !strcmp(name, "count");
}

struct value *call_method(struct eval *e, struct value *self, const char *name,
                          const struct call *c)
{
    return self->kind == VALUE_STRING ? text_method(e, self, name, c)
           : self->kind == VALUE_LIST ? count(e, self, c)
                                      : dict_method(e, self, name, c);
}
