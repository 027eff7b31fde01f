/*
 * The op types that stand for a mixture during differentiation and propagation. Both tokens and
 * experts are split over ep, which no factor rule can say: the types give their shardings
 * themselves. expand.c then replaces them by the ops that a rank runs.
 */
#include <string.h>

#include <ctitan/error.h>
#include <ctitan/lib/ops.h>
#include <ctitan/op_author.h>

#include "ep.h"

int ep_first_input(const struct ct_op *op)
{
    return op->type == &ep_experts ? 0 : 1;
}

/* ---- shardings ---- */

static void unsplit(struct ct_sharding *s, ct_axes axes)
{
    for (int d = 0; d < CT_MAX_DIMS; d++) {
        int count = 0;

        for (int i = 0; i < s->count[d]; i++)
            if (!(axes >> s->axis[d][i] & 1))
                s->axis[d][count++] = s->axis[d][i];
        s->count[d] = (uint8_t)count;
    }
}

static ct_axes axes_of(const struct ct_sharding *s, int dim)
{
    ct_axes axes = 0;

    for (int i = 0; i < s->count[dim]; i++)
        axes |= (ct_axes)1 << s->axis[dim][i];
    return axes;
}

/* Tokens keep their sharding, except for the axes that split the hidden layers of experts. */
static struct ct_sharding of_tokens(const struct ct_op *op, ct_axes hidden)
{
    const struct ct_value *x = op->in[0];
    struct ct_sharding s = x->sharding;

    s.unreduced = 0;
    s.count[x->ndim - 1] = 0;
    unsplit(&s, hidden);
    return s;
}

static int place(const struct ct_op *op, const struct ct_mesh *mesh, struct ct_sharding *in,
                 struct ct_sharding *out)
{
    int at = ep_first_input(op), axis = ct_mesh_find(mesh, "ep");
    struct ct_sharding gate = op->in[at + EP_GATE]->sharding, down, tokens;
    ct_axes experts, hidden;

    gate.unreduced = 0;
    gate.count[2] = 0;
    down = gate;
    down.count[2] = gate.count[1];
    memcpy(down.axis[2], gate.axis[1], sizeof(gate.axis[1]));
    down.count[1] = 0;
    experts = axes_of(&gate, 0);
    hidden = axes_of(&gate, 1);
    tokens = of_tokens(op, hidden);
    if (axis < 0 || experts != (ct_axes)1 << axis || !(ct_sharding_axes(&tokens) & experts))
        return ct_fail(CT_EINVAL, "%s: ep does not split both its tokens and its experts",
                       op->type->name);
    for (int i = 0; i < op->ins; i++)
        in[i] = i < at + EP_GATE ? tokens : i == at + EP_DOWN ? down : gate;
    for (int i = 0; i < op->outs; i++)
        if (op->type == &ep_experts_dw) {
            out[i] = i == 2 ? down : gate;
            out[i].unreduced = ct_sharding_axes(&tokens) & ~experts;
        } else {
            out[i] = tokens;
            out[i].unreduced = hidden;
        }
    return 0;
}

/* ---- types ---- */

/* On one rank these are the types of lib/ops. */
static int experts_reference(const struct ct_launch *l)
{
    return ct_op_experts.reference(l);
}

static int experts_dx_reference(const struct ct_launch *l)
{
    return ct_op_experts_dx.reference(l);
}

static int experts_dw_reference(const struct ct_launch *l)
{
    return ct_op_experts_dw.reference(l);
}

static double experts_flops(const struct ct_op *op, const struct ct_tensor *in,
                            const struct ct_tensor *out)
{
    return ct_op_experts.flops(op, in, out);
}

static double experts_dx_flops(const struct ct_op *op, const struct ct_tensor *in,
                               const struct ct_tensor *out)
{
    return ct_op_experts_dx.flops(op, in, out);
}

static double experts_dw_flops(const struct ct_op *op, const struct ct_tensor *in,
                               const struct ct_tensor *out)
{
    return ct_op_experts_dw.flops(op, in, out);
}

static int experts_infer(struct ct_op *op)
{
    return ct_op_experts.infer(op);
}

static int experts_grad_infer(struct ct_op *op)
{
    return ct_op_experts_dx.infer(op);
}

static int experts_vjp(struct ct_vjp *v)
{
    const struct ct_op *op = v->op;
    struct ct_value *in[1 + EP_INPUTS] = {v->dout[0]};
    int rc;

    memcpy(in + 1, op->in, (size_t)op->ins * sizeof(*in));
    rc = ct_emit_gradients(v, &ep_experts_dx, in, 1 + op->ins, op->attrs, (int[]){EP_X, EP_WEIGHTS},
                           2);
    return rc < 0 ? rc
                  : ct_emit_gradients(v, &ep_experts_dw, in, 1 + op->ins, op->attrs,
                                      (int[]){EP_GATE, EP_UP, EP_DOWN, EP_GATE_BIAS, EP_UP_BIAS},
                                      op->ins - EP_GATE);
}

#define INPUTS                                                                                     \
    "x[.N] T, weights[.K] W, ids[.K] i, gate[EFN] T, up[EFN] T, down[ENF] T, "                     \
    "*(?gate_bias[EF] T, ?up_bias[EF] T)"

/* 32 choices with 3 products of 8 by 6. */
#define SAMPLES(flops, dy)                                                                         \
    "@flops=" flops ": " dy SAMPLE "; @flops=" flops " alpha=1.7 limit=1 offset=1: " dy SAMPLE     \
    " real[2,8] real[2,8]"
#define SAMPLE "real[2,4,6] statistic[2,4,4] small[2,4,4] real[2,8,6] real[2,8,6] real[2,6,8]"

const struct ct_op_type ep_experts = {
    .size = sizeof(struct ct_op_type),
    .name = "ep.experts",
    .summary = "experts whose ranks have different tokens",
    .signature = INPUTS " -> y[.N] T",
    .samples = SAMPLES("9216", ""),
    .attrs = ct_experts_attrs,
    .attrs_size = sizeof(struct ct_experts),
    .infer = experts_infer,
    .vjp = experts_vjp,
    .flops = experts_flops,
    .reference = experts_reference,
    .place = place,
};

const struct ct_op_type ep_experts_dx = {
    .size = sizeof(struct ct_op_type),
    .name = "ep.experts_dx",
    .summary = "gradient of ep.experts towards tokens and weights of choices",
    .signature = "dy[.N] T, " INPUTS " -> dx[.N] T, dweights[.K] W",
    .samples = SAMPLES("15360", "real[2,4,6] "),
    .flags = CT_OP_ANY_DTYPE,
    .attrs = ct_experts_attrs,
    .attrs_size = sizeof(struct ct_experts),
    .infer = experts_grad_infer,
    .flops = experts_dx_flops,
    .reference = experts_dx_reference,
    .place = place,
};

const struct ct_op_type ep_experts_dw = {
    .size = sizeof(struct ct_op_type),
    .name = "ep.experts_dw",
    .summary = "gradient of ep.experts towards their weights",
    .signature = "dy[.N] T, " INPUTS " -> dgate[EFN] T, dup[EFN] T, ddown[ENF] T, "
                 "*(dgate_bias[EF] T, dup_bias[EF] T)",
    .samples = SAMPLES("18432", "real[2,4,6] "),
    .flags = CT_OP_ANY_DTYPE,
    .attrs = ct_experts_attrs,
    .attrs_size = sizeof(struct ct_experts),
    .infer = experts_grad_infer,
    .flops = experts_dw_flops,
    .reference = experts_dw_reference,
    .place = place,
};
