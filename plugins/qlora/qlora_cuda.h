/*
 * Blocks, and the arguments of the kernels for CUDA: the same for C and CUDA.
 */
#ifndef QLORA_CUDA_H
#define QLORA_CUDA_H

#include <ctitan/lib/cuda/arguments.h>

#define QLORA_BLOCK 64  /* numbers with one scale */
#define QLORA_GROUP 256 /* scales that have one scale of their own */

#define QLORA_THREADS 256 /* of a block of threads */
#define QLORA_NUMBERS 8   /* that a thread decodes */

struct qlora_decode_call {
    void *weight;          /* [rows, columns] */
    const uint8_t *codes;  /* [rows, columns]; nf4: two in a byte, the first in its upper half */
    const void *absmax;    /* float32; uint8 with double quantisation */
    const float *nested;   /* NULL: scales are as they are; else of each group, then the mean */
    int64_t rows, columns; /* of this rank */
    int64_t weight_stride, absmax_stride; /* of rows, in elements */
    int64_t code_stride;                  /* of rows, in bytes */
    int64_t whole_columns;                /* of the weight on all ranks */
    int64_t row, column, slot;            /* the first of this rank */
    int64_t groups;                       /* the mean is behind their scales */
    float table[256], map[256];           /* of the codes; of the scales' codes */
};

#endif
