/*
 * The kernel of "fused" for devices in host memory, and the calls that kernels of all devices take.
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
    CT_KERNEL("fused", "compiled", CT_KERNEL_STRIDED, fuse_accepts, prepare, ct_rows_run), {0}};
