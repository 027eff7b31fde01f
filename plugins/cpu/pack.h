/* Packed weights in graphs: attributes of the op types, which cpu.h declares. */
#ifndef CPU_PACK_H
#define CPU_PACK_H

#include <ctitan/op.h>
#include <ctitan/run.h>

#include "gemm.h"

/* Of kernels that read rows in parallel: rows a multiple of 2 KB apart share the same few sets of
   the first cache. A line more for each spreads them. */
#define CPU_SPREAD_ROWS .conflict = 2048, .padding = 64

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

/* A run of the transform. */
struct cpu_packer {
    struct ct_graph *graph;
    struct ct_run *run;
    struct ct_builder before_microbatches;
    bool trains; /* a step of training: parameters that it does not update never change */
};

/* Emit an op that takes the place of `old` (its stream and marks) in front of `before`. NULL: it
   failed. */
struct ct_op *cpu_emit_for(struct ct_graph *graph, const struct ct_op *old, struct ct_op *before,
                           const struct ct_op_type *type, struct ct_value *const *in, int ins,
                           const void *attrs, const char *why);
/* Make old's outputs those of op from number `output` on, and remove old. */
void cpu_hand_over(struct ct_graph *graph, struct ct_op *old, struct ct_op *op, int output);
/* This rank's shape of a value. */
void cpu_local_shape(const struct ct_graph *graph, const struct ct_run *run,
                     const struct ct_value *v, int64_t *local);

#endif
