/* Arguments of the kernels for CUDA; the same for C and CUDA. */
#ifndef DISTILL_CUDA_H
#define DISTILL_CUDA_H

#include <ctitan/lib/cuda/tokens.h>

#define DISTILL_NUMBERS 3 /* of a token: loss, divergence, entropy */

struct distill_call {
    struct ct_cuda_tokens in;
    const void *teacher;      /* [rows, k] */
    const int32_t *ids;       /* [rows, k]; NULL: the teacher has all tokens, in order */
    float *lse, *warm, *each; /* of each row */
    double *numbers;          /* forward: [rows, DISTILL_NUMBERS] */
    void *dlogits;            /* backward */
    const void *dloss;        /* a number */
    int64_t k;
    double temperature, inverse, hard;         /* inverse: 1 / temperature */
    int32_t reverse, teacher_kind, dloss_kind; /* kinds: enum ct_cuda_float */
};

#endif
