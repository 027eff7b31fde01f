/* Arguments of the kernels for CUDA: the same for C and CUDA. */
#ifndef SOFTSIGN_H
#define SOFTSIGN_H

#include <ctitan/lib/cuda/arguments.h>

#define THREADS 256 /* of a block */

/* Dense operands of one dtype. */
struct softsign_call {
    void *out;
    const void *x, *dy; /* dy: of the gradient */
    int64_t count;
};

#endif
