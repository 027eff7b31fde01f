/* The op that withholds an update. Its inputs: factor and norm of the gradients, limit of the norm,
   sum of the losses, what divides it, limit of their mean. */
#ifndef SPIKES_WITHHOLD_H
#define SPIKES_WITHHOLD_H

#include <ctitan/op.h>

extern const struct ct_op_type spikes_withhold;

/* cuda.c */
extern const struct ct_kernel spikes_cuda_kernels[];
extern const struct ct_cuda_code spikes_cuda_code;

#endif
