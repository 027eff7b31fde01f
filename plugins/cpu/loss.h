/*
 * Softmax cross entropy of a last linear layer, in chunks of tokens. The logits of one chunk are
 * computed, turned into their own gradient and multiplied at once, so the full logits never exist.
 * The standard ops and those on packed weights share this code.
 */
#ifndef CPU_LOSS_H
#define CPU_LOSS_H

#include "cpu.h"

#define CPU_MASKED (-100)

/* CT_EINVAL: a label is neither below vocabulary nor masked. */
int cpu_check_labels(const struct ct_tensor *labels, int64_t vocabulary);
/* Store the sum of losses, added in order. */
void cpu_store_loss(const struct ct_tensor *loss, const double *losses, int64_t n, bool add);
/* A row of a tensor that ct_tensor_as_matrix accepts. */
char *cpu_row(const struct ct_tensor *t, int64_t row);

/* A weight in the form that the products read. */
struct cpu_head {
    int64_t vocabulary;
    enum ct_dtype dtype; /* of the elements, including packed ones */
    int64_t stride;      /* elements per row; 0: packed */
};

struct cpu_head_operands {
    const struct ct_tensor *dloss, *x, *labels; /* dloss NULL: compute the loss only */
    const void *forward, *backward;             /* the weight; the same pointer twice if unpacked */
    const struct ct_tensor *dx, *dw, *loss;     /* dw NULL: compute dx and the loss */
};

bool cpu_head_accepts(const struct cpu_head *head, const struct cpu_head_operands *operands);
int cpu_head_prepare(struct ct_prepare *p, const struct cpu_head *head,
                     const struct cpu_head_operands *operands);
#define CPU_ACCUMULATE_DX 1u
#define CPU_ACCUMULATE_DW 2u
#define CPU_ACCUMULATE_LOSS 4u
/* launch provides state and workspace. */
int cpu_head_run(const struct ct_launch *launch, const struct cpu_head_operands *operands,
                 uint32_t accumulate);

/* ---- linear_cross_entropy and its gradients, whatever form the weights have ---- */

#define CPU_LOSS_INPUTS 3 /* of the loss: x, w, labels; gradients have more */

/* The weight of the forward. */
static inline const struct ct_tensor *cpu_loss_weight(const struct ct_prepare *p)
{
    return p->in + (p->ins == CPU_LOSS_INPUTS ? 1 : 2);
}

bool cpu_loss_accepts(const struct ct_prepare *p, const struct cpu_head *head);
int cpu_loss_prepare(struct ct_prepare *p, const struct cpu_head *head);
int cpu_loss_run(const struct ct_launch *l);

#endif
