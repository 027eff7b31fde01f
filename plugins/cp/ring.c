/*
 * The ring's op types: attention on a sequence of which every rank holds a shard of queries, keys
 * and values. They are in the graph during propagation of shardings, so that nothing is gathered
 * for them. expand.c then replaces them by the ops that a rank runs.
 */
#include <string.h>

#include <ctitan/lib/ops.h>
#include <ctitan/op_author.h>

#include "cp.h"

/* ---- on one rank: ordinary attention ---- */

static struct ct_tensor optional(const struct ct_launch *l, int i)
{
    return i < l->ins ? l->in[i] : (struct ct_tensor){.data = NULL};
}

/* Call another op type with operands in[0..fixed), then documents and positions of both sides. */
static int run_as(const struct ct_op_type *type, const struct ct_launch *l, int fixed)
{
    struct ct_tensor in[6 + CP_OPTIONAL];
    struct ct_launch launch = *l;

    for (int i = 0; i < fixed; i++)
        in[i] = l->in[i];
    in[fixed + CP_DOCUMENTS] = in[fixed + CP_K_DOCUMENTS] = optional(l, fixed);
    in[fixed + CP_POSITIONS] = in[fixed + CP_K_POSITIONS] = optional(l, fixed + 1);
    launch.in = in;
    launch.ins = fixed + CP_OPTIONAL;
    return type->reference(&launch);
}

static int attention_reference(const struct ct_launch *l)
{
    return run_as(&ct_op_attention, l, 3);
}

static int attention_grad_reference(const struct ct_launch *l)
{
    return run_as(&ct_op_attention_grad, l, 6);
}

/* ---- types ---- */

/* FLOPs as for the whole sequence: a rank's queries attend to the keys of all ranks. */
static double attention_flops(const struct ct_op *op, const struct ct_tensor *in,
                              const struct ct_tensor *out)
{
    return ct_op_attention.flops(op, in, out);
}

static int attention_vjp(struct ct_vjp *v)
{
    struct ct_value **in = v->op->in, *o;
    int rc = ct_attention_result(v->op, &o);

    if (rc < 0 || !v->dout[0])
        return rc;
    return ct_emit_gradients(v, &cp_ring_attention_grad,
                             (struct ct_value *[]){v->dout[0], in[0], in[1], in[2], o,
                                                   v->op->out[1], ct_op_input(v->op, 3),
                                                   ct_op_input(v->op, 4)},
                             8, v->op->attrs, (int[]){0, 1, 2}, 3);
}

const struct ct_op_type cp_ring_attention = {
    .size = sizeof(struct ct_op_type),
    .name = "ring_attention",
    .summary = "attention on a sequence that is split",
    .signature = "q[bthD] T, k[btgD] T, v[btgV] T, ?documents[bt] i, ?positions[bt] i "
                 "-> o[bthV] T, lse[bht] W | h:g, @t",
    .samples = "@replaced=t @flops=2304: real[2,6,4,4] real[2,6,2,4] real[2,6,2,4] document[2,6] -;"
               "@replaced=t @flops=320: real[2,4,2,3] real[2,4,2,3] real[2,4,2,2] - position[2,4]",
    .attrs = ct_attention_attrs,
    .attrs_size = sizeof(struct ct_attention),
    .vjp = attention_vjp,
    .flops = attention_flops,
    .reference = attention_reference,
};

const struct ct_op_type cp_ring_attention_grad = {
    .size = sizeof(struct ct_op_type),
    .name = "ring_attention_grad",
    .summary = "gradient of ring_attention",
    .signature =
        "do[bthV] T, q[bthD] T, k[btgD] T, v[btgV] T, o[bthV] T, lse[bht] W, "
        "?documents[bt] i, ?positions[bt] i -> dq[bthD] T, dk[btgD] T, dv[btgV] T | h:g, @t",
    .samples = "@replaced=t: real[2,6,4,4] real[2,6,4,4] real[2,6,2,4] real[2,6,2,4] "
               "real[2,6,4,4] statistic[2,4,6] document[2,6] -;"
               "@replaced=t: real[2,4,2,2] real[2,4,2,3] real[2,4,2,3] real[2,4,2,2] "
               "real[2,4,2,2] statistic[2,2,4] - position[2,4]",
    .attrs = ct_attention_attrs,
    .attrs_size = sizeof(struct ct_attention),
    .reference = attention_grad_reference,
};

void cp_make_ring(struct ct_graph *graph, struct ct_op *op)
{
    struct ct_value *documents = ct_op_input(op, 3 + CP_DOCUMENTS);
    struct ct_value *positions = ct_op_input(op, 3 + CP_POSITIONS);

    ct_op_become(graph, op, &cp_ring_attention,
                 (struct ct_value *[]){op->in[0], op->in[1], op->in[2], documents, positions}, 5,
                 op->attrs);
}
