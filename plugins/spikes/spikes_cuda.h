/* Arguments of the kernel for CUDA; the same for C and CUDA. */
#ifndef SPIKES_CUDA_H
#define SPIKES_CUDA_H

#include <ctitan/lib/cuda/arguments.h>

/* Numbers and their kinds, enum ct_cuda_float: inputs in the op's order. */
struct spikes_call {
    const void *in[6];
    void *y;
    int32_t kind[6], y_kind;
};

#endif
