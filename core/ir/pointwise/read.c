/*
 * Reading formulas: recursive descent, one function for each strength of binding.
 */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include <ctitan/error.h>
#include <ctitan/rule.h>
#include <ctitan/pointwise.h>

struct reader {
    struct ct_pointwise *p;
    struct ct_pointwise_names *names;
    const char *text, *at;
    int status;
};

static const struct {
    const char *name;
    int arguments, strength;
} kinds[] = {
#define X(id, name, arguments, strength) {name, arguments, strength},
    CT_POINTWISE_KINDS(X)
#undef X
};

void ct_pointwise_name(struct ct_pointwise *p, struct ct_pointwise_names *names, const char *name,
                       int node)
{
    names->item =
        ct_arena_grow(p->arena, names->item, &names->room, names->count + 1, sizeof(*names->item));
    names->item[names->count++] = (struct ct_pointwise_name){name, node};
}

int ct_pointwise_find(const struct ct_pointwise_names *names, const char *name)
{
    for (size_t i = names->count; i-- > 0;)
        if (!strcmp(names->item[i].name, name))
            return names->item[i].node;
    return -1;
}

static int fail(struct reader *r, const char *what)
{
    if (r->status == 0)
        r->status = ct_fail(CT_EINVAL, "formula \"%s\": %s at \"%.20s\"", r->text, what, r->at);
    return 0;
}

static bool take(struct reader *r, const char *token)
{
    size_t n = strlen(token);

    r->at += strspn(r->at, " ");
    if (strncmp(r->at, token, n))
        return false;
    r->at += n;
    return true;
}

static const char *word(struct reader *r)
{
    size_t n = 0;

    r->at += strspn(r->at, " ");
    if (isalpha((unsigned char)*r->at))
        while (isalnum((unsigned char)r->at[n]) || r->at[n] == '_')
            n++;
    r->at += n;
    return n ? ct_arena_printf(r->p->arena, "%.*s", (int)n, r->at - n) : NULL;
}

static int expression(struct reader *r);

static int call(struct reader *r, const char *name)
{
    int kind = 0, arg[3] = {0};

    while (kind < CT_POINTWISE_KIND_COUNT &&
           (kinds[kind].strength || strcmp(kinds[kind].name, name)))
        kind++;
    if (kind == CT_POINTWISE_KIND_COUNT)
        return fail(r, "no such function");
    for (int i = 0; r->status == 0 && i < kinds[kind].arguments; i++) {
        if (i && !take(r, ","))
            return fail(r, "too few arguments");
        arg[i] = expression(r);
    }
    if (!take(r, ")"))
        return fail(r, "\")\" is missing");
    if (r->status < 0)
        return 0;
    if (kind >= CT_POINTWISE_ROW_SUM && kind <= CT_POINTWISE_ROW_MAX &&
        !(r->p->node[arg[0]].level & CT_BY_COLUMN))
        return fail(r, "the argument has no columns");
    return ct_pointwise_call(r->p, (enum ct_pointwise_kind)kind, arg);
}

static int primary(struct reader *r)
{
    const char *name;
    char *end;
    int node;

    if (take(r, "(")) {
        node = expression(r);
        return take(r, ")") ? node : fail(r, "\")\" is missing");
    }
    if (take(r, "-")) {
        node = primary(r);
        return r->status < 0 ? 0
                             : ct_pointwise_call(r->p, CT_POINTWISE_NEGATE, (int[]){node, 0, 0});
    }
    name = word(r);
    if (name && take(r, "("))
        return call(r, name);
    if (name) {
        node = ct_pointwise_find(r->names, name);
        return node >= 0 ? node : fail(r, "the name is not defined before this");
    }
    if (isdigit((unsigned char)*r->at) || *r->at == '.') {
        double number = strtod(r->at, &end);

        r->at = end;
        return ct_pointwise_number(r->p, number);
    }
    return fail(r, "a value is missing");
}

/* Operators of at least this strength. */
static int binary(struct reader *r, int strength)
{
    int left = strength > 4 ? primary(r) : binary(r, strength + 1);

    while (r->status == 0 && strength <= 4) {
        int kind = CT_POINTWISE_LESS;

        while (kind <= CT_POINTWISE_DIVIDE &&
               (kinds[kind].strength != strength || !take(r, kinds[kind].name)))
            kind++;
        if (kind > CT_POINTWISE_DIVIDE)
            return left;
        left = ct_pointwise_call(r->p, (enum ct_pointwise_kind)kind,
                                 (int[]){left, binary(r, strength + 1), 0});
    }
    return left;
}

static int expression(struct reader *r)
{
    int node = binary(r, 2), yes, no;

    if (r->status < 0 || !take(r, "?"))
        return node;
    yes = expression(r);
    if (!take(r, ":"))
        return fail(r, "\":\" is missing");
    no = expression(r);
    return r->status < 0 ? 0 : ct_pointwise_call(r->p, CT_POINTWISE_SELECT, (int[]){node, yes, no});
}

/* An output of an op in bfloat16 is rounded, and its rounded value is used from then on. */
static int rounded(struct ct_pointwise *p, const struct ct_op *op, const char *name, int node)
{
    char output[64];

    for (int i = 0; op && i < op->outs; i++) {
        ct_operand_name(op, op->ins + i, output, sizeof(output));
        if (op->out[i]->dtype == CT_BF16 && !strcmp(output, name))
            return ct_pointwise_call(p, CT_POINTWISE_BF16, (int[]){node, 0, 0});
    }
    return node;
}

int ct_pointwise_read(struct ct_pointwise *p, const char *formula, struct ct_pointwise_names *names)
{
    struct reader r = {.p = p, .names = names, .text = formula, .at = formula};

    do {
        const char *name = word(&r);
        int node;

        if (!name || !take(&r, "="))
            fail(&r, "\"name =\" is missing");
        node = r.status == 0 ? expression(&r) : 0;
        if (r.status == 0)
            ct_pointwise_name(p, names, name, rounded(p, names->op, name, node));
    } while (r.status == 0 && take(&r, ";") && (take(&r, ""), *r.at));
    if (r.status == 0 && *r.at)
        fail(&r, "an operator or \";\" is missing");
    return r.status;
}

static int strength_of(const struct ct_pointwise *p, int node)
{
    return kinds[p->node[node].kind].strength;
}

static void print_number(double number, const struct ct_pointwise_style *style, FILE *out)
{
    char text[32];

    snprintf(text, sizeof(text), "%.*g", style->digits, number);
    fputs(text, out);
    if (style->suffix)
        fprintf(out, "%s%s", strpbrk(text, ".en") ? "" : ".0", style->suffix);
}

static void print_plain(const struct ct_pointwise *p, int node,
                        const struct ct_pointwise_style *style, FILE *out)
{
    if (style->use[node])
        fputs(style->use[node], out);
    else
        ct_pointwise_print(p, node, style, out);
}

static void print_argument(const struct ct_pointwise *p, int node, int strength,
                           const struct ct_pointwise_style *style, FILE *out)
{
    bool brackets, set = style->set && !strength && !(p->node[node].level & CT_BY_COLUMN);

    if (set) {
        fprintf(out, "%s(", style->set);
        print_plain(p, node, style, out);
        fputc(')', out);
        return;
    }

    brackets = !style->use[node] && strength_of(p, node) && strength_of(p, node) < strength;
    if (brackets)
        fputc('(', out);
    print_plain(p, node, style, out);
    if (brackets)
        fputc(')', out);
}

/* The function for a kind that has no operator on vectors. */
static const char *call_of(enum ct_pointwise_kind kind)
{
    return kind == CT_POINTWISE_SELECT    ? "select"
           : kind == CT_POINTWISE_LESS    ? "less"
           : kind == CT_POINTWISE_GREATER ? "greater"
                                          : NULL;
}

void ct_pointwise_print(const struct ct_pointwise *p, int node,
                        const struct ct_pointwise_style *style, FILE *out)
{
    const struct ct_pointwise_node *n = &p->node[node];
    const char *call = style->set ? call_of(n->kind) : NULL;
    int strength = call ? 0 : kinds[n->kind].strength;

    switch (call ? CT_POINTWISE_KIND_COUNT : n->kind) {
    case CT_POINTWISE_NUMBER:
        print_number(n->number, style, out);
        return;
    case CT_POINTWISE_INPUT:
        fputs(style->use[node], out);
        return;
    case CT_POINTWISE_SELECT:
        print_argument(p, n->arg[0], 2, style, out);
        fputs(" ? ", out);
        print_argument(p, n->arg[1], 2, style, out);
        fputs(" : ", out);
        print_argument(p, n->arg[2], 2, style, out);
        return;
    case CT_POINTWISE_NEGATE:
        fputc('-', out);
        print_argument(p, n->arg[0], 6, style, out);
        return;
    default:
        break;
    }
    if (strength) {
        print_argument(p, n->arg[0], strength, style, out);
        fprintf(out, " %s ", kinds[n->kind].name);
        print_argument(p, n->arg[1], strength + 1, style, out);
        return;
    }
    fprintf(out, "%s%s(", style->prefix, call ? call : kinds[n->kind].name);
    for (int i = 0; i < kinds[n->kind].arguments; i++) {
        fputs(i ? ", " : "", out);
        print_argument(p, n->arg[i], 0, style, out);
    }
    fputc(')', out);
}
