/* Packed weights in graphs: attributes of the op types, which cpu.h declares. */
#ifndef CPU_PACK_WEIGHTS_H
#define CPU_PACK_WEIGHTS_H

#include <ctitan/op.h>

#include "gemm.h"

/* Attributes of cpu.pack, cpu.pack_both and cpu.pack_into. */
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

#endif
