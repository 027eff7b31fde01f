/*
 * The kernel for CUDA: the scores of each label, then their sums by sequence.
 */
#include <ctitan/lib/cuda_tokens.h>
#include <ctitan/op_author.h>

#include "eval_cuda.h"
#include "scores.h"

CT_CUDA_CODE(eval_cuda_code);

#define VOCABULARY (1 << 24) /* at most: token ids as float32 are exact */

static bool accepts(const struct ct_prepare *p)
{
    return ct_cuda_computes(p->in[0].dtype) && p->out[0].dtype == CT_F32 &&
           ct_columns(&p->in[0]) <= VOCABULARY;
}

static int prepare_scores(struct ct_prepare *p)
{
    return ct_cuda_prepare_tokens(p, &eval_cuda_code, 0, EVAL_NUMBERS,
                                  CT_CUDA_NAMES("eval_rows_*", "eval_sums"));
}

static int run_scores(const struct ct_launch *l)
{
    struct eval_call a = {.in = ct_cuda_tokens(l, 0), .numbers = l->workspace};
    int rc = ct_cuda_launch_tokens(l, 0, &a);

    return rc < 0 ? rc : ct_cuda_sum_tokens(l, 0, EVAL_NUMBERS, l->in[0].shape[0]);
}

const struct ct_kernel scores_cuda_kernels[] = {
    CT_KERNEL("label_scores", "rows", 0, accepts, prepare_scores, run_scores), {0}};
