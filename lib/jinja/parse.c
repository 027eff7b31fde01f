/*
 * The grammar, from the loosest operator to the tightest, as in Jinja.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <ctitan/error.h>

#include "lex.h"
#include "tree.h"
#include "value.h"

#define DEEPEST 100

struct parser {
    struct ct_arena *arena;
    const char *name;
    const struct lexeme *at;
    int depth, rc;
    bool marks;
};

static struct node *expression(struct parser *p);
static struct node *unary(struct parser *p, bool filtered);
static struct node *statements(struct parser *p, const char *const *ends);

static void *fail(struct parser *p, const char *fmt, const char *what)
{
    char message[256];

    snprintf(message, sizeof(message), fmt, what);
    if (p->rc == 0)
        p->rc = ct_fail(CT_ECONFIG, "%s:%d: %s", p->name, p->at->line, message);
    return NULL;
}

static struct node *new_node(struct parser *p, enum node_kind kind)
{
    struct node *n = ct_arena_new(p->arena, struct node);

    n->kind = kind;
    n->line = p->at->line;
    return n;
}

static bool is(const struct parser *p, enum lex_kind kind, const char *text)
{
    return p->at->kind == kind && !strcmp(p->at->text, text);
}

static bool is_operator(const struct parser *p, const char *text)
{
    return is(p, LEX_OPERATOR, text);
}

static void advance(struct parser *p)
{
    p->at += p->at->kind != LEX_END;
}

static bool take(struct parser *p, enum lex_kind kind, const char *text)
{
    if (p->rc < 0 || !is(p, kind, text))
        return false;
    advance(p);
    return true;
}

static const char *shown(const struct parser *p)
{
    return p->at->kind == LEX_CLOSE ? "the end of the tag"
           : p->at->kind == LEX_END ? "the end of the template"
                                    : p->at->text;
}

static bool expect(struct parser *p, enum lex_kind kind, const char *text)
{
    if (take(p, kind, text))
        return true;
    fail(p,
         ct_arena_printf(p->arena, "expected %s before %%s",
                         kind == LEX_CLOSE ? "the end of the tag" : text),
         shown(p));
    return false;
}

static const char *take_name(struct parser *p)
{
    const char *name = p->at->text;

    if (p->at->kind != LEX_NAME)
        return fail(p, "expected a name before %s", shown(p));
    advance(p);
    return name;
}

static void add_arg(struct parser *p, struct node *n, const char *name, struct node *arg)
{
    size_t room = n->room;

    n->args = ct_arena_grow(p->arena, n->args, &room, n->count + 1, sizeof(*n->args));
    n->names = ct_arena_grow(p->arena, n->names, &n->room, n->count + 1, sizeof(*n->names));
    n->args[n->count] = arg;
    n->names[n->count++] = name;
}

/* ---- expressions ---- */

static struct node *literal(struct parser *p, struct value *value)
{
    struct node *n = new_node(p, NODE_LITERAL);

    n->value = value;
    return n;
}

static struct node *string(struct parser *p)
{
    struct buffer b = {.arena = p->arena};

    for (; p->at->kind == LEX_STRING; advance(p))
        buffer_put(&b, p->at->text, p->at->size);
    return literal(p, buffer_value(&b));
}

static struct node *list(struct parser *p)
{
    struct node *n = new_node(p, NODE_LIST);

    while (p->rc == 0 && !take(p, LEX_OPERATOR, "]")) {
        add_arg(p, n, NULL, expression(p));
        if (!is_operator(p, "]"))
            expect(p, LEX_OPERATOR, ",");
    }
    return n;
}

static struct node *dict(struct parser *p)
{
    struct node *n = new_node(p, NODE_DICT);

    while (p->rc == 0 && !take(p, LEX_OPERATOR, "}")) {
        add_arg(p, n, NULL, expression(p));
        expect(p, LEX_OPERATOR, ":");
        add_arg(p, n, NULL, expression(p));
        if (!is_operator(p, "}"))
            expect(p, LEX_OPERATOR, ",");
    }
    return n;
}

/* In parentheses: an expression, or a tuple, which is a list here. */
static struct node *parentheses(struct parser *p)
{
    struct node *n, *tuple = new_node(p, NODE_LIST);

    if (take(p, LEX_OPERATOR, ")"))
        return tuple;
    n = expression(p);
    if (take(p, LEX_OPERATOR, ")"))
        return n;
    add_arg(p, tuple, NULL, n);
    while (p->rc == 0 && expect(p, LEX_OPERATOR, ",") && !is_operator(p, ")")) {
        add_arg(p, tuple, NULL, expression(p));
        if (is_operator(p, ")"))
            break;
    }
    expect(p, LEX_OPERATOR, ")");
    return tuple;
}

static struct node *name_or_constant(struct parser *p)
{
    static const struct {
        const char *name;
        struct value *value;
    } constants[] = {{"true", &value_true},   {"True", &value_true}, {"false", &value_false},
                     {"False", &value_false}, {"none", &value_none}, {"None", &value_none}};
    struct node *n = new_node(p, NODE_NAME);

    for (size_t i = 0; i < CT_COUNT(constants); i++)
        if (is(p, LEX_NAME, constants[i].name)) {
            advance(p);
            return literal(p, constants[i].value);
        }
    n->text = take_name(p);
    return n;
}

static struct node *primary(struct parser *p)
{
    const struct lexeme *t = p->at;
    int64_t n;

    switch (t->kind) {
    case LEX_NAME:
        return name_or_constant(p);
    case LEX_STRING:
        return string(p);
    case LEX_INT:
        errno = 0;
        n = strtoll(t->text, NULL, 10);
        if (errno)
            return fail(p, "%s is beyond 64 bits", t->text);
        advance(p);
        return literal(p, value_int(p->arena, n));
    case LEX_REAL:
        advance(p);
        return literal(p, value_real(p->arena, strtod(t->text, NULL)));
    default:
        if (take(p, LEX_OPERATOR, "("))
            return parentheses(p);
        if (take(p, LEX_OPERATOR, "["))
            return list(p);
        if (take(p, LEX_OPERATOR, "{"))
            return dict(p);
        return fail(p, "expected an expression before %s", shown(p));
    }
}

/* Arguments up to ')', which follow '('. */
static void arguments(struct parser *p, struct node *n)
{
    while (p->rc == 0 && !take(p, LEX_OPERATOR, ")")) {
        const char *name = NULL;

        if (is_operator(p, "*") || is_operator(p, "**")) {
            fail(p, "%s of arguments is not supported", shown(p));
            return;
        }
        if (p->at->kind == LEX_NAME && p->at[1].kind == LEX_OPERATOR &&
            !strcmp(p->at[1].text, "=")) {
            name = take_name(p);
            advance(p);
        }
        add_arg(p, n, name, expression(p));
        if (!is_operator(p, ")"))
            expect(p, LEX_OPERATOR, ",");
    }
}

/* Behind '['. */
static struct node *subscript(struct parser *p, struct node *of)
{
    struct node *n = new_node(p, NODE_ITEM), *first = NULL;

    n->a = of;
    if (!is_operator(p, ":"))
        first = expression(p);
    if (take(p, LEX_OPERATOR, "]")) {
        n->b = first;
        return n;
    }
    n->kind = NODE_SLICE;
    add_arg(p, n, NULL, first);
    for (int i = 0; i < 2; i++) {
        bool there = take(p, LEX_OPERATOR, ":");

        add_arg(p, n, NULL,
                there && !is_operator(p, ":") && !is_operator(p, "]") ? expression(p) : NULL);
    }
    expect(p, LEX_OPERATOR, "]");
    return n;
}

static struct node *postfix(struct parser *p, struct node *n)
{
    while (p->rc == 0) {
        struct node *of = n;

        if (take(p, LEX_OPERATOR, ".")) {
            n = new_node(p, NODE_ATTRIBUTE);
            if (p->at->kind == LEX_INT) {
                n->kind = NODE_ITEM;
                n->b = primary(p);
            } else {
                n->text = take_name(p);
            }
            n->a = of;
        } else if (take(p, LEX_OPERATOR, "[")) {
            n = subscript(p, of);
        } else if (take(p, LEX_OPERATOR, "(")) {
            n = new_node(p, NODE_CALL);
            n->a = of;
            arguments(p, n);
        } else {
            break;
        }
    }
    return n;
}

static bool begins_argument(const struct parser *p)
{
    static const char *const others[] = {"else", "or", "and", "is", "if", "in", "not", "recursive"};

    if (p->at->kind == LEX_NAME) {
        for (size_t i = 0; i < CT_COUNT(others); i++)
            if (!strcmp(p->at->text, others[i]))
                return false;
        return true;
    }
    return p->at->kind == LEX_STRING || p->at->kind == LEX_INT || p->at->kind == LEX_REAL ||
           is_operator(p, "[") || is_operator(p, "{");
}

static struct node *test(struct parser *p, struct node *of)
{
    struct node *n = new_node(p, NODE_TEST), *negated = NULL;

    if (take(p, LEX_NAME, "not")) {
        negated = new_node(p, NODE_UNARY);
        negated->text = "not";
        negated->a = n;
    }
    n->a = of;
    n->text = take_name(p);
    if (take(p, LEX_OPERATOR, "("))
        arguments(p, n);
    else if (p->rc == 0 && begins_argument(p))
        add_arg(p, n, NULL, postfix(p, primary(p)));
    return negated ? negated : n;
}

static struct node *filter(struct parser *p, struct node *of)
{
    struct node *n = new_node(p, NODE_FILTER);

    n->a = of;
    n->text = take_name(p);
    if (take(p, LEX_OPERATOR, "("))
        arguments(p, n);
    return n;
}

static struct node *filters(struct parser *p, struct node *n)
{
    while (p->rc == 0) {
        if (take(p, LEX_OPERATOR, "|"))
            n = filter(p, n);
        else if (take(p, LEX_NAME, "is"))
            n = test(p, n);
        else if (is_operator(p, "("))
            n = postfix(p, n);
        else
            break;
    }
    return n;
}

static struct node *unary(struct parser *p, bool filtered)
{
    struct node *n;

    if (++p->depth > DEEPEST)
        fail(p, "expressions are nested too deep%s", "");
    if (p->rc == 0 && (is_operator(p, "-") || is_operator(p, "+"))) {
        n = new_node(p, NODE_UNARY);
        n->text = p->at->text;
        advance(p);
        n->a = unary(p, false);
    } else {
        n = p->rc == 0 ? postfix(p, primary(p)) : NULL;
    }
    p->depth--;
    return filtered && n ? filters(p, n) : n;
}

static struct node *tightest(struct parser *p)
{
    return unary(p, true);
}

/* Operators of one level, which group from the left. */
static struct node *level(struct parser *p, const char *const *operators,
                          struct node *(*tighter)(struct parser *))
{
    struct node *n = tighter(p);

    for (const char *const *o = operators; p->rc == 0 && *o; o++)
        if (take(p, LEX_OPERATOR, *o)) {
            struct node *left = n;

            n = new_node(p, NODE_BINARY);
            n->text = *o;
            n->a = left;
            n->b = tighter(p);
            o = operators - 1;
        }
    return n;
}

static struct node *power(struct parser *p)
{
    return level(p, (const char *const[]){"**", NULL}, tightest);
}

static struct node *product(struct parser *p)
{
    return level(p, (const char *const[]){"*", "//", "/", "%", NULL}, power);
}

static struct node *concatenation(struct parser *p)
{
    return level(p, (const char *const[]){"~", NULL}, product);
}

static struct node *sum(struct parser *p)
{
    return level(p, (const char *const[]){"+", "-", NULL}, concatenation);
}

static const char *take_comparison(struct parser *p)
{
    static const char *const operators[] = {"==", "!=", "<=", ">=", "<", ">"};

    for (size_t i = 0; i < CT_COUNT(operators); i++)
        if (take(p, LEX_OPERATOR, operators[i]))
            return operators[i];
    if (take(p, LEX_NAME, "in"))
        return "in";
    if (is(p, LEX_NAME, "not") && p->at[1].kind == LEX_NAME && !strcmp(p->at[1].text, "in")) {
        advance(p);
        advance(p);
        return "not in";
    }
    return NULL;
}

static struct node *comparison(struct parser *p)
{
    struct node *n = sum(p), *compare = NULL;
    const char *operator;

    while (p->rc == 0 && (operator= take_comparison(p))) {
        if (!compare) {
            compare = new_node(p, NODE_COMPARE);
            compare->a = n;
        }
        add_arg(p, compare, operator, sum(p));
    }
    return compare ? compare : n;
}

static struct node *negation(struct parser *p)
{
    struct node *n;

    if (!take(p, LEX_NAME, "not"))
        return comparison(p);
    n = new_node(p, NODE_UNARY);
    n->text = "not";
    if (++p->depth > DEEPEST)
        return fail(p, "expressions are nested too deep%s", "");
    n->a = negation(p);
    p->depth--;
    return n;
}

static struct node *logical(struct parser *p, const char *operator,
                            struct node * (*tighter)(struct parser *))
{
    struct node *n = tighter(p);

    while (take(p, LEX_NAME, operator)) {
        struct node *left = n;

        n = new_node(p, NODE_BINARY);
        n->text = operator;
        n->a = left;
        n->b = tighter(p);
    }
    return n;
}

static struct node *conjunction(struct parser *p)
{
    return logical(p, "and", negation);
}

static struct node *disjunction(struct parser *p)
{
    return logical(p, "or", conjunction);
}

static struct node *expression(struct parser *p)
{
    struct node *n;

    if (++p->depth > DEEPEST)
        return fail(p, "expressions are nested too deep%s", "");
    n = disjunction(p);
    while (take(p, LEX_NAME, "if")) {
        struct node *value = n;

        n = new_node(p, NODE_CHOICE);
        n->b = value;
        n->a = disjunction(p);
        n->c = take(p, LEX_NAME, "else") ? expression(p) : NULL;
    }
    p->depth--;
    return n;
}

/* a, b: a list. */
static struct node *tuple(struct parser *p)
{
    struct node *n = expression(p), *all;

    if (!is_operator(p, ","))
        return n;
    all = new_node(p, NODE_LIST);
    add_arg(p, all, NULL, n);
    while (take(p, LEX_OPERATOR, ",") && p->at->kind != LEX_CLOSE)
        add_arg(p, all, NULL, expression(p));
    return all;
}

/* ---- statements ---- */

static void close_tag(struct parser *p)
{
    expect(p, LEX_CLOSE, "");
}

static bool begins_block(const struct parser *p, const char *name)
{
    return p->at->kind == LEX_BLOCK && p->at[1].kind == LEX_NAME && !strcmp(p->at[1].text, name);
}

/* Take {% name. */
static bool take_block(struct parser *p, const char *name)
{
    if (p->rc < 0 || !begins_block(p, name))
        return false;
    p->at += 2;
    return true;
}

static void end_block(struct parser *p, const char *name)
{
    if (p->rc == 0 && !take_block(p, name))
        fail(p, "expected {%% %s %%}", name);
    else
        close_tag(p);
}

static struct node *body_of(struct parser *p, const char *end)
{
    struct node *body;

    close_tag(p);
    body = statements(p, (const char *const[]){end, NULL});
    end_block(p, end);
    return body;
}

static struct node *condition(struct parser *p)
{
    static const char *const ends[] = {"elif", "else", "endif", NULL};
    struct node *first = new_node(p, NODE_IF), *n = first;

    do {
        n->a = expression(p);
        close_tag(p);
        n->body = statements(p, ends);
        if (begins_block(p, "elif"))
            n = n->otherwise = new_node(p, NODE_IF);
    } while (take_block(p, "elif"));
    if (take_block(p, "else")) {
        close_tag(p);
        n->otherwise = statements(p, ends + 2);
    }
    end_block(p, "endif");
    return first;
}

static void target_names(struct parser *p, struct node *n)
{
    bool parenthesised = take(p, LEX_OPERATOR, "(");

    do
        add_arg(p, n, take_name(p), NULL);
    while (take(p, LEX_OPERATOR, ",") && p->at->kind == LEX_NAME);
    if (parenthesised)
        expect(p, LEX_OPERATOR, ")");
}

static struct node *loop(struct parser *p)
{
    static const char *const ends[] = {"else", "endfor", NULL};
    struct node *n = new_node(p, NODE_FOR);

    target_names(p, n);
    expect(p, LEX_NAME, "in");
    n->a = disjunction(p);
    if (take(p, LEX_NAME, "if"))
        n->b = expression(p);
    if (is(p, LEX_NAME, "recursive"))
        return fail(p, "a %s loop is not supported", "recursive");
    close_tag(p);
    n->body = statements(p, ends);
    if (take_block(p, "else")) {
        close_tag(p);
        n->otherwise = statements(p, ends + 1);
    }
    end_block(p, "endfor");
    return n;
}

static struct node *assignment(struct parser *p)
{
    struct node *n = new_node(p, NODE_SET);

    if (p->at->kind == LEX_NAME && p->at[1].kind == LEX_OPERATOR && !strcmp(p->at[1].text, ".")) {
        n->text = take_name(p);
        advance(p);
    }
    target_names(p, n);
    if (take(p, LEX_OPERATOR, "=")) {
        n->a = tuple(p);
        close_tag(p);
        return n;
    }
    n->b = p->rc == 0 && is_operator(p, "|") ? filters(p, literal(p, NULL)) : NULL;
    n->body = body_of(p, "endset");
    return n;
}

static struct node *macro(struct parser *p)
{
    struct node *n = new_node(p, NODE_MACRO);

    n->text = take_name(p);
    expect(p, LEX_OPERATOR, "(");
    while (p->rc == 0 && !take(p, LEX_OPERATOR, ")")) {
        const char *name = take_name(p);

        add_arg(p, n, name, take(p, LEX_OPERATOR, "=") ? expression(p) : NULL);
        if (!is_operator(p, ")"))
            expect(p, LEX_OPERATOR, ",");
    }
    n->body = body_of(p, "endmacro");
    return n;
}

static struct node *with(struct parser *p)
{
    struct node *n = new_node(p, NODE_WITH);

    while (p->rc == 0 && p->at->kind != LEX_CLOSE) {
        const char *name = take_name(p);

        expect(p, LEX_OPERATOR, "=");
        add_arg(p, n, name, expression(p));
        if (p->at->kind != LEX_CLOSE)
            expect(p, LEX_OPERATOR, ",");
    }
    n->body = body_of(p, "endwith");
    return n;
}

static struct node *generation(struct parser *p)
{
    struct node *n = new_node(p, NODE_GENERATION);

    p->marks = true;
    n->body = body_of(p, "endgeneration");
    return n;
}

static struct node *leave(struct parser *p, enum node_kind kind)
{
    struct node *n = new_node(p, kind);

    close_tag(p);
    return n;
}

static struct node *block(struct parser *p)
{
    if (take_block(p, "if"))
        return condition(p);
    if (take_block(p, "for"))
        return loop(p);
    if (take_block(p, "set"))
        return assignment(p);
    if (take_block(p, "macro"))
        return macro(p);
    if (take_block(p, "with"))
        return with(p);
    if (take_block(p, "generation"))
        return generation(p);
    if (take_block(p, "break"))
        return leave(p, NODE_BREAK);
    if (take_block(p, "continue"))
        return leave(p, NODE_CONTINUE);
    advance(p);
    return fail(p, "{%% %s %%} is not supported here", shown(p));
}

static struct node *statement(struct parser *p)
{
    struct node *n;

    if (p->at->kind == LEX_BLOCK)
        return block(p);
    n = new_node(p, p->at->kind == LEX_TEXT ? NODE_TEXT : NODE_PRINT);
    n->text = p->at->text;
    n->size = p->at->size;
    advance(p);
    if (n->kind == NODE_PRINT) {
        n->a = tuple(p);
        close_tag(p);
    }
    return n;
}

/* Up to the first of the blocks that end them. */
static struct node *statements(struct parser *p, const char *const *ends)
{
    struct node *first = NULL, **last = &first;

    if (++p->depth > DEEPEST)
        return fail(p, "blocks are nested too deep%s", "");
    while (p->rc == 0 && p->at->kind != LEX_END) {
        for (const char *const *end = ends; *end; end++)
            if (begins_block(p, *end)) {
                p->depth--;
                return first;
            }
        *last = statement(p);
        last = *last ? &(*last)->next : last;
    }
    p->depth--;
    return first;
}

int ct_jinja_read(struct ct_arena *arena, const char *name, const char *source, size_t size,
                  struct ct_jinja **out)
{
    struct ct_jinja *jinja = ct_arena_new(arena, struct ct_jinja);
    struct lexeme *tokens;
    struct parser p = {.arena = arena, .name = ct_arena_strdup(arena, name)};

    p.rc = lex(arena, p.name, source, size, &tokens);
    p.at = tokens;
    if (p.rc == 0)
        jinja->body = statements(&p, (const char *const[]){NULL});
    jinja->name = p.name;
    jinja->marks = p.marks;
    *out = jinja;
    return p.rc;
}

bool ct_jinja_marks(const struct ct_jinja *jinja)
{
    return jinja->marks;
}
