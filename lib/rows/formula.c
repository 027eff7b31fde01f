/*
 * Kernels that were written from the formulas of op types: which of a type's functions runs a call.
 */
#include <string.h>

#include <ctitan/error.h>
#include <ctitan/lib/rows.h>

static const struct ct_rows_formula *find(const struct ct_rows_formula *list, const char *op)
{
    for (; list->op; list++)
        if (!strcmp(list->op, op))
            return list;
    return NULL;
}

static bool has_dtype(char letter, enum ct_dtype dtype)
{
    switch (letter) {
    case 'f':
        return dtype == CT_F32;
    case 'b':
        return dtype == CT_BF16;
    case 'd':
        return dtype == CT_F64;
    default:
        return letter == '*' && (dtype == CT_F32 || dtype == CT_BF16);
    }
}

static bool takes_operands(const struct ct_rows_formula *f, const struct ct_rows_variant *v,
                           const struct ct_prepare *p)
{
    for (int i = 0; i < f->ins; i++) {
        bool present = i < p->ins && p->present[i];

        if (present ? !has_dtype(v->dtypes[i], p->in[i].dtype) : v->dtypes[i] != '-')
            return false;
    }
    for (int i = 0; i < f->outs; i++)
        if (!has_dtype(v->dtypes[f->ins + i], p->out[i].dtype))
            return false;
    return p->outs == f->outs;
}

static bool takes_choices(const struct ct_rows_variant *v, const struct ct_op *op)
{
    const char *choice = v->choices;

    for (const struct ct_option *o = op->type->attrs; o && o->name; o++)
        if ((o->type == CT_BOOL && ct_op_bool(op, o->name) != *choice++ - '0') ||
            (o->type == CT_ENUM && ct_op_enum(op, o->name) != *choice++ - '0'))
            return false;
    return true;
}

static const struct ct_rows_variant *choose(const struct ct_rows_formula *f,
                                            const struct ct_prepare *p)
{
    for (const struct ct_rows_variant *v = f ? f->variant : NULL; v && v->dtypes; v++)
        if (takes_operands(f, v, p) && takes_choices(v, p->op))
            return v;
    return NULL;
}

bool ct_rows_accepts(const struct ct_rows_formula *list, const struct ct_prepare *p)
{
    return choose(find(list, p->op->type->name), p) != NULL;
}

int ct_rows_prepare(const struct ct_rows_formula *list, struct ct_prepare *p)
{
    const struct ct_rows_formula *f = find(list, p->op->type->name);
    const struct ct_rows_variant *v = choose(f, p);
    struct ct_rows_call *c = ct_arena_new(p->arena, struct ct_rows_call);

    *c = (struct ct_rows_call){
        .kernel = v->kernel, .levels = v->levels, .ins = f->ins, .outs = f->outs};
    for (const struct ct_option *o = p->op->type->attrs; o && o->name; o++)
        if (o->type == CT_FLOAT)
            c->number[c->numbers++] = (float)ct_op_float(p->op, o->name);
        else if (o->type == CT_INT)
            c->number[c->numbers++] = (float)ct_op_int(p->op, o->name);
    p->workspace = ct_rows_workspace(c, p->in, p->out);
    p->state = c;
    return 0;
}
