/* Arguments of the kernels for CUDA; the same for C and CUDA. */
#ifndef WEIGHTED_CUDA_H
#define WEIGHTED_CUDA_H

#include <ctitan/lib/cuda/tokens.h>

struct weighted_call {
    const void *logits; /* [rows, vocabulary] */
    const int32_t *labels;
    const float *weights;
    float *lse;
    double *loss; /* of each row */
    int64_t vocabulary;
    struct ct_cuda_fault *fault;
};

#endif
