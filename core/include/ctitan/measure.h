/*
 * What a device can do, measured: with programs lowered as any other, so the numbers are those of
 * the kernels that training uses.
 */
#ifndef CT_MEASURE_H
#define CT_MEASURE_H

#include <ctitan/device.h>

/*
 * Floating-point operations per second of one large square matrix product (multiply and add are
 * two) on operands of dtype: the best of the calls that fit into about 30 ms. The plugin of the
 * device has been taken in. CT_ENOENT: the device has no kernel for it.
 */
CT_API int ct_measure_gemm(struct ct_device *device, enum ct_dtype dtype, double *flops_per_second);

/* Bytes per second that z = x + y moves on tensors larger than caches: read, read, write. */
CT_API int ct_measure_bandwidth(struct ct_device *device, double *bytes_per_second);

#endif
