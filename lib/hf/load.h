/* The tensors of files that a model is read from: declarations shared by sources of lib/hf. */
#ifndef HF_LOAD_H
#define HF_LOAD_H

#include <ctitan/lib/safetensors.h>
#include <ctitan/lib/stored.h>

/* A tensor of files. Its rule is not that of the parameter where it is in MXFP4. */
struct hf_tensor {
    const struct ct_weight *weight;
    struct ct_stored_rule own;
    const struct ct_stored_rule *rule; /* own, or NULL */
};

/* Find tensor `index` of those that hold a parameter, by its rule (NULL: none). Names are in arena.
   CT_ENOENT: there is none; CT_ECONFIG: it has another shape. */
int hf_find_tensor(struct ct_arena *arena, const struct ct_weights *weights,
                   const struct ct_stored_rule *rule, const struct ct_state *param, int64_t index,
                   struct hf_tensor *tensor);

#endif
