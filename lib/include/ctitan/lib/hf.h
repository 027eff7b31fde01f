/*
 * A run's weights as a Hugging Face folder: config.json and model.safetensors.
 */
#ifndef CT_HF_H
#define CT_HF_H

#include <ctitan/run.h>

CT_BEGIN_DECLS

/* For struct ct_run_options: fill all parameters from folder. Tensors that the model does not have
   are named in a warning; CT_ENOENT: one that it has is not there; CT_EINVAL: it has another
   shape. */
CT_API int ct_hf_load(struct ct_run *run, const char *folder);
/* The same the other way, all ranks together: rank 0 writes, and needs memory for some rows of one
   tensor. Files are complete or absent; a failure of rank 0 is one of all. */
CT_API int ct_hf_save(struct ct_run *run, const char *folder);

CT_END_DECLS

#endif
