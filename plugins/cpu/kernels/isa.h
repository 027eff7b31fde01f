/*
 * One source, three builds.
 *
 * Vector kernels are compiled once per instruction set: portable (whatever the compiler targets by
 * default), AVX2 (with FMA) and AVX-512 (F, BW, VL, DQ). The build defines CPU_BUILD_AVX2 or
 * CPU_BUILD_AVX512, or neither. A function that others call is named through CPU_ISA, so that the
 * three live side by side: CPU_ISA(cpu_add_run) is cpu_add_run_avx2 in the AVX2 build. Sources are
 * written with the vectors of vector.h and know only CPU_LANES; which build runs is decided once
 * per process, by cpu_isa().
 */
#ifndef CPU_KERNELS_ISA_H
#define CPU_KERNELS_ISA_H

/* In rising order: a processor that has one has those before it. */
enum cpu_isa { CPU_PORTABLE, CPU_AVX2, CPU_AVX512 };

/* The level that all kernels of this process use: the processor's best, or the user's choice. */
enum cpu_isa cpu_isa(void);

#if defined(CPU_BUILD_AVX512BF16)
#define CPU_ISA(name) name##_avx512bf16
#define CPU_BUILD CPU_AVX512
#define CPU_LANES 16
#define CPU_REGISTERS 32
#define CPU_BF16 1
#elif defined(CPU_BUILD_AVX512)
#define CPU_ISA(name) name##_avx512
#define CPU_BUILD CPU_AVX512
#define CPU_LANES 16
#define CPU_REGISTERS 32
#elif defined(CPU_BUILD_AVX2)
#define CPU_ISA(name) name##_avx2
#define CPU_BUILD CPU_AVX2
#define CPU_LANES 8
#define CPU_REGISTERS 16
#else
#define CPU_ISA(name) name##_portable
#define CPU_BUILD CPU_PORTABLE
#define CPU_LANES 4
#define CPU_REGISTERS 16
#endif

/* For functions whose constant arguments (dtypes, tile sizes) must be folded. */
#define CPU_INLINE static inline __attribute__((always_inline))

#endif
