/*
 * Distillation: the divergence of a model from a teacher, token by token.
 */
#ifndef DISTILL_H
#define DISTILL_H

#include <ctitan/op_author.h>
#include <ctitan/plugin.h>

#define DISTILL_IDS "teacher_ids"
#define DISTILL_LOGPS "teacher_logps"

struct distill_config {
    const char *path, *teacher;
    int64_t k;
    double temperature, hard_weight;
    unsigned divergence;
};

extern struct distill_config distill_config;

enum distill_divergence { DISTILL_FORWARD, DISTILL_REVERSE };

/* Attributes of the loss. */
struct distill {
    double temperature, hard;
    bool reverse;
};

extern const struct ct_op_type distill_type, distill_grad_type;
extern const struct ct_kernel distill_kernels[], distill_cuda_kernels[];
extern const struct ct_cuda_code distill_cuda_code;
extern const struct ct_beside_ops distill_streams;

/* Whether the teacher's logits are in a file. */
bool distill_is_stored(void);

#endif
