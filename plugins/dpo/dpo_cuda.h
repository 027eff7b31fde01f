/* Arguments of the kernels for CUDA; the same for C and CUDA. */
#ifndef DPO_CUDA_H
#define DPO_CUDA_H

#include <ctitan/lib/cuda/tokens.h>

/* sequence_logp, and its gradient. */
struct dpo_logp_call {
    struct ct_cuda_tokens in;
    float *lse;         /* [rows] */
    double *logp;       /* of each row */
    const float *dlogp; /* of each sequence */
    void *dlogits;
    int64_t tokens; /* of a sequence */
};

/* Losses of pairs: [pairs, 2] float32. Sums, or gradients of two operands. */
struct dpo_pairs_call {
    const float *policy, *reference, *tokens, *trained; /* reference, tokens: may be NULL */
    const void *dloss, *sum, *trained_tokens;           /* numbers */
    int32_t dloss_kind, sum_kind, trained_kind;         /* enum ct_cuda_float */
    float *out[6];
    int64_t pairs;
    struct dpo_preference preference;
    struct dpo_kto kto;
    struct dpo_orpo orpo;
};

#endif
