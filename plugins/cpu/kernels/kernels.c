/*
 * The table of the vector kernels, generated from the list in kernels.h.
 */
#include "kernels.h"
#include "isa.h"

#define ACCEPTS(op, flags, isa)                                                                    \
    static bool op##_##isa(const struct ct_prepare *prepare)                                       \
    {                                                                                              \
        return may_##isa() && cpu_##op##_accepts_##isa(prepare);                                   \
    }
#define PREPARED(op, flags, isa)                                                                   \
    CT_KERNEL(#op, #isa, flags, op##_##isa, cpu_##op##_prepare_##isa, cpu_##op##_run_##isa),
#define PLAIN(op, flags, isa) CT_KERNEL(#op, #isa, flags, op##_##isa, NULL, cpu_##op##_run_##isa),

#ifdef __x86_64__
static bool may_avx512bf16(void)
{
    return cpu_isa() >= CPU_AVX512 && __builtin_cpu_supports("avx512bf16");
}

static bool may_avx512(void)
{
    return cpu_isa() >= CPU_AVX512;
}

static bool may_avx2(void)
{
    return cpu_isa() >= CPU_AVX2;
}

CPU_VECTOR_KERNELS(ACCEPTS, ACCEPTS, avx512bf16)
CPU_VECTOR_KERNELS(ACCEPTS, ACCEPTS, avx512)
CPU_VECTOR_KERNELS(ACCEPTS, ACCEPTS, avx2)
#endif

static bool may_portable(void)
{
    return true;
}

CPU_VECTOR_KERNELS(ACCEPTS, ACCEPTS, portable)

/* clang-format off */
const struct ct_kernel cpu_pointwise_kernels[] = {
#ifdef __x86_64__
    CPU_VECTOR_KERNELS(PREPARED, PLAIN, avx512bf16)
    CPU_VECTOR_KERNELS(PREPARED, PLAIN, avx512)
    CPU_VECTOR_KERNELS(PREPARED, PLAIN, avx2)
#endif
    CPU_VECTOR_KERNELS(PREPARED, PLAIN, portable)
    {0},
};
/* clang-format on */
