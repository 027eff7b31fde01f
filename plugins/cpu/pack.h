/* Packed weights in graphs: attributes of the op types, which cpu.h declares. */
#ifndef CPU_PACK_H
#define CPU_PACK_H

#include <ctitan/op.h>

#include "gemm.h"

/* Of cpu.pack, cpu.pack_both and cpu.pack_into. */
struct cpu_pack_attrs {
    enum cpu_use use;
    enum ct_dtype dtype;
    bool round;
};

struct cpu_linear_attrs {
    struct ct_shape widths; /* of the outputs: "768,256,256" */
};

#endif
