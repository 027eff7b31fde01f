/*
 * Sums over tokens, for kernels of losses: each token, a row of logits, gives some numbers, which
 * are summed by sequence. The same for C and CUDA; tokens.cuh has the functions, and
 * ctitan/lib/cuda_tokens.h launches them.
 */
#ifndef CT_CUDA_TOKENS_H
#define CT_CUDA_TOKENS_H

#include <ctitan/lib/cuda/arguments.h>

#define CT_CUDA_TOKEN_NUMBERS 4   /* of a token, at most */
#define CT_CUDA_TOKEN_THREADS 256 /* of a block */

/* Rows of logits, and their labels. */
struct ct_cuda_tokens {
    const void *logits;    /* [rows, vocabulary] */
    const int32_t *labels; /* [rows] */
    int64_t vocabulary;
    struct ct_cuda_fault *fault;
};

struct ct_cuda_token_sums {
    const double *numbers;            /* [sequences, tokens, count] */
    int64_t tokens;                   /* of a sequence */
    int32_t count, kind;              /* kind: enum ct_cuda_float, of the sums */
    void *sum[CT_CUDA_TOKEN_NUMBERS]; /* [sequences] each; NULL: not wanted */
};

#endif
