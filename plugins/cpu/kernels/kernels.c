/*
 * The table of the vector kernels, generated from the list in kernels.h.
 */
#include "kernels.h"
#include "../attention.h"
#include "isa.h"

#define ACCEPTS(op, flags, isa)                                                                    \
    static bool op##_##isa(const struct ct_prepare *prepare)                                       \
    {                                                                                              \
        return may_##isa() && cpu_##op##_accepts_##isa(prepare);                                   \
    }
#define PREPARED_AS(op, function, name, flags, isa)                                                \
    CT_KERNEL(#op, name, flags, function##_##isa, cpu_##function##_prepare_##isa,                  \
              cpu_##function##_run_##isa)
#define PREPARED(op, flags, isa) PREPARED_AS(op, op, #isa, flags, isa),
#define ON_UNIT(op, flags, isa) PREPARED_AS(op, op##_bf16, #isa "_unit", flags, isa),
#define PLAIN(op, flags, isa) CT_KERNEL(#op, #isa, flags, op##_##isa, NULL, cpu_##op##_run_##isa),

/* The unit's kernel of an op against its float32 kernel of the same instruction set. */
#define UNIT_ACCEPTS(op, flags, isa)                                                               \
    static bool op##_bf16_##isa(const struct ct_prepare *prepare)                                  \
    {                                                                                              \
        static const struct ct_kernel plain = PREPARED_AS(op, op, #isa, flags, isa),               \
                                      unit = PREPARED_AS(op, op##_bf16, #isa "_unit", flags, isa); \
                                                                                                   \
        return may_##isa() && cpu_##op##_bf16_accepts_##isa(prepare) &&                            \
               cpu_choose_attention(prepare, (const struct ct_kernel *const[]){&plain, &unit});    \
    }

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
CPU_UNIT_KERNELS(UNIT_ACCEPTS, avx512bf16)
CPU_VECTOR_KERNELS(ACCEPTS, ACCEPTS, avx512)
CPU_UNIT_KERNELS(UNIT_ACCEPTS, avx512)
CPU_VECTOR_KERNELS(ACCEPTS, ACCEPTS, avx2)
CPU_UNIT_KERNELS(UNIT_ACCEPTS, avx2)
#endif

static bool may_portable(void)
{
    return true;
}

CPU_VECTOR_KERNELS(ACCEPTS, ACCEPTS, portable)
CPU_UNIT_KERNELS(UNIT_ACCEPTS, portable)

/* clang-format off */
const struct ct_kernel cpu_pointwise_kernels[] = {
#ifdef __x86_64__
    CPU_UNIT_KERNELS(ON_UNIT, avx512bf16)
    CPU_VECTOR_KERNELS(PREPARED, PLAIN, avx512bf16)
    CPU_UNIT_KERNELS(ON_UNIT, avx512)
    CPU_VECTOR_KERNELS(PREPARED, PLAIN, avx512)
    CPU_UNIT_KERNELS(ON_UNIT, avx2)
    CPU_VECTOR_KERNELS(PREPARED, PLAIN, avx2)
#endif
    CPU_UNIT_KERNELS(ON_UNIT, portable)
    CPU_VECTOR_KERNELS(PREPARED, PLAIN, portable)
    {0},
};
/* clang-format on */
