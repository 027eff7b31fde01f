/* Squared norms of gradients, summed where products make them (squares.c). */
#ifndef CPU_SQUARES_H
#define CPU_SQUARES_H

#include "gemm.h"

/* The sum of squares of a gradient dw[rows][..]: in float64, in an order that does not depend on
   the number of threads. */
struct cpu_squares {
    double *sums; /* of every CPU_PANEL rows */
    int64_t rows;
    enum ct_dtype dtype;
    struct cpu_epilogue epilogue; /* of the product that makes the gradient */
};

size_t cpu_squares_bytes(int64_t rows);
/* memory: cpu_squares_bytes(rows). squares stays where it is. */
void cpu_squares_begin(struct cpu_squares *squares, int64_t rows, enum ct_dtype dtype,
                       void *memory);
double cpu_squares_end(const struct cpu_squares *squares);

#endif
