/* Arguments of kernels along sequences; the same for C and CUDA (arguments.h). */
#ifndef GPU_KERNELS_SEQUENCES_H
#define GPU_KERNELS_SEQUENCES_H

#include <ctitan/lib/cuda/arguments.h>

#define GPU_CHUNK 64 /* tokens */

/* An operand along sequences: [.., token, head, column]; sequence b is at b / inner of the first
   dimension and b % inner of the second, if there are two. */
struct gpu_sequence {
    void *data; /* NULL: absent */
    int64_t first, second, token, head, size;
    int32_t kind;
};

/* A parameter with a number for each head. */
struct gpu_numbers {
    const void *data;
    int32_t kind;
};

struct gpu_chunks {
    struct gpu_sequence q, k, v, gate, beta, documents, d_o; /* of state_scan: C, B, x, dt, -, .. */
    struct gpu_sequence o, dq, dk, dv, dgate, dbeta;         /* dq, dk: sums of tasks' */
    struct gpu_sequence state, after, keeps, gain, dstate;
    struct gpu_numbers rate, skip, bias; /* a_log, D and dt_bias of state_scan */
    int64_t inner, tokens, tasks, groups, heads;
    int64_t blocks;     /* of a group's heads: a task each */
    int32_t key, value; /* columns */
    float *work;        /* of each task `each` floats */
    int64_t each;
    float *parts;   /* dq and dk of each task, [2][tasks][tokens][ldk] */
    float *numbers; /* gradients of rate, skip and bias, [3][sequences][heads] */
    float least, most;
    uint32_t accumulate;
};

struct gpu_chunks_numbers { /* out[h] = the sum over sequences */
    void *out[3];
    const float *numbers;
    int64_t sequences, heads;
    int32_t kind[3];
};

struct gpu_conv {
    struct gpu_sequence x, y, dy, dx, documents, state, after, dstate;
    const void *w, *bias;
    void *dw, *dbias;
    int64_t w_stride, dw_stride; /* of rows; the last stride is 1 */
    int64_t inner, sequences, tokens, channels;
    int32_t size, kind, dw_kind, dbias_kind;
    uint32_t accumulate;
};

struct gpu_fold {
    const void *keeps, *gain;
    const int32_t *ends;
    void *state;
    int64_t keeps_stride[4], gain_stride[4], state_stride[4], ends_stride[2];
    int64_t segments, heads, k, v, factor;
    int32_t kind, back, count; /* count: batch x heads */
    int64_t at[256];           /* by position: index of the segment */
};

struct gpu_ends {
    struct gpu_sequence documents, ends;
    int64_t inner, sequences, tokens;
};

#endif
