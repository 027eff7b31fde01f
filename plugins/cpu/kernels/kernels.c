/*
 * The table of the vector kernels, generated from the list in kernels.h.
 */
#include "kernels.h"
#include "isa.h"

#define avx512_LEVEL CPU_AVX512
#define avx2_LEVEL CPU_AVX2
#define portable_LEVEL CPU_PORTABLE

#define ACCEPTS(op, flags, isa)                                                                    \
    static bool op##_##isa(const struct ct_prepare *prepare)                                       \
    {                                                                                              \
        return cpu_isa() >= isa##_LEVEL && cpu_##op##_accepts_##isa(prepare);                      \
    }

CPU_VECTOR_KERNELS(ACCEPTS, ACCEPTS, avx512)
CPU_VECTOR_KERNELS(ACCEPTS, ACCEPTS, avx2)
CPU_VECTOR_KERNELS(ACCEPTS, ACCEPTS, portable)

#define PREPARED(op, flags, isa)                                                                   \
    {#op, #isa, flags, op##_##isa, cpu_##op##_prepare_##isa, cpu_##op##_run_##isa},
#define PLAIN(op, flags, isa) {#op, #isa, flags, op##_##isa, NULL, cpu_##op##_run_##isa},

const struct ct_kernel cpu_pointwise_kernels[] = {
    CPU_VECTOR_KERNELS(PREPARED, PLAIN, avx512) CPU_VECTOR_KERNELS(PREPARED, PLAIN, avx2)
        CPU_VECTOR_KERNELS(PREPARED, PLAIN, portable){0}};
