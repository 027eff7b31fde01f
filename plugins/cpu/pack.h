/* Packed weights in graphs: attributes of the op types, which cpu.h declares. */
#ifndef CPU_PACK_H
#define CPU_PACK_H

#include <ctitan/op.h>
#include <ctitan/run.h>

#include "gemm.h"

/* Of cpu.pack, cpu.pack_both and cpu.pack_into. */
struct cpu_pack_attrs {
    enum cpu_use use;
    enum ct_dtype dtype; /* of the activations */
};

static inline enum ct_dtype cpu_pack_dtype(const struct ct_op *pack)
{
    return ((const struct cpu_pack_attrs *)pack->attrs)->dtype;
}

struct cpu_linear_attrs {
    struct ct_shape widths; /* of the outputs: "768,256,256" */
};

/* Emit an op that takes the place of `old` (its stream and marks) in front of `before`. NULL: it
   failed. */
struct ct_op *cpu_emit_for(struct ct_graph *graph, const struct ct_op *old, struct ct_op *before,
                           const struct ct_op_type *type, struct ct_value *const *in, int ins,
                           const char *why);
/* Make old's outputs those of op from number `output` on, and remove old. */
void cpu_hand_over(struct ct_graph *graph, struct ct_op *old, struct ct_op *op, int output);
/* This rank's shape of a value. */
void cpu_local_shape(const struct ct_graph *graph, const struct ct_run *run,
                     const struct ct_value *v, int64_t *local);

#endif
