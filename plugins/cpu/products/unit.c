/* Which unit this process multiplies with. */
#include "../cpu.h"
#include "unit.h"

extern const struct cpu_panels cpu_panels_portable;
#ifdef __x86_64__
extern const struct cpu_panels cpu_panels_avx2, cpu_panels_avx512, cpu_panels_avx512bf16;
#endif

const struct cpu_panels *cpu_panels(void)
{
#ifdef __x86_64__
    if (ct_cpu_isa() >= CT_CPU_AVX512)
        return __builtin_cpu_supports("avx512bf16") ? &cpu_panels_avx512bf16 : &cpu_panels_avx512;
    if (ct_cpu_isa() >= CT_CPU_AVX2)
        return &cpu_panels_avx2;
#endif
    return &cpu_panels_portable;
}

const struct cpu_unit *cpu_best_unit(void)
{
#ifdef CPU_WITH_TILES
    if (ct_cpu_has_tiles())
        return &cpu_unit_tiles;
#endif
    return cpu_panels()->dots;
}

const struct cpu_unit *cpu_unit(enum ct_dtype dtype)
{
    return cpu_config.products == CPU_PRODUCTS_ONEDNN ? NULL : cpu_own_unit(dtype);
}

const struct cpu_unit *cpu_own_unit(enum ct_dtype dtype)
{
    if (dtype == CT_F32)
        return cpu_panels()->multiply_adds;
    if (!cpu_bf16_native())
        return NULL;
    return cpu_config.products == CPU_PRODUCTS_EMULATED ? &cpu_unit_emulated : cpu_best_unit();
}
