/* Arguments of the kernels for CUDA; the same for C and CUDA. */
#ifndef EVAL_CUDA_H
#define EVAL_CUDA_H

#include <ctitan/lib/cuda/tokens.h>

#define EVAL_NUMBERS 3 /* of a token: log-probability, wrong, the likeliest token */

struct eval_call {
    struct ct_cuda_tokens in;
    double *numbers; /* [rows, EVAL_NUMBERS] */
};

#endif
