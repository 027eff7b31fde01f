/*
 * The same elements, in the same order, in another shape.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <ctitan/rule.h>

#include "standard.h"

struct view {
    const char *shape;
};

int ct_shape_parse(const char *text, int *rank, int64_t *shape)
{
    const char *p = text ? text : "";
    char *end;

    for (*rank = 0; *p; p = end + (*end == ',')) {
        if (*rank == CT_MAX_RANK)
            return ct_fail(CT_EINVAL, "shape \"%s\" has more than %d dimensions", text,
                           CT_MAX_RANK);
        shape[*rank] = strtoll(p, &end, 10);
        if (end == p || (*end && *end != ',') || shape[*rank] <= 0)
            return ct_fail(CT_EINVAL, "shape \"%s\" is not a list of sizes", text);
        ++*rank;
    }
    return 0;
}

static int format_shape(int rank, const int64_t *shape, char *text, size_t room)
{
    size_t n = 0;

    *text = '\0';
    for (int i = 0; i < rank && n < room; i++)
        n += (size_t)snprintf(text + n, room - n, "%s%" PRId64, i ? "," : "", shape[i]);
    return (int)n;
}

/* Dimensions in front and behind that two shapes share. */
struct shared {
    int front, back;
};

static struct shared shared(const struct ct_value *x, const struct ct_value *y)
{
    int shorter = x->rank < y->rank ? x->rank : y->rank;
    struct shared s = {0, 0};

    while (s.front < shorter && x->shape[s.front] == y->shape[s.front])
        s.front++;
    while (s.back < shorter - s.front &&
           x->shape[x->rank - 1 - s.back] == y->shape[y->rank - 1 - s.back])
        s.back++;
    return s;
}

/* Between the shared dimensions, one of the two has at most one. */
static bool one_run(const struct ct_value *x, const struct ct_value *y)
{
    int shorter = x->rank < y->rank ? x->rank : y->rank;
    struct shared s = shared(x, y);

    return shorter - s.front - s.back <= 1;
}

static int view_infer(struct ct_op *op)
{
    struct ct_value *x = op->in[0], *y = op->out[0];
    int rc = ct_shape_parse(ct_op_string(op, "shape"), &y->rank, y->shape);
    char from[160], to[160];

    if (rc < 0)
        return rc;
    format_shape(x->rank, x->shape, from, sizeof(from));
    format_shape(y->rank, y->shape, to, sizeof(to));
    if (ct_shape_count(x->rank, x->shape) != ct_shape_count(y->rank, y->shape))
        return ct_fail(CT_EINVAL, "x %%%s [%s] has %" PRId64 " elements, [%s] has %" PRId64,
                       x->name, from, ct_shape_count(x->rank, x->shape), to,
                       ct_shape_count(y->rank, y->shape));
    if (!one_run(x, y))
        return ct_fail(CT_EINVAL, "x %%%s [%s] to [%s] splits or merges more than one run", x->name,
                       from, to);
    return 0;
}

static int add_factor(struct ct_rule *rule, enum ct_factor_kind kind, int operand, int64_t size)
{
    rule->factor[rule->count] = (struct ct_factor){.letter = '.',
                                                   .repetition = -1,
                                                   .index = rule->count,
                                                   .kind = kind,
                                                   .size = size,
                                                   .operand = operand};
    return rule->count++;
}

/* Factors of the dimensions of v between the shared ones: only the outermost can be cut. Returns
 * it. */
static int add_run(struct ct_rule *rule, int operand, const struct ct_value *v, struct shared s)
{
    for (int d = s.front; d < v->rank - s.back; d++)
        rule->operand[operand].factor[d] = add_factor(
            rule, d == s.front ? CT_FACTOR_PARALLEL : CT_FACTOR_WHOLE, operand, v->shape[d]);
    return s.front < v->rank - s.back ? rule->operand[operand].factor[s.front] : -1;
}

/* Shared dimensions are parallel. A run that is split or merged is cut along the outermost
   dimension on both sides; dimensions of one that come or go are whole. */
static int view_factors(const struct ct_op *op, struct ct_arena *arena, struct ct_rule *rule)
{
    const struct ct_value *x = op->in[0], *y = op->out[0];
    struct ct_rule_operand *from = &rule->operand[0], *to = &rule->operand[1];
    struct shared s = shared(x, y);
    int of_x, of_y;

    rule->factor = ct_arena_array(arena, struct ct_factor, x->rank + y->rank + 1);
    from->rank = x->rank;
    to->rank = y->rank;
    for (int d = 0; d < s.front; d++)
        from->factor[d] = to->factor[d] = add_factor(rule, CT_FACTOR_PARALLEL, 0, x->shape[d]);
    for (int d = 1; d <= s.back; d++)
        from->factor[x->rank - d] = to->factor[y->rank - d] =
            add_factor(rule, CT_FACTOR_PARALLEL, 0, x->shape[x->rank - d]);
    of_x = add_run(rule, 0, x, s);
    of_y = add_run(rule, 1, y, s);
    if (of_x >= 0 && of_y >= 0) {
        bool split = rule->factor[of_x].size > rule->factor[of_y].size;

        rule->tie[0] = split ? of_x : of_y;
        rule->tie[1] = split ? of_y : of_x;
    } else if (of_x >= 0 || of_y >= 0) {
        rule->factor[of_x >= 0 ? of_x : of_y].kind = CT_FACTOR_WHOLE;
    }
    return 0;
}

static int view_reference(const struct ct_launch *l)
{
    struct ct_reference r = ct_reference_begin(l);

    memcpy(r.out[0], r.in[0], sizeof(double) * (size_t)ct_tensor_count(&l->out[0]));
    return ct_reference_end(&r, 0);
}

static int view_vjp(struct ct_vjp *v)
{
    const struct ct_value *x = v->op->in[0];

    if (!v->wanted[0])
        return 0;
    v->din[0] = ct_view(v->b, ct_gradient_name(v, 0), v->dout[0], x->rank, x->shape);
    return v->b->status;
}

const struct ct_op_type ct_op_view = {
    .name = "view",
    .summary = "the same elements in another shape",
    .operands = "x A -> y A",
    .flags = CT_OP_VIEW | CT_OP_LINEAR,
    .attrs = (const struct ct_option[]){CT_OPT_STRING(struct view, shape, "shape", "",
                                                      "Sizes with commas between; empty: a scalar"),
                                        {0}},
    .attrs_size = sizeof(struct view),
    .infer = view_infer,
    .vjp = view_vjp,
    .factors = view_factors,
    .reference = view_reference,
};

struct ct_value *ct_view(struct ct_builder *b, const char *name, struct ct_value *x, int rank,
                         const int64_t *shape)
{
    char text[160];

    format_shape(rank, shape, text, sizeof(text));
    return ct_emit1(b, "view", name, &x, 1, &(struct view){ct_arena_strdup(b->graph->arena, text)});
}
