/*
 * How this plugin uses the process's instructions (ctitan/lib/cpu.h).
 *
 * Compared with float32 multiplications, bfloat16 dot products (AVX512_BF16) run at half the rate
 * on some processors and at the same rate on others, so they are timed.
 */
#ifdef __x86_64__
#include <xmmintrin.h>
#endif

#include "cpu.h"
#include "products/unit.h"
#include "tuning.h"

#define FAST 0.75 /* dot products per float32 multiply-add: 0.5 on some processors, 1 on others */
#define MXCSR_FTZ 0x8000u
#define MXCSR_DAZ 0x0040u

#ifdef __x86_64__
void cpu_flush_denormals(void)
{
    _mm_setcsr(_mm_getcsr() | MXCSR_FTZ | MXCSR_DAZ);
}
#else
void cpu_flush_denormals(void)
{
}
#endif

static bool has_fast_bf16(void)
{
    static _Atomic int known = -1;
    const struct cpu_panels *panels = cpu_panels();

    if (known < 0)
        known = ct_cpu_has_tiles() || (panels->dots && cpu_tuned("dots_per_multiply_add",
                                                                 panels->dots_rate, NULL) > FAST);
    return known;
}

bool cpu_bf16_native(void)
{
    if (cpu_config.bf16_matmul == CPU_BF16_AUTO)
        return cpu_config.products == CPU_PRODUCTS_EMULATED || has_fast_bf16();
    return cpu_config.bf16_matmul == CPU_BF16_NATIVE;
}
