/* The chains are written in assembly: a compiler would hoist or spill them. */
#include "probe.h"

#include <omp.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#ifdef __x86_64__
#include <cpuid.h>
#include <immintrin.h>

#define REPEAT 2400 /* some microseconds */

static double now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* One instruction on each of twelve registers, all zero. */
#define TWELVE(op, r)                                                                              \
    op " %%" r "15,%%" r "15,%%" r "0\n" op " %%" r "15,%%" r "15,%%" r "1\n" op " %%" r "15,%%" r \
       "15,%%" r "2\n" op " %%" r "15,%%" r "15,%%" r "3\n" op " %%" r "15,%%" r "15,%%" r         \
       "4\n" op " %%" r "15,%%" r "15,%%" r "5\n" op " %%" r "15,%%" r "15,%%" r "6\n" op " %%" r  \
       "15,%%" r "15,%%" r "7\n" op " %%" r "15,%%" r "15,%%" r "8\n" op " %%" r "15,%%" r         \
       "15,%%" r "9\n" op " %%" r "15,%%" r "15,%%" r "10\n" op " %%" r "15,%%" r "15,%%" r "11\n"
#define USES                                                                                       \
    "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10",       \
        "xmm11", "xmm15"

static void run_avx2(void)
{
    __asm__ volatile("vzeroall" ::: USES, "xmm12", "xmm13", "xmm14");
    for (int i = 0; i < REPEAT; i++)
        __asm__ volatile(TWELVE("vfmadd231ps", "ymm")::: USES);
}

static void run_avx512(void)
{
    __asm__ volatile("vzeroall" ::: USES, "xmm12", "xmm13", "xmm14");
    for (int i = 0; i < REPEAT; i++)
        __asm__ volatile(TWELVE("vfmadd231ps", "zmm")::: USES);
}

static void run_dots(void)
{
    __asm__ volatile("vzeroall" ::: USES, "xmm12", "xmm13", "xmm14");
    for (int i = 0; i < REPEAT; i++)
        __asm__ volatile(TWELVE("vdpbf16ps", "zmm")::: USES);
}

/* As a product runs, with loads from the L1 cache beside it: where another tenant uses the core's
   other thread, only the two together become slow. */
static void run_tiles(void)
{
    static const char block[4096] __attribute__((aligned(4096)));
    static const struct {
        uint8_t palette, start_row, reserved[14];
        uint16_t bytes[16];
        uint8_t rows[16];
    } __attribute__((aligned(64)))
    shape = {1, 0, {0}, {64, 64, 64, 64, 64, 64, 64, 64}, {16, 16, 16, 16, 16, 16, 16, 16}};

    __asm__ volatile(
        "ldtilecfg %0\n"
        "tilezero %%tmm0\ntilezero %%tmm1\ntilezero %%tmm2\ntilezero %%tmm3" ::"m"(shape));
    for (int i = 0; i < REPEAT; i++)
        __asm__ volatile("tileloadd (%0,%1,1),%%tmm4\ntileloadd 0x400(%0,%1,1),%%tmm6\n"
                         "tileloadd 0x800(%0,%1,1),%%tmm7\ntdpbf16ps %%tmm6,%%tmm4,%%tmm0\n"
                         "tileloadd 0xc00(%0,%1,1),%%tmm5\ntdpbf16ps %%tmm7,%%tmm4,%%tmm1\n"
                         "tdpbf16ps %%tmm6,%%tmm5,%%tmm2\ntdpbf16ps %%tmm7,%%tmm5,%%tmm3"
                         :
                         : "r"(block), "r"(64L)
                         : "memory");
    __asm__ volatile("tilerelease");
}

/* The operating system lets a process use tiles only if it asks. */
static bool has_tiles(void)
{
    unsigned a, b, c, d;

    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(d >> 22 & 1) || !(d >> 24 & 1))
        return false;
    return syscall(SYS_arch_prctl, 0x1023 /* ARCH_REQ_XCOMP_PERM */, 18) == 0;
}

static const struct kind {
    const char *name;
    void (*run)(void);
    double flops; /* of a repetition */
} avx2 = {"AVX2 multiply-adds", run_avx2, 12 * 16},
  avx512 = {"AVX-512 multiply-adds", run_avx512, 12 * 32},
  dots = {"AVX512_BF16 dot products", run_dots, 12 * 64}, tiles = {"AMX", run_tiles, 4 * 16384};

static double rate_of(const struct kind *kind)
{
    double begin = now();

    kind->run();
    return kind->flops * REPEAT / (now() - begin);
}

/* The fastest that the processor has, by its best of several probes. */
static const struct kind *choose(enum ct_dtype dtype)
{
    const struct kind *all[4] = {0}, *best = NULL;
    double most = 0;
    int count = 0;

    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        all[count++] = &avx2;
    if (__builtin_cpu_supports("avx512f"))
        all[count++] = &avx512;
    if (dtype == CT_BF16 && __builtin_cpu_supports("avx512bf16"))
        all[count++] = &dots;
    if (dtype == CT_BF16 && has_tiles())
        all[count++] = &tiles;
    for (int i = 0; i < 32 * count; i++) {
        double rate = rate_of(all[i % count]);

        if (rate > most) {
            most = rate;
            best = all[i % count];
        }
    }
    return best;
}

static const struct kind *kind_of(enum ct_dtype dtype)
{
    static const struct kind *known[2];
    int i = dtype == CT_BF16;

    if (!known[i])
        known[i] = choose(dtype);
    return known[i];
}

double probe_rate(enum ct_dtype dtype)
{
    const struct kind *kind = kind_of(dtype);

    return kind ? rate_of(kind) : 0;
}

const char *probe_name(enum ct_dtype dtype)
{
    const struct kind *kind = kind_of(dtype);

    return kind ? kind->name : "nothing";
}
#else
double probe_rate(enum ct_dtype dtype)
{
    (void)dtype;
    return 0;
}

const char *probe_name(enum ct_dtype dtype)
{
    (void)dtype;
    return "nothing";
}
#endif

double probe_team(enum ct_dtype dtype)
{
    double least = 1e18;

    probe_name(dtype);
#pragma omp parallel reduction(min : least)
    {
        double rate = probe_rate(dtype);

        least = rate < least ? rate : least;
    }
    return least;
}
