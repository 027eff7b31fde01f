/*
 * Parsing signatures, and matching an op's operands to them.
 */
#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include <ctitan/error.h>
#include <ctitan/rule.h>

#include "ir/signature.h"

/* ---- parsing ---- */

struct reader {
    struct ct_signature *s;
    struct ct_arena *arena;
    const char *text, *at;
    bool open;           /* inside the brackets of a unit */
    int bare, bracketed; /* operands without factors, and with them */
};

static void skip_space(struct reader *r)
{
    r->at += strspn(r->at, " ");
}

static bool take(struct reader *r, const char *token)
{
    size_t n = strlen(token);

    skip_space(r);
    if (strncmp(r->at, token, n))
        return false;
    r->at += n;
    return true;
}

static int stuck(const struct reader *r)
{
    return ct_fail(CT_EINVAL, "\"%s\" does not go on with \"%s\"", r->text, r->at);
}

static const char *read_name(struct reader *r)
{
    size_t n = 0;

    skip_space(r);
    while (isalnum((unsigned char)r->at[n]) || r->at[n] == '_')
        n++;
    r->at += n;
    return n ? ct_arena_printf(r->arena, "%.*s", (int)n, r->at - n) : NULL;
}

static int letter_index(struct ct_signature *s, char letter)
{
    for (int i = 0; i < s->letters; i++)
        if (s->letter[i] == letter)
            return i;
    if (s->letters == CT_MAX_LETTERS)
        return ct_fail(CT_EINVAL, "more than %d factors", CT_MAX_LETTERS);
    s->letter[s->letters] = letter;
    return s->letters++;
}

/* "[.k]" */
static int read_factors(struct reader *r, struct ct_term *term)
{
    for (; *r->at != ']'; r->at++) {
        int index;

        if (*r->at == '\0')
            return stuck(r);
        if (*r->at != '.' && !isalpha((unsigned char)*r->at))
            return ct_fail(CT_EINVAL, "factor '%c' is not a letter", *r->at);
        if (term->count == CT_MAX_DIMS + 1 || (*r->at == '.' && term->dot >= 0))
            return ct_fail(CT_EINVAL, "%s has too many factors", term->name);
        if (*r->at == '.')
            term->dot = term->count;
        index = letter_index(r->s, *r->at);
        if (index < 0)
            return index;
        term->factor[term->count++] = (uint8_t)index;
    }
    r->at++;
    return 0;
}

/* Length of an operand's text, for error messages. */
static int operand_length(const char *text)
{
    int n = (int)strcspn(text, ",()|-");

    while (n && text[n - 1] == ' ')
        n--;
    return n;
}

/* "?x[.k] T": flags, name, factors, dtype. */
static int read_term(struct reader *r, struct ct_term *term)
{
    const char *begin;
    int rc = 0;

    skip_space(r);
    term->dot = -1;
    while (*r->at == '?' || *r->at == '!')
        *(*r->at++ == '?' ? &term->optional : &term->updated) = true;
    begin = r->at;
    term->name = read_name(r);
    if (*r->at == '[') {
        r->at++;
        r->bracketed++;
        rc = read_factors(r, term);
    } else {
        r->bare++;
    }
    if (rc < 0)
        return rc;
    skip_space(r);
    if (!term->name || !*r->at || !strchr("TAWFfdic", *r->at) || isalnum((unsigned char)r->at[1]))
        return ct_fail(CT_EINVAL, "operand \"%.*s\" is not a name and a dtype letter",
                       operand_length(begin), begin);
    term->dtype = *r->at++;
    term->maximum = take(r, "max");
    return 0;
}

/* An operand, and the unit that it opens, continues or closes. */
static int read_operand(struct reader *r, bool output)
{
    struct ct_signature *s = r->s;
    struct ct_term *term = &s->term[s->ins + s->outs];
    int rc;

    if (s->ins + s->outs == CT_MAX_TERMS)
        return ct_fail(CT_EINVAL, "\"%s\" has more than %d operands", r->text, CT_MAX_TERMS);
    if (!r->open) {
        bool repeated = take(r, "*");

        r->open = repeated && take(r, "(");
        s->unit[s->units++] = (struct ct_unit){s->ins + s->outs, 0, repeated};
    }
    term->repeated = s->unit[s->units - 1].repeated;
    rc = read_term(r, term);
    if (rc < 0)
        return rc;
    if (output && (term->optional || term->updated))
        return ct_fail(CT_EINVAL, "output %s is optional or updated", term->name);
    if (!output && term->maximum)
        return ct_fail(CT_EINVAL, "input %s is a maximum", term->name);
    s->unit[s->units - 1].count++;
    *(output ? &s->outs : &s->ins) += 1;
    if (r->open && take(r, ")"))
        r->open = false;
    return 0;
}

static bool at_end(struct reader *r)
{
    skip_space(r);
    return !*r->at || *r->at == '|';
}

static int read_operands(struct reader *r, bool output)
{
    int rc = 0;

    if (at_end(r) || (!output && !strncmp(r->at, "->", 2)))
        return 0;
    do
        rc = read_operand(r, output);
    while (rc == 0 && take(r, ","));
    return rc < 0 ? rc : r->open ? stuck(r) : 0;
}

/* "@t" */
static int read_position(struct reader *r)
{
    struct ct_signature *s = r->s;
    char *at = *r->at && *r->at != '.' ? memchr(s->letter, *r->at, (size_t)s->letters) : NULL;

    if (!at)
        return ct_fail(CT_EINVAL, "\"@%.1s\" is not a factor", r->at);
    s->position[at - s->letter] = s->positions = true;
    r->at++;
    return 0;
}

/* "n%size" */
static int read_multiple(struct reader *r)
{
    struct ct_signature *s = r->s;
    char letter = *r->at, *at = memchr(s->letter, letter, (size_t)s->letters);
    const struct ct_option *attribute;
    const char *name;

    r->at += 2;
    name = read_name(r);
    attribute = ct_option_find(s->type->attrs, name ? name : "");
    if (!at)
        return ct_fail(CT_EINVAL, "\"%c%%%s\": %c is not a factor", letter, name ? name : "",
                       letter);
    if (!attribute || attribute->type != CT_INT)
        return ct_fail(CT_EINVAL, "\"%s\" is no attribute that is a whole number",
                       name ? name : "");
    s->multiple[at - s->letter] = attribute;
    return 0;
}

/* "h:g", "*widths", "@t" or "n%size", after the bar. */
static int read_clause(struct reader *r)
{
    struct ct_signature *s = r->s;

    if (take(r, "@"))
        return read_position(r);

    if (take(r, "*")) {
        const char *name = read_name(r);

        s->counted_by = ct_option_find(s->type->attrs, name ? name : "");
        if (s->counted_by && s->counted_by->type == CT_ATTR_SHAPE)
            return 0;
        return ct_fail(CT_EINVAL, "\"%s\" is no attribute with a size for each output",
                       name ? name : "");
    }
    skip_space(r);
    if (isalpha((unsigned char)r->at[0]) && r->at[1] == '%')
        return read_multiple(r);
    if (isalpha((unsigned char)r->at[0]) && r->at[1] == ':' && isalpha((unsigned char)r->at[2]) &&
        !s->tie[0]) {
        s->tie[0] = r->at[0];
        s->tie[1] = r->at[2];
        r->at += 3;
        return 0;
    }
    return stuck(r);
}

static int read_text(struct reader *r)
{
    int rc = read_operands(r, false);

    r->s->in_units = r->s->units;
    if (rc == 0 && take(r, "->"))
        rc = read_operands(r, true);
    if (rc == 0 && take(r, "|"))
        do
            rc = read_clause(r);
        while (rc == 0 && take(r, ","));
    if (rc == 0 && *r->at)
        return stuck(r);
    if (rc == 0 && r->bare && r->bracketed)
        return ct_fail(CT_EINVAL, "\"%s\" gives factors to some operands only", r->text);
    r->s->shaped = r->bracketed > 0;
    return rc;
}

/* ---- checks, and what follows from the terms ---- */

static bool has_letter(const struct ct_term *term, int letter)
{
    return memchr(term->factor, letter, (size_t)term->count) != NULL;
}

/* A letter that occurs only in repeated terms is a different factor in each repetition. */
static void find_single_letters(struct ct_signature *s)
{
    for (int k = 0; k < s->letters; k++)
        for (int i = 0; i < s->ins + s->outs; i++)
            s->single[k] |= !s->term[i].repeated && has_letter(&s->term[i], k);
}

static int check_leading(const struct ct_signature *s)
{
    for (int i = s->ins; i < s->ins + s->outs; i++) {
        bool known = s->term[i].dot < 0;

        for (int k = 0; !known && k < s->ins; k++)
            known = !s->term[k].optional && s->term[k].dot >= 0;
        if (!known)
            return ct_fail(CT_EINVAL, "the leading dimensions of an output stand in no input");
    }
    return 0;
}

static int check_tie(const struct ct_signature *s)
{
    for (int k = 0; s->tie[0] && k < 2; k++)
        if (!memchr(s->letter, s->tie[k], (size_t)s->letters))
            return ct_fail(CT_EINVAL, "tie \"%c:%c\" is not two factors", s->tie[0], s->tie[1]);
    return 0;
}

static int check_repetitions(const struct ct_signature *s)
{
    bool outputs = false;

    for (int i = s->ins; i < s->ins + s->outs; i++)
        outputs |= s->term[i].repeated;
    if (outputs && (s->repeats ? s->counted_by && s->shaped : !s->counted_by))
        return ct_fail(CT_EINVAL, "outputs repeat as the inputs do, or as one attribute says");
    return 0;
}

static void count_inputs(struct ct_signature *s)
{
    s->may_be_none = true;
    for (int i = 0; i < s->ins; i++) {
        s->repeats |= s->term[i].repeated;
        s->may_be_none &= !s->term[i].repeated || s->term[i].optional;
        s->updates |= s->term[i].updated;
        if (!s->term[i].optional)
            s->least = i + 1;
    }
    if (s->repeats)
        s->least = s->ins;
}

/* The text without factors, updates and clauses. */
static const char *plain_text(struct ct_arena *arena, const char *text)
{
    char *plain = ct_arena_strdup(arena, text), *to = plain;
    bool factors = false;

    for (const char *from = text; *from && *from != '|'; from++) {
        factors |= *from == '[';
        if (!factors && *from != '!')
            *to++ = *from;
        factors &= *from != ']';
    }
    while (to > plain && to[-1] == ' ')
        to--;
    *to = '\0';
    return plain;
}

int ct_signature_compile(const struct ct_op_type *type, struct ct_arena *arena,
                         struct ct_signature *s)
{
    struct reader r = {.s = s, .arena = arena, .text = type->signature, .at = type->signature};
    int rc;

    *s = (struct ct_signature){.type = type};
    if (!type->signature)
        return ct_fail(CT_EINVAL, "it has no signature");
    rc = read_text(&r);
    if (rc < 0)
        return rc;
    s->operands = plain_text(arena, type->signature);
    find_single_letters(s);
    count_inputs(s);
    rc = check_leading(s);
    if (rc == 0)
        rc = check_tie(s);
    if (rc == 0)
        rc = check_repetitions(s);
    if (rc == 0 && !s->shaped && s->outs && !type->infer)
        return ct_fail(CT_EINVAL, "neither factors nor infer say the shapes of its outputs");
    return rc;
}

/* ---- for an op ---- */

static int count_units(const struct ct_signature *s, int from, int to, int repetitions)
{
    int count = 0;

    for (int u = from; u < to; u++)
        count += s->unit[u].count * (s->unit[u].repeated ? repetitions : 1);
    return count;
}

/* Number of repetitions that gives `ins` inputs, or -1. */
static int count_repetitions(const struct ct_signature *s, int ins)
{
    int fixed = count_units(s, 0, s->in_units, 0), once = count_units(s, 0, s->in_units, 1) - fixed;

    if (!s->repeats)
        return ins >= s->least && ins <= s->ins ? 0 : -1;
    if (ins < fixed + (s->may_be_none ? 0 : once) || (ins - fixed) % once)
        return -1;
    return (ins - fixed) / once;
}

static int misfit(const struct ct_signature *s, int count, const char *what)
{
    return ct_fail(CT_EINVAL, "takes (%s), not %d %s%s", s->operands, count, what,
                   ct_plural(count));
}

/* Everything except the check of op->outs. */
static int expand(const struct ct_op *op, struct ct_expansion *x)
{
    const struct ct_signature *s = ct_signature_of(op->type);
    int repetitions, given;

    if (!s)
        return CT_ENOENT;
    repetitions = given = count_repetitions(s, op->ins);
    if (repetitions < 0)
        return misfit(s, op->ins, "input");
    if (s->counted_by)
        given = ((const struct ct_shape *)((const char *)op->attrs + s->counted_by->offset))->ndim;
    *x = (struct ct_expansion){.signature = s,
                               .ins = op->ins,
                               .outs = count_units(s, s->in_units, s->units, given),
                               .repetitions = s->repeats ? repetitions : given,
                               .out_repetitions = given};
    return 0;
}

int ct_signature_expand(const struct ct_op *op, struct ct_expansion *x)
{
    int rc = expand(op, x);

    return rc == 0 && op->outs != x->outs ? misfit(x->signature, op->outs, "output") : rc;
}

int ct_op_count_outputs(const struct ct_op *op)
{
    const struct ct_signature *s = ct_signature_of(op->type);
    struct ct_expansion x;

    if (s && expand(op, &x) == 0)
        return x.outs;
    return s ? count_units(s, s->in_units, s->units, 0) : 0;
}

const struct ct_term *ct_signature_term(const struct ct_expansion *x, int i, int *repetition)
{
    const struct ct_signature *s = x->signature;
    bool input = i < x->ins;

    i -= input ? 0 : x->ins;
    for (int u = input ? 0 : s->in_units; u < s->units; u++) {
        const struct ct_unit *unit = &s->unit[u];
        int size = unit->count * (!unit->repeated ? 1
                                  : input         ? x->repetitions
                                                  : x->out_repetitions);

        if (i < size) {
            *repetition = unit->repeated ? i / unit->count : -1;
            return &s->term[unit->first + i % unit->count];
        }
        i -= size;
    }
    return NULL;
}

bool ct_op_mutates(const struct ct_op *op, int input)
{
    const struct ct_signature *s = ct_signature_of(op->type);
    struct ct_expansion x;
    int repetition;

    return s && s->updates && expand(op, &x) == 0 &&
           ct_signature_term(&x, input, &repetition)->updated;
}

int ct_operand_name(const struct ct_op *op, int i, char *text, size_t room)
{
    struct ct_expansion x;
    const struct ct_term *term = NULL;
    bool input = i < op->ins;
    int repetition;

    if (expand(op, &x) == 0)
        term = ct_signature_term(&x, i, &repetition);
    if (!term)
        return snprintf(text, room, "%s %d", input ? "input" : "output", input ? i : i - op->ins);
    if (repetition < 0)
        return snprintf(text, room, "%s", term->name);
    return snprintf(text, room, "%s.%d", term->name, repetition);
}

const char *ct_operand_describe(const struct ct_op *op, int i, char *text, size_t room)
{
    const struct ct_value *v = i < op->ins ? op->in[i] : op->out[i - op->ins];
    struct ct_line line = {text, room, (size_t)ct_operand_name(op, i, text, room)};

    ct_line_add(&line, " %%%.80s [", v->name ? v->name : "");
    for (int k = 0; k < v->ndim; k++)
        ct_line_add(&line, "%s%" PRId64, k ? "," : "", v->shape[k]);
    ct_line_add(&line, "]");
    return text;
}
