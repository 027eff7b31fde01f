/*
 * The table of the vector kernels, generated from the lists in kernels.h.
 */
#include "kernels.h"
#include "../attention.h"

#define UNIT(op, isa)                                                                              \
    CT_KERNEL(#op, #isa "_unit", CPU_STRIDED, op##_bf16_##isa, cpu_##op##_bf16_prepare_##isa,      \
              cpu_##op##_bf16_run_##isa)
#define ON_UNIT(op, flags, isa) UNIT(op, isa),

/* The unit's kernel of an op against its float32 kernel of the same instruction set. */
#define UNIT_ACCEPTS(op, flags, isa)                                                               \
    static bool op##_bf16_##isa(const struct ct_prepare *prepare)                                  \
    {                                                                                              \
        static const struct ct_kernel kernels[] = {CPU_PREPARED(op, flags, isa) UNIT(op, isa)};    \
                                                                                                   \
        return cpu_may_##isa() && cpu_##op##_bf16_accepts_##isa(prepare) &&                        \
               cpu_choose_attention(prepare,                                                       \
                                    (const struct ct_kernel *const[]){&kernels[0], &kernels[1]});  \
    }

CPU_LIST_FOR_EACH_ISA(CPU_VECTOR_KERNELS, CPU_DEFINE_ACCEPTS, CPU_DEFINE_ACCEPTS)
#define ACCEPTS_OF_UNITS(isa) CPU_UNIT_KERNELS(UNIT_ACCEPTS, isa)
CPU_FOR_EACH_ISA(ACCEPTS_OF_UNITS)

/* clang-format off */
#define KERNELS_OF(isa)                                                                            \
    CPU_UNIT_KERNELS(ON_UNIT, isa) CPU_VECTOR_KERNELS(CPU_PREPARED, CPU_PLAIN, isa)
const struct ct_kernel cpu_pointwise_kernels[] = {CPU_FOR_EACH_ISA(KERNELS_OF){0}};
/* clang-format on */
