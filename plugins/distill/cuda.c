/*
 * The kernels for CUDA: numbers of each token, then their sums.
 */
#include <ctitan/lib/cuda.h>
#include <ctitan/op_author.h>

#include "distill.h"
#include "distill_cuda.h"

enum { LOGITS, LABELS, TEACHER, IDS };
enum { LOSS, LSE = 3, WARM, EACH };
enum { GRAD_LOGITS = 1, GRAD_LSE = 4, GRAD_WARM, GRAD_EACH, GRAD_IDS };

enum { ROWS, SUMS }; /* functions */

CT_CUDA_CODE(distill_cuda_code);

/* Operands from number `first` on, and the ids. */
static struct distill_call call_of(const struct ct_launch *l, int first, int ids)
{
    const struct distill *a = l->op->attrs;
    const struct ct_tensor *in = l->in + first;

    return (struct distill_call){.logits = in[LOGITS].data,
                                 .teacher = in[TEACHER].data,
                                 .labels = in[LABELS].data,
                                 .ids = ids < l->op->ins && l->op->in[ids] ? l->in[ids].data : NULL,
                                 .vocabulary = ct_columns(&in[LOGITS]),
                                 .k = ct_columns(&in[TEACHER]),
                                 .temperature = a->temperature,
                                 .inverse = 1 / a->temperature,
                                 .hard = a->hard,
                                 .reverse = a->reverse,
                                 .teacher_kind = ct_cuda_float_of(in[TEACHER].dtype),
                                 .fault = ct_cuda_of(l->device)->fault};
}

static int launch_rows(const struct ct_launch *l, const struct ct_tensor *logits,
                       const struct distill_call *a)
{
    return ct_cuda_launch(l, ct_cuda_function(l, ROWS),
                          (struct ct_cuda_size){(unsigned)ct_rows(logits), 1, 1},
                          (struct ct_cuda_size){CT_CUDA_TOKEN_THREADS, 1, 1}, 0, a);
}

static int run_forward(const struct ct_launch *l)
{
    struct distill_call a = call_of(l, 0, IDS);
    struct ct_cuda_token_sums sums = {.numbers = l->workspace,
                                      .tokens = ct_rows(&l->in[LOGITS]),
                                      .count = DISTILL_NUMBERS,
                                      .kind = ct_cuda_float_of(l->out[LOSS].dtype)};
    int rc;

    a.numbers = l->workspace;
    a.lse = l->out[LSE].data;
    a.warm = l->out[WARM].data;
    a.each = l->out[EACH].data;
    for (int i = 0; i < DISTILL_NUMBERS; i++)
        sums.sum[i] = l->out[LOSS + i].data;
    rc = launch_rows(l, &l->in[LOGITS], &a);
    return rc < 0 ? rc
                  : ct_cuda_launch(l, ct_cuda_function(l, SUMS), (struct ct_cuda_size){1, 1, 1},
                                   (struct ct_cuda_size){CT_CUDA_TOKEN_THREADS, 1, 1}, 0, &sums);
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
    return launch_rows(l, &l->in[GRAD_LOGITS], &a);
}

static int prepare_forward(struct ct_prepare *p)
{
    p->workspace = (size_t)ct_rows(&p->in[LOGITS]) * DISTILL_NUMBERS * sizeof(double);
    return ct_cuda_prepare(p, &distill_cuda_code, p->in[LOGITS].dtype,
                           CT_CUDA_NAMES("distill_rows_*", "distill_sums"));
}

static int prepare_backward(struct ct_prepare *p)
{
    return ct_cuda_prepare(p, &distill_cuda_code, p->in[GRAD_LOGITS].dtype,
                           CT_CUDA_NAMES("distill_grad_rows_*"));
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
