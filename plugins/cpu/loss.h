/*
 * Softmax cross entropy of a last linear layer, in chunks of tokens: logits of one chunk are made,
 * turned into their own gradient, and multiplied on at once, so that they never exist as a whole.
 * Shared by the standard ops and those on packed weights.
 */
#ifndef CPU_LOSS_H
#define CPU_LOSS_H

#include "cpu.h"

#define CPU_MASKED (-100)

/* CT_EINVAL: a label that is neither below vocabulary nor masked. */
int cpu_check_labels(const struct ct_tensor *labels, int64_t vocabulary);
/* The sum of losses in their order. */
void cpu_store_loss(const struct ct_tensor *loss, const double *losses, int64_t n, bool add);
/* A row of a tensor that ct_tensor_as_matrix takes. */
char *cpu_row(const struct ct_tensor *t, int64_t row);

/* A weight as the products read it. */
struct cpu_head {
    int64_t vocabulary;
    enum ct_dtype dtype; /* of the elements, packed ones too */
    int64_t stride;      /* of a row; 0: packed */
};

struct cpu_head_operands {
    const struct ct_tensor *dloss, *x, *labels; /* dloss NULL: the loss only */
    const void *forward, *backward;             /* the weight; twice the same where it is plain */
    const struct ct_tensor *dx, *dw, *loss;
};

bool cpu_head_accepts(const struct cpu_head *head, const struct cpu_head_operands *operands);
int cpu_head_prepare(struct ct_prepare *p, const struct cpu_head *head,
                     const struct cpu_head_operands *operands);
#define CPU_ACCUMULATE_DX 1u
#define CPU_ACCUMULATE_DW 2u
#define CPU_ACCUMULATE_LOSS 4u
/* launch: for state and workspace. */
int cpu_head_run(const struct ct_launch *launch, const struct cpu_head_operands *operands,
                 uint32_t accumulate);

#endif
