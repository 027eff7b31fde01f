/*
 * Sums over tokens, for kernels of losses: each token, a row of logits, gives some numbers, which
 * are summed by sequence. The same for C and CUDA; tokens.cuh has the functions.
 */
#ifndef CT_CUDA_TOKENS_H
#define CT_CUDA_TOKENS_H

#include <ctitan/lib/cuda/arguments.h>

#define CT_CUDA_TOKEN_NUMBERS 4   /* of a token, at most */
#define CT_CUDA_TOKEN_THREADS 256 /* of a block */

struct ct_cuda_token_sums {
    const double *numbers;            /* [sequences, tokens, count] */
    int64_t tokens;                   /* of a sequence */
    int32_t count, kind;              /* kind: enum ct_cuda_float, of the sums */
    void *sum[CT_CUDA_TOKEN_NUMBERS]; /* [sequences] each; NULL: not wanted */
};

#endif
