/*
 * Kernels for the device cpu, from any plugin: one source, several builds.
 *
 * A source of vector kernels is compiled once per instruction set: portable (whatever the compiler
 * targets by default), AVX2 (with FMA), AVX-512 (F, BW, VL, DQ), and AVX-512 with BF16. The build
 * defines CPU_BUILD_AVX2, CPU_BUILD_AVX512 or CPU_BUILD_AVX512BF16, or none of them
 * (share/ctitan/kit/plugin.mk does so for plugins outside the tree, lib/kit/meson.build inside it).
 * A function that others call is named through CPU_ISA, so that all of them live side by side:
 * CPU_ISA(clip_row) is clip_row_avx2 in the AVX2 build. Sources are written with the vectors of
 * <ctitan/lib/vector.h>, to be included after this header, and know only CPU_LANES. One binary runs
 * everywhere: ct_cpu_isa() decides once per process which build runs.
 *
 * Each kernel of an op is up to three functions of the vector source, and one line of a list:
 *
 *     bool CPU_ACCEPTS(clip)(const struct ct_prepare *p) { .. }
 *     int CPU_PREPARE(clip)(struct ct_prepare *p) { .. }
 *     int CPU_RUN(clip)(const struct ct_launch *l) { .. }
 *
 * A source that is compiled once makes the plugin's table from the list: P(op, flags, isa) for
 * kernels with `prepare`, R(op, flags, isa) for those without.
 *
 *     #define KERNELS(P, R, isa) P(clip, CT_KERNEL_STRIDED, isa) R(clip_grad, 0, isa)
 *     CPU_KERNELS(KERNELS)
 *     static const struct ct_kernel kernels[] = {CPU_KERNEL_TABLE(KERNELS) {0}};
 *     ..
 *     {CT_KERNELS, "cpu", kernels}
 *
 * Each op is in the table once per instruction set, best first; those that the process may not use
 * accept nothing.
 *
 * Threads: a kernel runs on the thread that drives the run, and shares work with that thread's
 * OpenMP team, or by ct_parallel (op.h). <ctitan/lib/cpu/tasks.h> deals out work of unequal length.
 * <ctitan/lib/cpu/tiles.h> has AMX, and the same in C for processors without it. Denormals are zero
 * on all of these threads.
 *
 * This header is C, and declares three functions of ctitan; the others are text for kernels.
 */
#ifndef CT_CPU_H
#define CT_CPU_H

#include <ctitan/op.h>

CT_BEGIN_DECLS

/* In rising order: a processor that has one has those before it. */
enum ct_cpu_isa { CT_CPU_PORTABLE, CT_CPU_AVX2, CT_CPU_AVX512 };

/* The level that all kernels of this process use: the processor's best, or the user's choice. */
CT_API enum ct_cpu_isa ct_cpu_isa(void);
CT_API const char *ct_cpu_isa_name(enum ct_cpu_isa isa);
/* Whether this process may use AMX for bfloat16. */
CT_API bool ct_cpu_has_tiles(void);
/* Set the level, for the device. isa: portable, avx2 or avx512; auto: $CTITAN_CPU_ISA, or where
   that is not set the processor's best. where: what asks for it, for messages. CT_ECONFIG: the
   level is unknown, or this processor lacks it. */
CT_API int ct_cpu_use(const char *isa, const char *where);

CT_END_DECLS

#ifndef __cplusplus

/* ---- this build ---- */

#if defined(CPU_BUILD_AVX512BF16)
#define CPU_ISA(name) name##_avx512bf16
#define CPU_LANES 16
#define CPU_REGISTERS 32
#define CPU_BF16 1
#elif defined(CPU_BUILD_AVX512)
#define CPU_ISA(name) name##_avx512
#define CPU_LANES 16
#define CPU_REGISTERS 32
#elif defined(CPU_BUILD_AVX2)
#define CPU_ISA(name) name##_avx2
#define CPU_LANES 8
#define CPU_REGISTERS 16
#else
#define CPU_ISA(name) name##_portable
#define CPU_LANES 4
#define CPU_REGISTERS 16
#endif

#define CPU_ACCEPTS(op) CPU_ISA(cpu_##op##_accepts)
#define CPU_PREPARE(op) CPU_ISA(cpu_##op##_prepare)
#define CPU_RUN(op) CPU_ISA(cpu_##op##_run)

/* For functions whose constant arguments (dtypes, tile sizes) must be folded. */
#define CPU_INLINE static inline __attribute__((always_inline))

#define CPU_LINE_BYTES 64 /* of a cache line */

/* ---- tables of kernels ---- */

#ifdef __x86_64__
#define CPU_FOR_EACH_ISA(X) X(avx512bf16) X(avx512) X(avx2) X(portable)
#define CPU_LIST_FOR_EACH_ISA(LIST, P, R)                                                          \
    LIST(P, R, avx512bf16) LIST(P, R, avx512) LIST(P, R, avx2) LIST(P, R, portable)
#else
#define CPU_FOR_EACH_ISA(X) X(portable)
#define CPU_LIST_FOR_EACH_ISA(LIST, P, R) LIST(P, R, portable)
#endif

/* File-scope code for a list: declarations, and `accepts` that ask for the level first. */
#define CPU_KERNELS(LIST)                                                                          \
    CPU_LIST_FOR_EACH_ISA(LIST, CPU_DECLARE_PREPARE, CPU_DECLARE_RUN)                              \
    CPU_LIST_FOR_EACH_ISA(LIST, CPU_DEFINE_ACCEPTS, CPU_DEFINE_ACCEPTS)
#define CPU_KERNEL_TABLE(LIST) CPU_LIST_FOR_EACH_ISA(LIST, CPU_PREPARED, CPU_PLAIN)

#define CPU_DECLARE_RUN(op, flags, isa)                                                            \
    bool cpu_##op##_accepts_##isa(const struct ct_prepare *prepare);                               \
    int cpu_##op##_run_##isa(const struct ct_launch *launch);
#define CPU_DECLARE_PREPARE(op, flags, isa)                                                        \
    CPU_DECLARE_RUN(op, flags, isa)                                                                \
    int cpu_##op##_prepare_##isa(struct ct_prepare *prepare);
#define CPU_DEFINE_ACCEPTS(op, flags, isa)                                                         \
    static bool op##_##isa(const struct ct_prepare *prepare)                                       \
    {                                                                                              \
        return cpu_may_##isa() && cpu_##op##_accepts_##isa(prepare);                               \
    }
#define CPU_PREPARED(op, flags, isa)                                                               \
    CT_KERNEL(#op, #isa, flags, op##_##isa, cpu_##op##_prepare_##isa, cpu_##op##_run_##isa),
#define CPU_PLAIN(op, flags, isa)                                                                  \
    CT_KERNEL(#op, #isa, flags, op##_##isa, NULL, cpu_##op##_run_##isa),

#ifdef __x86_64__
static inline bool cpu_may_avx512bf16(void)
{
    return ct_cpu_isa() >= CT_CPU_AVX512 && __builtin_cpu_supports("avx512bf16");
}

static inline bool cpu_may_avx512(void)
{
    return ct_cpu_isa() >= CT_CPU_AVX512;
}

static inline bool cpu_may_avx2(void)
{
    return ct_cpu_isa() >= CT_CPU_AVX2;
}
#endif

static inline bool cpu_may_portable(void)
{
    return true;
}

static inline bool cpu_is_compute_dtype(enum ct_dtype dtype)
{
    return dtype == CT_F32 || dtype == CT_BF16;
}

/* ---- threads and workspace ---- */

/* Whether work of so many elements is worth waking threads for. */
static inline bool cpu_worth_threads(int64_t elements)
{
    return elements >= 16384;
}

/* One thread's part of count items; boundaries are multiples of align. */
struct cpu_range {
    int64_t begin, end;
};

static inline struct cpu_range cpu_share(int64_t count, int64_t align, int thread, int threads)
{
    int64_t units = (count + align - 1) / align;
    struct cpu_range r = {units * thread / threads * align, units * (thread + 1) / threads * align};

    r.begin = r.begin < count ? r.begin : count;
    r.end = r.end < count ? r.end : count;
    return r;
}

/* The offset of a 64-byte aligned part of a workspace; advances *at behind it. */
static inline size_t cpu_carve(size_t *at, size_t bytes)
{
    size_t offset = *at;

    *at += (bytes + 63) & ~(size_t)63;
    return offset;
}

#endif
#endif
