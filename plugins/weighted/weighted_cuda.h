/* Arguments of the kernels for CUDA; the same for C and CUDA. */
#ifndef WEIGHTED_CUDA_H
#define WEIGHTED_CUDA_H

#include <ctitan/lib/cuda/tokens.h>

struct weighted_call {
    struct ct_cuda_tokens in;
    const float *weights;
    float *lse;
    double *loss; /* of each row */
};

#endif
