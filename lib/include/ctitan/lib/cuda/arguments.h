/*
 * Words that kernels on a CUDA device and the host share; the same for C and CUDA. A plugin puts
 * the structs of its own kernels' arguments in a header that includes this one.
 */
#ifndef CT_CUDA_ARGUMENTS_H
#define CT_CUDA_ARGUMENTS_H

#include <stdint.h>

#define CT_CUDA_TOKEN_MASKED (-100) /* the label of tokens that do not count */

/* Floating-point dtypes of operands that a kernel tells apart while it runs. */
enum ct_cuda_float { CT_CUDA_F32, CT_CUDA_BF16, CT_CUDA_F64 };

enum {
    CT_CUDA_FAULT_NONE,
    CT_CUDA_FAULT_TOKEN,
    CT_CUDA_FAULT_LABEL,
    CT_CUDA_FAULT_SLOT,
    CT_CUDA_FAULT_EXPERT,
    CT_CUDA_FAULT_INDEX
};

/* The fault word of a device: the last index that a kernel found out of range. */
struct ct_cuda_fault {
    int64_t kind, value, position, limit;
};

#endif
