/*
 * Algebra on the nodes of formulas.
 *
 * A product is a number and powers of factors; a factor is any node but a number, a product or a
 * quotient. Sums of products take out common factors and add like terms. A product is written with
 * the factors first that vary least, so that they are computed once for a row, and with nodes that
 * exist already.
 */
#include <math.h>
#include <string.h>

#include "ir/pointwise/symbolic.h"

#define MOST_FACTORS 32
#define MOST_TERMS 16

struct product {
    double number;
    int count;
    bool full; /* it has more factors than fit */
    struct {
        int node, power;
    } factor[MOST_FACTORS];
};

static int call(struct ct_pointwise *p, enum ct_pointwise_kind kind, int a, int b, int c)
{
    return ct_pointwise_call(p, kind, (int[]){a, b, c});
}

static int number(struct ct_pointwise *p, double value)
{
    return ct_pointwise_number(p, value);
}

/* ---- products ---- */

static int power_of(const struct product *x, int node)
{
    for (int i = 0; i < x->count; i++)
        if (x->factor[i].node == node)
            return x->factor[i].power;
    return 0;
}

static void put(struct product *x, int node, int power)
{
    int i = 0;

    while (i < x->count && x->factor[i].node != node)
        i++;
    if (power == 0 || (i == x->count && x->count == MOST_FACTORS)) {
        x->full |= power != 0;
        return;
    }
    if (i == x->count) {
        x->factor[x->count].node = node;
        x->factor[x->count++].power = power;
        return;
    }
    x->factor[i].power += power;
    if (x->factor[i].power == 0)
        x->factor[i] = x->factor[--x->count];
}

static void times(const struct ct_pointwise *p, struct product *x, int node, int power)
{
    const struct ct_pointwise_node *n = &p->node[node];

    switch (n->kind) {
    case CT_POINTWISE_NUMBER:
        x->number *= pow(n->number, power);
        break;
    case CT_POINTWISE_NEGATE:
        x->number *= power % 2 ? -1 : 1;
        times(p, x, n->arg[0], power);
        break;
    case CT_POINTWISE_MULTIPLY:
    case CT_POINTWISE_DIVIDE:
        times(p, x, n->arg[0], power);
        times(p, x, n->arg[1], n->kind == CT_POINTWISE_DIVIDE ? -power : power);
        break;
    default:
        put(x, node, power);
    }
}

static struct product product_of(const struct ct_pointwise *p, int node)
{
    struct product x = {.number = 1};

    times(p, &x, node, 1);
    return x;
}

/* The factors that a and b share, to the powers that both have. */
static struct product common_of(const struct product *a, const struct product *b)
{
    struct product common = {.number = 1};

    for (int i = 0; i < a->count; i++) {
        int mine = a->factor[i].power, other = power_of(b, a->factor[i].node);

        if (mine > 0 && other > 0)
            put(&common, a->factor[i].node, mine < other ? mine : other);
        else if (mine < 0 && other < 0)
            put(&common, a->factor[i].node, mine > other ? mine : other);
    }
    return common;
}

static void divide_by(struct product *x, const struct product *by)
{
    for (int i = 0; i < by->count; i++)
        put(x, by->factor[i].node, -by->factor[i].power);
    x->number /= by->number;
}

static bool same_factors(const struct product *a, const struct product *b)
{
    for (int i = 0; i < a->count; i++)
        if (power_of(b, a->factor[i].node) != a->factor[i].power)
            return false;
    return a->count == b->count;
}

/* Is node k a product or quotient whose factors are all among those of x? y: its factors. */
static bool divides(const struct ct_pointwise *p, int k, const struct product *x, struct product *y)
{
    enum ct_pointwise_kind kind = p->node[k].kind;
    struct product common;

    if (kind != CT_POINTWISE_MULTIPLY && kind != CT_POINTWISE_DIVIDE)
        return false;
    *y = product_of(p, k);
    common = common_of(y, x);
    return !y->full && y->number == 1 && same_factors(&common, y) &&
           (y->count > 1 || kind == CT_POINTWISE_DIVIDE);
}

/* Put the first `count` nodes in the place of their factors: those with the most first, then the
   first. */
static void reuse_nodes(const struct ct_pointwise *p, int count, struct product *x)
{
    for (;;) {
        struct product best = {.count = 0}, y;
        int node = -1;

        for (int k = 0; k < count; k++)
            if (divides(p, k, x, &y) && y.count > best.count) {
                best = y;
                node = k;
            }
        if (node < 0 || power_of(x, node))
            return;
        divide_by(x, &best);
        put(x, node, 1);
    }
}

/* The latest node first: the gradient of an output comes before what the forward computed. */
static void sort(struct product *x)
{
    for (int i = 1; i < x->count; i++)
        for (int j = i; j > 0 && x->factor[j].node > x->factor[j - 1].node; j--) {
            int node = x->factor[j].node, power = x->factor[j].power;

            x->factor[j] = x->factor[j - 1];
            x->factor[j - 1].node = node;
            x->factor[j - 1].power = power;
        }
}

/* -1 times the factors whose nodes have these levels; -1: none. */
static int fold(struct ct_pointwise *p, const struct product *x, bool columns, int sofar)
{
    for (int sign = 1; sign >= -1; sign -= 2)
        for (int i = 0; i < x->count; i++) {
            int node = x->factor[i].node;

            if (!(p->node[node].level & CT_BY_COLUMN) == columns)
                continue;
            for (int power = x->factor[i].power * sign; power > 0; power--)
                if (sign > 0)
                    sofar = sofar < 0 ? node : call(p, CT_POINTWISE_MULTIPLY, sofar, node, 0);
                else
                    sofar = call(p, CT_POINTWISE_DIVIDE, sofar < 0 ? number(p, 1) : sofar, node, 0);
        }
    return sofar;
}

static int build(struct ct_pointwise *p, struct product x)
{
    bool negative = x.number == -1;
    int low, high;

    if (x.number == 0 || x.count == 0)
        return number(p, x.number);
    reuse_nodes(p, (int)p->count, &x);
    sort(&x);
    low = fold(p, &x, false, fabs(x.number) == 1 ? -1 : number(p, x.number));
    high = fold(p, &x, true, -1);
    if (low >= 0 && high >= 0)
        high = call(p, CT_POINTWISE_MULTIPLY, low, high, 0);
    else if (high < 0)
        high = low;
    return negative ? call(p, CT_POINTWISE_NEGATE, high, 0, 0) : high;
}

/* A choice between a number and something else is a choice between products. */
static bool spreads(const struct ct_pointwise *p, int k)
{
    const struct ct_pointwise_node *n = &p->node[k];

    return n->kind == CT_POINTWISE_SELECT && (p->node[n->arg[1]].kind == CT_POINTWISE_NUMBER ||
                                              p->node[n->arg[2]].kind == CT_POINTWISE_NUMBER);
}

int ct_symbolic_multiply(struct ct_pointwise *p, int a, int b)
{
    struct product x = product_of(p, a);

    if (spreads(p, a) && !spreads(p, b))
        return ct_symbolic_multiply(p, b, a);
    if (spreads(p, b) && p->node[a].kind != CT_POINTWISE_NUMBER) {
        struct ct_pointwise_node n = p->node[b];
        int yes = ct_symbolic_multiply(p, a, n.arg[1]), no = ct_symbolic_multiply(p, a, n.arg[2]);

        return call(p, CT_POINTWISE_SELECT, n.arg[0], yes, no);
    }
    times(p, &x, b, 1);
    return x.full ? call(p, CT_POINTWISE_MULTIPLY, a, b, 0) : build(p, x);
}

/* ---- sums ---- */

static int plain_sum(struct ct_pointwise *p, struct product a, struct product b)
{
    if (a.number < 0 && b.number > 0)
        return plain_sum(p, b, a);
    if (b.number < 0) {
        b.number = -b.number;
        return call(p, CT_POINTWISE_SUBTRACT, build(p, a), build(p, b), 0);
    }
    return call(p, CT_POINTWISE_ADD, build(p, a), build(p, b), 0);
}

/* The terms of node k times `sign`; count above MOST_TERMS: they are too many. */
static void terms_of(const struct ct_pointwise *p, int k, double sign, struct product *term,
                     int *count)
{
    const struct ct_pointwise_node *n = &p->node[k];

    if (n->kind == CT_POINTWISE_ADD || n->kind == CT_POINTWISE_SUBTRACT) {
        terms_of(p, n->arg[0], sign, term, count);
        terms_of(p, n->arg[1], n->kind == CT_POINTWISE_ADD ? sign : -sign, term, count);
        return;
    }
    if (n->kind == CT_POINTWISE_NEGATE) {
        terms_of(p, n->arg[0], -sign, term, count);
        return;
    }
    if (*count < MOST_TERMS) {
        term[*count] = product_of(p, k);
        term[*count].number *= sign;
    }
    ++*count;
}

/* The sum with like terms added up; -1: there are none. */
static int sum_of_terms(struct ct_pointwise *p, int a, int b)
{
    struct product term[MOST_TERMS];
    int count = 0, of_a, left, sum = -1;

    terms_of(p, a, 1, term, &count);
    of_a = count;
    terms_of(p, b, 1, term, &count);
    left = count;
    if (count > MOST_TERMS)
        return -1;
    for (int i = 0; i < of_a; i++)
        for (int j = of_a; j < count; j++)
            if (term[j].number != 0 && same_factors(&term[i], &term[j])) {
                term[i].number += term[j].number;
                term[j].number = 0;
                left--;
            }
    for (int i = 0; i < count; i++)
        if (term[i].full)
            return -1; /* it has more factors than are listed */
    if (left == count)
        return -1;
    for (int i = 0; i < count; i++)
        if (term[i].number != 0)
            sum = sum < 0 ? build(p, term[i]) : ct_symbolic_add(p, sum, build(p, term[i]));
    return sum < 0 ? number(p, 0) : sum;
}

static bool choose_alike(const struct ct_pointwise *p, int a, int b)
{
    return p->node[a].kind == CT_POINTWISE_SELECT && p->node[b].kind == CT_POINTWISE_SELECT &&
           p->node[a].arg[0] == p->node[b].arg[0];
}

int ct_symbolic_add(struct ct_pointwise *p, int a, int b)
{
    struct product x = product_of(p, a), y = product_of(p, b), common;
    int sum;

    if (ct_symbolic_is(p, a, 0) || ct_symbolic_is(p, b, 0))
        return ct_symbolic_is(p, a, 0) ? b : a;
    if (choose_alike(p, a, b)) {
        struct ct_pointwise_node m = p->node[a], n = p->node[b];
        int yes = ct_symbolic_add(p, m.arg[1], n.arg[1]);
        int no = ct_symbolic_add(p, m.arg[2], n.arg[2]);

        return call(p, CT_POINTWISE_SELECT, m.arg[0], yes, no);
    }
    if (x.full || y.full)
        return call(p, CT_POINTWISE_ADD, a, b, 0);
    if (same_factors(&x, &y)) {
        x.number += y.number;
        return build(p, x);
    }
    sum = sum_of_terms(p, a, b);
    if (sum >= 0)
        return sum;
    common = common_of(&x, &y);
    if (!common.count)
        return plain_sum(p, x, y);
    common.number = x.number < 0 && y.number < 0 ? -1 : 1;
    divide_by(&x, &common);
    divide_by(&y, &common);
    sum = build(p, x);
    sum = ct_symbolic_add(p, sum, build(p, y));
    return ct_symbolic_multiply(p, build(p, common), sum);
}

/* ---- derivatives ---- */

static int negative(struct ct_pointwise *p, int a)
{
    return ct_symbolic_multiply(p, number(p, -1), a);
}

static int divide(struct ct_pointwise *p, int a, int b)
{
    struct product x = product_of(p, a);

    times(p, &x, b, -1);
    return x.full ? call(p, CT_POINTWISE_DIVIDE, a, b, 0) : build(p, x);
}

/* The derivative of a function of one argument a, at node k, which is its value. */
static int slope(struct ct_pointwise *p, enum ct_pointwise_kind kind, int k, int a)
{
    int one = number(p, 1);

    switch (kind) {
    case CT_POINTWISE_EXP:
        return k;
    case CT_POINTWISE_LOG:
        return divide(p, one, a);
    case CT_POINTWISE_LOG1P:
        return divide(p, one, ct_symbolic_add(p, one, a));
    case CT_POINTWISE_SIGMOID:
        return ct_symbolic_multiply(p, k, call(p, CT_POINTWISE_SUBTRACT, one, k, 0));
    case CT_POINTWISE_TANH:
        return call(p, CT_POINTWISE_SUBTRACT, one, call(p, CT_POINTWISE_MULTIPLY, k, k, 0), 0);
    case CT_POINTWISE_ERF: {
        int bell = call(p, CT_POINTWISE_EXP, negative(p, ct_symbolic_multiply(p, a, a)), 0, 0);

        return ct_symbolic_multiply(p, number(p, 1.12837916709551257390), bell);
    }
    case CT_POINTWISE_SIN:
        return call(p, CT_POINTWISE_COS, a, 0, 0);
    case CT_POINTWISE_COS:
        return negative(p, call(p, CT_POINTWISE_SIN, a, 0, 0));
    case CT_POINTWISE_SQRT:
        return divide(p, number(p, 0.5), k);
    case CT_POINTWISE_ABS: {
        int below = call(p, CT_POINTWISE_LESS, a, number(p, 0), 0);

        return call(p, CT_POINTWISE_SELECT, below, number(p, -1), one);
    }
    case CT_POINTWISE_NEGATE:
        return number(p, -1);
    default: /* rounding */
        return one;
    }
}

static int not_zero(struct ct_pointwise *p, int k)
{
    return call(p, CT_POINTWISE_GREATER, call(p, CT_POINTWISE_ABS, k, 0, 0), number(p, 0), 0);
}

/* k; 0 where the condition is. */
static int where(struct ct_pointwise *p, int condition, int k)
{
    return call(p, CT_POINTWISE_SELECT, condition, k, number(p, 0));
}

/* d(a^b) = b a^(b-1) da + a^b log(a) db. A factor that is 0 makes a product 0 where the other has
   no limit: b = 0, and a = 0 unless b is negative. */
static int power_rule(struct ct_pointwise *p, int k, int a, int b, int da, int db)
{
    int less = ct_symbolic_add(p, b, number(p, -1)), sum = number(p, 0);

    if (!ct_symbolic_is(p, da, 0)) {
        int down = ct_symbolic_multiply(p, b, call(p, CT_POINTWISE_POW, a, less, 0));

        sum = ct_symbolic_multiply(p, where(p, not_zero(p, b), down), da);
    }
    if (!ct_symbolic_is(p, db, 0)) {
        int up = ct_symbolic_multiply(p, k, call(p, CT_POINTWISE_LOG, a, 0, 0));
        int negative_power = call(p, CT_POINTWISE_LESS, b, number(p, 0), 0);

        up = where(p, call(p, CT_POINTWISE_ADD, not_zero(p, a), negative_power, 0), up);
        sum = ct_symbolic_add(p, sum, ct_symbolic_multiply(p, up, db));
    }
    return sum;
}

/* The derivative of node k, of two arguments or a choice, from those of its arguments. */
static int combine(struct ct_pointwise *p, int k, const int *d)
{
    struct ct_pointwise_node n = p->node[k];
    int a = n.arg[0], b = n.arg[1];

    switch (n.kind) {
    case CT_POINTWISE_ADD:
        return ct_symbolic_add(p, d[0], d[1]);
    case CT_POINTWISE_SUBTRACT:
        return ct_symbolic_add(p, d[0], negative(p, d[1]));
    case CT_POINTWISE_MULTIPLY:
        a = ct_symbolic_multiply(p, d[1], a);
        return ct_symbolic_add(p, ct_symbolic_multiply(p, d[0], b), a);
    case CT_POINTWISE_DIVIDE: /* (da - k db) / b */
        a = negative(p, divide(p, ct_symbolic_multiply(p, k, d[1]), b));
        return ct_symbolic_add(p, divide(p, d[0], b), a);
    case CT_POINTWISE_MIN: /* where both are equal: the first's */
        a = call(p, CT_POINTWISE_GREATER, a, b, 0);
        return d[0] == d[1] ? d[0] : call(p, CT_POINTWISE_SELECT, a, d[1], d[0]);
    case CT_POINTWISE_MAX: /* where both are equal: the second's */
        a = call(p, CT_POINTWISE_GREATER, a, b, 0);
        return d[0] == d[1] ? d[0] : call(p, CT_POINTWISE_SELECT, a, d[0], d[1]);
    case CT_POINTWISE_SELECT:
        return d[1] == d[2] ? d[1] : call(p, CT_POINTWISE_SELECT, a, d[1], d[2]);
    case CT_POINTWISE_POW:
        return power_rule(p, k, a, b, d[0], d[1]);
    default: /* comparisons */
        return number(p, 0);
    }
}

int ct_symbolic_partial(struct ct_pointwise *p, int k, int leaf, int *memo, int memos)
{
    struct ct_pointwise_node n = p->node[k];
    int d[3] = {0}, found;

    if (k == leaf)
        return number(p, 1);
    if (n.kind >= CT_POINTWISE_COLUMNS || ct_pointwise_arguments(n.kind) == 0)
        return number(p, 0);
    if (k < memos && memo[k] >= 0)
        return memo[k];
    for (int i = 0; i < ct_pointwise_arguments(n.kind); i++)
        d[i] = ct_symbolic_partial(p, n.arg[i], leaf, memo, memos);
    if (ct_pointwise_arguments(n.kind) > 1)
        found = combine(p, k, d);
    else if (ct_symbolic_is(p, d[0], 0))
        found = d[0];
    else
        found = ct_symbolic_multiply(p, slope(p, n.kind, k, n.arg[0]), d[0]);
    if (k < memos)
        memo[k] = found;
    return found;
}

/* ---- reductions ---- */

#define ROWS 3
#define COLUMNS 5

static double random_of(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (double)(*state >> 11) * 0x1p-52 - 1;
}

/* Operands of numbers up to `scale`. An operand that varies along nothing may be an attribute: some
   are 0 or 1. */
static double **random_operands(const struct ct_pointwise *p, double scale, uint64_t *state,
                                struct ct_arena *arena)
{
    int most = 0;
    double **in;

    for (size_t k = 0; k < p->count; k++)
        if (p->node[k].kind == CT_POINTWISE_INPUT && p->node[k].input > most)
            most = p->node[k].input;
    in = ct_arena_array(arena, double *, most + 1);
    for (size_t k = 0; k < p->count; k++) {
        double *x;

        if (p->node[k].kind != CT_POINTWISE_INPUT)
            continue;
        in[p->node[k].input] = x = ct_arena_array(arena, double, ROWS *COLUMNS);
        for (int i = 0; i < ROWS * COLUMNS; i++)
            x[i] = scale * random_of(state);
        if (!p->node[k].level)
            x[0] = random_of(state) > 0.3 ? 1 : random_of(state) > 0 ? 0 : fabs(x[0]);
    }
    return in;
}

bool ct_symbolic_vanishes(struct ct_pointwise *p, int k, int size)
{
    static const double scales[] = {1, 0.2, 3, 30, 1000};
    int witnesses = 0;
    bool zero = true;
    uint64_t state = 1;

    for (int trial = 0; zero && trial < 20; trial++) {
        struct ct_arena scratch = {0};
        double **in = random_operands(p, scales[trial % 5], &state, &scratch);
        double **value = ct_pointwise_evaluate(p, ROWS, COLUMNS, in, &scratch);

        for (int i = 0; i < ROWS; i++)
            if (isfinite(value[k][i]) && isfinite(value[size][i]) && value[size][i] > 0) {
                zero &= fabs(value[k][i]) <= 1e-11 * value[size][i];
                witnesses++;
            }
        ct_arena_finish(&scratch);
    }
    return zero && witnesses >= 20;
}

/* Is the reduction k the number 0? */
static bool is_nothing(struct ct_pointwise *p, int k)
{
    int size = call(p, CT_POINTWISE_ABS, p->node[k].arg[0], 0, 0);

    return ct_symbolic_vanishes(p, k, call(p, p->node[k].kind, size, 0, 0));
}

int ct_symbolic_reduce(struct ct_pointwise *p, enum ct_pointwise_kind kind, int e, int forward)
{
    struct product x = product_of(p, e), before = {.number = x.number};
    int reduced;

    if (x.full)
        return call(p, kind, e, 0, 0);
    x.number = 1;
    reuse_nodes(p, forward, &x);
    for (int i = 0; i < x.count; i++)
        if (!(p->node[x.factor[i].node].level & CT_BY_COLUMN))
            put(&before, x.factor[i].node, x.factor[i].power);
    for (int i = 0; i < before.count; i++)
        put(&x, before.factor[i].node, -before.factor[i].power);
    if (x.count == 0) {
        reduced =
            kind == CT_POINTWISE_ROW_MEAN ? number(p, 1) : call(p, CT_POINTWISE_COLUMNS, 0, 0, 0);
        return ct_symbolic_multiply(p, build(p, before), reduced);
    }
    reduced = call(p, kind, build(p, x), 0, 0);
    if (is_nothing(p, reduced))
        return number(p, 0);
    times(p, &before, reduced, 1);
    return build(p, before);
}
