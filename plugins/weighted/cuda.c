/*
 * The kernel for CUDA: the loss of each row of logits, then their sum.
 */
#include <ctitan/lib/cuda.h>
#include <ctitan/op_author.h>

#include "weighted.h"
#include "weighted_cuda.h"

CT_CUDA_CODE(weighted_cuda_code);

enum { ROWS, SUMS }; /* functions */

static bool accepts(const struct ct_prepare *p)
{
    return ct_cuda_computes(p->in[0].dtype) && p->out[1].dtype == CT_F32;
}

static int prepare(struct ct_prepare *p)
{
    p->workspace = (size_t)ct_rows(&p->in[0]) * sizeof(double);
    return ct_cuda_prepare(p, &weighted_cuda_code, p->in[0].dtype,
                           CT_CUDA_NAMES("weighted_rows_*", "weighted_sum"));
}

static int run_cuda(const struct ct_launch *l)
{
    int64_t rows = ct_rows(&l->in[0]);
    const struct ct_cuda_size threads = {CT_CUDA_TOKEN_THREADS, 1, 1};
    struct weighted_call a = {.logits = l->in[0].data,
                              .labels = l->in[1].data,
                              .weights = l->in[2].data,
                              .lse = l->out[1].data,
                              .loss = l->workspace,
                              .vocabulary = ct_columns(&l->in[0]),
                              .fault = ct_cuda_of(l->device)->fault};
    struct ct_cuda_token_sums sum = {.numbers = l->workspace,
                                     .tokens = rows,
                                     .count = 1,
                                     .kind = ct_cuda_float_of(l->out[0].dtype),
                                     .sum = {l->out[0].data}};
    int rc = ct_cuda_launch(l, ct_cuda_function(l, ROWS),
                            (struct ct_cuda_size){(unsigned)rows, 1, 1}, threads, 0, &a);

    return rc < 0 ? rc
                  : ct_cuda_launch(l, ct_cuda_function(l, SUMS), (struct ct_cuda_size){1, 1, 1},
                                   threads, 0, &sum);
}

const struct ct_kernel weighted_cuda_kernels[] = {
    CT_KERNEL("weighted_cross_entropy", "rows", 0, accepts, prepare, run_cuda), {0}};
