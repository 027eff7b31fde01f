/*
 * An op with kernels for CPUs and for CUDA: y = x / (1 + |x|), and its gradient. A model adds it to
 * its graph with ct_emit1(b, "softsign", name, &x, 1, NULL).
 *
 * softsign_cpu.c has the kernels for CPUs, softsign.cu those for CUDA. This file has the op types,
 * which say what is right, and the tables of the kernels.
 */
#include <math.h>

#include <ctitan/lib/cpu.h>
#include <ctitan/lib/cuda.h>
#include <ctitan/op_author.h>
#include <ctitan/plugin.h>

#include "softsign.h"

/* ---- what it computes: any dtype and strides, in double ---- */

static int forward(const struct ct_launch *l)
{
    struct ct_reference r = ct_reference_begin(l);

    for (int64_t i = 0; i < ct_tensor_count(&l->out[0]); i++)
        r.out[0][i] = r.in[0][i] / (1 + fabs(r.in[0][i]));
    return ct_reference_end(&r, 0);
}

static int backward(const struct ct_launch *l)
{
    struct ct_reference r = ct_reference_begin(l);

    for (int64_t i = 0; i < ct_tensor_count(&l->out[0]); i++) {
        double share = 1 / (1 + fabs(r.in[1][i]));

        r.out[0][i] = r.in[0][i] * share * share;
    }
    return ct_reference_end(&r, 0);
}

/* ---- the op types ---- */

static int vjp(struct ct_vjp *v);

/* '.' is any number of dimensions, and T any floating dtype. */
static const struct ct_op_type op_type = {
    .size = sizeof(struct ct_op_type),
    .name = "softsign",
    .summary = "x / (1 + |x|)",
    .signature = "x[.] T -> y[.] T",
    .vjp = vjp,
    .reference = forward,
};

static const struct ct_op_type grad_type = {
    .size = sizeof(struct ct_op_type),
    .name = "softsign_grad",
    .summary = "gradient of softsign",
    .signature = "dy[.] T, x[.] T -> dx[.] T",
    .reference = backward,
};

/* Emit the gradient: its output becomes the gradient of input 0. */
static int vjp(struct ct_vjp *v)
{
    return ct_emit_gradients(v, &grad_type, (struct ct_value *[]){v->dout[0], v->op->in[0]}, 2,
                             NULL, (int[]){0}, 1);
}

/* ---- kernels for CPUs: R(op, flags, isa) for each ---- */

#define KERNELS(P, R, isa)                                                                         \
    R(softsign, CT_KERNEL_STRIDED, isa)                                                            \
    R(softsign_grad, CT_KERNEL_STRIDED, isa)

CPU_KERNELS(KERNELS)
static const struct ct_kernel cpu_kernels[] = {CPU_KERNEL_TABLE(KERNELS){0}};

/* ---- kernels for CUDA ---- */

CT_CUDA_CODE(code);

static bool accepts(const struct ct_prepare *p)
{
    return ct_cuda_computes(p->out[0].dtype);
}

/* The function of the op's name, for its dtype: softsign_bfloat16. */
static int prepare(struct ct_prepare *p)
{
    return ct_cuda_prepare(p, &code, p->out[0].dtype, CT_CUDA_NAMES("@_*"));
}

static int launch(const struct ct_launch *l, const struct softsign_call *a)
{
    const struct ct_cuda_size grid = {(unsigned)ct_cuda_blocks(a->count, THREADS), 1, 1};

    return ct_cuda_launch(l, ct_cuda_function(l, 0), grid, (struct ct_cuda_size){THREADS, 1, 1}, 0,
                          a);
}

static int run(const struct ct_launch *l)
{
    return launch(l, &(struct softsign_call){.out = l->out[0].data,
                                             .x = l->in[0].data,
                                             .count = ct_tensor_count(&l->out[0])});
}

static int run_grad(const struct ct_launch *l)
{
    return launch(l, &(struct softsign_call){.out = l->out[0].data,
                                             .dy = l->in[0].data,
                                             .x = l->in[1].data,
                                             .count = ct_tensor_count(&l->out[0])});
}

static const struct ct_kernel cuda_kernels[] = {
    CT_KERNEL(.op = "softsign", .name = "elements", .accepts = accepts, .prepare = prepare,
              .run = run),
    CT_KERNEL(.op = "softsign_grad", .name = "elements", .accepts = accepts, .prepare = prepare,
              .run = run_grad),
    {0}};

CT_PLUGIN(.name = "softsign", .version = "1.0",
          .summary = "Op: x / (1 + |x|), with kernels for CPUs and CUDA",
          .offers = CT_OFFERS({CT_OP, "softsign", &op_type}, {CT_OP, "softsign_grad", &grad_type},
                              {CT_KERNELS, "cpu", cpu_kernels}, {CT_KERNELS, "cuda", cuda_kernels},
                              {CT_CODE, "cuda", &code}));
