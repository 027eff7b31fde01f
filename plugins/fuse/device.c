/*
 * Devices with a compiler of their own, and the kernel of "fused" for them.
 *
 * The device says how many workers share the rows, and adds up their sums; see lib/compiler.h.
 */
#include <string.h>

#include <ctitan/error.h>
#include <ctitan/op_author.h>
#include <ctitan/plugin.h>

#include "fuse.h"

static int check_compiler(const char *device, const struct ct_compiler_ops *ops)
{
    if (ops->version && ops->compile && ops->load && ops->workers && ops->launch)
        return 0;
    return ct_fail(CT_EINVAL, "the compiler %s: one of its functions is not set", device);
}

/* The offer and its functions; NULL: the device has no compiler. */
static int compiler_of(const char *device, const struct ct_offer **offer,
                       const struct ct_compiler_ops **ops)
{
    const size_t least = offsetof(struct ct_compiler_ops, launch) + sizeof((*ops)->launch);
    const void *widened = NULL;
    int rc = 0;

    for (size_t i = 0; (*offer = ct_offer_at(CT_COMPILER, i)); i++)
        if (!strcmp((*offer)->name, device))
            break;
    if (*offer)
        rc = ct_struct_widen((*offer)->ops, least, sizeof(**ops), &widened);
    *ops = rc < 0 ? NULL : widened;
    if (rc < 0)
        return ct_context(rc, "the compiler %s: struct ct_compiler_ops", device);
    return *ops ? check_compiler(device, *ops) : 0;
}

static bool runs_compiled_code(const char *device)
{
    const struct ct_kernel *kernel;

    for (size_t i = 0; (kernel = ct_kernel_at(device, i)); i++)
        if (!strcmp(kernel->op, fuse_op.name))
            return true;
    return false;
}

int fuse_find_target(const char *name, struct ct_device *device, struct fuse_target *target)
{
    const struct ct_offer *compiler;
    int rc;

    *target = (struct fuse_target){.device = device};
    rc = compiler_of(name, &compiler, &target->ops);
    if (rc < 0 || runs_compiled_code(name))
        return rc;
    if (!compiler)
        return ct_fail(CT_ENOENT, "device %s runs no compiled kernels", name);
    return ct_kernel_register(compiler->name, &fuse_device_kernel);
}

/* An operand of a call on tensors of ndim dimensions. Clears dense if its rows are apart. */
static struct ct_compiled_operand operand(const struct ct_tensor *t, int ndim, bool *dense)
{
    struct ct_matrix m = {0};

    if (t->ndim == ndim && ndim)
        ct_tensor_as_matrix(t, &m);
    *dense &= m.stride == m.columns || m.rows == 1;
    return (struct ct_compiled_operand){t->data, m.stride};
}

/* Set operands, rows and columns of a call, and whether it is flat: flat code on dense tensors has
   one row. */
static void size_call(const struct ct_tensor *in, int ins, const struct ct_tensor *out, int outs,
                      bool flat, struct ct_compiled_call *call)
{
    const struct ct_tensor *t = fuse_whole(in, ins);
    bool dense = true;

    for (int i = 0; i < ins; i++)
        call->in[i] = operand(&in[i], t->ndim, &dense);
    for (int i = 0; i < outs; i++)
        call->out[i] = operand(&out[i], t->ndim, &dense);
    call->rows = t->ndim ? ct_rows(t) : 1;
    call->columns = t->ndim ? ct_columns(t) : 1;
    call->flat = flat && dense;
    if (call->flat) {
        call->columns *= call->rows;
        call->rows = 1;
    }
}

struct state {
    struct fuse_target target;
    void *function;
    struct ct_rows_code code;
    struct ct_rows_program program;
};

static int prepare(struct ct_prepare *p)
{
    struct state *state = ct_arena_new(p->arena, struct state);
    const struct ct_offer *compiler;
    struct ct_compiled_call call = {0};
    int rc = fuse_read(p->op, p->arena, &state->program);

    state->target.device = p->device;
    if (rc == 0)
        rc = compiler_of(p->device->name, &compiler, &state->target.ops);
    if (rc < 0)
        return rc;
    ct_rows_write(&state->program, 0, p->arena, &state->code);
    size_call(p->in, p->ins, p->out, p->outs, state->code.flat, &call);
    if (state->code.sums)
        p->workspace = sizeof(float) * (size_t)state->code.sums * (size_t)call.columns *
                       (size_t)state->target.ops->workers(p->device, call.rows, call.columns);
    p->state = state;
    return fuse_load(&state->target, &state->code, &state->function);
}

static int run_device(const struct ct_launch *l)
{
    const struct state *state = l->state;
    struct ct_compiled_call call = {.scratch = l->workspace};

    size_call(l->in, l->ins, l->out, l->outs, state->code.flat, &call);
    for (int i = 0; i < l->outs; i++) {
        if (state->program.p.node[state->program.out[i]].level != CT_BY_COLUMN)
            continue;
        call.sum[call.sums] = l->out[i].data;
        call.sum_dtype[call.sums++] = state->program.out_dtype[i];
    }
    return state->target.ops->launch(l, state->function, &call);
}

const struct ct_kernel fuse_device_kernel =
    CT_KERNEL("fused", "compiled", CT_KERNEL_STRIDED, fuse_accepts, prepare, run_device);
