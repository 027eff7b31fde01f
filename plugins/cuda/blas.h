/*
 * Matrix products on the device, through cuBLASLt. Matrices are row-major, with a stride between
 * rows; cuBLASLt's are column-major, so the product is made as its transpose.
 *
 * The algorithm of a product is chosen at its first call, and kept for all calls of the same shape,
 * strides, dtypes and alignment: the first of the library's heuristic that runs, or, with [cuda]
 * tune = true, the fastest. The fastest are kept for later runs (ctitan/lib/facts.h), by the names
 * and versions of device, driver and library, in ctitan/cuda.
 */
#ifndef GPU_BLAS_H
#define GPU_BLAS_H

#include "gpu.h"

/* Numbers of a Float8 operand that share a factor: all, each row, or blocks of a row along the sum.
   Factors of blocks lie in the tiles of gpu_block_scales: E8M0 of 32 numbers, E4M3 of 16. */
enum gpu_scaled {
    GPU_NOT_SCALED,
    GPU_SCALED_WHOLE,
    GPU_SCALED_ROWS,
    GPU_SCALED_BLOCKS_32,
    GPU_SCALED_BLOCKS_16 /* numbers are e2m1, two to a byte; dtypes say float8_e4m3 */
};

/* c[m, n] = sum over k of a[m, k] b[n, k], + c if accumulate. */
struct gpu_product {
    int64_t m, n, k;
    const void *a, *b;
    void *c;
    int64_t a_stride, b_stride, c_stride;
    bool a_by_k, b_by_k; /* stored as a[k, m], b[k, n] */
    bool accumulate;
    enum ct_dtype a_dtype, b_dtype, c_dtype;
    enum gpu_scaled scaled;
    const void *a_scale, *b_scale; /* factors, on the device */
    const float *factor;           /* of blocks of 16, on the device: of the sum, and of c */
    bool fast_accumulation;
};

/* Bytes of workspace that a launch with products needs. */
#define GPU_BLAS_WORKSPACE ((size_t)32 << 20)

int gpu_blas_open(struct gpu *gpu);
void gpu_blas_close(struct gpu *gpu);
/* Version of the library: 12.9 is 1209; 0: unknown. */
int gpu_blas_version(void);
/* On the stream of l; workspace: GPU_BLAS_WORKSPACE bytes, 256-byte aligned. */
int gpu_multiply(const struct ct_launch *l, const struct gpu_product *product, void *workspace);

#endif
