/*
 * The ring's op types: attention on a sequence of which every rank holds a piece of queries, keys
 * and values. They stand in the graph while shardings are propagated, so that nothing is gathered
 * for them; expand.c replaces them by what a rank does.
 */
#include <string.h>

#include "cp.h"

/* ---- on one rank: ordinary attention ---- */

/* The same call of another op type: in[0..fixed), then documents and positions for both sides. */
static int run_as(const char *type, const struct ct_launch *l, int fixed)
{
    struct ct_tensor in[6 + CP_OPTIONAL];
    struct ct_launch launch = *l;

    for (int i = 0; i < fixed; i++)
        in[i] = l->in[i];
    in[fixed + CP_DOCUMENTS] = in[fixed + CP_K_DOCUMENTS] = l->in[fixed];
    in[fixed + CP_POSITIONS] = in[fixed + CP_K_POSITIONS] = l->in[fixed + 1];
    launch.in = in;
    launch.ins = fixed + CP_OPTIONAL;
    return ct_op_find(type)->reference(&launch);
}

static int attention_reference(const struct ct_launch *l)
{
    return run_as("attention", l, 3);
}

static int attention_grad_reference(const struct ct_launch *l)
{
    return run_as("attention_grad", l, 6);
}

/* ---- types ---- */

static const char *gradient_name(const struct ct_vjp *v, int input)
{
    return ct_arena_printf(v->b->graph->arena, "d.%s", v->op->in[input]->name);
}

static int attention_vjp(struct ct_vjp *v)
{
    struct ct_value **in = v->op->in, **out = v->op->out;
    struct ct_op *op;

    if (!v->dout[0] || !(v->wanted[0] || v->wanted[1] || v->wanted[2]))
        return 0;
    op = ct_emit(
        v->b, "ring_attention_grad", gradient_name(v, 0),
        (struct ct_value *[]){v->dout[0], in[0], in[1], in[2], out[0], out[1], in[3], in[4]}, 8,
        NULL);
    for (int i = 0; op && i < 3; i++) {
        if (i > 0)
            ct_value_rename(v->b->graph, op->out[i], gradient_name(v, i));
        v->din[i] = op->out[i];
    }
    return v->b->status;
}

const struct ct_op_type cp_ring_attention = {
    .name = "ring_attention",
    .summary = "attention on a sequence that is cut",
    .operands = "q T, k T, v T, ?documents i, ?positions i -> o T, lse W",
    .rule = "bthD,btgD,btgD,?bt,?bt->bthD,bht",
    .tie = "hg",
    .outputs = "lse",
    .vjp = attention_vjp,
    .reference = attention_reference,
};

const struct ct_op_type cp_ring_attention_grad = {
    .name = "ring_attention_grad",
    .summary = "gradient of ring_attention",
    .operands = "do T, q T, k T, v T, o T, lse W, ?documents i, ?positions i -> dq T, dk T, dv T",
    .rule = "bthD,bthD,btgD,btgD,bthD,bht,?bt,?bt->bthD,btgD,btgD",
    .tie = "hg",
    .outputs = "dk dv",
    .reference = attention_grad_reference,
};

void cp_make_ring(struct ct_graph *graph, struct ct_op *op)
{
    struct ct_value **in = op->in;

    op->type = &cp_ring_attention;
    op->in = ct_arena_copy(
        graph->arena,
        (struct ct_value *[]){in[0], in[1], in[2], in[3 + CP_DOCUMENTS], in[3 + CP_POSITIONS]},
        sizeof(*in) * 5);
    op->ins = 5;
    op->attrs = NULL;
}
