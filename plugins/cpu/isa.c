/*
 * Which instructions the kernels of this process use. The compiler's feature test includes the
 * operating system's support for the registers. It does not know AMX, so CPUID and XCR0 are read.
 *
 * Compared with float32 multiplications, bfloat16 dot products (AVX512_BF16) run at half the rate
 * on some processors and at the same rate on others, so they are timed.
 */
#ifdef __x86_64__
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <xmmintrin.h>
#endif
#include <stdlib.h>
#include <string.h>

#include <ctitan/error.h>
#include <ctitan/log.h>

#include "cpu.h"
#include "products/unit.h"
#include "tuning.h"

#define VARIABLE "CTITAN_CPU_ISA"
#define XCR0_TILES (3u << 17)
#define LEAF7_AMX (1u << 22 | 1u << 24) /* bfloat16 and tiles */
#define REQUEST_PERMISSION 0x1023       /* arch_prctl: ARCH_REQ_XCOMP_PERM */
#define TILE_DATA 18
#define FAST 0.75 /* dot products per float32 multiply-add: 0.5 on some processors, 1 on others */
#define MXCSR_FTZ 0x8000u
#define MXCSR_DAZ 0x0040u

static const char *const isa_names[] = {"portable", "avx2", "avx512"};

const char *cpu_isa_name(enum cpu_isa isa)
{
    return isa_names[isa];
}

#ifdef __x86_64__
static enum cpu_isa best_isa(void)
{
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq"))
        return CPU_AVX512;
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? CPU_AVX2
                                                                           : CPU_PORTABLE;
}

static bool find_tiles(void)
{
    unsigned a, b, c, d, low, high;

    if (cpu_isa() < CPU_AVX512 || !__get_cpuid_count(7, 0, &a, &b, &c, &d))
        return false;
    if ((d & LEAF7_AMX) != LEAF7_AMX)
        return false;
    __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (low & XCR0_TILES) == XCR0_TILES &&
           syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
}

void cpu_flush_denormals(void)
{
    _mm_setcsr(_mm_getcsr() | MXCSR_FTZ | MXCSR_DAZ);
}
#else
static enum cpu_isa best_isa(void)
{
    return CPU_PORTABLE;
}

static bool find_tiles(void)
{
    return false;
}

void cpu_flush_denormals(void)
{
}
#endif

/* What the user asks for, and where. */
static const char *wanted_isa(const char **where)
{
    const char *wanted = getenv(VARIABLE);

    *where = "$" VARIABLE;
    if (cpu_config.isa && (!wanted || strcmp(cpu_config.isa, "auto") != 0)) {
        *where = "[cpu] isa";
        return cpu_config.isa;
    }
    return wanted ? wanted : "auto";
}

enum cpu_isa cpu_isa(void)
{
    static _Atomic int chosen = -1;
    const char *wanted, *where;
    int isa = chosen;

    if (isa >= 0)
        return (enum cpu_isa)isa;
    isa = (int)best_isa();
    wanted = wanted_isa(&where);
    for (int i = 0; i < (int)CT_COUNT(isa_names); i++)
        if (!strcmp(wanted, isa_names[i]) && i < isa)
            isa = i;
    chosen = isa;
    return (enum cpu_isa)isa;
}

int cpu_isa_check(void)
{
    const char *where, *wanted = wanted_isa(&where), *other = getenv(VARIABLE);

    if (strcmp(wanted, "auto") && strcmp(wanted, cpu_isa_name(cpu_isa())))
        return ct_fail(CT_ECONFIG, "%s = %s: this CPU runs auto, portable%s%s", where, wanted,
                       best_isa() >= CPU_AVX2 ? ", avx2" : "",
                       best_isa() >= CPU_AVX512 ? ", avx512" : "");
    if (other && strcmp(other, wanted) != 0)
        ct_warn("[cpu] isa = %s is used, and not $" VARIABLE " = %s", wanted, other);
    return 0;
}

/* Cached: CPUID traps in virtual machines, and kernels are chosen thousands of times. */
bool cpu_has_tiles(void)
{
    static _Atomic int known = -1;

    if (known < 0)
        known = find_tiles();
    return known;
}

static bool has_fast_bf16(void)
{
    static _Atomic int known = -1;
    const struct cpu_panels *panels = cpu_panels();

    if (known < 0)
        known = cpu_has_tiles() || (panels->dots && cpu_tuned("dots_per_multiply_add",
                                                              panels->dots_rate, NULL) > FAST);
    return known;
}

bool cpu_bf16_native(void)
{
    if (cpu_config.bf16_matmul == CPU_BF16_AUTO)
        return cpu_config.products == CPU_PRODUCTS_EMULATED || has_fast_bf16();
    return cpu_config.bf16_matmul == CPU_BF16_NATIVE;
}
