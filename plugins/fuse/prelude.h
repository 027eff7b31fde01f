/*
 * Begins the text of every compiled kernel; the vectors follow it (ctitan/lib/vector.h), and then
 * the language of rows (ctitan/lib/cpu/rows.h).
 */
#include <float.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512DQ__)
#define CPU_LANES 16
#elif defined(__AVX2__) && defined(__FMA__)
#define CPU_LANES 8
#else
#define CPU_LANES 4
#endif
#if CPU_LANES == 16 && defined(__AVX512BF16__)
#define CPU_BF16 1
#endif
#define CPU_INLINE static inline __attribute__((always_inline, unused))
#define CT_VECTOR_ALONE

enum ct_dtype { CT_F32, CT_BF16 };
