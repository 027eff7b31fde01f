/*
 * The kernels for CUDA: numbers of each token, then their sums.
 */
#include <ctitan/lib/cuda_tokens.h>
#include <ctitan/op_author.h>

#include "distill.h"
#include "distill_cuda.h"

enum { LOGITS, TEACHER = 2, IDS };
enum { LSE = 3, WARM, EACH };
enum { GRAD_LOGITS = 1, GRAD_LSE = 4, GRAD_WARM, GRAD_EACH, GRAD_IDS };

CT_CUDA_CODE(distill_cuda_code);

/* Operands from number `first` on, and the ids. */
static struct distill_call call_of(const struct ct_launch *l, int first, int ids)
{
    const struct distill *a = l->op->attrs;
    const struct ct_tensor *teacher = &l->in[first + TEACHER];

    return (struct distill_call){.in = ct_cuda_tokens(l, first),
                                 .teacher = teacher->data,
                                 .ids = ct_op_input(l->op, ids) ? l->in[ids].data : NULL,
                                 .k = ct_columns(teacher),
                                 .temperature = a->temperature,
                                 .inverse = 1 / a->temperature,
                                 .hard = a->hard,
                                 .reverse = a->reverse,
                                 .teacher_kind = ct_cuda_float_of(teacher->dtype)};
}

static int prepare_forward(struct ct_prepare *p)
{
    return ct_cuda_prepare_tokens(p, &distill_cuda_code, LOGITS, DISTILL_NUMBERS,
                                  CT_CUDA_NAMES("distill_rows_*", "distill_sums"));
}

static int run_forward(const struct ct_launch *l)
{
    struct distill_call a = call_of(l, LOGITS, IDS);
    int rc;

    a.numbers = l->workspace;
    a.lse = l->out[LSE].data;
    a.warm = l->out[WARM].data;
    a.each = l->out[EACH].data;
    rc = ct_cuda_launch_tokens(l, LOGITS, &a);
    return rc < 0 ? rc : ct_cuda_sum_tokens(l, LOGITS, DISTILL_NUMBERS, 1);
}

static int prepare_backward(struct ct_prepare *p)
{
    return ct_cuda_prepare_tokens(p, &distill_cuda_code, GRAD_LOGITS, 0,
                                  CT_CUDA_NAMES("distill_grad_rows_*"));
}

static int run_backward(const struct ct_launch *l)
{
    struct distill_call a = call_of(l, GRAD_LOGITS, GRAD_IDS);

    a.lse = l->in[GRAD_LSE].data;
    a.warm = l->in[GRAD_WARM].data;
    a.each = l->in[GRAD_EACH].data;
    a.dlogits = l->out[0].data;
    a.dloss = l->in[0].data;
    a.dloss_kind = ct_cuda_float_of(l->in[0].dtype);
    return ct_cuda_launch_tokens(l, GRAD_LOGITS, &a);
}

static bool accepts_forward(const struct ct_prepare *p)
{
    return ct_cuda_computes(p->in[LOGITS].dtype) && ct_cuda_computes(p->in[TEACHER].dtype) &&
           p->out[LSE].dtype == CT_F32;
}

static bool accepts_backward(const struct ct_prepare *p)
{
    return ct_cuda_computes(p->in[GRAD_LOGITS].dtype) &&
           ct_cuda_computes(p->in[GRAD_LOGITS + TEACHER].dtype) && p->in[GRAD_LSE].dtype == CT_F32;
}

const struct ct_kernel distill_cuda_kernels[] = {
    CT_KERNEL("distill", "rows", 0, accepts_forward, prepare_forward, run_forward),
    CT_KERNEL("distill_grad", "rows", 0, accepts_backward, prepare_backward, run_backward),
    {0}};
