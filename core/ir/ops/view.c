/*
 * Views: the same elements in the same order, with another shape.
 */
#include <inttypes.h>
#include <string.h>

#include <ctitan/core_ops.h>
#include <ctitan/op_author.h>
#include <ctitan/rule.h>

/* Number of leading and trailing dimensions that two shapes share. */
struct shared {
    int front, back;
};

static struct shared shared(const struct ct_value *x, const struct ct_value *y)
{
    int shorter = x->ndim < y->ndim ? x->ndim : y->ndim;
    struct shared s = {0, 0};

    while (s.front < shorter && x->shape[s.front] == y->shape[s.front])
        s.front++;
    while (s.back < shorter - s.front &&
           x->shape[x->ndim - 1 - s.back] == y->shape[y->ndim - 1 - s.back])
        s.back++;
    return s;
}

/* Between the shared dimensions, one of the two shapes has at most one dimension. */
static bool one_run(const struct ct_value *x, const struct ct_value *y)
{
    int shorter = x->ndim < y->ndim ? x->ndim : y->ndim;
    struct shared s = shared(x, y);

    return shorter - s.front - s.back <= 1;
}

static int refuse(const struct ct_value *x, const struct ct_shape *to)
{
    struct ct_shape from = ct_shape_of(x->ndim, x->shape);
    int64_t has = ct_shape_count(x->ndim, x->shape), wanted = ct_shape_count(to->ndim, to->size);
    char is[160], shape[160];

    ct_shape_print(&from, is, sizeof(is));
    ct_shape_print(to, shape, sizeof(shape));
    if (has != wanted)
        return ct_fail(CT_EINVAL, "x %%%s [%s] has %" PRId64 " elements, [%s] has %" PRId64,
                       x->name, is, has, shape, wanted);
    return ct_fail(CT_EINVAL, "x %%%s [%s] to [%s] splits or merges more than one run", x->name, is,
                   shape);
}

static int view_infer(struct ct_op *op)
{
    const struct ct_shape *shape = &((const struct ct_view *)op->attrs)->shape;
    const struct ct_value *x = op->in[0];
    struct ct_value *y = op->out[0];

    y->ndim = shape->ndim;
    memcpy(y->shape, shape->size, sizeof(*y->shape) * (size_t)shape->ndim);
    if (ct_shape_count(x->ndim, x->shape) != ct_shape_count(y->ndim, y->shape) || !one_run(x, y))
        return refuse(x, shape);
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

/* Add factors for the dimensions of v between the shared ones; only the outermost can be split.
 * Return its factor. */
static int add_run(struct ct_rule *rule, int operand, const struct ct_value *v, struct shared s)
{
    for (int d = s.front; d < v->ndim - s.back; d++)
        rule->operand[operand].factor[d] = add_factor(
            rule, d == s.front ? CT_FACTOR_PARALLEL : CT_FACTOR_WHOLE, operand, v->shape[d]);
    return s.front < v->ndim - s.back ? rule->operand[operand].factor[s.front] : -1;
}

/* Shared dimensions are parallel. Dimensions that are merged or divided are split along the
   outermost on both sides; dimensions of size one that come or go are whole. */
static int view_factors(const struct ct_op *op, struct ct_arena *arena, struct ct_rule *rule)
{
    const struct ct_value *x = op->in[0], *y = op->out[0];
    struct ct_rule_operand *from = &rule->operand[0], *to = &rule->operand[1];
    struct shared s = shared(x, y);
    int of_x, of_y;

    rule->factor = ct_arena_array(arena, struct ct_factor, x->ndim + y->ndim + 1);
    from->ndim = x->ndim;
    to->ndim = y->ndim;
    for (int d = 0; d < s.front; d++)
        from->factor[d] = to->factor[d] = add_factor(rule, CT_FACTOR_PARALLEL, 0, x->shape[d]);
    for (int d = 1; d <= s.back; d++)
        from->factor[x->ndim - d] = to->factor[y->ndim - d] =
            add_factor(rule, CT_FACTOR_PARALLEL, 0, x->shape[x->ndim - d]);
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
    v->din[0] = ct_view(v->b, ct_gradient_name(v, 0), v->dout[0], x->ndim, x->shape);
    return v->b->status;
}

const struct ct_op_type ct_op_view = {
    .size = sizeof(struct ct_op_type),
    .name = "view",
    .summary = "the same elements in another shape",
    .signature = "x A -> y A",
    .flags = CT_OP_VIEW | CT_OP_LINEAR,
    .attrs = (const struct ct_option[]){CT_OPT_SHAPE(struct ct_view, shape, "shape", "",
                                                     "Sizes with commas between; empty: a scalar"),
                                        {0}},
    .attrs_size = sizeof(struct ct_view),
    .infer = view_infer,
    .factors = view_factors,
    .vjp = view_vjp,
    .reference = view_reference,
    .samples = "shape=2,4,2,4: real[2,4,8];"
               " shape=2,8,4: real[2,4,2,4];"
               " shape=2,4: real[2,4]",
};

struct ct_value *ct_view(struct ct_builder *b, const char *name, struct ct_value *x, int ndim,
                         const int64_t *shape)
{
    return ct_emit_type1(b, &ct_op_view, name, &x, 1, &(struct ct_view){ct_shape_of(ndim, shape)});
}
