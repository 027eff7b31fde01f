/* Squared norms of gradients, summed where products make them (squares.c). */
#ifndef CPU_SQUARES_H
#define CPU_SQUARES_H

#include "gemm.h"

/* The sum of squares of a gradient dw[rows][columns]: in float64, in an order that does not depend
   on the number of threads. */
struct cpu_squares {
    double *sums; /* of blocks of CPU_PANEL rows and CPU_MADE_COLUMNS columns */
    int64_t count, across;
    enum ct_dtype dtype;
    struct cpu_epilogue epilogue; /* of the product that makes the gradient */
};

size_t cpu_squares_bytes(int64_t rows, int64_t columns);
/* memory: cpu_squares_bytes(rows, columns). squares stays where it is. */
void cpu_squares_begin(struct cpu_squares *squares, int64_t rows, int64_t columns,
                       enum ct_dtype dtype, void *memory);
double cpu_squares_end(const struct cpu_squares *squares);

#endif
