/*
 * Nodes of formulas: making them, applying formulas to ops, and evaluating them.
 */
#include <math.h>
#include <string.h>

#include <ctitan/error.h>
#include <ctitan/op_author.h>
#include <ctitan/rule.h>
#include <ctitan/pointwise.h>

static const int argument_counts[] = {
#define X(id, name, arguments, strength) arguments,
    CT_POINTWISE_KINDS(X)
#undef X
};

int ct_pointwise_arguments(enum ct_pointwise_kind kind)
{
    return argument_counts[kind];
}

/* ---- nodes ---- */

static double compute(enum ct_pointwise_kind kind, double a, double b, double c)
{
    switch (kind) {
    case CT_POINTWISE_SELECT:
        return a != 0 ? b : c;
    case CT_POINTWISE_LESS:
        return a < b;
    case CT_POINTWISE_GREATER:
        return a > b;
    case CT_POINTWISE_ADD:
        return a + b;
    case CT_POINTWISE_SUBTRACT:
        return a - b;
    case CT_POINTWISE_MULTIPLY:
        return a * b;
    case CT_POINTWISE_DIVIDE:
        return a / b;
    case CT_POINTWISE_NEGATE:
        return -a;
    case CT_POINTWISE_EXP:
        return exp(a);
    case CT_POINTWISE_LOG:
        return log(a);
    case CT_POINTWISE_LOG1P:
        return log1p(a);
    case CT_POINTWISE_SIGMOID:
        return 1 / (1 + exp(-a));
    case CT_POINTWISE_TANH:
        return tanh(a);
    case CT_POINTWISE_ERF:
        return erf(a);
    case CT_POINTWISE_SIN:
        return sin(a);
    case CT_POINTWISE_COS:
        return cos(a);
    case CT_POINTWISE_SQRT:
        return sqrt(a);
    case CT_POINTWISE_ABS:
        return fabs(a);
    case CT_POINTWISE_MIN:
        return a < b ? a : b;
    case CT_POINTWISE_MAX:
        return a > b ? a : b;
    case CT_POINTWISE_POW:
        return pow(a, b);
    case CT_POINTWISE_BF16:
        return ct_rounded(CT_BF16, a);
    default: /* a leaf, or a reduction of one element */
        return a;
    }
}

static int add(struct ct_pointwise *p, struct ct_pointwise_node node)
{
    for (size_t i = 0; i < p->count; i++) {
        const struct ct_pointwise_node *n = &p->node[i];

        if (n->kind == node.kind && n->level == node.level && n->input == node.input &&
            n->number == node.number && !memcmp(n->arg, node.arg, sizeof(n->arg)))
            return (int)i;
    }
    p->node = ct_arena_grow(p->arena, p->node, &p->room, p->count + 1, sizeof(*p->node));
    p->node[p->count] = node;
    return (int)p->count++;
}

int ct_pointwise_number(struct ct_pointwise *p, double number)
{
    return add(p, (struct ct_pointwise_node){.kind = CT_POINTWISE_NUMBER, .number = number});
}

int ct_pointwise_input(struct ct_pointwise *p, int input, unsigned level)
{
    return add(
        p, (struct ct_pointwise_node){.kind = CT_POINTWISE_INPUT, .input = input, .level = level});
}

static bool is_number(const struct ct_pointwise *p, int node)
{
    return p->node[node].kind == CT_POINTWISE_NUMBER;
}

int ct_pointwise_call(struct ct_pointwise *p, enum ct_pointwise_kind kind, const int *arg)
{
    struct ct_pointwise_node node = {.kind = kind};
    double value[3] = {0};
    bool constant = kind < CT_POINTWISE_COLUMNS;

    for (int i = 0; i < argument_counts[kind]; i++) {
        node.arg[i] = arg[i];
        node.level |= p->node[arg[i]].level;
        value[i] = p->node[arg[i]].number;
        constant &= is_number(p, arg[i]);
    }
    if (constant)
        return ct_pointwise_number(p, compute(kind, value[0], value[1], value[2]));
    if (kind == CT_POINTWISE_SELECT && is_number(p, arg[0]))
        return arg[value[0] != 0 ? 1 : 2];
    for (int i = 0; i < 2 && kind == CT_POINTWISE_ADD; i++) /* what is absent is 0 */
        if (is_number(p, arg[i]) && value[i] == 0)
            return arg[1 - i];
    if (kind == CT_POINTWISE_BF16 && p->node[arg[0]].kind == CT_POINTWISE_BF16)
        return arg[0];
    if (kind == CT_POINTWISE_COLUMN_SUM)
        node.level &= ~CT_BY_ROW;
    else if (kind >= CT_POINTWISE_COLUMNS)
        node.level = CT_BY_ROW;
    return add(p, node);
}

/* ---- ops ---- */

struct ct_value *ct_pointwise_whole(const struct ct_op *op)
{
    struct ct_value *whole = NULL;

    for (int i = 0; i < op->ins + op->outs; i++) {
        struct ct_value *v = i < op->ins ? op->in[i] : op->out[i - op->ins];

        if (v && (!whole || v->ndim > whole->ndim))
            whole = v;
    }
    return whole;
}

/* The level of an operand, or -1: its factors are not those of rows, of columns, or of both. */
static int level_of(const struct ct_rule_operand *o, const struct ct_rule_operand *whole)
{
    size_t bytes = sizeof(*o->factor) * (size_t)(o->ndim > 0 ? o->ndim : 0);

    if (o->ndim <= 0)
        return 0;
    if (o->ndim == whole->ndim && !memcmp(o->factor, whole->factor, bytes))
        return CT_BY_ROW | CT_BY_COLUMN;
    if (o->ndim == whole->ndim - 1 && !memcmp(o->factor, whole->factor, bytes))
        return CT_BY_ROW;
    if (o->ndim == 1 && o->factor[0] == whole->factor[whole->ndim - 1])
        return CT_BY_COLUMN;
    return -1;
}

int ct_pointwise_levels(const struct ct_op *op, unsigned *level)
{
    struct ct_arena scratch = {0};
    struct ct_rule rule = {0};
    const struct ct_rule_operand *whole;
    int rc;

    if (!ct_op_type_whole(op->type)->pointwise)
        return ct_fail(CT_EINVAL, "%s has no formula", op->type->name);
    rc = ct_rule_apply(op, &scratch, &rule);
    whole = rule.operand;
    for (int i = 1; rc == 0 && i < op->ins + op->outs; i++)
        if (rule.operand[i].ndim > whole->ndim)
            whole = &rule.operand[i];
    for (int i = 0; rc == 0 && i < op->ins + op->outs; i++) {
        int found = level_of(&rule.operand[i], whole);

        if (found < 0)
            rc = ct_fail(
                CT_EINVAL,
                "%s: operand %d has neither the rows nor the columns of the largest operand",
                op->type->name, i);
        level[i] = (unsigned)found;
    }
    ct_arena_finish(&scratch);
    return rc;
}

static double attribute(const struct ct_op *op, const struct ct_option *o)
{
    switch (o->type) {
    case CT_BOOL:
        return ct_op_bool(op, o->name);
    case CT_INT:
        return (double)ct_op_int(op, o->name);
    case CT_FLOAT:
        return ct_op_float(op, o->name);
    case CT_ENUM:
        return ct_op_enum(op, o->name);
    default:
        return NAN;
    }
}

static const char *operand(const struct ct_pointwise *p, const struct ct_op *op, int i)
{
    char name[64];

    ct_operand_name(op, i, name, sizeof(name));
    return ct_arena_strdup(p->arena, name);
}

/* Optional inputs may be left out at the end: 0 each, unless the op has them. */
static void name_absent(struct ct_pointwise *p, const char *signature,
                        struct ct_pointwise_names *names)
{
    for (const char *at = signature; (at = strchr(at, '?')); at++) {
        int n = (int)strcspn(at + 1, " [");

        ct_pointwise_name(p, names, ct_arena_printf(p->arena, "%.*s", n, at + 1),
                          ct_pointwise_number(p, 0));
    }
}

int ct_pointwise_apply(struct ct_pointwise *p, const struct ct_op *op, const int *in, int *out)
{
    return ct_pointwise_apply_any(p, op, NULL, in, out);
}

int ct_pointwise_apply_any(struct ct_pointwise *p, const struct ct_op *op, const int *number,
                           const int *in, int *out)
{
    struct ct_pointwise_names names = {.op = op};
    int rc;

    name_absent(p, op->type->signature, &names);
    for (int i = 0; op->type->attrs && op->type->attrs[i].name; i++) {
        const struct ct_option *o = &op->type->attrs[i];

        ct_pointwise_name(p, &names, o->name,
                          number && number[i] >= 0 ? number[i]
                                                   : ct_pointwise_number(p, attribute(op, o)));
    }
    for (int i = 0; i < op->ins; i++)
        ct_pointwise_name(p, &names, operand(p, op, i),
                          op->in[i] ? in[i] : ct_pointwise_number(p, 0));
    rc = ct_pointwise_read(p, ct_op_type_whole(op->type)->pointwise, &names);
    for (int i = 0; rc == 0 && i < op->outs; i++) {
        out[i] = ct_pointwise_find(&names, operand(p, op, op->ins + i));
        if (out[i] < 0)
            return ct_fail(CT_EINVAL, "the formula of %s does not assign %s", op->type->name,
                           operand(p, op, op->ins + i));
    }
    return rc < 0 ? ct_context(rc, "op type %s", op->type->name) : 0;
}

/* ---- evaluation ---- */

static int64_t elements(unsigned level, int64_t rows, int64_t columns)
{
    return (level & CT_BY_ROW ? rows : 1) * (level & CT_BY_COLUMN ? columns : 1);
}

/* Index in a value of this level of the element at (row, column). */
static int64_t at(unsigned level, int64_t row, int64_t column, int64_t columns)
{
    return (level & CT_BY_ROW ? row * (level & CT_BY_COLUMN ? columns : 1) : 0) +
           (level & CT_BY_COLUMN ? column : 0);
}

static void reduce(const struct ct_pointwise_node *n, unsigned from, const double *x, int64_t rows,
                   int64_t columns, double *y)
{
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < columns; j++) {
            double value = x[at(from, i, j, columns)];
            double *sum = &y[at(n->level, i, j, columns)];

            if (n->kind == CT_POINTWISE_ROW_MAX)
                *sum = j ? fmax(*sum, value) : value;
            else if (n->kind == CT_POINTWISE_ROW_MEAN)
                *sum += value / (double)columns;
            else
                *sum += value;
        }
}

static double *compute_node(const struct ct_pointwise *p, const struct ct_pointwise_node *n,
                            int64_t rows, int64_t columns, double **value, struct ct_arena *arena)
{
    double *y = ct_arena_array(arena, double, elements(n->level, rows, columns));
    int64_t high = n->level & CT_BY_ROW ? rows : 1, wide = n->level & CT_BY_COLUMN ? columns : 1;

    if (n->kind >= CT_POINTWISE_ROW_SUM) {
        reduce(n, p->node[n->arg[0]].level, value[n->arg[0]], rows, columns, y);
        return y;
    }
    for (int64_t i = 0; i < high; i++)
        for (int64_t j = 0; j < wide; j++) {
            double x[3] = {n->kind == CT_POINTWISE_COLUMNS ? (double)columns : n->number};

            for (int k = 0; k < argument_counts[n->kind]; k++)
                x[k] = value[n->arg[k]][at(p->node[n->arg[k]].level, i, j, columns)];
            y[at(n->level, i, j, columns)] = compute(n->kind, x[0], x[1], x[2]);
        }
    return y;
}

double **ct_pointwise_evaluate(const struct ct_pointwise *p, int64_t rows, int64_t columns,
                               double *const *in, struct ct_arena *arena)
{
    double **value = ct_arena_array(arena, double *, p->count + 1);

    for (size_t k = 0; k < p->count; k++) {
        const struct ct_pointwise_node *n = &p->node[k];

        value[k] = n->kind == CT_POINTWISE_INPUT ? in[n->input]
                                                 : compute_node(p, n, rows, columns, value, arena);
    }
    return value;
}

/* The node that an output stores: the store rounds it, after what is there has been added. */
static int unrounded(const struct ct_pointwise *p, const struct ct_value *output, int node)
{
    const struct ct_pointwise_node *n = &p->node[node];

    return output->dtype == CT_BF16 && n->kind == CT_POINTWISE_BF16 ? n->arg[0] : node;
}

int ct_pointwise_reference(const struct ct_launch *l)
{
    struct ct_reference r = ct_reference_begin(l);
    struct ct_pointwise p = {&r.arena, NULL, 0, 0};
    unsigned *level = ct_arena_array(&r.arena, unsigned, l->ins + l->outs);
    int *in = ct_arena_array(&r.arena, int, l->ins + 1), *out;
    const struct ct_tensor *whole = l->ins ? &l->in[0] : &l->out[0];
    int64_t columns, rows;
    double **value;
    int rc = ct_pointwise_levels(l->op, level);

    out = ct_arena_array(&r.arena, int, l->outs + 1);
    for (int i = 0; i < l->ins + l->outs; i++) {
        const struct ct_tensor *t = i < l->ins ? &l->in[i] : &l->out[i - l->ins];

        if (t->ndim > whole->ndim)
            whole = t;
        if (i < l->ins && l->op->in[i])
            in[i] = ct_pointwise_input(&p, i, level[i]);
    }
    if (rc == 0)
        rc = ct_pointwise_apply(&p, l->op, in, out);
    if (rc < 0)
        return ct_reference_end(&r, rc);
    columns = whole->ndim ? ct_columns(whole) : 1;
    rows = whole->ndim ? ct_rows(whole) : 1;
    value = ct_pointwise_evaluate(&p, rows, columns, r.in, &r.arena);
    for (int i = 0; i < l->outs; i++) {
        int k = unrounded(&p, l->op->out[i], out[i]);

        memcpy(r.out[i], value[k],
               sizeof(double) * (size_t)elements(p.node[k].level, rows, columns));
    }
    return ct_reference_end(&r, 0);
}
