/*
 * The tensors of Hugging Face's files that hold a run's parameters, by the model's rules
 * (struct ct_stored_rule, model.h).
 */
#ifndef CT_HF_STORED_H
#define CT_HF_STORED_H

#include <ctitan/lib/safetensors.h>
#include <ctitan/run.h>

/* The rule for a parameter's or tensor's name; NULL: none. */
const struct ct_stored_rule *ct_stored_rule(const struct ct_run *run, const char *name);
/* Number of tensors that hold the parameter. */
int64_t ct_stored_count(const struct ct_stored_rule *rule, const struct ct_state *param);
/* Name, dtype and shape of tensor `index` of those. The name is in arena. */
struct ct_weight ct_stored_tensor(struct ct_arena *arena, const struct ct_stored_rule *rule,
                                  const struct ct_state *param, int64_t index);

/* A box of a tensor or of a parameter. */
struct ct_stored_box {
    int ndim;
    int64_t shape[CT_MAX_DIMS], offset[CT_MAX_DIMS];
};

/* The box of the tensor in which a box of the parameter is; one index where there are several
   tensors. And the reverse, clipped to this parameter's part: false if nothing of it is there. */
struct ct_stored_box ct_stored_to_tensor(const struct ct_stored_rule *rule,
                                         const struct ct_state *param,
                                         const struct ct_stored_box *box);
bool ct_stored_to_param(const struct ct_stored_rule *rule, const struct ct_state *param,
                        int64_t index, const struct ct_stored_box *tensor,
                        struct ct_stored_box *box);

/* Copy a dense box of a parameter (or of a tensor: the same copy) in the other's layout. shape: the
   two last dimensions of `from`. */
void ct_stored_transpose(const void *from, const int64_t shape[2], size_t item, void *to);

#endif
