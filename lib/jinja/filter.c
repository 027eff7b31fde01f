/*
 * Filters and tests, in tables.
 */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "eval.h"

/* ---- of one value ---- */

static struct value *length(struct eval *e, struct value *of, const struct call *c)
{
    if (of->kind == VALUE_STRING)
        return value_int(e->arena, (int64_t)value_characters(of->text, of->size));
    if (of->kind != VALUE_LIST && of->kind != VALUE_DICT && of->kind != VALUE_UNDEFINED)
        return eval_fail(e, c->line, "the length of what has none");
    return value_int(e->arena, (int64_t)of->count);
}

static struct value *string(struct eval *e, struct value *of, const struct call *c)
{
    struct buffer b = eval_buffer(e);

    eval_put(e, &b, of, c->line);
    return buffer_value(&b);
}

/* Filters that are methods of texts: trim, upper, lower, title, capitalize, replace. */
static struct value *as_method(struct eval *e, struct value *of, const char *name,
                               const struct call *c)
{
    return call_method(e, string(e, of, c), name, c);
}

static struct value *trim(struct eval *e, struct value *of, const struct call *c)
{
    return as_method(e, of, "strip", c);
}

static struct value *upper(struct eval *e, struct value *of, const struct call *c)
{
    return as_method(e, of, "upper", c);
}

static struct value *lower(struct eval *e, struct value *of, const struct call *c)
{
    return as_method(e, of, "lower", c);
}

static struct value *title(struct eval *e, struct value *of, const struct call *c)
{
    return as_method(e, of, "title", c);
}

static struct value *capitalize(struct eval *e, struct value *of, const struct call *c)
{
    return as_method(e, of, "capitalize", c);
}

static struct value *replace(struct eval *e, struct value *of, const struct call *c)
{
    return as_method(e, of, "replace", c);
}

static struct value *tojson(struct eval *e, struct value *of, const struct call *c)
{
    /* In the order that transformers' tojson has; none of them stands for an absent one. */
    static const char *const names[] = {"ensure_ascii", "indent", "separators", "sort_keys"};
    const struct value *given[CT_COUNT(names)];
    struct buffer b = eval_buffer(e);
    struct json_style style;
    size_t known = 0;

    for (size_t i = 0; i < CT_COUNT(names); i++) {
        given[i] = call_argument(c, i, names[i]);
        known += given[i] != NULL;
        given[i] = given[i] ? given[i] : &value_none;
    }
    if (known < c->count || given[2]->kind != VALUE_NONE)
        return eval_fail(e, c->line, "tojson takes ensure_ascii, indent and sort_keys here");
    if (given[1]->kind != VALUE_NONE && given[1]->kind != VALUE_INT)
        return eval_fail(e, c->line, "the indent of tojson is no integer");
    style = (struct json_style){.lines = given[1]->kind == VALUE_INT,
                                .indent = given[1]->integer,
                                .sort_keys = value_truth(given[3]),
                                .ensure_ascii = value_truth(given[0])};
    if (!buffer_json(&b, of, &style, 0))
        return eval_fail(e, c->line, "tojson of what has no JSON: an undefined value, perhaps");
    return buffer_value(&b);
}

static struct value *fallback(struct eval *e, struct value *of, const struct call *c)
{
    struct value *value = call_argument(c, 0, "default_value");
    const struct value *any = call_argument(c, 1, "boolean");
    bool lacks = of->kind == VALUE_UNDEFINED || (any && value_truth(any) && !value_truth(of));

    return !lacks ? of : value ? value : value_text(e->arena, "", 0);
}

static struct value *integer(struct eval *e, struct value *of, const struct call *c)
{
    const struct value *other = call_argument(c, 0, "default");

    if (of->kind == VALUE_STRING && of->size) {
        const char *text = ct_arena_printf(e->arena, "%.*s", (int)of->size, of->text);
        int64_t n;
        double real;
        char *end;

        errno = 0;
        n = strtoll(text, &end, 10);
        if (end != text && !*end)
            return errno ? eval_fail(e, c->line, "%s is no integer of 64 bits", text)
                         : value_int(e->arena, n);
        real = strtod(text, &end);
        if (end != text && !*end && isfinite(real))
            return eval_truncated(e, real, c->line);
    } else if (value_is_number(of)) {
        return of->kind == VALUE_REAL ? eval_truncated(e, of->real, c->line)
                                      : value_int(e->arena, of->integer);
    }
    return value_int(e->arena, other ? other->integer : 0);
}

static struct value *real(struct eval *e, struct value *of, const struct call *c)
{
    (void)c;
    if (value_is_number(of))
        return value_real(e->arena, value_double(of));
    return value_real(e->arena,
                      of->kind == VALUE_STRING
                          ? strtod(ct_arena_printf(e->arena, "%.*s", (int)of->size, of->text), NULL)
                          : 0);
}

static struct value *absolute(struct eval *e, struct value *of, const struct call *c)
{
    if (!value_is_number(of))
        return eval_fail(e, c->line, "abs of what is no number");
    if (of->kind == VALUE_REAL)
        return value_real(e->arena, fabs(of->real));
    return of->integer < 0 ? eval_integers(e, "-", 0, of->integer, c->line)
                           : value_int(e->arena, of->integer);
}

static struct value *same(struct eval *e, struct value *of, const struct call *c)
{
    (void)e;
    (void)c;
    return of;
}

static struct value *escape(struct eval *e, struct value *of, const struct call *c)
{
    static const char marks[] = "&<>'\"";
    static const char *const names[] = {"&amp;", "&lt;", "&gt;", "&#39;", "&#34;"};
    const struct value *text = string(e, of, c);
    struct buffer b = eval_buffer(e);

    for (size_t i = 0; i < text->size; i++) {
        const char *mark = text->text[i] ? strchr(marks, text->text[i]) : NULL;

        buffer_put(&b, mark ? names[mark - marks] : text->text + i,
                   mark ? strlen(names[mark - marks]) : 1);
    }
    return buffer_value(&b);
}

static struct value *indent(struct eval *e, struct value *of, const struct call *c)
{
    const struct value *width = call_argument(c, 0, "width"), *first = call_argument(c, 1, "first");
    const struct value *blank = call_argument(c, 2, "blank"), *text = string(e, of, c);
    const char *at = text->text, *end = at + text->size;
    int64_t spaces = width && width->kind == VALUE_INT ? width->integer : 4;
    struct buffer b = eval_buffer(e);

    for (bool begins = true; at < end || begins; begins = false) {
        const char *newline = memchr(at, '\n', (size_t)(end - at));
        const char *next = newline ? newline + 1 : end;
        bool empty = at == end || *at == '\n';

        if (begins ? first && value_truth(first) : !empty || (blank && value_truth(blank)))
            buffer_spaces(&b, spaces);
        buffer_put(&b, at, (size_t)(next - at));
        at = next;
    }
    return buffer_value(&b);
}

/* ---- of lists ---- */

static struct value *join(struct eval *e, struct value *of, const struct call *c)
{
    const struct value *by = call_argument(c, 0, "d"), *items = eval_items(e, of, c->line);
    const struct value *attribute = call_argument(c, 1, "attribute");
    struct buffer b = eval_buffer(e);

    for (size_t i = 0; e->rc == 0 && i < items->count; i++) {
        struct value *item = items->items[i];

        if (by && i)
            eval_put(e, &b, by, c->line);
        if (attribute)
            item = eval_attribute(
                e, item, ct_arena_printf(e->arena, "%.*s", (int)attribute->size, attribute->text),
                c->line);
        eval_put(e, &b, item, c->line);
    }
    return buffer_value(&b);
}

static struct value *at_end(struct eval *e, struct value *of, const struct call *c, bool last)
{
    const struct value *items = eval_items(e, of, c->line);

    return items->count ? items->items[last ? items->count - 1 : 0] : &value_undefined;
}

static struct value *first(struct eval *e, struct value *of, const struct call *c)
{
    return at_end(e, of, c, false);
}

static struct value *last(struct eval *e, struct value *of, const struct call *c)
{
    return at_end(e, of, c, true);
}

static struct value *list(struct eval *e, struct value *of, const struct call *c)
{
    return eval_items(e, of, c->line);
}

static struct value *reverse(struct eval *e, struct value *of, const struct call *c)
{
    const struct value *items = eval_items(e, of, c->line);
    struct value *out = value_new(e->arena, VALUE_LIST);
    struct buffer b = eval_buffer(e);

    for (size_t i = items->count; i-- > 0;) {
        value_append(e->arena, out, items->items[i]);
        if (of->kind == VALUE_STRING)
            eval_put(e, &b, items->items[i], c->line);
    }
    return of->kind == VALUE_STRING ? buffer_value(&b) : out;
}

static struct value *unique(struct eval *e, struct value *of, const struct call *c)
{
    const struct value *items = eval_items(e, of, c->line);
    struct value *out = value_new(e->arena, VALUE_LIST);

    for (size_t i = 0; i < items->count; i++)
        if (!eval_in(e, items->items[i], out, c->line))
            value_append(e->arena, out, items->items[i]);
    return out;
}

static struct value *pairs(struct eval *e, struct value *of, const struct call *c)
{
    if (of->kind == VALUE_UNDEFINED)
        return value_new(e->arena, VALUE_LIST);
    if (of->kind != VALUE_DICT)
        return eval_fail(e, c->line, "items of what is no dict");
    return call_method(e, of, "items", &(struct call){.line = c->line});
}

/* An insertion sort, which keeps equal items in their order. key: of items that are lists, item 0
   counts. */
static struct value *sorted(struct eval *e, const struct value *items, bool by_first,
                            const struct call *c)
{
    struct value *out = value_new(e->arena, VALUE_LIST);

    for (size_t i = 0; i < items->count; i++) {
        struct value *item = items->items[i];
        size_t at = out->count;

        value_append(e->arena, out, item);
        for (; at > 0; at--) {
            const struct value *a = by_first ? item->items[0] : item;
            const struct value *b = by_first ? out->items[at - 1]->items[0] : out->items[at - 1];
            int order;

            if (!value_order(a, b, &order))
                return eval_fail(e, c->line, "a sort of what has no order");
            if (order >= 0)
                break;
            out->items[at] = out->items[at - 1];
        }
        out->items[at] = item;
    }
    return out;
}

static struct value *sort(struct eval *e, struct value *of, const struct call *c)
{
    if (c->count)
        return eval_fail(e, c->line, "sort with arguments is not supported");
    return sorted(e, eval_items(e, of, c->line), false, c);
}

static struct value *dictsort(struct eval *e, struct value *of, const struct call *c)
{
    if (c->count)
        return eval_fail(e, c->line, "dictsort with arguments is not supported");
    return sorted(e, pairs(e, of, c), true, c);
}

static struct value *sum(struct eval *e, struct value *of, const struct call *c)
{
    const struct value *items = eval_items(e, of, c->line);
    struct value *total = value_int(e->arena, 0);

    for (size_t i = 0; i < items->count; i++) {
        const struct value *item = items->items[i];

        if (!value_is_number(item))
            return eval_fail(e, c->line, "a sum of what is no number");
        total = total->kind == VALUE_REAL || item->kind == VALUE_REAL
                    ? value_real(e->arena, value_double(total) + value_double(item))
                    : eval_integers(e, "+", total->integer, item->integer, c->line);
    }
    return total;
}

/* ---- with another filter or test ---- */

static char *name_of(struct eval *e, const struct value *v)
{
    return ct_arena_printf(e->arena, "%.*s", (int)v->size, v->text);
}

static struct value *map(struct eval *e, struct value *of, const struct call *c)
{
    const struct value *items = eval_items(e, of, c->line);
    const struct value *attribute = call_argument(c, c->count, "attribute");
    struct value *other = call_argument(c, c->count, "default");
    struct value *out = value_new(e->arena, VALUE_LIST);

    if (!attribute && (!c->count || c->args[0]->kind != VALUE_STRING))
        return eval_fail(e, c->line, "map takes a filter, or attribute=..");
    for (size_t i = 0; e->rc == 0 && i < items->count; i++) {
        struct value *item = items->items[i];
        struct call rest = {c->args + 1, c->names + 1, c->count - 1, c->line};

        item = attribute ? eval_attribute(e, item, name_of(e, attribute), c->line)
                         : call_filter(e, name_of(e, c->args[0]), item, &rest);
        value_append(e->arena, out, item->kind == VALUE_UNDEFINED && other ? other : item);
    }
    return out;
}

/* select, reject, selectattr and rejectattr */
static struct value *choose(struct eval *e, struct value *of, const struct call *c, bool attribute,
                            bool want)
{
    const struct value *items = eval_items(e, of, c->line);
    struct value *out = value_new(e->arena, VALUE_LIST);
    size_t used = attribute;

    if (c->count < used || (attribute && c->args[0]->kind != VALUE_STRING))
        return eval_fail(e, c->line, "selectattr and rejectattr take the name of an attribute");
    for (size_t i = 0; e->rc == 0 && i < items->count; i++) {
        struct value *v = attribute
                              ? eval_attribute(e, items->items[i], name_of(e, c->args[0]), c->line)
                              : items->items[i];
        struct call rest = {c->args + used + 1, c->names + used + 1, c->count - used - 1, c->line};
        bool holds =
            c->count > used ? call_test(e, name_of(e, c->args[used]), v, &rest) : value_truth(v);

        if (holds == want)
            value_append(e->arena, out, items->items[i]);
    }
    return out;
}

static struct value *select_items(struct eval *e, struct value *of, const struct call *c)
{
    return choose(e, of, c, false, true);
}

static struct value *reject(struct eval *e, struct value *of, const struct call *c)
{
    return choose(e, of, c, false, false);
}

static struct value *selectattr(struct eval *e, struct value *of, const struct call *c)
{
    return choose(e, of, c, true, true);
}

static struct value *rejectattr(struct eval *e, struct value *of, const struct call *c)
{
    return choose(e, of, c, true, false);
}

static const struct {
    const char *name;
    struct value *(*call)(struct eval *e, struct value *of, const struct call *c);
} filters[] = {
    {"abs", absolute},
    {"capitalize", capitalize},
    {"count", length},
    {"d", fallback},
    {"default", fallback},
    {"dictsort", dictsort},
    {"e", escape},
    {"escape", escape},
    {"first", first},
    {"float", real},
    {"indent", indent},
    {"int", integer},
    {"items", pairs},
    {"join", join},
    {"last", last},
    {"length", length},
    {"list", list},
    {"lower", lower},
    {"map", map},
    {"reject", reject},
    {"rejectattr", rejectattr},
    {"replace", replace},
    {"reverse", reverse},
    {"safe", same},
    {"select", select_items},
    {"selectattr", selectattr},
    {"sort", sort},
    {"string", string},
    {"sum", sum},
    {"title", title},
    {"tojson", tojson},
    {"trim", trim},
    {"unique", unique},
    {"upper", upper},
};

struct value *call_filter(struct eval *e, const char *name, struct value *of, const struct call *c)
{
    eval_check_room(e, c->line); /* map calls many of them */
    for (size_t i = 0; e->rc == 0 && i < CT_COUNT(filters); i++)
        if (!strcmp(filters[i].name, name))
            return filters[i].call(e, of, c);
    return eval_fail(e, c->line, "the filter %s is not supported", name);
}

/* ---- tests ---- */

static bool is_kind(const char *name, const struct value *v, bool *holds)
{
    const struct {
        const char *name;
        bool holds;
    } kinds[] = {
        {"defined", v->kind != VALUE_UNDEFINED},
        {"undefined", v->kind == VALUE_UNDEFINED},
        {"none", v->kind == VALUE_NONE},
        {"boolean", v->kind == VALUE_BOOL},
        {"integer", v->kind == VALUE_INT},
        {"float", v->kind == VALUE_REAL},
        {"number", value_is_number(v)},
        {"string", v->kind == VALUE_STRING},
        {"mapping", v->kind == VALUE_DICT},
        {"sequence", v->kind == VALUE_LIST || v->kind == VALUE_DICT || v->kind == VALUE_STRING ||
                         v->kind == VALUE_UNDEFINED},
        {"iterable", v->kind == VALUE_LIST || v->kind == VALUE_DICT || v->kind == VALUE_STRING ||
                         v->kind == VALUE_UNDEFINED},
        {"callable", v->kind >= VALUE_MACRO},
        {"true", v->kind == VALUE_BOOL && v->integer},
        {"false", v->kind == VALUE_BOOL && !v->integer},
        {"odd", (v->kind == VALUE_INT || v->kind == VALUE_BOOL) && v->integer % 2 != 0},
        {"even", (v->kind == VALUE_INT || v->kind == VALUE_BOOL) && v->integer % 2 == 0},
    };

    for (size_t i = 0; i < CT_COUNT(kinds); i++)
        if (!strcmp(kinds[i].name, name)) {
            *holds = kinds[i].holds;
            return true;
        }
    return false;
}

/* Tests with an argument, as operators. */
static const char *operator_of(const char *name)
{
    static const char *const names[][2] = {
        {"eq", "=="},         {"==", "=="}, {"equalto", "=="}, {"sameas", "=="}, {"ne", "!="},
        {"!=", "!="},         {"lt", "<"},  {"lessthan", "<"}, {"le", "<="},     {"gt", ">"},
        {"greaterthan", ">"}, {"ge", ">="}, {"in", "in"}};

    for (size_t i = 0; i < CT_COUNT(names); i++)
        if (!strcmp(names[i][0], name))
            return names[i][1];
    return NULL;
}

bool call_test(struct eval *e, const char *name, struct value *of, const struct call *c)
{
    const char *operator= operator_of(name);
    bool holds = false;

    if (is_kind(name, of, &holds))
        return holds;
    if (c->count == 1 && operator)
        return value_truth(eval_compare(e, operator, of, c->args[0], c->line));
    if (c->count == 1 && !strcmp(name, "divisibleby") && of->kind == VALUE_INT &&
        c->args[0]->integer)
        return c->args[0]->integer == -1 || of->integer % c->args[0]->integer == 0;
    eval_fail(e, c->line, "the test %s is not supported here", name);
    return false;
}
