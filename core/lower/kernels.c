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
static const struct ct_kernel *other_kernel(struct ct_lowering *l, const struct ct_prepare *request)
{
    const struct ct_op *op = request->op;
    struct ct_device *device = l->request->device;
    struct ct_kernel *kernel;

    if (op->type->collective)
        return op->type->collective->kernel(device);
    if (!device->host_memory || !op->type->reference)
        return device->described && !ct_lower_is_impossible(request) ? no_kernel(l, op) : NULL;
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

    return kernel ? kernel : other_kernel(l, request);
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
        if ((present[i] = op->in[i] != NULL))
            in[i] = l->program->tensors[op->in[i]->id];
    for (int i = 0; i < op->outs; i++)
        out[i] = l->program->tensors[op->out[i]->id];
    kernel = ct_kernel_find(p->device->name, p);
    if (!kernel && p->accumulate) {
        p->accumulate = 0; /* lower.c appends an add */
        return ct_lower_kernel(l, p);
    }
    return kernel ? kernel : other_kernel(l, p);
}

struct ct_location ct_lower_location(const struct ct_lowering *l, const struct ct_value *v)
{
    if (!v)
        return (struct ct_location){CT_ANYWHERE, 0};
    return (struct ct_location){l->root[v->id], l->program->offsets[v->id]};
}

bool ct_prepare_distance(const struct ct_prepare *p, int a, int b, ptrdiff_t *bytes)
{
    const struct ct_location *at = p->locations;

    if (!at || at[a].buffer != at[b].buffer || at[a].buffer == CT_ANYWHERE)
        return false;
    *bytes = (ptrdiff_t)(at[b].offset - at[a].offset);
    return true;
}

/* Locations of the op's operands in every call, in scratch. Terms of a sum that the kernel does not
   add itself lie apart from it: see emit.c. */
static const struct ct_location *locate(struct ct_lowering *l, const struct ct_op *op,
                                        uint32_t apart)
{
    struct ct_location *at =
        ct_arena_array(&l->scratch, struct ct_location, op->ins + op->outs + 1);

    for (int i = 0; i < op->ins + op->outs; i++)
        at[i] = ct_lower_location(l, i < op->ins ? op->in[i] : op->out[i - op->ins]);
    for (int i = 0; i < op->outs && i < 32; i++)
        if (apart >> i & 1)
            at[op->ins + i].buffer = CT_ANYWHERE;
    return at;
}

int ct_lower_prepare(struct ct_lowering *l, const struct ct_kernel *kernel, struct ct_prepare *p)
{
    size_t before = ct_arena_taken(l->arena);
    int rc = kernel->prepare ? kernel->prepare(p) : 0;

    l->program->size.kernels += ct_arena_taken(l->arena) - before;
    return rc;
}

/* The op's tensors; ndim -1: absent. */
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

/* Offsets of the op's operands in their buffers. */
static const size_t *offsets(struct ct_lowering *l, const struct ct_op *op)
{
    size_t *offset = ct_arena_array(l->arena, size_t, op->ins + op->outs + 1);

    for (int i = 0; i < op->ins + op->outs; i++)
        offset[i] = ct_lower_location(l, i < op->ins ? op->in[i] : op->out[i - op->ins]).offset;
    return offset;
}

int ct_lower_choose_kernel(struct ct_lowering *l, struct ct_op *op, struct ct_lowered_op *of)
{
    struct ct_lowered *lowered = &of->lowered;
    struct ct_prepare p = {.accumulate = of->accumulate};
    int rc;

    lowered->kernel = ct_lower_find_kernel(l, op, &p);
    if (!lowered->kernel)
        return ct_kernel_lacking(&p);
    p.locations =
        locate(l, op, lowered->kernel->flags & CT_KERNEL_ACCUMULATES ? 0 : of->accumulate);
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
    lowered->offsets = offsets(l, op);
    if (op->type->flops)
        of->flops = op->type->flops(op, p.in, p.out);
    return 0;
}
