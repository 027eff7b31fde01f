#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <ctitan/error.h>

#include "eval.h"

#define LARGEST ((size_t)256 << 20) /* bytes of all values of a rendering */

struct value *eval_fail(struct eval *e, int line, const char *fmt, ...)
{
    char message[512];
    va_list args;

    va_start(args, fmt);
    vsnprintf(message, sizeof(message), fmt, args);
    va_end(args);
    if (e->rc == 0)
        e->rc = ct_fail(CT_ECONFIG, "%s:%d: %s", e->jinja->name, line, message);
    return &value_undefined;
}

/* ---- room ---- */

struct buffer eval_buffer(struct eval *e)
{
    return (struct buffer){.arena = e->arena, .over = &e->over};
}

bool eval_has_room(const struct eval *e)
{
    return !e->over && ct_arena_taken(e->arena) - e->before <= LARGEST;
}

void eval_check_room(struct eval *e, int line)
{
    if (e->over)
        eval_fail(e, line, "a text of more than %zu bytes", BUFFER_LONGEST);
    else if (!eval_has_room(e))
        eval_fail(e, line, "values of more than %zu bytes", LARGEST);
}

/* ---- names ---- */

struct frame *frame_new(struct eval *e, struct frame *parent)
{
    struct frame *f = ct_arena_new(e->arena, struct frame);

    f->parent = parent;
    f->names = value_new(e->arena, VALUE_DICT);
    return f;
}

struct value *frame_find(const struct frame *frame, const char *name)
{
    for (; frame; frame = frame->parent) {
        struct value *v = value_find(frame->names, name, strlen(name));

        if (v)
            return v;
    }
    return NULL;
}

void frame_set(struct eval *e, struct frame *frame, const char *name, struct value *value)
{
    value_put(e->arena, frame->names, value_text(e->arena, name, strlen(name)), value);
}

static struct value *named(struct eval *e, enum value_kind kind, const char *name)
{
    struct value *v = value_new(e->arena, kind);

    v->text = name;
    v->size = strlen(name);
    return v;
}

static struct value *find_name(struct eval *e, const char *name)
{
    struct value *v = frame_find(e->frame, name);

    if (v)
        return v;
    return named(e, has_function(e, name) ? VALUE_FUNCTION : VALUE_UNDEFINED, name);
}

/* ---- parts of values ---- */

struct value *eval_attribute(struct eval *e, struct value *of, const char *name, int line)
{
    struct value *v = NULL;

    if (of->kind == VALUE_UNDEFINED)
        return eval_fail(e, line, "%s is undefined, and has no %s", of->text ? of->text : "a value",
                         name);
    if (has_method(of, name)) {
        v = named(e, VALUE_METHOD, name);
        v->self = of;
        return v;
    }
    if (of->kind == VALUE_DICT || of->kind == VALUE_NAMESPACE)
        v = value_find(of, name, strlen(name));
    return v ? v : named(e, VALUE_UNDEFINED, name);
}

static struct value *characters(struct eval *e, const struct value *text, size_t from, size_t count)
{
    size_t begin = value_character(text->text, text->size, from);

    return value_text(e->arena, text->text + begin,
                      value_character(text->text + begin, text->size - begin, count));
}

static size_t length_of(const struct value *v)
{
    return v->kind == VALUE_STRING ? value_characters(v->text, v->size) : v->count;
}

static struct value *item(struct eval *e, struct value *of, struct value *key, int line)
{
    int64_t n = key->integer, length = (int64_t)length_of(of);
    struct value *v;

    if (of->kind == VALUE_UNDEFINED)
        return eval_fail(e, line, "%s is undefined, and has no items",
                         of->text ? of->text : "a value");
    if (of->kind == VALUE_DICT || of->kind == VALUE_NAMESPACE) {
        v = value_get(of, key);
        if (v)
            return v;
    }
    if (key->kind == VALUE_STRING)
        return eval_attribute(e, of, ct_arena_printf(e->arena, "%.*s", (int)key->size, key->text),
                              line);
    if (key->kind != VALUE_INT || (of->kind != VALUE_LIST && of->kind != VALUE_STRING))
        return named(e, VALUE_UNDEFINED, "an item");
    n += n < 0 ? length : 0;
    if (n < 0 || n >= length)
        return named(e, VALUE_UNDEFINED, "an item");
    return of->kind == VALUE_LIST ? of->items[n] : characters(e, of, (size_t)n, 1);
}

/* A bound of a slice, as Python takes it. */
static int64_t bound(struct eval *e, const struct node *n, int64_t length, int64_t step,
                     int64_t absent)
{
    const struct value *v = n ? eval(e, n) : &value_none;
    int64_t at = v->integer;

    if (v->kind == VALUE_NONE)
        return absent;
    if (v->kind != VALUE_INT) {
        eval_fail(e, n->line, "a bound of a slice is no integer");
        return absent;
    }
    at += at < 0 ? length : 0;
    if (at < 0)
        return step < 0 ? -1 : 0;
    return at >= length ? (step < 0 ? length - 1 : length) : at;
}

static struct value *slice(struct eval *e, const struct node *n)
{
    struct value *of = eval(e, n->a), *list = value_new(e->arena, VALUE_LIST);
    struct buffer text = eval_buffer(e);
    int64_t step = n->args[2] ? eval(e, n->args[2])->integer : 1;
    int64_t length = (int64_t)length_of(of), from, to;

    if (of->kind != VALUE_LIST && of->kind != VALUE_STRING)
        return eval_fail(e, n->line, "a slice of what is neither a list nor a text");
    if (!step)
        return eval_fail(e, n->line, "the step of a slice is 0");
    from = bound(e, n->args[0], length, step, step < 0 ? length - 1 : 0);
    to = bound(e, n->args[1], length, step, step < 0 ? -1 : length);
    if (of->kind == VALUE_STRING && step == 1)
        return characters(e, of, (size_t)from, to > from ? (size_t)(to - from) : 0);
    for (int64_t i = from; step > 0 ? i < to : i > to;) {
        if (of->kind == VALUE_LIST) {
            value_append(e->arena, list, of->items[i]);
        } else {
            const struct value *c = characters(e, of, (size_t)i, 1);

            buffer_put(&text, c->text, c->size);
        }
        if (__builtin_add_overflow(i, step, &i))
            break;
    }
    return of->kind == VALUE_LIST ? list : buffer_value(&text);
}

struct value *eval_items(struct eval *e, struct value *of, int line)
{
    struct value *list = value_new(e->arena, VALUE_LIST);
    size_t count = length_of(of);

    if (of->kind == VALUE_LIST)
        return of;
    if (of->kind != VALUE_DICT && of->kind != VALUE_STRING && of->kind != VALUE_UNDEFINED)
        return eval_fail(e, line, "a loop over what is no list");
    for (size_t i = 0; i < count && eval_has_room(e); i++)
        value_append(e->arena, list,
                     of->kind == VALUE_DICT ? of->keys[i] : characters(e, of, i, 1));
    return list;
}

/* ---- operators ---- */

static int64_t floor_divide(int64_t a, int64_t b)
{
    return a / b - (a % b != 0 && (a < 0) != (b < 0));
}

struct value *eval_integers(struct eval *e, const char *o, int64_t a, int64_t b, int line)
{
    int64_t result = 1;
    bool over = false;

    switch (*o) {
    case '+':
        over = __builtin_add_overflow(a, b, &result);
        break;
    case '-':
        over = __builtin_sub_overflow(a, b, &result);
        break;
    case '*':
        if (o[1] != '*')
            over = __builtin_mul_overflow(a, b, &result);
        for (int64_t i = 0; o[1] == '*' && i < b && !over && (a > 1 || a < -1); i++)
            over = __builtin_mul_overflow(result, a, &result);
        if (o[1] == '*' && (a == 0 || a == -1) && b > 0)
            result = a == 0 ? 0 : b % 2 ? -1 : 1;
        break;
    default:
        if (!b)
            return eval_fail(e, line, "a division by zero");
        over = b == -1 && a == INT64_MIN;
        if (over)
            break;
        result = *o == '%' ? a - b * floor_divide(a, b) : floor_divide(a, b);
    }
    return over ? eval_fail(e, line, "an integer beyond 64 bits") : value_int(e->arena, result);
}

struct value *eval_truncated(struct eval *e, double real, int line)
{
    if (!(real >= -0x1p63 && real < 0x1p63))
        return eval_fail(e, line, "%g is no integer of 64 bits", real);
    return value_int(e->arena, (int64_t)real);
}

static struct value *reals(struct eval *e, const char *o, double a, double b, int line)
{
    if ((*o == '/' || *o == '%') && b == 0)
        return eval_fail(e, line, "a division by zero");
    switch (*o) {
    case '+':
        return value_real(e->arena, a + b);
    case '-':
        return value_real(e->arena, a - b);
    case '*':
        return value_real(e->arena, o[1] == '*' ? pow(a, b) : a * b);
    case '%':
        return value_real(e->arena, a - b * floor(a / b));
    default:
        return value_real(e->arena, o[1] == '/' ? floor(a / b) : a / b);
    }
}

static struct value *joined(struct eval *e, const struct value *a, const struct value *b)
{
    struct value *list = value_new(e->arena, VALUE_LIST);
    struct buffer text = eval_buffer(e);

    if (a->kind == VALUE_STRING) {
        buffer_put(&text, a->text, a->size);
        buffer_put(&text, b->text, b->size);
        return buffer_value(&text);
    }
    for (size_t i = 0; i < a->count + b->count; i++)
        value_append(e->arena, list, i < a->count ? a->items[i] : b->items[i - a->count]);
    return list;
}

static struct value *repeated(struct eval *e, const struct value *text, int64_t times)
{
    struct buffer b = eval_buffer(e);

    e->over |= times > 0 && text->size > BUFFER_LONGEST / (size_t)times;
    for (int64_t i = 0; text->size && i < times && !e->over; i++)
        buffer_put(&b, text->text, text->size);
    return buffer_value(&b);
}

static const char *kind_name(const struct value *v)
{
    static const char *const names[] = {"an undefined value", "none",   "a boolean", "an integer",
                                        "a number",           "a text", "a list",    "a dict",
                                        "a namespace"};

    return (size_t)v->kind < CT_COUNT(names) ? names[v->kind] : "a function";
}

static struct value *arithmetic(struct eval *e, const struct node *n)
{
    struct value *a = eval(e, n->a), *b = eval(e, n->b);
    const char *o = n->text;
    bool whole = a->kind != VALUE_REAL && b->kind != VALUE_REAL;

    if (e->rc < 0)
        return &value_undefined;
    if (value_is_number(a) && value_is_number(b))
        return whole && strcmp(o, "/") != 0 && !(o[0] == '*' && o[1] == '*' && b->integer < 0)
                   ? eval_integers(e, o, a->integer, b->integer, n->line)
                   : reals(e, o, value_double(a), value_double(b), n->line);
    if (*o == '+' && a->kind == b->kind && (a->kind == VALUE_STRING || a->kind == VALUE_LIST))
        return joined(e, a, b);
    if (!strcmp(o, "*") && a->kind == VALUE_STRING && b->kind == VALUE_INT)
        return repeated(e, a, b->integer);
    if (*o == '%' && a->kind == VALUE_STRING)
        return eval_fail(e, n->line, "%% of a text is not supported");
    return eval_fail(e, n->line, "%s is not possible with %s and %s", o, kind_name(a),
                     kind_name(b));
}

void eval_put(struct eval *e, struct buffer *b, const struct value *value, int line)
{
    bool holds = value->kind == VALUE_LIST || value->kind == VALUE_DICT;

    buffer_str(b, value);
    if (b->textless)
        eval_fail(e, line, "%s has no text%s", kind_name(value),
                  holds ? ", or a value within it" : "");
    b->textless = false;
}

static struct value *concatenate(struct eval *e, const struct node *n)
{
    struct buffer b = eval_buffer(e);

    eval_put(e, &b, eval(e, n->a), n->line);
    eval_put(e, &b, eval(e, n->b), n->line);
    return buffer_value(&b);
}

static struct value *binary(struct eval *e, const struct node *n)
{
    struct value *a;

    if (!strcmp(n->text, "~"))
        return concatenate(e, n);
    if (strcmp(n->text, "and") != 0 && strcmp(n->text, "or") != 0)
        return arithmetic(e, n);
    a = eval(e, n->a);
    return value_truth(a) == (*n->text == 'a') ? eval(e, n->b) : a;
}

bool eval_in(struct eval *e, const struct value *item_, const struct value *of, int line)
{
    if (of->kind == VALUE_STRING && item_->kind == VALUE_STRING)
        return !item_->size || memmem(of->text, of->size, item_->text, item_->size);
    if (of->kind == VALUE_DICT)
        return value_get(of, item_);
    if (of->kind != VALUE_LIST && of->kind != VALUE_UNDEFINED)
        eval_fail(e, line, "in is not possible with %s and %s", kind_name(item_), kind_name(of));
    for (size_t i = 0; of->kind == VALUE_LIST && i < of->count; i++)
        if (value_equal(of->items[i], item_))
            return true;
    return false;
}

struct value *eval_compare(struct eval *e, const char *o, struct value *a, struct value *b,
                           int line)
{
    int order = 0;

    if (!strcmp(o, "==") || !strcmp(o, "!="))
        return value_bool(value_equal(a, b) == (*o == '='));
    if (!strcmp(o, "in") || !strcmp(o, "not in"))
        return value_bool(eval_in(e, a, b, line) == (*o == 'i'));
    if (!value_order(a, b, &order))
        return eval_fail(e, line, "%s is not possible with %s and %s", o, kind_name(a),
                         kind_name(b));
    if (o[1] == '=' && order == 0)
        return &value_true;
    return value_bool(*o == '<' ? order < 0 : order > 0);
}

static struct value *compare(struct eval *e, const struct node *n)
{
    struct value *left = eval(e, n->a), *result = &value_true;

    for (size_t i = 0; e->rc == 0 && i < n->count && value_truth(result); i++) {
        struct value *right = eval(e, n->args[i]);

        if (e->rc == 0)
            result = eval_compare(e, n->names[i], left, right, n->line);
        left = right;
    }
    return result;
}

static struct value *unary(struct eval *e, const struct node *n)
{
    const struct value *v = eval(e, n->a);

    if (*n->text == 'n')
        return value_bool(!value_truth(v));
    if (!value_is_number(v))
        return eval_fail(e, n->line, "%s is not possible with %s", n->text, kind_name(v));
    if (v->kind == VALUE_REAL)
        return value_real(e->arena, *n->text == '-' ? -v->real : v->real);
    return eval_integers(e, n->text, 0, v->integer, n->line);
}

/* ---- calls ---- */

struct value *call_argument(const struct call *c, size_t at, const char *name)
{
    for (size_t i = 0; i < c->count; i++)
        if (c->names[i] && !strcmp(c->names[i], name))
            return c->args[i];
    return at < c->count && !c->names[at] ? c->args[at] : NULL;
}

static struct call arguments(struct eval *e, const struct node *n)
{
    struct call c = {.count = n->count, .names = n->names, .line = n->line};

    c.args = ct_arena_array(e->arena, struct value *, n->count + 1);
    for (size_t i = 0; i < n->count; i++)
        c.args[i] = eval(e, n->args[i]);
    return c;
}

static struct value *call(struct eval *e, const struct node *n)
{
    struct value *f = eval(e, n->a);
    struct call c = arguments(e, n);

    if (e->rc < 0)
        return &value_undefined;
    if (f->kind == VALUE_MACRO)
        return call_macro(e, f, &c);
    if (f->kind == VALUE_FUNCTION)
        return call_function(e, f->text, &c);
    if (f->kind == VALUE_METHOD)
        return call_method(e, f->self, f->text, &c);
    if (f->kind == VALUE_UNDEFINED && f->text && !strcmp(f->text, "strftime_now"))
        return eval_fail(e, n->line,
                         "the template writes the date, and none is given: set [text] "
                         "date");
    return eval_fail(e, n->line, "%s is no function or method that is supported",
                     f->kind == VALUE_UNDEFINED && f->text ? f->text : kind_name(f));
}

static struct value *listed(struct eval *e, const struct node *n)
{
    struct value *v = value_new(e->arena, n->kind == NODE_LIST ? VALUE_LIST : VALUE_DICT);

    for (size_t i = 0; n->kind == NODE_LIST && i < n->count; i++)
        value_append(e->arena, v, eval(e, n->args[i]));
    for (size_t i = 0; n->kind == NODE_DICT && i < n->count; i += 2)
        value_put(e->arena, v, eval(e, n->args[i]), eval(e, n->args[i + 1]));
    return v;
}

static struct value *filtered(struct eval *e, const struct node *n)
{
    struct value *of = eval(e, n->a);
    struct call c = arguments(e, n);

    return e->rc < 0 ? &value_undefined : call_filter(e, n->text, of, &c);
}

static struct value *tested(struct eval *e, const struct node *n)
{
    struct value *of = eval(e, n->a);
    struct call c = arguments(e, n);

    return value_bool(e->rc == 0 && call_test(e, n->text, of, &c));
}

static struct value *eval_kind(struct eval *e, const struct node *n)
{
    switch (n->kind) {
    case NODE_LITERAL:
        return n->value ? (struct value *)(uintptr_t)n->value : e->held;
    case NODE_NAME:
        return find_name(e, n->text);
    case NODE_LIST:
    case NODE_DICT:
        return listed(e, n);
    case NODE_ATTRIBUTE:
        return eval_attribute(e, eval(e, n->a), n->text, n->line);
    case NODE_ITEM:
        return item(e, eval(e, n->a), eval(e, n->b), n->line);
    case NODE_SLICE:
        return slice(e, n);
    case NODE_CALL:
        return call(e, n);
    case NODE_FILTER:
        return filtered(e, n);
    case NODE_TEST:
        return tested(e, n);
    case NODE_UNARY:
        return unary(e, n);
    case NODE_BINARY:
        return binary(e, n);
    case NODE_COMPARE:
        return compare(e, n);
    default:
        return value_truth(eval(e, n->a)) ? eval(e, n->b) : n->c ? eval(e, n->c) : &value_undefined;
    }
}

struct value *eval(struct eval *e, const struct node *n)
{
    struct value *v = &value_undefined;

    if (e->rc < 0)
        return v;
    if (++e->depth > EVAL_DEEPEST)
        eval_fail(e, n->line, "expressions or macros are nested too deep");
    else
        v = eval_kind(e, n);
    e->depth--;
    eval_check_room(e, n->line);
    return e->rc < 0 ? &value_undefined : v;
}
