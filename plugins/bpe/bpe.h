#ifndef BPE_H
#define BPE_H

#include <ctitan/model.h>

#include "tokenizer.h"

extern const struct ct_verb_ops tokenize_verb;

#endif
