/* Packed weights in graphs: attributes of the op types, which cpu.h declares. */
#ifndef CPU_PACK_H
#define CPU_PACK_H

#include <ctitan/op.h>

#include "gemm.h"

/* Padding for kernels that read rows in parallel: rows a multiple of 2 KB apart share the same few
   sets of the first cache. A line more for each spreads them. */
#define CPU_SPREAD_ROWS .conflict = 2048, .padding = 64

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
