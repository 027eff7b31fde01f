/*
 * Operand lists: parsed, written out for an op, and applied to the dtypes of its values.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include <ctitan/error.h>
#include <ctitan/rule.h>

#include "form.h"

static int trimmed(const char *text, int length)
{
    while (length && text[length - 1] == ' ')
        length--;
    return length;
}

struct reader {
    const char *at;
    int unit;
    bool repeated, group; /* the unit is repeated; it is still open */
};

static struct ct_term read_term(struct reader *r)
{
    struct ct_term term = {0};
    int length;

    r->at += strspn(r->at, " ");
    if (!r->group) {
        r->unit++;
        r->repeated = *r->at == '*';
        r->at += r->repeated;
        r->group = r->repeated && *r->at == '(';
        r->at += r->group;
    }
    term.optional = *r->at == '?';
    r->at += term.optional;
    length = (int)strcspn(r->at, ",()*?-");
    term.text = r->at;
    term.length = trimmed(r->at, length);
    term.unit = r->unit;
    term.repeated = r->repeated;
    r->at += length;
    if (r->group && *r->at == ')') {
        r->group = false;
        r->at++;
        r->at += strspn(r->at, " ");
    }
    return term;
}

int ct_form_parse(const char *text, struct ct_form *form)
{
    struct reader r = {.at = text};
    bool outputs = false;

    *form = (struct ct_form){0};
    for (int n = 0; n < CT_MAX_TERMS; n++) {
        form->term[n] = read_term(&r);
        *(outputs ? &form->outs : &form->ins) += 1;
        if (*r.at == '\0' && !r.group)
            return 0;
        if (*r.at == ',') {
            r.at++;
        } else if (!r.group && !outputs && !strncmp(r.at, "->", 2)) {
            outputs = true;
            r.at += 2;
        } else {
            return ct_fail(CT_EINVAL, "\"%s\" does not go on with \"%s\"", text, r.at);
        }
    }
    return ct_fail(CT_EINVAL, "\"%s\" has more than %d operands", text, CT_MAX_TERMS);
}

/* Optional inputs at the end may be left out altogether. */
static void drop_optional(struct ct_form *form, int ins)
{
    for (int i = 0; i < form->ins; i++)
        if (form->term[i].repeated)
            return;
    while (form->ins > ins && form->term[form->ins - 1].optional) {
        memmove(&form->term[form->ins - 1], &form->term[form->ins],
                sizeof(form->term[0]) * (size_t)form->outs);
        form->ins--;
    }
}

/* How often the repeated terms stand for ins inputs to come out; -1: they cannot. */
static int repetitions(struct ct_form *form, int ins)
{
    int fixed = 0, repeated = 0;

    drop_optional(form, ins);
    for (int i = 0; i < form->ins; i++)
        *(form->term[i].repeated ? &repeated : &fixed) += 1;
    if (repeated == 0)
        return ins == fixed ? 0 : -1;
    if (ins < fixed + repeated || (ins - fixed) % repeated)
        return -1;
    return (ins - fixed) / repeated;
}

/* Slots of the terms [from, to), into slot if there is one; returns their number. */
static int expand(const struct ct_form *form, int from, int to, struct ct_slot *slot)
{
    int count = 0;

    for (int begin = from, end; begin < to; begin = end) {
        int times = form->term[begin].repeated ? form->repetitions : 1;

        for (end = begin + 1; end < to && form->term[end].unit == form->term[begin].unit;)
            end++;
        for (int r = 0; r < times; r++)
            for (int i = begin; i < end; i++, count++)
                if (slot)
                    slot[count] = (struct ct_slot){&form->term[i], form->term[i].repeated ? r : -1};
    }
    return count;
}

static int misfit(const struct ct_op *op, int count, const char *what)
{
    const struct ct_op_type *type = op->type;

    return ct_fail(CT_EINVAL, "takes (%s), not %d %s%s",
                   type->operands ? type->operands : type->rule, count, what,
                   count == 1 ? "" : "s");
}

int ct_form_of(const char *text, const struct ct_op *op, struct ct_arena *arena,
               struct ct_form *form)
{
    int rc = ct_form_parse(text, form), terms;

    if (rc < 0)
        return rc;
    form->repetitions = repetitions(form, op->ins);
    if (form->repetitions < 0)
        return misfit(op, op->ins, "input");
    terms = form->ins + form->outs;
    if (expand(form, 0, terms, NULL) != op->ins + op->outs)
        return misfit(op, op->outs, "output");
    form->slot = ct_arena_array(arena, struct ct_slot, op->ins + op->outs + 1);
    expand(form, 0, terms, form->slot);
    return 0;
}

/* ---- names and dtypes ---- */

static struct ct_value *value_at(const struct ct_op *op, int i)
{
    return i < op->ins ? op->in[i] : op->out[i - op->ins];
}

int ct_operands_count_outputs(const struct ct_op *op)
{
    struct ct_form form;

    if (ct_form_parse(op->type->operands, &form) < 0)
        return 0;
    form.repetitions = repetitions(&form, op->ins);
    return expand(&form, form.ins, form.ins + form.outs, NULL);
}

static int name_of_slot(const struct ct_slot *slot, char *text, size_t room)
{
    int length = (int)strcspn(slot->term->text, " ,)-");

    if (slot->repetition < 0)
        return snprintf(text, room, "%.*s", length, slot->term->text);
    return snprintf(text, room, "%.*s.%d", length, slot->term->text, slot->repetition);
}

int ct_operand_name(const struct ct_op *op, int i, char *text, size_t room)
{
    struct ct_arena scratch = {0};
    bool input = i < op->ins;
    struct ct_form form;
    int n;

    if (op->type->operands && ct_form_of(op->type->operands, op, &scratch, &form) == 0)
        n = name_of_slot(&form.slot[i], text, room);
    else
        n = snprintf(text, room, "%s %d", input ? "input" : "output", input ? i : i - op->ins);
    ct_arena_finish(&scratch);
    return n;
}

const char *ct_operand_describe(const struct ct_op *op, int i, char *text, size_t room)
{
    const struct ct_value *v = value_at(op, i);
    size_t n = (size_t)ct_operand_name(op, i, text, room);

    for (int k = -1; k <= v->rank && n < room; k++) {
        if (k < 0)
            n += (size_t)snprintf(text + n, room - n, " %%%.80s [", v->name ? v->name : "");
        else if (k < v->rank)
            n += (size_t)snprintf(text + n, room - n, "%s%" PRId64, k ? "," : "", v->shape[k]);
        else
            n += (size_t)snprintf(text + n, room - n, "]");
    }
    return text;
}

static char dtype_letter(const struct ct_slot *slot)
{
    return slot->term->text[slot->term->length - 1];
}

struct dtypes {
    const struct ct_op *op;
    enum ct_dtype common; /* T and A */
    int common_from;      /* the input that says so; -1: none */
};

static bool fits(const struct dtypes *d, char letter, enum ct_dtype dtype, enum ct_dtype *want)
{
    switch (letter) {
    case 'T':
    case 'A':
        *want = d->common;
        break;
    case 'W':
        *want = d->common == CT_F64 ? CT_F64 : CT_F32;
        break;
    case 'f':
        *want = CT_F32;
        break;
    case 'd':
        *want = CT_F64;
        break;
    case 'i':
        *want = CT_I32;
        break;
    default:
        *want = dtype;
    }
    return dtype == *want && (letter == 'A' || letter == 'i' || ct_dtype_is_float(dtype));
}

static int check_dtype(const struct dtypes *d, const struct ct_slot *slot, int i)
{
    const struct ct_value *v = d->op->in[i];
    char name[64], other[64];
    enum ct_dtype want;

    if (fits(d, dtype_letter(slot), v->dtype, &want))
        return 0;
    ct_operand_name(d->op, i, name, sizeof(name));
    if (v->dtype == want)
        return ct_fail(CT_EINVAL, "%s %%%s is %s, not a floating-point dtype", name, v->name,
                       ct_dtype_name(v->dtype));
    if (!strchr("TAW", dtype_letter(slot)) || d->common_from < 0)
        return ct_fail(CT_EINVAL, "%s %%%s is %s, not %s", name, v->name, ct_dtype_name(v->dtype),
                       ct_dtype_name(want));
    ct_operand_name(d->op, d->common_from, other, sizeof(other));
    return ct_fail(CT_EINVAL, "%s %%%s is %s, not %s as %s %%%s needs", name, v->name,
                   ct_dtype_name(v->dtype), ct_dtype_name(want), other,
                   d->op->in[d->common_from]->name);
}

static struct dtypes common_dtype(const struct ct_op *op, const struct ct_form *form)
{
    for (int i = 0; i < op->ins; i++)
        if (op->in[i] && strchr("TA", dtype_letter(&form->slot[i])))
            return (struct dtypes){op, op->in[i]->dtype, i};
    return (struct dtypes){op, CT_F32, -1};
}

static int apply_dtypes(struct ct_op *op, const struct ct_form *form)
{
    struct dtypes d = common_dtype(op, form);

    for (int i = 0; i < op->ins; i++) {
        const struct ct_slot *slot = &form->slot[i];
        char name[64];
        int rc;

        if (!op->in[i] && slot->term->optional)
            continue;
        name_of_slot(slot, name, sizeof(name));
        rc = op->in[i] ? check_dtype(&d, slot, i) : ct_fail(CT_EINVAL, "%s is missing", name);
        if (rc < 0)
            return rc;
    }
    for (int i = 0; i < op->outs; i++)
        fits(&d, dtype_letter(&form->slot[op->ins + i]), d.common, &op->out[i]->dtype);
    return 0;
}

int ct_operands_apply(struct ct_op *op)
{
    struct ct_arena scratch = {0};
    struct ct_form form;
    int rc = ct_form_of(op->type->operands, op, &scratch, &form);

    if (rc == 0)
        rc = apply_dtypes(op, &form);
    ct_arena_finish(&scratch);
    return rc;
}
