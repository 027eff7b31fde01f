/*
 * Own kernels or oneDNN: chosen for each shape by what is faster on this machine, measured once
 * (tuning.h), or for all by [cpu] products.
 */
#ifndef CPU_PRODUCTS_SELECT_H
#define CPU_PRODUCTS_SELECT_H

#include "../gemm.h"

/* True if w[n, k] is packed in panels (unit.h) for a use beside activations of a dtype, and
   multiplied by own kernels. */
bool cpu_choose_panels(enum cpu_use use, int64_t n, int64_t k, enum ct_dtype dtype);
/* True if own kernels run this product. */
bool cpu_choose_own(const struct cpu_gemm_spec *spec);

#endif
