/* Arguments of the kernels for CUDA; the same for C and CUDA. Strides count elements. */
#ifndef LORA_CUDA_H
#define LORA_CUDA_H

#include <ctitan/lib/cuda/arguments.h>

#define LORA_THREADS 256
#define LORA_ROWS 8 /* that a block of a sum over a rank takes */

struct lora_tensor_of_kind {
    void *data;
    int64_t stride[2]; /* of matrices in a stack, and of rows */
    int32_t kind;      /* enum ct_cuda_float */
};

/* w + scale b a, of one matrix or of each of a stack: squared norms of its rows, or itself; or
   the gradients of that. w, out [stack, rows, columns], a [stack, rank, columns], b [stack, rows,
   rank]. */
struct lora_call {
    struct lora_tensor_of_kind w, a, b, out;
    int64_t stack, rows, columns, rank;
    float scale;
    int32_t accumulate;
};

/* out = x m / sqrt(squared_norms), or the sum over rows of dy x / sqrt(squared_norms). */
struct lora_magnify_call {
    struct lora_tensor_of_kind x, dy, out; /* rows: stride[1] */
    const float *m, *squared_norms;
    int64_t rows, columns;
    int32_t accumulate;
};

#endif
