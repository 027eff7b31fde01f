/* Interface between the sources of the plugin: its kernel for CUDA. */
#ifndef WEIGHTED_H
#define WEIGHTED_H

extern const struct ct_kernel weighted_cuda_kernels[];
extern const struct ct_cuda_code weighted_cuda_code;

#endif
