/*
 * Speeds of the machine without ctitan: oneDNN's own products, and memory.
 */
#ifndef BENCH_MACHINE_H
#define BENCH_MACHINE_H

#include <ctitan/op.h>
#include <ctitan/tensor.h>

/* y[m, n] = x[m, k] w[n, k]^T; dx = dy w; dw = dy^T x */
enum machine_product { MACHINE_FORWARD, MACHINE_DX, MACHINE_DW };

/* Seconds of oneDNN's best way: plain or packed weights; dtype or float32. Remembered by shape. */
double machine_product(enum machine_product which, int64_t m, int64_t n, int64_t k,
                       enum ct_dtype dtype);

/* Shape of an op of the linear family: y[m, n] = x[m, k] w[n, k]^T and its gradients. */
struct machine_op {
    unsigned products; /* bits: 1 << enum machine_product */
    int64_t m, n, k;
    double flops;
};

struct machine_op machine_op(const struct ct_op *op, const struct ct_tensor *in,
                             const struct ct_tensor *out);
/* Seconds for all GEMMs of the op. */
double machine_op_seconds(const struct machine_op *op, enum ct_dtype dtype);

/* Bytes per second of a triad over about so many bytes. */
double machine_bandwidth(double bytes);

#endif
