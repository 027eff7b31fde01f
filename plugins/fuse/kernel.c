/*
 * The kernel of "fused" for devices in host memory, and what calls on other devices are made of.
 */
#include <string.h>

#include <ctitan/error.h>
#include <ctitan/op_author.h>

#include "fuse.h"

static const struct fuse_target host;

const struct ct_tensor *fuse_whole(const struct ct_tensor *in, int ins)
{
    const struct ct_tensor *t = in;

    for (int i = 1; i < ins; i++)
        if (in[i].ndim > t->ndim)
            t = &in[i];
    return t;
}

static bool fits(const struct ct_tensor *t, const struct ct_tensor *whole)
{
    struct ct_matrix m;

    if (t->dtype != CT_F32 && t->dtype != CT_BF16 && !(t->dtype == CT_F64 && t->ndim == 0))
        return false;
    return t->ndim == whole->ndim ? ct_tensor_as_matrix(t, &m) : ct_tensor_is_dense(t);
}

bool fuse_accepts(const struct ct_prepare *p)
{
    const struct ct_tensor *t = fuse_whole(p->in, p->ins);

    for (int i = 0; i < p->ins + p->outs; i++)
        if (!fits(i < p->ins ? &p->in[i] : &p->out[i - p->ins], t))
            return false;
    return p->ins > 0;
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

void fuse_size_call(const struct ct_tensor *in, int ins, const struct ct_tensor *out, int outs,
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

static int prepare(struct ct_prepare *p)
{
    struct ct_rows_call *call = ct_arena_new(p->arena, struct ct_rows_call);
    struct ct_rows_program program;
    struct ct_rows_code code;
    void *function;
    int rc = fuse_read(p->op, p->arena, &program);

    if (rc < 0)
        return rc;
    ct_rows_write(&program, CT_ROWS_KEPT, p->arena, &code);
    rc = fuse_load(&host, &code, &function);
    if (rc < 0)
        return rc;
    *call = (struct ct_rows_call){.kernel = {NULL, code.buffers, code.sums, code.flat},
                                  .levels = code.levels,
                                  .ins = program.ins,
                                  .outs = program.outs};
    memcpy(&call->kernel.function, &function, sizeof(function));
    p->workspace = ct_rows_workspace(call, p->in, p->out);
    p->state = call;
    return 0;
}

const struct ct_kernel fuse_cpu_kernels[] = {
    CT_KERNEL("fused", "compiled", CT_KERNEL_STRIDED, fuse_accepts, prepare, ct_rows_run_prepared),
    {0}};
