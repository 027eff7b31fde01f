/*
 * Softmax cross entropy of a last linear layer, in chunks of tokens: logits of one chunk are made,
 * turned into their own gradient, and multiplied on at once, so that they never exist as a whole.
 * Shared by the standard ops and those on packed weights.
 */
#ifndef CPU_LOSS_H
#define CPU_LOSS_H

#include "cpu.h"

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
/* launch: for state, workspace and accumulate; bit i of accumulate: of dx, dw, loss in this order.
 */
int cpu_head_run(const struct ct_launch *launch, const struct cpu_head_operands *operands,
                 uint32_t accumulate);

#endif
