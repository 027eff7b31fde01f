/*
 * The op type of a derived gradient: its operands, signature, formula, attributes and samples. And
 * the function that emits it.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <ctitan/error.h>
#include <ctitan/op_author.h>

#include "ir/pointwise/derivation.h"
#include "ir/pointwise/gradient.h"
#include "ir/pointwise/symbolic.h"

static void print_term(FILE *out, const struct derivation *d, int i, const char *prefix)
{
    const struct ct_term *t = term_at(d, i);

    fprintf(out, "%s%s%s[", t->optional && !*prefix ? "?" : "", prefix, t->name);
    for (int k = 0; k < t->count; k++)
        fputc(d->s->letter[t->factor[k]], out);
    fprintf(out, "] %c", t->dtype);
}

static void add_operand(struct ct_gradient *g, enum ct_operand_kind kind, int index)
{
    g->in[g->ins].kind = kind;
    g->in[g->ins++].index = index;
}

/* Is some operand of the gradient of this dtype letter? */
static bool tells(const struct derivation *d, const struct ct_gradient *g, char dtype)
{
    for (int i = 0; i < g->ins; i++)
        if (term_at(d,
                    g->in[i].kind == CT_OPERAND_INPUT ? g->in[i].index : d->s->ins + g->in[i].index)
                ->dtype == dtype)
            return true;
    return false;
}

/* The output's gradient, the operands that are read, and one for each dtype that no other tells: at
   most one more than the forward has, which has at most MOST_READS. */
static void list_operands(const struct derivation *d, const struct choice *c, struct ct_gradient *g)
{
    g->output = d->output - d->s->ins;
    add_operand(g, CT_OPERAND_GRADIENT, g->output);
    for (int i = 0; i < operands(d); i++)
        if (reads(c, i))
            add_operand(g, i < d->s->ins ? CT_OPERAND_INPUT : CT_OPERAND_OUTPUT,
                        i < d->s->ins ? i : i - d->s->ins);
    for (int i = 0; i < d->s->ins; i++) {
        if (ct_symbolic_is(&d->p, c->din[i], 0))
            continue;
        g->passes[i] = c->din[i] == d->dout && term_at(d, i)->dtype == term_at(d, d->output)->dtype;
        if (g->passes[i])
            continue;
        g->out[g->outs++] = i;
        if (!tells(d, g, term_at(d, i)->dtype))
            add_operand(g, CT_OPERAND_INPUT, i);
    }
}

static int operand_of(const struct derivation *d, const struct ct_gradient *g, int i)
{
    return g->in[i].kind == CT_OPERAND_INPUT ? g->in[i].index : d->s->ins + g->in[i].index;
}

static const char *finish_text(struct ct_arena *arena, FILE *out, char **text)
{
    const char *copy;

    fclose(out);
    copy = ct_arena_strdup(arena, *text);
    free(*text);
    return copy;
}

static const char *write_signature(const struct derivation *d, const struct ct_gradient *g)
{
    char *text = NULL;
    size_t size;
    FILE *out = open_memstream(&text, &size);

    for (int i = 0; i < g->ins; i++) {
        fputs(i ? ", " : "", out);
        print_term(out, d, operand_of(d, g, i), g->in[i].kind == CT_OPERAND_GRADIENT ? "d" : "");
    }
    for (int i = 0; i < g->outs; i++) {
        fputs(i ? ", " : " -> ", out);
        print_term(out, d, g->out[i], "d");
    }
    return finish_text(d->arena, out, &text);
}

static void count_uses(const struct derivation *d, int k, int *uses)
{
    const struct ct_pointwise_node *n = &d->p.node[k];

    if (uses[k]++)
        return;
    for (int i = 0; i < ct_pointwise_arguments(n->kind); i++)
        count_uses(d, n->arg[i], uses);
}

static const char *name_of_input(const struct derivation *d, int i)
{
    if (i < operands(d))
        return term_at(d, i)->name;
    if (i == operands(d))
        return ct_arena_printf(d->arena, "d%s", term_at(d, d->output)->name);
    return d->s->whole.attrs[i - attribute_input(d, 0)].name;
}

static const char *write_formula(const struct derivation *d, const struct choice *c,
                                 const struct ct_gradient *g)
{
    int *uses = ct_arena_array(d->arena, int, d->p.count), temporaries = 0;
    const char **use = ct_arena_array(d->arena, const char *, d->p.count);
    const struct ct_pointwise_style style = {"", 17, NULL, use, NULL};
    char *text = NULL;
    size_t size;
    FILE *out = open_memstream(&text, &size);

    for (int i = 0; i < g->outs; i++)
        count_uses(d, c->din[g->out[i]], uses);
    for (int k = 0; k < (int)d->p.count; k++) {
        const struct ct_pointwise_node *n = &d->p.node[k];

        if (n->kind == CT_POINTWISE_INPUT)
            use[k] = name_of_input(d, n->input);
        if (uses[k] < 2 || ct_pointwise_arguments(n->kind) == 0)
            continue;
        fprintf(out, "t_%d = ", ++temporaries);
        ct_pointwise_print(&d->p, k, &style, out);
        fputs("; ", out);
        use[k] = ct_arena_printf(d->arena, "t_%d", temporaries);
    }
    for (int i = 0; i < g->outs; i++) {
        int k = c->din[g->out[i]];

        fprintf(out, "%sd%s = ", i ? "; " : "", term_at(d, g->out[i])->name);
        if (use[k])
            fputs(use[k], out);
        else
            ct_pointwise_print(&d->p, k, &style, out);
    }
    return finish_text(d->arena, out, &text);
}

/* The forward's attributes that the formula reads, at their places in its struct. */
static const struct ct_option *list_attributes(const struct derivation *d, const struct choice *c)
{
    struct ct_option *table;
    int all = 0, count = 0;

    while (d->s->whole.attrs && d->s->whole.attrs[all].name)
        all++;
    table = ct_arena_array(d->arena, struct ct_option, all + 1);
    for (int i = 0; i < all; i++)
        if (reads(c, 32 + i))
            table[count++] = d->s->whole.attrs[i];
    return count ? table : NULL;
}

/* Sums over what others have whole may be wanted in another dtype than these. */
static bool sums_up(const struct derivation *d, const struct ct_gradient *g)
{
    for (int i = 0; i < g->outs; i++)
        if (d->level[g->out[i]] != d->level[d->output])
            return true;
    return false;
}

static bool reduces(const struct derivation *d, int k)
{
    const struct ct_pointwise_node *n = &d->p.node[k];
    bool any = n->kind > CT_POINTWISE_COLUMNS;

    for (int i = 0; !any && i < ct_pointwise_arguments(n->kind); i++)
        any = reduces(d, n->arg[i]);
    return any;
}

/* May output o lie on operand i? On any where the forward may; else on the operand that it is the
   gradient of, if nothing is read twice. */
static bool may_lie(const struct derivation *d, const struct choice *c, const struct ct_gradient *g,
                    int o, int i)
{
    int to = g->out[o], from = operand_of(d, g, i);

    if (d->level[to] != WHOLE || d->level[from] != WHOLE ||
        term_at(d, to)->dtype != term_at(d, from)->dtype)
        return false;
    return d->s->whole.inplace || (to == from && !reduces(d, c->din[to]));
}

static const int8_t (*list_inplace(const struct derivation *d, const struct choice *c,
                                   const struct ct_gradient *g))[2]
{
    size_t room = (size_t)(g->ins * g->outs + 1), count = 0;
    int8_t *pair = ct_arena_array(d->arena, int8_t, 2 * room);

    for (int o = 0; o < g->outs; o++)
        for (int i = 0; i < g->ins; i++)
            if (!sums_up(d, g) && may_lie(d, c, g, o, i)) {
                pair[2 * count] = (int8_t)o;
                pair[2 * count++ + 1] = (int8_t)i;
            }
    pair[2 * count] = pair[2 * count + 1] = -1;
    return count ? (const int8_t(*)[2])(void *)pair : NULL;
}

/* ---- samples ---- */

/* One of the forward's samples: the words of its inputs, NULL for one that is absent, and the shape
   of the largest. */
struct sample {
    const char *input[CT_MAX_TERMS];
    int length[CT_MAX_TERMS];
    const char *shape; /* "2,4,6]" */
    int shape_length;
};

static void read_sample(const struct derivation *d, const char *at, const char *end,
                        struct sample *s)
{
    *s = (struct sample){.shape = "", .shape_length = 0};
    for (int i = 0; i < d->s->ins && (at += strspn(at, " ")) < end; i++) {
        const char *shape = strchr(at, '[');

        s->length[i] = (int)strcspn(at, " ;");
        s->input[i] = *at == '-' ? NULL : at;
        if (s->input[i] && shape && d->level[i] == WHOLE) {
            s->shape = shape + 1;
            s->shape_length = (int)strcspn(shape + 1, "]");
        }
        at += s->length[i];
    }
}

/* The shape of an operand of this level: the sample's, without the last size, or that alone. */
static void print_shape(FILE *out, const struct sample *s, unsigned level)
{
    const char *end = s->shape + s->shape_length, *last = end;

    while (last > s->shape && last[-1] != ',')
        last--;
    if (level == WHOLE)
        fprintf(out, "%.*s", s->shape_length, s->shape);
    else if (level == CT_BY_COLUMN)
        fprintf(out, "%.*s", (int)(end - last), last);
    else if (level == CT_BY_ROW && last > s->shape)
        fprintf(out, "%.*s", (int)(last - 1 - s->shape), s->shape);
}

static void print_operands(FILE *out, const struct derivation *d, const struct ct_gradient *g,
                           const struct sample *s)
{
    for (int i = 0; i < g->ins; i++) {
        int at = operand_of(d, g, i);

        fputs(i ? " " : "", out);
        if (g->in[i].kind == CT_OPERAND_INPUT) {
            fprintf(out, "%.*s", s->input[at] ? s->length[at] : 1,
                    s->input[at] ? s->input[at] : "-");
            continue;
        }
        fputs(term_at(d, at)->dtype == 'W' ? "statistic[" : "real[", out);
        print_shape(out, s, d->level[at]);
        fputc(']', out);
    }
}

/* The attributes of a sample that the gradient has, too. */
static void print_attributes(FILE *out, const struct ct_option *attrs, const char *at,
                             const char *end)
{
    bool any = false;

    for (; (at += strspn(at, " ")) < end; at += strcspn(at, " :")) {
        size_t name = strcspn(at, "="), whole = strcspn(at, " :");

        for (const struct ct_option *o = attrs; o && o->name; o++)
            if (strlen(o->name) == name && !memcmp(o->name, at, name)) {
                fprintf(out, "%s%.*s", any ? " " : "", (int)whole, at);
                any = true;
            }
    }
    fputs(any ? ": " : "", out);
}

/* The forward's samples, with the operands of the gradient. NULL: the forward has none. */
static const char *write_samples(const struct derivation *d, const struct ct_gradient *g,
                                 const struct ct_option *attrs)
{
    char *text = NULL;
    size_t size;
    FILE *out;

    if (!d->s->whole.samples)
        return NULL;
    out = open_memstream(&text, &size);
    for (const char *at = d->s->whole.samples; *at;) {
        const char *end = at + strcspn(at, ";"), *colon = memchr(at, ':', (size_t)(end - at));
        struct sample s;

        read_sample(d, colon ? colon + 1 : at, end, &s);
        print_attributes(out, attrs, at, colon ? colon : at);
        print_operands(out, d, g, &s);
        fputs(*end ? "; " : "", out);
        at = *end ? end + 1 : end;
    }
    return finish_text(d->arena, out, &text);
}

/* ---- the type ---- */

int ct_gradient_derive(const struct ct_signature *forward, struct ct_arena *arena,
                       struct ct_gradient *g)
{
    struct derivation d = {.s = forward, .arena = arena, .p = {.arena = arena}};
    struct choice c;
    int rc;

    if (!forward->whole.pointwise)
        return ct_fail(CT_EINVAL, "it has no formula");
    rc = ct_gradient_find(&d, &c);
    if (rc == 0)
        list_operands(&d, &c, g);
    if (rc < 0 || !g->outs)
        return rc;
    g->type = (struct ct_op_type){
        .size = sizeof(struct ct_op_type),
        .name = ct_arena_printf(arena, "%s_grad", forward->whole.name),
        .summary = ct_arena_printf(arena, "gradient of %s", forward->whole.name),
        .signature = write_signature(&d, g),
        .flags = (sums_up(&d, g) ? CT_OP_ANY_DTYPE : 0) | (g->ins == 1 ? CT_OP_LINEAR : 0),
        .attrs = list_attributes(&d, &c),
        .inplace = list_inplace(&d, &c, g),
        .reference = ct_pointwise_reference,
        .pointwise = write_formula(&d, &c, g),
    };
    g->type.samples = write_samples(&d, g, g->type.attrs);
    g->type.attrs_size = g->type.attrs ? forward->whole.attrs_size : 0;
    return 0;
}

/* ---- emitting it ---- */

/* Name the outputs, and set the gradients of the inputs that are there. */
static void take_outputs(struct ct_vjp *v, const struct ct_gradient *g, const struct ct_op *op)
{
    for (int i = 0; i < g->outs; i++) {
        if (!ct_op_input(v->op, g->out[i]))
            continue;
        if (i)
            ct_value_rename(v->b->graph, op->out[i], ct_gradient_name(v, g->out[i]));
        v->din[g->out[i]] = op->out[i];
    }
}

int ct_pointwise_vjp(struct ct_vjp *v)
{
    const struct ct_gradient *g = ct_gradient_of(v->op->type);
    struct ct_value *in[CT_MAX_TERMS], *dout = v->dout[g->output];
    const struct ct_op *op = NULL;
    bool wanted = false;

    if (!dout)
        return 0;
    for (int i = 0; i < v->op->ins; i++)
        if (g->passes[i])
            v->din[i] = dout;
    for (int i = 0; i < g->outs; i++)
        wanted |= ct_op_input(v->op, g->out[i]) && v->wanted[g->out[i]];
    if (!wanted)
        return 0;
    for (int i = 0; i < g->ins; i++)
        in[i] = g->in[i].kind == CT_OPERAND_GRADIENT ? dout
                : g->in[i].kind == CT_OPERAND_INPUT  ? ct_op_input(v->op, g->in[i].index)
                                                     : v->op->out[g->in[i].index];
    op = ct_emit_type(v->b, &g->type,
                      ct_op_input(v->op, g->out[0]) ? ct_gradient_name(v, g->out[0]) : NULL, in,
                      g->ins, g->type.attrs ? v->op->attrs : NULL);
    if (op)
        take_outputs(v, g, op);
    return v->b->status;
}
