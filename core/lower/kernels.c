/*
 * Which kernel runs an op: the first of the device's that accepts it, else the op's reference where
 * the device has host memory.
 */
#include <string.h>

#include <ctitan/core_ops.h>
#include <ctitan/error.h>
#include <ctitan/log.h>

#include "lower/lower.h"

/* Collectives run over the device's transport. Devices in host memory run any op's reference. */
static const struct ct_kernel *host_kernel(struct ct_lowering *l, const struct ct_op *op)
{
    struct ct_device *device = l->request->device;
    struct ct_kernel *kernel;

    if (op->type->collective)
        return op->type->collective->kernel(device);
    if (!device->host_memory || !op->type->reference)
        return NULL;
    kernel = ct_arena_new(l->arena, struct ct_kernel);
    *kernel = (struct ct_kernel){.size = sizeof(*kernel),
                                 .op = op->type->name,
                                 .name = "reference",
                                 .flags = CT_KERNEL_ACCUMULATES | CT_KERNEL_STRIDED,
                                 .run = op->type->reference};
    return kernel;
}

const struct ct_kernel *ct_lower_kernel(struct ct_lowering *l, const struct ct_prepare *request)
{
    const struct ct_kernel *kernel = ct_kernel_find(request->device->name, request);

    return kernel ? kernel : host_kernel(l, request->op);
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
                             .graph = l->graph};
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
    return kernel ? kernel : host_kernel(l, op);
}

/* Calls of one op type without a kernel on the device, and the reason for the first of them. */
struct ct_fallback {
    const struct ct_op_type *type;
    const char *why;
    int calls;
    struct ct_fallback *next;
};

static void note_fallback(struct ct_lowering *l, const struct ct_prepare *p)
{
    struct ct_fallback *f = l->fallbacks;
    char why[1024];

    while (f && f->type != p->op->type)
        f = f->next;
    if (!f) {
        ct_kernel_refusals(p->device->name, p, why, sizeof(why));
        f = ct_arena_new(&l->scratch, struct ct_fallback);
        *f = (struct ct_fallback){p->op->type, ct_arena_strdup(&l->scratch, why), 0, l->fallbacks};
        l->fallbacks = f;
    }
    f->calls++;
}

static bool is_fallback(const struct ct_kernel *kernel, const struct ct_prepare *p)
{
    return kernel->run == p->op->type->reference && !strcmp(kernel->name, "reference") &&
           strcmp(p->device->name, "reference") != 0 && !(p->op->type->flags & CT_OP_MOVES);
}

static int calls_of(const struct ct_lowering *l, const struct ct_op_type *type)
{
    int calls = 0;

    for (size_t n = 0; n < l->op_count; n++)
        calls += l->op_at[n]->type == type;
    return calls;
}

/* Each type is reported once in a process for each device, whatever is lowered: training,
   evaluation, measurements. */
static bool is_news(const struct ct_device *device, const struct ct_op_type *type)
{
    static struct {
        const struct ct_device_ops *device;
        const struct ct_op_type *type;
    } said[64];
    size_t i = 0;

    while (i < CT_COUNT(said) && said[i].type &&
           (said[i].type != type || said[i].device != device->ops))
        i++;
    if (i == CT_COUNT(said) || said[i].type)
        return false;
    said[i].device = device->ops;
    said[i].type = type;
    return true;
}

void ct_lower_report_fallbacks(const struct ct_lowering *l)
{
    for (const struct ct_fallback *f = l->fallbacks; f; f = f->next)
        if (is_news(l->request->device, f->type))
            ct_warn("%s: %d of %d calls of %s run its slow reference: %s", l->request->device->name,
                    f->calls, calls_of(l, f->type), f->type->name, f->why);
}

static int no_kernel(const struct ct_prepare *p)
{
    const struct ct_op *op = p->op;
    char why[1024];

    ct_kernel_refusals(p->device->name, p, why, sizeof(why));
    return ct_fail(CT_ENOENT, "device %s has no kernel for %s (%%%s): %s", p->device->name,
                   op->type->name, op->outs ? op->out[0]->name : op->in[0]->name, why);
}

/* Where v lies in its buffer, as a number that is different for each buffer. */
static void *location(const struct ct_lowering *l, const struct ct_value *v)
{
    uint64_t buffer = (uint64_t)l->root[v->id] + 1;

    return (void *)(uintptr_t)(buffer << 40 | (uintptr_t)l->program->tensors[v->id].data);
}

static void locate(const struct ct_lowering *l, const struct ct_op *op, struct ct_prepare *p)
{
    for (int i = 0; i < op->ins; i++)
        if (op->in[i])
            ((struct ct_tensor *)p->in)[i].data = location(l, op->in[i]);
    for (int i = 0; i < op->outs; i++)
        ((struct ct_tensor *)p->out)[i].data = location(l, op->out[i]);
}

int ct_lower_choose_kernel(struct ct_lowering *l, struct ct_op *op, struct ct_lowered_op *lowered)
{
    struct ct_prepare p = {.accumulate = lowered->accumulate};
    int rc;

    lowered->kernel = ct_lower_find_kernel(l, op, &p);
    if (!lowered->kernel)
        return no_kernel(&p);
    if (is_fallback(lowered->kernel, &p))
        note_fallback(l, &p);
    locate(l, op, &p);
    rc = lowered->kernel->prepare ? lowered->kernel->prepare(&p) : 0;
    if (rc < 0)
        return ct_context(rc, "preparing kernel %s of %s", lowered->kernel->name, op->type->name);
    lowered->state = p.state;
    lowered->workspace = p.workspace;
    lowered->group = p.group;
    if (op->type->flops)
        lowered->flops = op->type->flops(op, p.in, p.out);
    lowered->sent = ct_op_sent(op, p.mesh, p.in, p.out);
    return 0;
}
