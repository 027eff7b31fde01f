/* Verbs of Hugging Face folders: declarations shared by their sources. */
#ifndef HF_H
#define HF_H

#include <ctitan/verb.h>

extern const struct ct_verb_ops hf_export, hf_import;

#endif
