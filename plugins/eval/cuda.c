/*
 * The kernel for CUDA: the scores of each label, then their sums by sequence.
 */
#include <ctitan/lib/cuda.h>
#include <ctitan/op_author.h>

#include "eval_cuda.h"
#include "scores.h"

CT_CUDA_CODE(eval_cuda_code);

enum { ROWS, SUMS }; /* functions */

#define VOCABULARY (1 << 24) /* at most: token ids as float32 are exact */

static bool accepts(const struct ct_prepare *p)
{
    return ct_cuda_computes(p->in[0].dtype) && p->out[0].dtype == CT_F32 &&
           ct_columns(&p->in[0]) <= VOCABULARY;
}

static int prepare(struct ct_prepare *p)
{
    p->workspace = (size_t)ct_rows(&p->in[0]) * EVAL_NUMBERS * sizeof(double);
    return ct_cuda_prepare(p, &eval_cuda_code, p->in[0].dtype,
                           CT_CUDA_NAMES("eval_rows_*", "eval_sums"));
}

static int run_cuda(const struct ct_launch *l)
{
    const struct ct_tensor *logits = &l->in[0], *labels = &l->in[1];
    const struct ct_cuda_size threads = {CT_CUDA_TOKEN_THREADS, 1, 1};
    struct eval_call a = {.logits = logits->data,
                          .labels = labels->data,
                          .numbers = l->workspace,
                          .vocabulary = ct_columns(logits),
                          .fault = ct_cuda_of(l->device)->fault};
    struct ct_cuda_token_sums sums = {.numbers = l->workspace,
                                      .tokens = labels->shape[1],
                                      .count = EVAL_NUMBERS,
                                      .kind = ct_cuda_float_of(l->out[0].dtype),
                                      .sum = {l->out[0].data, l->out[1].data, l->out[2].data}};
    int rc = ct_cuda_launch(l, ct_cuda_function(l, ROWS),
                            (struct ct_cuda_size){(unsigned)ct_rows(logits), 1, 1}, threads, 0, &a);

    return rc < 0 ? rc
                  : ct_cuda_launch(l, ct_cuda_function(l, SUMS),
                                   (struct ct_cuda_size){(unsigned)labels->shape[0], 1, 1}, threads,
                                   0, &sums);
}

const struct ct_kernel scores_cuda_kernels[] = {
    CT_KERNEL("label_scores", "rows", 0, accepts, prepare, run_cuda), {0}};
