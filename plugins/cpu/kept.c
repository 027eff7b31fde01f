/*
 * The transform "keep_hidden".
 *
 * The gradients of experts need the hidden layers as they were before their activation.
 * experts_grad multiplies them again. Where the forward ran on the same operands (sac has not
 * asked for another one), they are kept instead, which saves two of eleven products:
 *
 *   y = experts              y, kept = cpu.experts
 *   dx, .. = experts_grad    dx, .. = cpu.experts_grad(kept, ..)
 *
 * kept has a row for each choice: all rows of the gate, then those of the other half, in the order
 * in which the kernels sort the choices. It is float32, so that no bit depends on whether layers
 * were kept.
 */
#include <string.h>

#include <ctitan/error.h>
#include <ctitan/run.h>

#include "experts.h"
#include "pack.h"

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
    take_shape(op->out[1], op->in[2]);
    op->out[1]->shape[op->out[1]->ndim - 1] *= 2 * op->in[W_GATE]->shape[1];
    op->out[1]->dtype = CT_F32;
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

#define INPUTS "x T, weights W, ids i, gate T, up T, down T, *(?gate_bias T, ?up_bias T)"

const struct ct_op_type cpu_op_experts = {
    .size = sizeof(struct ct_op_type),
    .name = "cpu.experts",
    .summary = "experts, and their hidden layers before the activation",
    .signature = INPUTS " -> y T, kept F",
    .attrs = ct_experts_attrs,
    .attrs_size = sizeof(struct ct_experts),
    .infer = experts_infer,
    .flops = experts_flops,
};

const struct ct_op_type cpu_op_experts_grad = {
    .size = sizeof(struct ct_op_type),
    .name = "cpu.experts_grad",
    .summary = "experts_grad, from the hidden layers that the forward kept",
    .signature = "kept F, dy T, " INPUTS " -> dx T, dweights W, dgate T, dup T, ddown T, "
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

/* What the kernels take: all of one compute dtype but the choices and their weights. */
static bool is_taken(const struct ct_op *forward, const struct ct_op *grad)
{
    enum ct_dtype dtype = forward->in[0]->dtype;

    for (int i = 0; i < grad->ins; i++)
        if (i != 2 && i != 3 && grad->in[i]->dtype != dtype)
            return false;
    for (int i = 0; i < grad->outs; i++)
        if (!cpu_is_compute_dtype(grad->out[i]->dtype))
            return false;
    return cpu_is_compute_dtype(dtype) && forward->in[1]->dtype == CT_F32 &&
           grad->out[1]->dtype == CT_F32;
}

static int64_t local_count(const struct ct_graph *graph, const struct ct_run *run,
                           const struct ct_value *v)
{
    int64_t local[CT_MAX_DIMS];

    cpu_local_shape(graph, run, v, local);
    return ct_shape_count(v->ndim, local);
}

/* Elements that are kept on this rank; 0: it has no part of an expert. */
static int64_t kept_count(const struct ct_graph *graph, const struct ct_run *run,
                          const struct ct_op *forward)
{
    const struct ct_value *gate = forward->in[W_GATE];
    int64_t local[CT_MAX_DIMS];

    cpu_local_shape(graph, run, gate, local);
    return local_count(graph, run, gate) == 0
               ? 0
               : 2 * local_count(graph, run, forward->in[2]) * local[1];
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

static int keep(struct ct_graph *graph, const struct ct_run *run, struct ct_op *forward,
                struct ct_op *grad)
{
    int64_t count = kept_count(graph, run, forward);
    struct ct_value *in[WEIGHTS + 4], *kept;
    struct ct_op *op;

    if (!count)
        return 0;
    op = emit(graph, forward, &cpu_op_experts, forward->in, forward->ins);
    if (!op)
        return CT_EINVAL;
    kept = in[0] = op->out[1];
    kept->sharding = forward->in[2]->sharding;
    kept->opaque_bytes = (size_t)count * ct_dtype_size(kept->dtype);
    memcpy(in + 1, grad->in, (size_t)grad->ins * sizeof(*in));
    cpu_hand_over(graph, forward, op, 0);
    op = emit(graph, grad, &cpu_op_experts_grad, in, grad->ins + 1);
    if (!op)
        return CT_EINVAL;
    cpu_hand_over(graph, grad, op, 0);
    return 0;
}

static int keep_hidden(struct ct_graph *graph, struct ct_run *run)
{
    struct ct_arena scratch = {0};
    struct forwards forwards;
    int rc = 0;

    if (!cpu_config.keep_hidden || run->device_ops->open != cpu_device_ops.open)
        return 0;
    forwards = find_forwards(graph, &scratch);
    ct_for_each_op_safe (op, graph) {
        struct ct_op *forward =
            op->type == &ct_op_experts_grad ? take_forward(&forwards, op) : NULL;

        if (rc == 0 && forward && is_taken(forward, op))
            rc = keep(graph, run, forward, op);
    }
    ct_arena_finish(&scratch);
    return rc;
}

const struct ct_transform cpu_keep_hidden = {
    .size = sizeof(struct ct_transform),
    .name = "keep_hidden",
    .summary = "hidden layers of experts are kept from the forward to their gradients",
    .phase = CT_PHASE_FUSE,
    .gives = (const char *const[]){"preferred", NULL},
    .after = (const char *const[]){"joined_gradients", NULL},
    .apply = keep_hidden,
};
