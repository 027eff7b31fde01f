/*
 * Ops for authors whose values change only formally: in dtype, or in the way of the gradient.
 */
#include <ctitan/rule.h>

#include "list.h"

static int copy_input(const struct ct_launch *l, int input)
{
    struct ct_reference r = ct_reference_begin(l);

    for (int64_t i = 0; i < ct_tensor_count(&l->out[0]); i++)
        r.out[0][i] = r.in[input][i];
    return ct_reference_end(&r, 0);
}

/* ---- cast_like ---- */

static int cast_like_infer(struct ct_op *op)
{
    struct ct_value *y = op->out[0];

    y->dtype = op->in[1]->dtype;
    y->ndim = op->in[0]->ndim;
    for (int d = 0; d < y->ndim; d++)
        y->shape[d] = op->in[0]->shape[d];
    return 0;
}

static struct ct_factor factor_of(const struct ct_value *v, int operand, int d, bool whole)
{
    return (struct ct_factor){.letter = whole ? 'L' : '.',
                              .repetition = -1,
                              .index = d,
                              .kind = whole ? CT_FACTOR_WHOLE : CT_FACTOR_PARALLEL,
                              .size = v->shape[d],
                              .operand = operand};
}

/* x and y are split alike. Nothing is read of `like`. */
static int cast_like_factors(const struct ct_op *op, struct ct_arena *arena, struct ct_rule *rule)
{
    int dims = op->in[0]->ndim;

    rule->count = dims + op->in[1]->ndim;
    rule->factor = ct_arena_array(arena, struct ct_factor, rule->count + 1);
    for (int f = 0; f < rule->count; f++)
        rule->factor[f] =
            f < dims ? factor_of(op->in[0], 0, f, false) : factor_of(op->in[1], 1, f - dims, true);
    for (int o = 0; o < 3; o++) {
        rule->operand[o].ndim = o == 1 ? op->in[1]->ndim : dims;
        for (int d = 0; d < rule->operand[o].ndim; d++)
            rule->operand[o].factor[d] = o == 1 ? dims + d : d;
    }
    return 0;
}

static int cast_like_reference(const struct ct_launch *l)
{
    return copy_input(l, 0);
}

static int cast_like_vjp(struct ct_vjp *v)
{
    if (v->wanted[0])
        v->din[0] = ct_cast(v->b, ct_gradient_name(v, 0), v->dout[0], v->op->in[0]->dtype);
    return v->b->status;
}

const struct ct_op_type ct_op_cast_like = {
    .size = sizeof(struct ct_op_type),
    .name = "cast_like",
    .summary = "x in the dtype of another value",
    .signature = "x F, like F -> y F",
    .flags = CT_OP_LINEAR,
    .infer = cast_like_infer,
    .factors = cast_like_factors,
    .vjp = cast_like_vjp,
    .reference = cast_like_reference,
    .samples = "@step=0.5: real[2,4] given[3]",
};

struct ct_value *ct_cast_like(struct ct_builder *b, const char *name, struct ct_value *x,
                              struct ct_value *like)
{
    return ct_emit_type1(b, &ct_op_cast_like, name, (struct ct_value *[]){x, like}, 2, NULL);
}

/* Dtypes are known now: a cast, or nothing, takes the place. */
static int settle(struct ct_graph *graph, struct ct_run *run)
{
    int rc = 0;

    (void)run;
    ct_for_each_op_safe (op, graph) {
        struct ct_builder b = ct_builder_before(graph, op);
        struct ct_value *x = op->in[0], *y = op->out[0];

        if (rc < 0 || op->type != &ct_op_cast_like)
            continue;
        b.why = op->why;
        if (x->dtype == op->in[1]->dtype)
            ct_value_replace(graph, y, x);
        else if ((x = ct_cast(&b, NULL, x, op->in[1]->dtype)))
            ct_take_over(graph, y, x);
        rc = b.status;
        if (rc == 0)
            ct_graph_remove(graph, op);
    }
    return rc;
}

const struct ct_transform ct_settle_casts = {
    .size = sizeof(struct ct_transform),
    .name = "cast_like",
    .summary = "casts to the dtypes that values have",
    .phase = CT_PHASE_PRECISION,
    .after = (const char *const[]){"precision", NULL},
    .evaluation = true,
    .apply = settle,
};

/* ---- straight_through ---- */

static int straight_through_reference(const struct ct_launch *l)
{
    return copy_input(l, 0);
}

static int straight_through_vjp(struct ct_vjp *v)
{
    v->din[1] = v->dout[0];
    return 0;
}

const struct ct_op_type ct_op_straight_through = {
    .size = sizeof(struct ct_op_type),
    .name = "straight_through",
    .summary = "y, with the gradient of x",
    .signature = "y[.] T, x[.] T -> z[.] T",
    .flags = CT_OP_VIEW | CT_OP_STRAIGHT_THROUGH,
    .vjp = straight_through_vjp,
    .reference = straight_through_reference,
    .samples = "real[2,4] real[2,4]",
};

struct ct_value *ct_straight_through(struct ct_builder *b, const char *name, struct ct_value *x,
                                     struct ct_value *y)
{
    return ct_emit_type1(b, &ct_op_straight_through, name, (struct ct_value *[]){y, x}, 2, NULL);
}
