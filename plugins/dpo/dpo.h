/*
 * Preference pairs: samples 2i and 2i + 1 are the prompt of pair i with the answer that is
 * preferred, and with the one that is not.
 */
#ifndef DPO_H
#define DPO_H

#include <ctitan/objective.h>
#include <ctitan/op_author.h>
#include <ctitan/plugin.h>

struct dpo_config {
    const char *path, *reference;
    unsigned loss;
    double beta, label_smoothing, gamma;
};

extern struct dpo_config dpo_config;

enum dpo_loss { DPO_SIGMOID, DPO_ROBUST, DPO_IPO, DPO_IPO_SUM, DPO_HINGE, DPO_SIMPO };

/* Attributes of the loss. */
struct dpo_preference {
    double beta, label_smoothing, gamma;
    unsigned loss;
};

extern const struct ct_op_type dpo_logp_type, dpo_logp_grad_type;
extern const struct ct_op_type dpo_preference_type, dpo_preference_grad_type;
extern const struct ct_data_ops dpo_data;

#endif
