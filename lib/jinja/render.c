/*
 * Statements.
 *
 * A loop's body, a macro and a block of `with` have names of their own; a condition has not.
 */
#include <string.h>

#include "eval.h"

static void render(struct eval *e, const struct node *list);

static void set_name(struct eval *e, const char *name, struct value *value)
{
    frame_set(e, e->frame, name, value);
}

/* ---- loops ---- */

static void unpack(struct eval *e, const struct node *n, struct value *value)
{
    if (n->count == 1) {
        set_name(e, n->names[0], value);
        return;
    }
    if (value->kind != VALUE_LIST || value->count != n->count) {
        eval_fail(e, n->line, "%zu names are set to what has not as many items", n->count);
        return;
    }
    for (size_t i = 0; i < n->count; i++)
        set_name(e, n->names[i], value->items[i]);
}

/* The items for which the loop's condition holds. */
static struct value *chosen(struct eval *e, const struct node *n)
{
    struct value *all = eval_items(e, eval(e, n->a), n->line);
    struct value *list = value_new(e->arena, VALUE_LIST);
    struct frame *outer = e->frame;

    if (!n->b || e->rc < 0)
        return all;
    for (size_t i = 0; e->rc == 0 && i < all->count; i++) {
        e->frame = frame_new(e, outer);
        unpack(e, n, all->items[i]);
        if (value_truth(eval(e, n->b)))
            value_append(e->arena, list, all->items[i]);
    }
    e->frame = outer;
    return list;
}

static void put(struct eval *e, struct value *dict, const char *key, struct value *item)
{
    value_put(e->arena, dict, value_text(e->arena, key, strlen(key)), item);
}

/* loop.* */
static struct value *describe(struct eval *e, const struct value *items, size_t i)
{
    struct value *loop = value_new(e->arena, VALUE_NAMESPACE);
    int64_t n = (int64_t)i, count = (int64_t)items->count;

    put(e, loop, "index", value_int(e->arena, n + 1));
    put(e, loop, "index0", value_int(e->arena, n));
    put(e, loop, "revindex", value_int(e->arena, count - n));
    put(e, loop, "revindex0", value_int(e->arena, count - n - 1));
    put(e, loop, "first", value_bool(n == 0));
    put(e, loop, "last", value_bool(n + 1 == count));
    put(e, loop, "length", value_int(e->arena, count));
    if (n > 0)
        put(e, loop, "previtem", items->items[i - 1]);
    if (n + 1 < count)
        put(e, loop, "nextitem", items->items[i + 1]);
    return loop;
}

/* As in Jinja, turns that end with continue or break do not count for else. */
static void render_loop(struct eval *e, const struct node *n)
{
    const struct value *items = chosen(e, n);
    struct frame *outer = e->frame;
    bool whole = false;

    for (size_t i = 0; e->rc == 0 && e->leaving != LEAVE_LOOP && i < items->count; i++) {
        e->frame = frame_new(e, outer);
        unpack(e, n, items->items[i]);
        set_name(e, "loop", describe(e, items, i));
        render(e, n->body);
        whole |= e->leaving == GO_ON;
        if (e->leaving == NEXT_TURN)
            e->leaving = GO_ON;
    }
    e->frame = outer;
    e->leaving = GO_ON;
    if (!whole)
        render(e, n->otherwise);
}

/* ---- names ---- */

/* The text of a block. */
static struct value *captured(struct eval *e, const struct node *body)
{
    struct buffer b = eval_buffer(e), *outer = e->out;

    e->out = &b;
    render(e, body);
    e->out = outer;
    return buffer_value(&b);
}

static void render_set(struct eval *e, const struct node *n)
{
    struct value *value = n->a ? eval(e, n->a) : captured(e, n->body), *of;

    if (n->b) {
        e->held = value;
        value = eval(e, n->b);
    }
    if (e->rc < 0)
        return;
    if (!n->text) {
        unpack(e, n, value);
        return;
    }
    of = frame_find(e->frame, n->text);
    if (value_depth(value) > EVAL_DEEPEST)
        eval_fail(e, n->line, "%s.%s is set to lists and dicts that are nested too deep", n->text,
                  n->names[0]);
    else if (of && of->kind == VALUE_NAMESPACE)
        put(e, of, n->names[0], value);
    else
        eval_fail(e, n->line, "%s.%s is set, but %s is no namespace", n->text, n->names[0],
                  n->text);
}

static void render_with(struct eval *e, const struct node *n)
{
    struct frame *outer = e->frame, *inner = frame_new(e, outer);

    for (size_t i = 0; i < n->count; i++)
        frame_set(e, inner, n->names[i], eval(e, n->args[i]));
    e->frame = inner;
    render(e, n->body);
    e->frame = outer;
}

static void define_macro(struct eval *e, const struct node *n)
{
    struct value *v = value_new(e->arena, VALUE_MACRO);

    v->macro = n;
    v->scope = e->frame;
    set_name(e, n->text, v);
}

static void bind(struct eval *e, const struct node *n, const struct call *call)
{
    size_t positional = 0;

    for (size_t i = 0; i < call->count; i++) {
        bool known = !call->names[i] && i < n->count;

        positional += !call->names[i];
        for (size_t k = 0; call->names[i] && k < n->count; k++)
            known |= !strcmp(call->names[i], n->names[k]);
        if (!known)
            eval_fail(e, call->line, "the macro %s takes no such argument: %s", n->text,
                      call->names[i] ? call->names[i] : "too many are given");
    }
    for (size_t i = 0; i < n->count; i++) {
        struct value *v = call_argument(call, i < positional ? i : call->count, n->names[i]);

        set_name(e, n->names[i], v ? v : n->args[i] ? eval(e, n->args[i]) : &value_undefined);
    }
}

struct value *call_macro(struct eval *e, const struct value *macro, const struct call *call)
{
    struct frame *caller = e->frame;
    struct value *text;

    e->frame = frame_new(e, macro->scope);
    bind(e, macro->macro, call);
    text = captured(e, macro->macro->body);
    e->leaving = GO_ON;
    e->frame = caller;
    return text;
}

/* ---- the rest ---- */

/* Spans are of the text: those of a block that is captured would be elsewhere. */
static void render_generation(struct eval *e, const struct node *n)
{
    struct ct_jinja_text *t = e->text;
    size_t begin = e->out->size;

    if (e->out != e->whole) {
        eval_fail(e, n->line,
                  "{%% generation %%} in a macro or in a block of set is not "
                  "supported");
        return;
    }
    render(e, n->body);
    t->answers =
        ct_arena_grow(e->arena, t->answers, &e->span_room, t->count + 1, sizeof(*t->answers));
    t->answers[t->count++] = (struct ct_text_span){begin, e->out->size};
}

/* The statements of the first condition that holds. An elif is a condition in `otherwise`. */
static const struct node *branch(struct eval *e, const struct node *n)
{
    for (; !value_truth(eval(e, n->a)); n = n->otherwise)
        if (!n->otherwise || n->otherwise->kind != NODE_IF || n->otherwise->next)
            return n->otherwise;
    return n->body;
}

static void render_one(struct eval *e, const struct node *n)
{
    switch (n->kind) {
    case NODE_TEXT:
        buffer_put(e->out, n->text, n->size);
        break;
    case NODE_PRINT:
        eval_put(e, e->out, eval(e, n->a), n->line);
        break;
    case NODE_IF:
        render(e, branch(e, n));
        break;
    case NODE_FOR:
        render_loop(e, n);
        break;
    case NODE_SET:
        render_set(e, n);
        break;
    case NODE_MACRO:
        define_macro(e, n);
        break;
    case NODE_WITH:
        render_with(e, n);
        break;
    case NODE_GENERATION:
        render_generation(e, n);
        break;
    default:
        e->leaving = n->kind == NODE_BREAK ? LEAVE_LOOP : NEXT_TURN;
    }
}

static void render(struct eval *e, const struct node *list)
{
    for (; e->rc == 0 && e->leaving == GO_ON && list; list = list->next) {
        render_one(e, list);
        eval_check_room(e, list->line);
    }
}

int ct_jinja_render(const struct ct_jinja *jinja, const json_t *variables, const char *date,
                    struct ct_arena *arena, struct ct_jinja_text *text)
{
    struct frame globals = {.names = value_of_json(arena, variables)};
    struct buffer out;
    struct eval e = {.jinja = jinja,
                     .arena = arena,
                     .date = date,
                     .frame = &globals,
                     .before = ct_arena_taken(arena),
                     .out = &out,
                     .whole = &out,
                     .text = text};

    *text = (struct ct_jinja_text){0};
    out = eval_buffer(&e);
    render(&e, jinja->body);
    text->size = out.size;
    text->data = out.size ? out.data : ct_arena_strdup(arena, "");
    return e.rc;
}
