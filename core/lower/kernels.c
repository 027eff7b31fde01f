/*
 * Which kernel runs an op: the first of the device's that accepts it, else the op's reference where
 * the device has host memory, or "none" where it is only described.
 */
#include <string.h>

#include <ctitan/core_ops.h>
#include <ctitan/error.h>
#include <ctitan/text.h>

#include "lower/lower.h"

static int run_none(const struct ct_launch *launch)
{
    return ct_fail(CT_ENOENT, "there is no kernel for %s", launch->op->type->name);
}

/* The place of a kernel that a device lacks; it promises nothing. */
static const struct ct_kernel *no_kernel(struct ct_lowering *l, const struct ct_op *op)
{
    struct ct_kernel *kernel = ct_arena_new(l->arena, struct ct_kernel);

    *kernel = (struct ct_kernel){
        .size = sizeof(*kernel), .op = op->type->name, .name = "none", .run = run_none};
    return kernel;
}

/* Collectives run over the device's transport. Devices in host memory run any op's reference. */
static const struct ct_kernel *other_kernel(struct ct_lowering *l, const struct ct_op *op)
{
    struct ct_device *device = l->request->device;
    struct ct_kernel *kernel;

    if (op->type->collective)
        return op->type->collective->kernel(device);
    if (!device->host_memory || !op->type->reference)
        return device->described ? no_kernel(l, op) : NULL;
    kernel = ct_arena_new(l->arena, struct ct_kernel);
    *kernel = (struct ct_kernel){.size = sizeof(*kernel),
                                 .op = op->type->name,
                                 .name = "reference",
                                 .flags = CT_KERNEL_ACCUMULATES | CT_KERNEL_STRIDED,
                                 .run = op->type->reference};
    return kernel;
}

bool ct_kernel_is_none(const struct ct_kernel *kernel)
{
    return kernel->run == run_none;
}

bool ct_lower_is_slow(const struct ct_op_type *type, const struct ct_kernel *kernel)
{
    bool reference = kernel->run == type->reference && !strcmp(kernel->name, "reference");

    return ct_kernel_is_none(kernel) || (reference && !(type->flags & CT_OP_MOVES));
}

const struct ct_kernel *ct_lower_kernel(struct ct_lowering *l, const struct ct_prepare *request)
{
    const struct ct_kernel *kernel = ct_kernel_find(request->device->name, request);

    return kernel ? kernel : other_kernel(l, request->op);
}

const struct ct_kernel *ct_lower_find_kernel(struct ct_lowering *l, struct ct_op *op,
                                             struct ct_prepare *p)
{
    struct ct_tensor *in = ct_arena_array(&l->scratch, struct ct_tensor, op->ins);
    struct ct_tensor *out = ct_arena_array(&l->scratch, struct ct_tensor, op->outs);
    bool *present = ct_arena_array(&l->scratch, bool, op->ins);

    const struct ct_kernel *kernel;

    *p = (struct ct_prepare){.op = op,
                             .in = in,
                             .out = out,
                             .present = present,
                             .ins = op->ins,
                             .outs = op->outs,
                             .accumulate = p->accumulate,
                             .device = l->request->device,
                             .arena = l->arena,
                             .rank = l->request->rank,
                             .mesh = &l->graph->mesh,
                             .communicator = l->request->communicator,
                             .graph = l->graph,
                             .repeatable = l->request->repeatable};
    for (int i = 0; i < op->ins; i++)
        if ((present[i] = op->in[i] != NULL)) {
            in[i] = l->program->tensors[op->in[i]->id];
            in[i].data = NULL;
        }
    for (int i = 0; i < op->outs; i++) {
        out[i] = l->program->tensors[op->out[i]->id];
        out[i].data = NULL;
    }
    kernel = ct_kernel_find(p->device->name, p);
    if (!kernel && p->accumulate) {
        p->accumulate = 0; /* lower.c appends an add */
        return ct_lower_kernel(l, p);
    }
    return kernel ? kernel : other_kernel(l, op);
}

void *ct_lower_location(const struct ct_lowering *l, const struct ct_value *v)
{
    uint64_t buffer = (uint64_t)l->root[v->id] + 1;

    return (void *)(uintptr_t)(buffer << CT_OFFSET_BITS |
                               (uintptr_t)l->program->tensors[v->id].data);
}

static void locate(const struct ct_lowering *l, const struct ct_op *op, struct ct_prepare *p)
{
    for (int i = 0; i < op->ins; i++)
        if (op->in[i])
            ((struct ct_tensor *)p->in)[i].data = ct_lower_location(l, op->in[i]);
    for (int i = 0; i < op->outs; i++)
        ((struct ct_tensor *)p->out)[i].data = ct_lower_location(l, op->out[i]);
}

int ct_lower_prepare(struct ct_lowering *l, const struct ct_kernel *kernel, struct ct_prepare *p)
{
    size_t before = ct_arena_taken(l->arena);
    int rc = kernel->prepare ? kernel->prepare(p) : 0;

    l->program->size.kernels += ct_arena_taken(l->arena) - before;
    return rc;
}

/* The op's tensors, at their offsets in buffers. */
static const struct ct_tensor *tensors(struct ct_lowering *l, struct ct_value *const *values,
                                       int count)
{
    struct ct_tensor *t = ct_arena_array(l->arena, struct ct_tensor, count);

    for (int i = 0; i < count; i++)
        if (values[i])
            t[i] = l->program->tensors[values[i]->id];
        else
            t[i].ndim = -1;
    return t;
}

int ct_lower_choose_kernel(struct ct_lowering *l, struct ct_op *op, struct ct_lowered_op *of)
{
    struct ct_lowered *lowered = &of->lowered;
    struct ct_prepare p = {.accumulate = of->accumulate};
    int rc;

    lowered->kernel = ct_lower_find_kernel(l, op, &p);
    if (!lowered->kernel)
        return ct_kernel_lacking(&p);
    locate(l, op, &p);
    rc = ct_lower_prepare(l, lowered->kernel, &p);
    if (rc < 0)
        return ct_context(rc, "preparing kernel %s of %s", lowered->kernel->name, op->type->name);
    lowered->workspace = p.workspace;
    lowered->group = p.group;
    lowered->traffic = p.traffic;
    lowered->sent = ct_op_sent(op, p.mesh, p.in, p.out);
    lowered->launch = (struct ct_launch){.op = op,
                                         .in = tensors(l, op->in, op->ins),
                                         .out = tensors(l, op->out, op->outs),
                                         .ins = op->ins,
                                         .outs = op->outs,
                                         .state = p.state,
                                         .rank = p.rank,
                                         .mesh = p.mesh,
                                         .graph = p.graph};
    if (op->type->flops)
        of->flops = op->type->flops(op, p.in, p.out);
    return 0;
}
