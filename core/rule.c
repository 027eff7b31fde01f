/*
 * Factor rules. Applying one walks the operands and gives every dimension its factor; inputs come
 * first and set the sizes, so outputs find theirs.
 */
#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include <ctitan/error.h>
#include <ctitan/rule.h>

#include "form.h"

struct application {
    const struct ct_op *op;
    struct ct_arena *arena;
    struct ct_rule *rule;
    struct ct_form form;
    size_t room;  /* of rule->factor */
    int *leading; /* leading dimensions by repetition + 1; -1: not seen */
};

static bool term_has(const struct ct_term *term, char letter)
{
    return memchr(term->text, letter, (size_t)term->length) != NULL;
}

/* A letter that stands in repeated terms only is another factor in each repetition. */
static int repetition_of(const struct application *a, char letter, const struct ct_slot *slot)
{
    for (int i = 0; i < a->form.ins + a->form.outs; i++)
        if (!a->form.term[i].repeated && term_has(&a->form.term[i], letter))
            return -1;
    return slot->repetition;
}

static int find_factor(struct application *a, char letter, int repetition, int index, int operand)
{
    struct ct_rule *rule = a->rule;

    for (int i = 0; i < rule->count; i++) {
        const struct ct_factor *f = &rule->factor[i];

        if (f->letter == letter && f->repetition == repetition && f->index == index)
            return i;
    }
    rule->factor = ct_arena_grow(a->arena, rule->factor, &a->room, (size_t)rule->count + 1,
                                 sizeof(*rule->factor));
    rule->factor[rule->count] = (struct ct_factor){
        .letter = letter,
        .repetition = repetition,
        .index = index,
        .kind = isupper((unsigned char)letter) ? CT_FACTOR_WHOLE : CT_FACTOR_REDUCTION,
        .size = -1,
        .operand = operand,
    };
    return rule->count++;
}

static int wrong_rank(const struct application *a, int i, const char *least, int rank)
{
    char text[256];

    return ct_fail(CT_EINVAL, "%s must have %s%d dimension%s",
                   ct_operand_describe(a->op, i, text, sizeof(text)), least, rank,
                   rank == 1 ? "" : "s");
}

/* The rank of operand i, and with it the number of leading dimensions if they are not known. */
static int settle_rank(struct application *a, int i)
{
    const struct ct_slot *slot = &a->form.slot[i];
    bool dotted = term_has(slot->term, '.'), input = i < a->op->ins;
    int *leading = &a->leading[repetition_of(a, '.', slot) + 1];
    int letters = slot->term->length - dotted, rank;

    if (dotted && *leading < 0) {
        if (a->op->in[i]->rank < letters)
            return wrong_rank(a, i, "at least ", letters);
        *leading = a->op->in[i]->rank - letters;
    }
    rank = a->rule->operand[i].rank = letters + (dotted ? *leading : 0);
    if (input && a->op->in[i]->rank != rank)
        return wrong_rank(a, i, "", rank);
    if (rank > CT_MAX_RANK)
        return ct_fail(CT_EINVAL, "an output would have %d dimensions", rank);
    return 0;
}

static int settle_size(struct application *a, int operand, int dim)
{
    struct ct_factor *f = &a->rule->factor[a->rule->operand[operand].factor[dim]];
    int64_t size = a->op->in[operand]->shape[dim];
    char here[256], there[256], what[32];

    if (f->size < 0)
        f->size = size;
    if (f->size == size)
        return 0;
    if (f->letter == '.')
        snprintf(what, sizeof(what), "leading dimension %d", f->index);
    else
        snprintf(what, sizeof(what), "%c", f->letter);
    return ct_fail(CT_EINVAL, "%s is %" PRId64 " in %s, but %" PRId64 " in %s", what, f->size,
                   ct_operand_describe(a->op, f->operand, there, sizeof(there)), size,
                   ct_operand_describe(a->op, operand, here, sizeof(here)));
}

static int settle_operand(struct application *a, int i)
{
    const struct ct_slot *slot = &a->form.slot[i];
    struct ct_rule_operand *operand = &a->rule->operand[i];
    int rc = settle_rank(a, i), dim = 0;

    operand->repetition = slot->repetition;
    for (int k = 0; rc == 0 && k < slot->term->length; k++) {
        char letter = slot->term->text[k];
        int repetition = repetition_of(a, letter, slot);
        int count = letter == '.' ? a->leading[repetition + 1] : 1;

        for (int index = 0; rc == 0 && index < count; index++, dim++) {
            int f = find_factor(a, letter, repetition, index, i);

            operand->factor[dim] = f;
            if (i < a->op->ins)
                rc = settle_size(a, i, dim);
            else if (a->rule->factor[f].kind == CT_FACTOR_REDUCTION)
                a->rule->factor[f].kind = CT_FACTOR_PARALLEL;
        }
    }
    return rc;
}

/* Tied factors are of one kind: heads are cut with their groups. */
static int settle_tie(struct ct_rule *rule, const char *tie)
{
    struct ct_factor *many = NULL, *few = NULL;

    for (int i = 0; tie && i < rule->count; i++)
        for (int k = 0; k < 2; k++)
            if (rule->factor[i].letter == tie[k])
                rule->tie[k] = i;
    if (rule->tie[0] < 0 || rule->tie[1] < 0)
        return 0;
    many = &rule->factor[rule->tie[0]];
    few = &rule->factor[rule->tie[1]];
    if (many->kind < few->kind)
        few->kind = many->kind;
    many->kind = few->kind;
    if (few->size > 0 && many->size % few->size == 0)
        return 0;
    return ct_fail(CT_EINVAL, "%c = %" PRId64 " is not a multiple of %c = %" PRId64, many->letter,
                   many->size, few->letter, few->size);
}

static int settle_rule(struct application *a)
{
    int rc = ct_form_of(a->op->type->rule, a->op, a->arena, &a->form), n;

    if (rc < 0)
        return rc;
    n = a->form.repetitions + 1;
    a->leading = ct_arena_array(a->arena, int, n);
    memset(a->leading, -1, sizeof(int) * (size_t)n);
    for (int i = 0; rc == 0 && i < a->op->ins + a->op->outs; i++)
        if (i >= a->op->ins || a->op->in[i])
            rc = settle_operand(a, i);
    return rc < 0 ? rc : settle_tie(a->rule, a->op->type->tie);
}

int ct_rule_apply(const struct ct_op *op, struct ct_arena *arena, struct ct_rule *rule)
{
    struct application a = {.op = op, .arena = arena, .rule = rule};
    int operands = op->ins + op->outs, rc = 0;

    *rule = (struct ct_rule){.operand = ct_arena_array(arena, struct ct_rule_operand, operands + 1),
                             .tie = {-1, -1}};
    for (int i = 0; i < operands; i++)
        rule->operand[i].rank = rule->operand[i].repetition = -1;
    if (op->type->rule)
        rc = settle_rule(&a);
    if (rc == 0 && op->type->factors)
        rc = op->type->factors(op, arena, rule);
    return rc;
}

static bool has_factor(const struct ct_rule_operand *operand, int f)
{
    for (int i = 0; i < operand->rank; i++)
        if (operand->factor[i] == f)
            return true;
    return false;
}

bool ct_rule_reduces(const struct ct_rule *rule, const struct ct_op *op, int f, int output)
{
    const struct ct_rule_operand *operand = &rule->operand[op->ins + output];
    const struct ct_factor *factor = &rule->factor[f];

    if (factor->operand >= op->ins)
        return false;
    if (factor->repetition >= 0 && operand->repetition >= 0 &&
        factor->repetition != operand->repetition)
        return false;
    if (f == rule->tie[0] || f == rule->tie[1])
        return !has_factor(operand, rule->tie[0]) && !has_factor(operand, rule->tie[1]);
    return !has_factor(operand, f);
}

/* ---- faults in the table itself ---- */

static int check_term(const struct ct_form *form, const struct ct_term *term, bool output)
{
    for (int k = 0; k < term->length; k++) {
        char letter = term->text[k];
        bool known = !output || letter != '.';

        if (letter != '.' && !isalpha((unsigned char)letter))
            return ct_fail(CT_EINVAL, "factor '%c' is not a letter", letter);
        for (int i = 0; i < form->ins; i++)
            known |= !form->term[i].optional && term_has(&form->term[i], letter);
        if (!known)
            return ct_fail(CT_EINVAL, "the leading dimensions of an output stand in no input");
    }
    return 0;
}

static int check_operand(const struct ct_term *term, const struct ct_term *factors)
{
    if (term->length < 3 || term->text[term->length - 2] != ' ' ||
        !strchr("TAWFfdi", term->text[term->length - 1]))
        return ct_fail(CT_EINVAL, "operand \"%.*s\" is not a name and a dtype letter", term->length,
                       term->text);
    if (factors && (factors->repeated != term->repeated || factors->optional != term->optional ||
                    factors->unit != term->unit))
        return ct_fail(CT_EINVAL, "operand \"%.*s\" is repeated or optional in one place only",
                       term->length, term->text);
    return 0;
}

static int check_form(const struct ct_op_type *type)
{
    struct ct_form rule, operands;
    int rc = 0;

    if (type->rule)
        rc = ct_form_parse(type->rule, &rule);
    for (int i = 0; rc == 0 && type->rule && i < rule.ins + rule.outs; i++)
        rc = check_term(&rule, &rule.term[i], i >= rule.ins);
    if (rc < 0 || !type->operands)
        return rc;
    rc = ct_form_parse(type->operands, &operands);
    if (rc == 0 && type->rule && (rule.ins != operands.ins || rule.outs != operands.outs))
        return ct_fail(CT_EINVAL, "rule and operands differ in number");
    for (int i = 0; rc == 0 && i < operands.ins + operands.outs; i++)
        rc = check_operand(&operands.term[i], type->rule ? &rule.term[i] : NULL);
    return rc;
}

static int check_tie(const struct ct_op_type *type)
{
    const char *tie = type->tie;

    if (!tie || (strlen(tie) == 2 && type->rule && strchr(type->rule, tie[0]) &&
                 strchr(type->rule, tie[1])))
        return 0;
    return ct_fail(CT_EINVAL, "tie \"%s\" is not two factors of the rule", tie);
}

int ct_rule_check(const struct ct_op_type *type)
{
    int rc = check_form(type);

    return rc < 0 ? rc : check_tie(type);
}
