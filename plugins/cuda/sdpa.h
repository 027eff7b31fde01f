/*
 * Attention as graphs of cuDNN, which recognises their form and runs fused kernels.
 *
 * Masks say which keys a query sees. Causal: query i sees keys 0 .. i, and blocks of later keys are
 * skipped. With a window, of those the last ones only, and blocks of earlier keys are skipped.
 *
 * Packed sequences of any length follow each other in memory. Where each begins in a tensor, and
 * how many tokens it has, are tensors on the device (cuDNN's "THD"); what is not there has length
 * 0. Statistics of packed sequences are [token, head].
 */
#ifndef GPU_SDPA_H
#define GPU_SDPA_H

#include "dnn.h"

/* Key of a plan. Strides of batch, token, head; the last one is 1. */
struct sdpa_shape {
    int64_t batch, queries, keys; /* packed: sequences, and the longest that there can be */
    int64_t heads, groups;
    int64_t size, of_v; /* of a head of q and k; of v and o */
    int64_t rows;       /* of LSE for each head: the queries are some of these */
    int64_t window;     /* of causal: the keys that a query sees, itself among them; 0: all */
    int64_t q[3], k[3], v[3], o[3], d_o[3], dq[3], dk[3], dv[3];
    int32_t o_float;       /* o of the forward is float32 instead of bfloat16 */
    int32_t dq_sum_placed; /* DQ_SUM has the strides of dq, else it is dense */
    int32_t causal, backward;
    int32_t packed;
    int32_t ordered; /* dq is added up in one order, from the gradients of all scores, in memory */
};

/* Tensors that are given addresses, by id: those of the forward, then those of the backward. Where
   the packed sequences of tensor ID begin in it is tensor SDPA_BEGINS + ID. */
enum {
    SDPA_VIRTUAL,
    SDPA_Q,
    SDPA_K,
    SDPA_V,
    SDPA_O,
    SDPA_LSE,
    SDPA_SCALE,
    SDPA_LOWEST, /* -infinity */
    SDPA_WINDOW,
    SDPA_ONE,
    SDPA_D_O,
    SDPA_DQ,
    SDPA_DK,
    SDPA_DV,
    SDPA_DQ_SUM,   /* dq before it is rounded: float32 [batch, heads, queries, size] */
    SDPA_DELTA,    /* float32 [batch, heads, queries]; packed: as LSE */
    SDPA_DK_HEADS, /* packed, in groups: of each head, with the strides of dk times their share */
    SDPA_DV_HEADS,
    SDPA_QUERY_LENGTHS, /* packed: int32 [batch] */
    SDPA_KEY_LENGTHS,
    SDPA_BEGINS, /* packed: int64 [batch + 1], in elements */
    SDPA_IDS = SDPA_BEGINS + SDPA_DV + 1
};

/* Workspace of a plan for so many packed sequences, at most, on Hopper and Blackwell: cuDNN keeps
   descriptors of tensors there, of 64 sequences at least. */
#define SDPA_PACKED_BYTES(sequences) (((size_t)(sequences) + 64) * 1024)

/* Workspace of an ordered plan, about, from 1024 tokens on (cuDNN 9.19): gradients of scores, and
   those of each head's keys and values, in bfloat16. */
#define SDPA_ORDERED_BYTES(s)                                                                      \
    ((size_t)((s)->batch * (s)->heads * (s)->keys * ((s)->queries + (s)->size + (s)->of_v)) *      \
     sizeof(uint16_t))

void sdpa_describe(struct dnn_graph *g, const struct sdpa_shape *shape);

#endif
