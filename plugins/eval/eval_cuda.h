/* Arguments of the kernels for CUDA; the same for C and CUDA. */
#ifndef EVAL_CUDA_H
#define EVAL_CUDA_H

#include <ctitan/lib/cuda/tokens.h>

#define EVAL_NUMBERS 3 /* of a token: log-probability, wrong, the likeliest token */

struct eval_call {
    const void *logits; /* [rows, vocabulary] */
    const int32_t *labels;
    double *numbers; /* [rows, EVAL_NUMBERS] */
    int64_t vocabulary;
    struct ct_cuda_fault *fault;
};

#endif
