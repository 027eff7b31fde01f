/*
 * Attention of bfloat16 in float32 or in bfloat16 products on a unit: chosen for head sizes by
 * what is faster on this machine, measured once (tuning.h), or for all by [cpu] attention.
 */
#ifndef CPU_ATTENTION_H
#define CPU_ATTENTION_H

#include "cpu.h"
#include "products/unit.h"

/* The unit that bfloat16 attention multiplies with, or NULL: it is float32. */
const struct cpu_unit *cpu_attention_unit(void);
/* True if ways[1], on the unit, is to run this op; ways[0] is float32. */
bool cpu_choose_attention(const struct ct_prepare *prepare, const struct ct_kernel *const ways[2]);

#endif
