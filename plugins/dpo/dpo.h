/*
 * Preference pairs: samples 2i and 2i + 1 are the prompt of pair i with the answer that is
 * preferred, and with the one that is not. For kto, whose data are answers without pairs, they are
 * prompt i with its answer, and with that of the line before.
 */
#ifndef DPO_H
#define DPO_H

#include <ctitan/lib/samples.h>
#include <ctitan/objective.h>
#include <ctitan/op_author.h>
#include <ctitan/plugin.h>

#include "losses.h"

struct dpo_config {
    const char *path, *validation_path, *reference_path, *reference_from;
    unsigned loss, divergence, reference;
    double beta, label_smoothing, gamma, desirable, undesirable;
};

extern struct dpo_config dpo_config;
/* Whether the loss compares with the model that training began with. */
bool dpo_has_reference(void);

enum dpo_reference { DPO_PASS, DPO_STORED, DPO_WEIGHTS };

/* The set over which the divergence of kto is a mean. */
enum dpo_divergence { DPO_OF_STEP, DPO_OF_MICROBATCH };

/* Sums over the labels of the stream, of pairs: [batch / 2, 2]. On failure NULL. */
struct ct_value *dpo_log_probabilities(struct ct_objective *o, const char *name,
                                       struct ct_value *logits, const char *labels);
/* Emit the loss from log-probabilities of pairs. */
int dpo_build_kto(struct ct_objective *o, struct ct_value *policy, struct ct_value *reference);
int dpo_build_orpo(struct ct_objective *o, struct ct_value *logits, struct ct_value *policy,
                   struct ct_value *tokens);

extern const struct ct_op_type dpo_divergence_type, dpo_kto_type, dpo_kto_grad_type;
extern const struct ct_op_type dpo_orpo_type, dpo_orpo_grad_type;
extern const struct ct_op_type dpo_logp_type, dpo_logp_grad_type;
extern const struct ct_op_type dpo_preference_type, dpo_preference_grad_type;
extern const struct ct_data_ops dpo_data;

/* cuda.c */
extern const struct ct_kernel dpo_cuda_kernels[];
extern const struct ct_cuda_code dpo_cuda_code;

/* [dpo] reference_path: log-probabilities of the reference for samples. It is opened when the first
   one is read; begins with zeros. */
struct dpo_stored {
    struct ct_sample_file *file;
    const struct ct_weight *logp;
};

/* Reads the values of a sample. CT_ECONFIG: the file is of other samples. */
int dpo_stored_read(struct dpo_stored *stored, const int32_t *tokens, const int32_t *labels,
                    int64_t seq_len, float *logp);
void dpo_stored_close(struct dpo_stored *stored);

#endif
