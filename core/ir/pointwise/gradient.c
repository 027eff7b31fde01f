/*
 * Gradients of formulas.
 *
 * A formula is cut at its reductions: each is a leaf of what comes after it, and its argument is a
 * root like the outputs. The gradient of a leaf is the sum over roots of the root's gradient times
 * the partial derivative of the root by the leaf, added up along what the leaf does not vary with.
 * Reductions take their turn from the last to the first, then the inputs.
 *
 * The gradient's op reads those of the forward's inputs and outputs with which it has the fewest
 * tensors to keep, and among these the least to compute.
 */
#include <math.h>
#include <string.h>

#include <ctitan/error.h>
#include <ctitan/op_author.h>

#include "ir/pointwise/derivation.h"
#include "ir/pointwise/symbolic.h"

/* ---- the forward ---- */

/* The level of a term, as ct_pointwise_levels says of an op's operand; -1: none. */
static int level_of(const struct ct_term *t, const struct ct_term *whole)
{
    if (t->count == 0)
        return 0;
    if (t->count == whole->count && !memcmp(t->factor, whole->factor, (size_t)t->count))
        return WHOLE;
    if (t->count == whole->count - 1 && !memcmp(t->factor, whole->factor, (size_t)t->count))
        return CT_BY_ROW;
    if (t->count == 1 && t->dot < 0 && t->factor[0] == whole->factor[whole->count - 1])
        return CT_BY_COLUMN;
    return -1;
}

static bool has_clauses(const struct ct_signature *s)
{
    bool any = s->positions || s->tie[0];

    for (int i = 0; i < s->letters; i++)
        any |= s->multiple[i] != NULL;
    for (int i = 0; i < s->ins + s->outs; i++)
        any |= s->term[i].maximum;
    return any;
}

static int find_levels(struct derivation *d)
{
    const struct ct_term *whole = term_at(d, 0);

    if (!d->s->shaped || d->s->repeats || d->s->updates || has_clauses(d->s))
        return ct_fail(CT_EINVAL,
                       "its signature has clauses or no factors, or repeats or updates an operand");
    for (int i = 1; i < operands(d); i++)
        if (term_at(d, i)->count > whole->count)
            whole = term_at(d, i);
    for (int i = 0; i < operands(d); i++) {
        int level = level_of(term_at(d, i), whole);

        if (level < 0)
            return ct_fail(CT_EINVAL, "%s has neither the rows nor the columns of %s",
                           term_at(d, i)->name, whole->name);
        d->level[i] = (unsigned)level;
    }
    return 0;
}

static bool is_number(const struct ct_option *o)
{
    return o->type == CT_BOOL || o->type == CT_INT || o->type == CT_FLOAT || o->type == CT_ENUM;
}

static int read_forward(struct derivation *d)
{
    int rc, i = 0;

    for (const struct ct_option *o = d->s->whole.attrs; o && o->name; o++)
        i++;
    if (i > MOST_READS || operands(d) > MOST_READS)
        return ct_fail(CT_EINVAL, "it has more than %d operands or attributes", MOST_READS);
    i = 0;
    for (const struct ct_option *o = d->s->whole.attrs; o && o->name; o++, i++)
        if (is_number(o))
            ct_pointwise_name(&d->p, &d->names, o->name,
                              ct_pointwise_input(&d->p, attribute_input(d, i), 0));
    for (i = 0; i < d->s->ins; i++) {
        d->operand[i] = ct_pointwise_input(&d->p, i, d->level[i]);
        ct_pointwise_name(&d->p, &d->names, term_at(d, i)->name, d->operand[i]);
    }
    rc = ct_pointwise_read(&d->p, d->s->whole.pointwise, &d->names);
    for (; rc == 0 && i < operands(d); i++) {
        d->operand[i] = ct_pointwise_find(&d->names, term_at(d, i)->name);
        if (d->operand[i] < 0)
            rc = ct_fail(CT_EINVAL, "its formula does not assign %s", term_at(d, i)->name);
    }
    d->forward = (int)d->p.count;
    return rc;
}

/* The output that takes a gradient: the one with rows and columns. Statistics of rows beside it
   take none. */
static int find_output(struct derivation *d)
{
    int whole = 0;

    d->output = d->s->ins;
    for (int i = d->s->ins; i < operands(d); i++)
        if (d->level[i] == WHOLE && whole++ == 0)
            d->output = i;
    if (whole > 1 || (whole == 0 && d->s->outs > 1))
        return ct_fail(CT_EINVAL, "several outputs take a gradient");
    d->dout = ct_pointwise_input(&d->p, operands(d), d->level[d->output]);
    return 0;
}

/* ---- adding up ---- */

/* e, as a value with rows and columns, like `as`: as < as is never true. */
static int spread(struct derivation *d, int e, int as)
{
    int never = ct_pointwise_call(&d->p, CT_POINTWISE_LESS, (int[]){as, as});

    return ct_pointwise_call(&d->p, CT_POINTWISE_SELECT,
                             (int[]){never, ct_pointwise_number(&d->p, 0), e});
}

static bool has(unsigned level, unsigned along)
{
    return (level & along) == along;
}

/* 1 / columns() */
static int one_of_columns(struct derivation *d)
{
    int one = ct_pointwise_number(&d->p, 1);
    int columns = ct_pointwise_call(&d->p, CT_POINTWISE_COLUMNS, NULL);

    return ct_pointwise_call(&d->p, CT_POINTWISE_DIVIDE, (int[]){one, columns});
}

static int magnitude(struct derivation *d, int k)
{
    return ct_pointwise_call(&d->p, CT_POINTWISE_ABS, &k);
}

/* The gradient of leaf, which has this level, from all roots. kind: how rows are added up. */
static int gradient_of(struct derivation *d, int leaf, unsigned level, enum ct_pointwise_kind kind)
{
    int *memo = ct_arena_array(d->arena, int, d->forward);
    int sum = ct_pointwise_number(&d->p, 0), size = sum;

    memset(memo, -1, sizeof(*memo) * (size_t)d->forward);
    for (int i = 0; i < d->roots; i++) {
        const struct root *r = &d->root[i];
        unsigned from = d->p.node[r->node].level;
        int e = ct_symbolic_partial(&d->p, r->node, leaf, memo, d->forward);

        if (ct_symbolic_is(&d->p, e, 0))
            continue;
        e = ct_symbolic_multiply(&d->p, r->gradient, e);
        d->sums_all |= !has(level, CT_BY_ROW) && from == CT_BY_ROW;
        d->sums_all |= level == 0 && from != 0;
        if (level == CT_BY_ROW && from == WHOLE)
            e = ct_symbolic_reduce(&d->p, kind, e, d->forward);
        else if (level == CT_BY_ROW && kind == CT_POINTWISE_ROW_MEAN)
            e = ct_symbolic_multiply(&d->p, e, one_of_columns(d));
        else if (level == CT_BY_COLUMN && from == WHOLE && d->p.node[e].level != WHOLE)
            e = spread(d, e, r->node);
        sum = ct_symbolic_add(&d->p, sum, e);
        size = ct_pointwise_call(&d->p, CT_POINTWISE_ADD, (int[]){size, magnitude(d, e)});
    }
    if (level == CT_BY_ROW && d->p.node[sum].level == level &&
        ct_symbolic_vanishes(&d->p, sum, size))
        return ct_pointwise_number(&d->p, 0);
    if (level == CT_BY_COLUMN && has(d->p.node[sum].level, CT_BY_ROW))
        sum = ct_pointwise_call(&d->p, CT_POINTWISE_COLUMN_SUM, &sum);
    return sum;
}

static int add_root(struct derivation *d, int node, int gradient)
{
    if (ct_symbolic_is(&d->p, gradient, 0))
        return 0;
    if (d->roots == MOST_ROOTS)
        return ct_fail(CT_EINVAL, "its formula has too many reductions");
    d->root[d->roots++] = (struct root){node, gradient};
    return 0;
}

/* Make the argument of reduction k a root. */
static int pass_reduction(struct derivation *d, int k)
{
    struct ct_pointwise_node n = d->p.node[k];
    bool mean = n.kind == CT_POINTWISE_ROW_MEAN;
    int g = gradient_of(d, k, n.level, mean ? CT_POINTWISE_ROW_MEAN : CT_POINTWISE_ROW_SUM);

    if (n.kind == CT_POINTWISE_ROW_MAX && !ct_symbolic_is(&d->p, g, 0)) {
        int less = ct_pointwise_call(&d->p, CT_POINTWISE_LESS, (int[]){n.arg[0], k});
        int zero = ct_pointwise_number(&d->p, 0), one = ct_pointwise_number(&d->p, 1);

        one = ct_pointwise_call(&d->p, CT_POINTWISE_SELECT, (int[]){less, zero, one});
        g = ct_symbolic_multiply(&d->p, g, one);
    }
    if (d->p.node[n.arg[0]].level != WHOLE && !ct_symbolic_is(&d->p, g, 0))
        return ct_fail(CT_EINVAL, "it reduces what does not vary along rows and columns");
    return add_root(d, n.arg[0], g);
}

static int find_gradients(struct derivation *d)
{
    int rc = add_root(d, d->operand[d->output], d->dout);

    for (int k = d->forward - 1; rc == 0 && k >= 0; k--)
        if (d->p.node[k].kind > CT_POINTWISE_COLUMNS)
            rc = pass_reduction(d, k);
    for (int i = 0; rc == 0 && i < d->s->ins; i++) {
        int g = ct_pointwise_number(&d->p, 0);

        if (!strchr("ic", term_at(d, i)->dtype))
            g = gradient_of(d, d->operand[i], d->level[i], CT_POINTWISE_ROW_SUM);
        if (!ct_symbolic_is(&d->p, g, 0) && d->p.node[g].level != d->level[i])
            g = spread(d, g, d->operand[i]);
        d->din[i] = g;
    }
    if (rc == 0 && d->sums_all)
        rc = ct_fail(CT_EINVAL, "the gradient of a single number would be a sum over everything");
    return rc;
}

/* ---- what is read ---- */

/* Node k with the nodes that `map` names put in the place of others. */
static int replace(struct derivation *d, int k, int *map)
{
    struct ct_pointwise_node n = d->p.node[k];
    int arg[3] = {0};

    if (map[k] >= 0 || ct_pointwise_arguments(n.kind) == 0)
        return map[k] >= 0 ? map[k] : k;
    for (int i = 0; i < ct_pointwise_arguments(n.kind); i++)
        arg[i] = replace(d, n.arg[i], map);
    return map[k] = ct_pointwise_call(&d->p, n.kind, arg);
}

/* Does node k depend on attributes and numbers alone? */
static bool is_fixed(const struct derivation *d, int k)
{
    const struct ct_pointwise_node *n = &d->p.node[k];

    if (n->kind == CT_POINTWISE_INPUT)
        return n->input > operands(d);
    if (n->level)
        return false;
    for (int i = 0; i < ct_pointwise_arguments(n->kind); i++)
        if (!is_fixed(d, n->arg[i]))
            return false;
    return true;
}

/* May a node that is_fixed() be 0? An attribute whose range excludes that is not. */
static bool may_be_zero(const struct derivation *d, int k)
{
    const struct ct_pointwise_node *n = &d->p.node[k];
    const struct ct_option *o = d->s->whole.attrs;

    if (n->kind == CT_POINTWISE_NUMBER)
        return n->number == 0;
    if (n->kind != CT_POINTWISE_INPUT)
        return true;
    o += n->input - attribute_input(d, 0);
    return (o->type != CT_INT && o->type != CT_FLOAT) || (o->min <= 0 && o->max >= 0);
}

/* Output `node` is read as y, and what it is a multiple of is computed from y. */
static void read_back(struct derivation *d, int node, int y, int *map)
{
    const struct ct_pointwise_node n = d->p.node[node];
    int by;

    map[node] = y;
    if (n.kind == CT_POINTWISE_NEGATE) {
        read_back(d, n.arg[0], ct_pointwise_call(&d->p, CT_POINTWISE_NEGATE, &y), map);
    } else if (n.kind == CT_POINTWISE_MULTIPLY || n.kind == CT_POINTWISE_DIVIDE) {
        by = n.kind == CT_POINTWISE_MULTIPLY && is_fixed(d, n.arg[0]) ? 0 : 1;
        if (!is_fixed(d, n.arg[by]) || may_be_zero(d, n.arg[by]))
            return;
        y = ct_pointwise_call(
            &d->p, n.kind == CT_POINTWISE_MULTIPLY ? CT_POINTWISE_DIVIDE : CT_POINTWISE_MULTIPLY,
            (int[]){y, n.arg[by]});
        read_back(d, n.arg[1 - by], y, map);
    }
}

static double cost_of_node(const struct ct_pointwise_node *n)
{
    double each = n->level & CT_BY_COLUMN ? 1 : 0.01;

    if (n->kind > CT_POINTWISE_COLUMNS)
        return 2;
    if (n->kind == CT_POINTWISE_DIVIDE || n->kind == CT_POINTWISE_SQRT)
        return 4 * each;
    if (n->kind >= CT_POINTWISE_EXP && n->kind <= CT_POINTWISE_POW && n->kind != CT_POINTWISE_ABS &&
        n->kind != CT_POINTWISE_MIN && n->kind != CT_POINTWISE_MAX)
        return 16 * each;
    return each;
}

static void count(const struct derivation *d, int k, bool *seen, struct choice *c)
{
    const struct ct_pointwise_node *n = &d->p.node[k];

    if (seen[k])
        return;
    seen[k] = true;
    if (n->kind == CT_POINTWISE_INPUT) {
        int i = n->input;

        c->reads |= (uint64_t)1 << (i > operands(d) ? 32 + i - attribute_input(d, 0) : i);
        if (i < operands(d))
            c->cost += n->level != WHOLE ? 0.1 : i < d->s->ins ? 1000 : 1004;
        return;
    }
    c->cost += ct_pointwise_arguments(n->kind) ? cost_of_node(n) : 0;
    for (int i = 0; i < ct_pointwise_arguments(n->kind); i++)
        count(d, n->arg[i], seen, c);
}

/* The gradients where the outputs of this set are read. */
static struct choice try_outputs(struct derivation *d, unsigned set)
{
    struct choice c = {0};
    int *map = ct_arena_array(d->arena, int, d->p.count);
    bool *seen;

    memset(map, -1, sizeof(*map) * d->p.count);
    for (int j = 0; j < d->s->outs; j++)
        if (set >> j & 1)
            read_back(d, d->operand[d->s->ins + j],
                      ct_pointwise_input(&d->p, d->s->ins + j, d->level[d->s->ins + j]), map);
    for (int i = 0; i < d->s->ins; i++)
        c.din[i] = replace(d, d->din[i], map);
    seen = ct_arena_array(d->arena, bool, d->p.count);
    for (int i = 0; i < d->s->ins; i++)
        count(d, c.din[i], seen, &c);
    return c;
}

static struct choice choose_outputs(struct derivation *d)
{
    struct choice best = {.cost = INFINITY};
    int outs = d->s->outs < 6 ? d->s->outs : 6;

    for (unsigned set = 0; set < 1u << outs; set++) {
        struct choice c = try_outputs(d, set);

        if (c.cost < best.cost)
            best = c;
    }
    return best;
}

int ct_gradient_find(struct derivation *d, struct choice *c)
{
    int rc = find_levels(d);

    if (rc == 0)
        rc = read_forward(d);
    if (rc == 0)
        rc = find_output(d);
    if (rc == 0)
        rc = find_gradients(d);
    if (rc == 0)
        *c = choose_outputs(d);
    return rc;
}
