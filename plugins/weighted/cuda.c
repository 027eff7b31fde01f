/*
 * The kernel for CUDA: the loss of each row of logits, then their sum.
 */
#include <ctitan/lib/cuda_tokens.h>
#include <ctitan/op_author.h>

#include "weighted.h"
#include "weighted_cuda.h"

CT_CUDA_CODE(weighted_cuda_code);

static bool accepts(const struct ct_prepare *p)
{
    return ct_cuda_computes(p->in[0].dtype) && p->out[1].dtype == CT_F32;
}

static int prepare_weighted(struct ct_prepare *p)
{
    return ct_cuda_prepare_tokens(p, &weighted_cuda_code, 0, 1,
                                  CT_CUDA_NAMES("weighted_rows_*", "weighted_sum"));
}

static int run_weighted(const struct ct_launch *l)
{
    struct weighted_call a = {.in = ct_cuda_tokens(l, 0),
                              .weights = l->in[2].data,
                              .lse = l->out[1].data,
                              .loss = l->workspace};
    int rc = ct_cuda_launch_tokens(l, 0, &a);

    return rc < 0 ? rc : ct_cuda_sum_tokens(l, 0, 1, 1);
}

const struct ct_kernel weighted_cuda_kernels[] = {
    CT_KERNEL("weighted_cross_entropy", "rows", 0, accepts, prepare_weighted, run_weighted), {0}};
