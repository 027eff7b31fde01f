/*
 * Which instructions the kernels of this process use. The compiler's feature test includes the
 * operating system's support for the registers. It does not know AMX, so CPUID and XCR0 are read.
 */
#ifdef __x86_64__
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif
#include <stdlib.h>
#include <string.h>

#include <ctitan/error.h>
#include <ctitan/lib/cpu.h>
#include <ctitan/log.h>

#define VARIABLE "CTITAN_CPU_ISA"
#define XCR0_TILES (3u << 17)
#define LEAF7_AMX (1u << 22 | 1u << 24) /* bfloat16 and tiles */
#define REQUEST_PERMISSION 0x1023       /* arch_prctl: ARCH_REQ_XCOMP_PERM */
#define TILE_DATA 18

static const char *const names[] = {"portable", "avx2", "avx512"};
static _Atomic int chosen = -1;

const char *ct_cpu_isa_name(enum ct_cpu_isa isa)
{
    return names[isa];
}

#ifdef __x86_64__
static enum ct_cpu_isa best_isa(void)
{
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq"))
        return CT_CPU_AVX512;
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? CT_CPU_AVX2
                                                                           : CT_CPU_PORTABLE;
}

static bool find_tiles(void)
{
    unsigned a, b, c, d, low, high;

    if (best_isa() < CT_CPU_AVX512 || !__get_cpuid_count(7, 0, &a, &b, &c, &d))
        return false;
    if ((d & LEAF7_AMX) != LEAF7_AMX)
        return false;
    __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (low & XCR0_TILES) == XCR0_TILES &&
           syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
}
#else
static enum ct_cpu_isa best_isa(void)
{
    return CT_CPU_PORTABLE;
}

static bool find_tiles(void)
{
    return false;
}
#endif

/* The level of that name, but none that this processor lacks. */
static int level_of(const char *isa)
{
    int best = (int)best_isa();

    for (int i = 0; i < best; i++)
        if (!strcmp(isa, names[i]))
            return i;
    return best;
}

enum ct_cpu_isa ct_cpu_isa(void)
{
    const char *wanted;

    if (chosen < 0) {
        wanted = getenv(VARIABLE);
        chosen = level_of(wanted ? wanted : "auto");
    }
    return (enum ct_cpu_isa)chosen;
}

int ct_cpu_use(const char *isa, const char *where)
{
    const char *other = getenv(VARIABLE), *wanted = isa;

    if (other && !strcmp(isa, "auto")) {
        wanted = other;
        where = "$" VARIABLE;
    }
    chosen = level_of(wanted);
    if (strcmp(wanted, "auto") && strcmp(wanted, names[chosen]))
        return ct_fail(CT_ECONFIG, "%s = %s: this CPU runs auto, portable%s%s", where, wanted,
                       best_isa() >= CT_CPU_AVX2 ? ", avx2" : "",
                       best_isa() >= CT_CPU_AVX512 ? ", avx512" : "");
    if (other && strcmp(other, wanted) != 0)
        ct_warn("%s = %s is used, and not $" VARIABLE " = %s", where, wanted, other);
    return 0;
}

/* Cached: CPUID traps in virtual machines, and kernels are chosen thousands of times. */
bool ct_cpu_has_tiles(void)
{
    static _Atomic int known = -1;

    if (ct_cpu_isa() < CT_CPU_AVX512)
        return false;
    if (known < 0)
        known = find_tiles();
    return known;
}
