/*
 * Factor rules. Applying one walks the operands and assigns a factor to every dimension. Inputs
 * come first and set the sizes; outputs take them over.
 *
 * A table finds factors by letter and repetition: `span` gives the range of factors of a letter
 * ('.' has one for each leading dimension). For the few operands of most ops all tables are on the
 * stack, so shape inference allocates nothing.
 */
#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include <ctitan/error.h>
#include <ctitan/rule.h>

#include "ir/rule.h"
#include "ir/signature.h"

/* The factors of one letter in one repetition. */
struct span {
    int first, count; /* count: 1, or the number of leading dimensions */
    bool known;
};

struct application {
    const struct ct_op *op;
    struct ct_expansion x;
    struct ct_rule *rule;
    struct span *span; /* [repetitions + 1][letters]; row 0: letters shared by all */
};

/* Limits for tables on the stack. */
#define FEW_FACTORS 48
#define FEW_OPERANDS 24
#define FEW_SPANS 64

static struct span *span_of(struct application *a, int letter, int repetition)
{
    const struct ct_signature *s = a->x.signature;
    int row = s->single[letter] ? 0 : repetition + 1;

    return &a->span[row * s->letters + letter];
}

static int wrong_ndim(const struct application *a, int i, const char *least, int ndim)
{
    char text[256];

    return ct_fail(CT_EINVAL, "%s must have %s%d dimension%s",
                   ct_operand_describe(a->op, i, text, sizeof(text)), least, ndim, ct_plural(ndim));
}

/* Find the ndim of operand i, and from it the number of leading dimensions if still unknown. */
static int settle_ndim(struct application *a, int i, const struct ct_term *term, int repetition)
{
    struct span *leading = term->dot < 0 ? NULL : span_of(a, term->factor[term->dot], repetition);
    int letters = term->count - (leading != NULL), ndim;
    bool input = i < a->op->ins;

    if (leading && !leading->known) {
        if (a->op->in[i]->ndim < letters)
            return wrong_ndim(a, i, "at least ", letters);
        leading->count = a->op->in[i]->ndim - letters;
    }
    ndim = a->rule->operand[i].ndim = letters + (leading ? leading->count : 0);
    if (input && a->op->in[i]->ndim != ndim)
        return wrong_ndim(a, i, "", ndim);
    if (ndim > CT_MAX_DIMS)
        return ct_fail(CT_EINVAL, "an output would have %d dimensions", ndim);
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

/* The factors of a letter, created at its first occurrence. */
static const struct span *settle_factors(struct application *a, int letter, int repetition,
                                         int operand)
{
    const struct ct_signature *s = a->x.signature;
    struct span *span = span_of(a, letter, repetition);
    char name = s->letter[letter];

    if (span->known)
        return span;
    span->known = true;
    span->first = a->rule->count;
    if (name != '.')
        span->count = 1;
    for (int index = 0; index < span->count; index++)
        a->rule->factor[a->rule->count++] = (struct ct_factor){
            .letter = name,
            .repetition = s->single[letter] ? -1 : repetition,
            .index = index,
            .kind = isupper((unsigned char)name) ? CT_FACTOR_WHOLE : CT_FACTOR_REDUCTION,
            .size = -1,
            .operand = operand,
            .position = s->position[letter],
            .multiple = s->multiple[letter] ? ct_op_int(a->op, s->multiple[letter]->name) : 1,
        };
    return span;
}

static int settle_operand(struct application *a, int i)
{
    struct ct_rule_operand *operand = &a->rule->operand[i];
    const struct ct_term *term = ct_signature_term(&a->x, i, &operand->repetition);
    int rc = settle_ndim(a, i, term, operand->repetition), dim = 0;

    operand->maximum = term->maximum;
    for (int k = 0; rc == 0 && k < term->count; k++) {
        const struct span *span = settle_factors(a, term->factor[k], operand->repetition, i);

        for (int index = 0; rc == 0 && index < span->count; index++, dim++) {
            struct ct_factor *f = &a->rule->factor[span->first + index];

            operand->factor[dim] = span->first + index;
            if (i < a->op->ins)
                rc = settle_size(a, i, dim);
            else if (f->kind == CT_FACTOR_REDUCTION)
                f->kind = CT_FACTOR_PARALLEL;
        }
    }
    return rc;
}

/* Tied factors are of one kind: heads are split together with their groups. */
static int settle_tie(struct ct_rule *rule, const char *tie)
{
    struct ct_factor *many = NULL, *few = NULL;

    for (int i = 0; tie[0] && i < rule->count; i++)
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

/* Upper bound on factors: single letters, letters of each repetition, leading dimensions. */
static int count_factors(const struct application *a)
{
    const struct ct_signature *s = a->x.signature;
    int single = 0, several = 0, leading = 0;

    for (int i = 0; i < a->op->ins; i++)
        if (a->op->in[i] && a->op->in[i]->ndim > leading)
            leading = a->op->in[i]->ndim;
    for (int k = 0; k < s->letters; k++)
        *(s->single[k] ? &single : &several) += s->letter[k] == '.' ? leading : 1;
    return single + several * a->x.repetitions;
}

static int settle(struct application *a, struct ct_arena *arena, struct ct_factor *few)
{
    const struct ct_signature *s = a->x.signature;
    int factors = count_factors(a), spans = (a->x.repetitions + 1) * s->letters, rc = 0;
    struct span few_spans[FEW_SPANS];

    a->rule->factor =
        few && factors <= FEW_FACTORS ? few : ct_arena_array(arena, struct ct_factor, factors + 1);
    a->span = spans <= FEW_SPANS ? few_spans : ct_arena_array(arena, struct span, spans);
    memset(a->span, 0, sizeof(*a->span) * (size_t)spans);
    for (int i = 0; rc == 0 && i < a->op->ins + a->op->outs; i++)
        if (i >= a->op->ins || a->op->in[i])
            rc = settle_operand(a, i);
    return rc < 0 ? rc : settle_tie(a->rule, s->tie);
}

/* few: space for FEW_FACTORS factors; NULL: arena holds everything. */
static int apply(const struct ct_op *op, const struct ct_expansion *x, struct ct_arena *arena,
                 struct ct_factor *few, struct ct_rule *rule)
{
    struct application a = {.op = op, .x = *x, .rule = rule};

    for (int i = 0; i < op->ins + op->outs; i++)
        rule->operand[i] = (struct ct_rule_operand){.ndim = -1, .repetition = -1};
    return x->signature->shaped ? settle(&a, arena, few) : 0;
}

int ct_rule_apply(const struct ct_op *op, struct ct_arena *arena, struct ct_rule *rule)
{
    int operands = op->ins + op->outs, rc;
    struct ct_expansion x;

    *rule = (struct ct_rule){.operand = ct_arena_array(arena, struct ct_rule_operand, operands + 1),
                             .tie = {-1, -1}};
    rc = ct_signature_expand(op, &x);
    if (rc == 0)
        rc = apply(op, &x, arena, NULL, rule);
    if (rc == 0 && op->type->factors)
        rc = op->type->factors(op, arena, rule);
    return rc;
}

/* ---- shapes ---- */

static void set_shapes(struct ct_op *op, const struct ct_rule *rule)
{
    for (int i = 0; i < op->outs; i++) {
        const struct ct_rule_operand *operand = &rule->operand[op->ins + i];

        op->out[i]->ndim = operand->ndim;
        for (int d = 0; d < operand->ndim; d++)
            op->out[i]->shape[d] = rule->factor[operand->factor[d]].size;
    }
}

int ct_rule_infer(struct ct_op *op, const struct ct_expansion *x)
{
    struct ct_rule_operand few_operands[FEW_OPERANDS];
    struct ct_factor few[FEW_FACTORS];
    struct ct_arena scratch = {0};
    struct ct_rule rule = {.tie = {-1, -1}};
    int rc;

    if (!x->signature->shaped)
        return 0;
    rule.operand = op->ins + op->outs <= FEW_OPERANDS
                       ? few_operands
                       : ct_arena_array(&scratch, struct ct_rule_operand, op->ins + op->outs);
    rc = apply(op, x, &scratch, few, &rule);
    if (rc == 0 && op->type->factors)
        rc = op->type->factors(op, &scratch, &rule);
    if (rc == 0)
        set_shapes(op, &rule);
    ct_arena_finish(&scratch);
    return rc;
}

/* ---- dtypes ---- */

struct dtypes {
    const struct ct_op *op;
    enum ct_dtype common; /* T and A */
    int common_from;      /* the input that determines it, or -1 */
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
    return dtype == *want && (strchr("Aic", letter) || ct_dtype_is_float(dtype)) &&
           (letter != 'A' || ct_dtype_bits(dtype) >= 8 || d->op->type->flags & CT_OP_PACKED);
}

static int check_dtype(const struct dtypes *d, const struct ct_term *term, int i)
{
    const struct ct_value *v = d->op->in[i];
    char name[64], other[64];
    enum ct_dtype want;

    if (fits(d, term->dtype, v->dtype, &want))
        return 0;
    ct_operand_name(d->op, i, name, sizeof(name));
    if (ct_dtype_bits(v->dtype) < 8)
        return ct_fail(CT_EINVAL, "%s %%%s is %s: op type %s takes no elements below a byte", name,
                       v->name, ct_dtype_name(v->dtype), d->op->type->name);
    if (v->dtype == want)
        return ct_fail(CT_EINVAL, "%s %%%s is %s, not a floating-point dtype", name, v->name,
                       ct_dtype_name(v->dtype));
    if (!strchr("TAW", term->dtype) || d->common_from < 0)
        return ct_fail(CT_EINVAL, "%s %%%s is %s, not %s", name, v->name, ct_dtype_name(v->dtype),
                       ct_dtype_name(want));
    ct_operand_name(d->op, d->common_from, other, sizeof(other));
    return ct_fail(CT_EINVAL, "%s %%%s is %s, not %s as %s %%%s needs", name, v->name,
                   ct_dtype_name(v->dtype), ct_dtype_name(want), other,
                   d->op->in[d->common_from]->name);
}

static struct dtypes common_dtype(const struct ct_op *op, const struct ct_expansion *x)
{
    int repetition;

    for (int i = 0; i < op->ins; i++)
        if (op->in[i] && strchr("TA", ct_signature_term(x, i, &repetition)->dtype))
            return (struct dtypes){op, op->in[i]->dtype, i};
    return (struct dtypes){op, CT_F32, -1};
}

static int missing(const struct ct_op *op, int i)
{
    char name[64];

    ct_operand_name(op, i, name, sizeof(name));
    return ct_fail(CT_EINVAL, "%s is missing", name);
}

int ct_rule_infer_dtypes(struct ct_op *op, const struct ct_expansion *x)
{
    struct dtypes d = common_dtype(op, x);
    int repetition;

    for (int i = 0; i < op->ins; i++) {
        const struct ct_term *term = ct_signature_term(x, i, &repetition);
        int rc = 0;

        if (op->in[i])
            rc = check_dtype(&d, term, i);
        else if (!term->optional)
            rc = missing(op, i);
        if (rc < 0)
            return rc;
    }
    for (int i = 0; i < op->outs; i++)
        fits(&d, ct_signature_term(x, op->ins + i, &repetition)->dtype, d.common,
             &op->out[i]->dtype);
    return 0;
}

/* ---- reductions ---- */

static bool has_factor(const struct ct_rule_operand *operand, int f)
{
    for (int i = 0; i < operand->ndim; i++)
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
