/*
 * Hidden layers of experts that are kept, for the transforms of devices.
 *
 * The gradients of experts need the hidden layers as they were before their activation.
 * experts_grad multiplies them again. Where the forward ran on the same operands (sac has not
 * asked for another one), they can be kept instead, which saves two of eleven products:
 *
 *   y = experts              y, kept = experts_kept
 *   dx, .. = experts_grad    dx, .. = experts_kept_grad(kept, ..)
 *
 * kept has a row for each choice: all rows of the gate, then those of the other half, in the order
 * in which the device's kernels sort the choices, and in the dtype in which they would have
 * computed them again: no bit depends on whether layers were kept.
 */
#include <string.h>

#include <ctitan/error.h>
#include <ctitan/run.h>

#include "list.h"

enum { WEIGHTS = 1, IDS, GATE, INPUTS = GATE + 5 }; /* of experts, with its biases */

/* ---- the ops ---- */

static void take_shape(struct ct_value *to, const struct ct_value *from)
{
    to->ndim = from->ndim;
    memcpy(to->shape, from->shape, sizeof(to->shape));
}

/* The inputs are those of experts. */
static int experts_infer(struct ct_op *op)
{
    take_shape(op->out[0], op->in[0]);
    take_shape(op->out[1], op->in[IDS]);
    op->out[1]->shape[op->out[1]->ndim - 1] *= 2 * op->in[GATE]->shape[1];
    op->out[1]->dtype = CT_F32; /* opaque: the device knows better */
    return ct_op_experts.infer(op);
}

/* The inputs are kept, then those of experts_grad. */
static int grad_infer(struct ct_op *op)
{
    struct ct_op grad = *op;

    for (int i = 0; i < op->outs; i++)
        take_shape(op->out[i], op->in[2 + (i < 2 ? i : i + 1)]);
    grad.in++;
    grad.ins--;
    return ct_op_experts_grad.infer(&grad);
}

static double experts_flops(const struct ct_op *op, const struct ct_tensor *in,
                            const struct ct_tensor *out)
{
    return ct_op_experts.flops(op, in, out);
}

/* Six products of experts_grad's eight. */
static double grad_flops(const struct ct_op *op, const struct ct_tensor *in,
                         const struct ct_tensor *out)
{
    struct ct_op grad = *op;

    grad.in++;
    grad.ins--;
    return 6.0 / 8 * ct_op_experts_grad.flops(&grad, in + 1, out);
}

#define SIGNATURE "x T, weights W, ids i, gate T, up T, down T, *(?gate_bias T, ?up_bias T)"

const struct ct_op_type ct_op_experts_kept = {
    .size = sizeof(struct ct_op_type),
    .name = "experts_kept",
    .summary = "experts, and their hidden layers before the activation",
    .signature = SIGNATURE " -> y T, kept F",
    .attrs = ct_experts_attrs,
    .attrs_size = sizeof(struct ct_experts),
    .infer = experts_infer,
    .flops = experts_flops,
};

const struct ct_op_type ct_op_experts_kept_grad = {
    .size = sizeof(struct ct_op_type),
    .name = "experts_kept_grad",
    .summary = "experts_grad, from the hidden layers that the forward kept",
    .signature = "kept F, dy T, " SIGNATURE " -> dx T, dweights W, dgate T, dup T, ddown T, "
                 "*(dgate_bias T, dup_bias T)",
    .flags = CT_OP_ANY_DTYPE,
    .attrs = ct_experts_attrs,
    .attrs_size = sizeof(struct ct_experts),
    .infer = grad_infer,
    .flops = grad_flops,
};

/* ---- the transform ---- */

/* grad's inputs are dy, then those of forward. */
static bool same(const struct ct_op *forward, const struct ct_op *grad)
{
    if (forward->ins != grad->ins - 1 ||
        memcmp(forward->attrs, grad->attrs, forward->type->attrs_size))
        return false;
    for (int i = 0; i < forward->ins; i++)
        if (!ct_copies_of_one(forward->in[i], grad->in[1 + i]))
            return false;
    return true;
}

/* The experts of the forward, one for each mixture. */
struct forwards {
    struct ct_op **op;
    size_t count;
};

static struct forwards find_forwards(const struct ct_graph *graph, struct ct_arena *scratch)
{
    struct forwards f = {0};
    size_t room = 0;

    ct_for_each_op (op, graph)
        if (op->type == &ct_op_experts && op->section->part == CT_PART_F) {
            f.op = ct_arena_grow(scratch, f.op, &room, f.count + 1, sizeof(*f.op));
            f.op[f.count++] = op;
        }
    return f;
}

/* Takes it out of the list. NULL: there is none, or not on these operands. */
static struct ct_op *take_forward(struct forwards *f, const struct ct_op *grad)
{
    for (size_t i = f->count; i-- > 0;) /* gradients come last to first */
        if (same(f->op[i], grad)) {
            struct ct_op *found = f->op[i];

            f->op[i] = f->op[--f->count];
            return found;
        }
    return NULL;
}

/* All operands but the choices and their weights have one dtype, which kernels compute in. */
static bool is_taken(const struct ct_op *forward, const struct ct_op *grad)
{
    enum ct_dtype dtype = forward->in[0]->dtype;

    for (int i = 0; i < grad->ins; i++)
        if (i != 1 + WEIGHTS && i != 1 + IDS && grad->in[i]->dtype != dtype)
            return false;
    for (int i = 0; i < grad->outs; i++)
        if (grad->out[i]->dtype != CT_F32 && grad->out[i]->dtype != CT_BF16)
            return false;
    return (dtype == CT_F32 || dtype == CT_BF16) && forward->in[WEIGHTS]->dtype == CT_F32 &&
           grad->out[1]->dtype == CT_F32;
}

static void local_shape(const struct ct_graph *graph, const struct ct_run *run,
                        const struct ct_value *v, int64_t *local)
{
    ct_sharding_local(&v->sharding, &graph->mesh, run->rank, v->ndim, v->shape, local, NULL);
}

/* Bytes that this rank saves; 0: it has no part of an expert, or the device does not take it. */
static size_t kept_bytes(const struct ct_graph *graph, const struct ct_run *run,
                         const struct ct_op *forward,
                         size_t (*item)(const struct ct_op *, const int64_t *, int64_t))
{
    int64_t gate[CT_MAX_DIMS], ids[CT_MAX_DIMS], choices;

    local_shape(graph, run, forward->in[GATE], gate);
    local_shape(graph, run, forward->in[IDS], ids);
    choices = ct_shape_count(forward->in[IDS]->ndim, ids);
    if (ct_shape_count(forward->in[GATE]->ndim, gate) == 0)
        return 0;
    return (size_t)(2 * choices * gate[1]) * item(forward, gate, choices);
}

static struct ct_op *emit(struct ct_graph *graph, struct ct_op *old, const struct ct_op_type *type,
                          struct ct_value *const *in, int ins)
{
    struct ct_builder b = ct_builder_before(graph, old);
    struct ct_op *op;

    b.why = "the hidden layers of experts are kept for their gradients";
    b.marks = old->marks;
    op = ct_emit_type(&b, type, NULL, in, ins, old->attrs);
    if (op)
        op->stream = old->stream;
    return op;
}

/* op takes the place of old. */
static void hand_over(struct ct_graph *graph, struct ct_op *old, struct ct_op *op)
{
    for (int i = 0; i < old->outs; i++)
        ct_op_set_output(op, i, old->out[i]);
    ct_graph_remove(graph, old);
}

static int keep(struct ct_graph *graph, struct ct_op *forward, struct ct_op *grad, size_t bytes)
{
    struct ct_value *in[INPUTS + 2], *kept;
    struct ct_op *op = emit(graph, forward, &ct_op_experts_kept, forward->in, forward->ins);

    if (!op)
        return CT_EINVAL;
    kept = in[0] = op->out[1];
    kept->sharding = forward->in[IDS]->sharding;
    kept->opaque_bytes = bytes;
    memcpy(in + 1, grad->in, (size_t)grad->ins * sizeof(*in));
    hand_over(graph, forward, op);
    op = emit(graph, grad, &ct_op_experts_kept_grad, in, grad->ins + 1);
    if (!op)
        return CT_EINVAL;
    hand_over(graph, grad, op);
    return 0;
}

int ct_keep_hidden(struct ct_graph *graph, const struct ct_run *run,
                   size_t (*item)(const struct ct_op *forward, const int64_t *gate,
                                  int64_t choices))
{
    struct ct_arena scratch = {0};
    struct forwards forwards = find_forwards(graph, &scratch);
    int rc = 0;

    ct_for_each_op_safe (op, graph) {
        struct ct_op *forward =
            op->type == &ct_op_experts_grad ? take_forward(&forwards, op) : NULL;
        size_t bytes = forward && is_taken(forward, op) ? kept_bytes(graph, run, forward, item) : 0;

        if (rc == 0 && bytes)
            rc = keep(graph, forward, op, bytes);
    }
    ct_arena_finish(&scratch);
    return rc;
}
