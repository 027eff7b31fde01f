/*
 * Kernels of losses of tokens, on the host (tokens.h, tokens.cuh): a block for each row of logits
 * makes some numbers of the token, and another function sums these by sequence.
 *
 * An op has logits as one input, and the labels as the next. Its kernel calls
 * ct_cuda_prepare_tokens in `prepare`, and in `run` ct_cuda_launch_tokens, and ct_cuda_sum_tokens
 * where it has sums. The arguments of the rows' function have a struct ct_cuda_tokens, and as
 * `numbers` the workspace.
 */
#ifndef CT_CUDA_TOKENS_HOST_H
#define CT_CUDA_TOKENS_HOST_H

#include <ctitan/lib/cuda.h>
#include <ctitan/lib/cuda/tokens.h>

CT_BEGIN_DECLS

/*
 * Find the functions: names of that of the rows, and if the op has sums of that of the sums, as
 * ct_cuda_prepare takes them; `*` is the dtype of input `logits`. Sets the state, and a workspace
 * for so many numbers of each row.
 */
CT_API int ct_cuda_prepare_tokens(struct ct_prepare *p, const struct ct_cuda_code *code, int logits,
                                  int numbers, const char *const *names);

/* The rows of input `logits`, and their labels. */
CT_API struct ct_cuda_tokens ct_cuda_tokens(const struct ct_launch *l, int logits);
/* Launch the function of the rows, whose struct `arguments` is. */
CT_API int ct_cuda_launch_tokens(const struct ct_launch *l, int logits, const void *arguments);
/* Launch that of the sums: outputs 0 to count - 1 are those of the numbers in the workspace, each
   over the rows of a sequence. count is CT_CUDA_TOKEN_NUMBERS at most, sequences at
   least 1. */
CT_API int ct_cuda_sum_tokens(const struct ct_launch *l, int logits, int count, int64_t sequences);

CT_END_DECLS

#endif
