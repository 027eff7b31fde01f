/*
 * Vectors of CPU_LANES floats, in GCC's vector extension: +, -, *, / and comparisons are the
 * language's; a * b + c becomes a fused multiply-add where the build has one.
 *
 * The includer defines CPU_LANES (16: AVX-512 F, BW, VL, DQ; 8: AVX2 and FMA; 4: any processor),
 * CPU_BF16 (1: AVX-512 BF16) and CPU_INLINE. The text of this header is also a part of generated
 * kernels, which define CT_VECTOR_ALONE and enum ct_dtype, and need no other header of ctitan.
 *
 * Elements are float32 or bfloat16 in memory and float32 in registers; bfloat16 is rounded to
 * nearest even, NaN stays NaN. v_get and v_put take the dtype, a constant where it matters, and the
 * number of elements left, so that loops need no tail of their own:
 *
 *     for (int64_t i = 0; i < n; i += CPU_LANES)
 *         v_put(dtype, y, i, n, v_get(dtype, x, i, n) * scale);
 *
 * Functions say their largest error in units in the last place (ulp) of the result. All of them
 * pass NaN on.
 */
#ifndef CT_VECTOR_H
#define CT_VECTOR_H

#include <math.h>
#include <string.h>

#ifndef CT_VECTOR_ALONE
#include <ctitan/tensor.h>
#endif

#if CPU_LANES > 4
#include <immintrin.h>
#endif

typedef float vf __attribute__((vector_size(4 * CPU_LANES)));
typedef int32_t vi __attribute__((vector_size(4 * CPU_LANES)));
typedef uint32_t vu __attribute__((vector_size(4 * CPU_LANES)));
typedef uint16_t vh __attribute__((vector_size(2 * CPU_LANES)));

CPU_INLINE vf v_set(float a)
{
    return a - (vf){0};
}

CPU_INLINE vi v_seti(int32_t a)
{
    return a - (vi){0};
}

/* 0, 1, 2, .. */
CPU_INLINE vi v_iota(void)
{
    vi v;

    for (int i = 0; i < CPU_LANES; i++)
        v[i] = i;
    return v;
}

CPU_INLINE vf v_load(const float *p)
{
    vf v;

    memcpy(&v, p, sizeof(v));
    return v;
}

CPU_INLINE void v_store(float *p, vf v)
{
    memcpy(p, &v, sizeof(v));
}

/* Zeros above each element. The conversions of GCC 12 go through half vectors; hence the
   instructions. */
CPU_INLINE vu v_extend(vh h)
{
#if CPU_LANES == 16
    return (vu)_mm512_cvtepu16_epi32((__m256i)h);
#elif CPU_LANES == 8
    return (vu)_mm256_cvtepu16_epi32((__m128i)h);
#else
    return __builtin_convertvector(h, vu);
#endif
}

CPU_INLINE vf v_widen(vh h)
{
    return (vf)(v_extend(h) << 16);
}

/* mask's lanes are all ones or all zeros: ones take a, zeros take b. */
CPU_INLINE vf v_select(vi mask, vf a, vf b)
{
    return (vf)(((vi)a & mask) | ((vi)b & ~mask));
}

#if CPU_BF16 /* denormals become zero, which they are anyway on this device's threads */
CPU_INLINE vh v_narrow(vf a)
{
    return (vh)_mm512_cvtneps_pbh(a);
}
#else
CPU_INLINE vh v_narrow(vf a)
{
    vu u = (vu)a, rounded = u + 0x7fff + (u >> 16 & 1), quiet = u | 0x400000;

#if CPU_LANES == 16
    rounded = (vu)_mm512_mask_mov_epi32((__m512i)rounded, _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q),
                                        (__m512i)quiet);
    return (vh)_mm512_cvtepi32_epi16((__m512i)(rounded >> 16));
#elif CPU_LANES == 8
    __m256i both;

    rounded = (vu)v_select(a == a, (vf)rounded, (vf)quiet) >> 16;
    both = _mm256_packus_epi32((__m256i)rounded, (__m256i)rounded);
    return (vh)_mm256_castsi256_si128(_mm256_permute4x64_epi64(both, 0x08));
#else
    rounded = (vu)v_select(a == a, (vf)rounded, (vf)quiet) >> 16;
    return __builtin_convertvector(rounded, vh);
#endif
}
#endif

/* Lane i: even[i] and, above it, odd[i], as bfloat16. */
CPU_INLINE vu v_pairs(vf even, vf odd)
{
#if CPU_BF16
    __m512i order = (__m512i)(vu){0x100000, 0x110001, 0x120002, 0x130003, 0x140004, 0x150005,
                                  0x160006, 0x170007, 0x180008, 0x190009, 0x1a000a, 0x1b000b,
                                  0x1c000c, 0x1d000d, 0x1e000e, 0x1f000f};

    return (vu)_mm512_permutexvar_epi16(order, (__m512i)_mm512_cvtne2ps_pbh(odd, even));
#else
    vh low = v_narrow(even), high = v_narrow(odd);

    return v_extend(high) << 16 | v_extend(low);
#endif
}

CPU_INLINE vf v_load_bf16(const uint16_t *p)
{
    vh h;

    memcpy(&h, p, sizeof(h));
    return v_widen(h);
}

CPU_INLINE void v_store_bf16(uint16_t *p, vf v)
{
    vh h = v_narrow(v);

    memcpy(p, &h, sizeof(h));
}

/* The first n elements, fewer than a vector: the rest is 0, or not stored. */
static __attribute__((noinline, cold, unused)) vf v_get_part(enum ct_dtype dtype, const void *p,
                                                             int64_t n)
{
    vf v = {0};
    vh h = {0};

    if (dtype == CT_F32) {
        memcpy(&v, p, (size_t)n * sizeof(float));
        return v;
    }
    memcpy(&h, p, (size_t)n * sizeof(uint16_t));
    return v_widen(h);
}

static __attribute__((noinline, cold, unused)) void v_put_part(enum ct_dtype dtype, void *p,
                                                               int64_t n, vf v)
{
    vh h = v_narrow(v);

    if (dtype == CT_F32)
        memcpy(p, &v, (size_t)n * sizeof(float));
    else
        memcpy(p, &h, (size_t)n * sizeof(uint16_t));
}

/* Elements i .. of p, of which n exist in all; those beyond are 0. dtype is CT_F32 or CT_BF16. */
CPU_INLINE vf v_get(enum ct_dtype dtype, const void *p, int64_t i, int64_t n)
{
    const float *f = (const float *)p + i;
    const uint16_t *h = (const uint16_t *)p + i;

    if (__builtin_expect(n - i < CPU_LANES, 0))
        return v_get_part(dtype, dtype == CT_F32 ? (const void *)f : h, n - i);
    return dtype == CT_F32 ? v_load(f) : v_load_bf16(h);
}

CPU_INLINE void v_put(enum ct_dtype dtype, void *p, int64_t i, int64_t n, vf v)
{
    float *f = (float *)p + i;
    uint16_t *h = (uint16_t *)p + i;

    if (__builtin_expect(n - i < CPU_LANES, 0))
        v_put_part(dtype, dtype == CT_F32 ? (void *)f : h, n - i, v);
    else if (dtype == CT_F32)
        v_store(f, v);
    else
        v_store_bf16(h, v);
}

/* a > b ? a : b, so b where either is NaN. */
CPU_INLINE vf v_max(vf a, vf b)
{
#if CPU_LANES == 16
    return _mm512_max_ps(a, b);
#elif CPU_LANES == 8
    return _mm256_max_ps(a, b);
#else
    return v_select(a > b, a, b);
#endif
}

CPU_INLINE vf v_min(vf a, vf b)
{
#if CPU_LANES == 16
    return _mm512_min_ps(a, b);
#elif CPU_LANES == 8
    return _mm256_min_ps(a, b);
#else
    return v_select(a < b, a, b);
#endif
}

/* Sum of all lanes, by halves. */
CPU_INLINE float v_sum(vf a)
{
    float lane[CPU_LANES];

#if CPU_LANES == 16
    return _mm512_reduce_add_ps(a);
#endif
    v_store(lane, a);
    for (int half = CPU_LANES / 2; half; half /= 2)
        for (int i = 0; i < half; i++)
            lane[i] += lane[i + half];
    return lane[0];
}

/* The largest lane; unspecified if one is NaN. */
CPU_INLINE float v_largest(vf a)
{
    float lane[CPU_LANES];

#if CPU_LANES == 16
    return _mm512_reduce_max_ps(a);
#endif
    v_store(lane, a);
    for (int half = CPU_LANES / 2; half; half /= 2)
        for (int i = 0; i < half; i++)
            lane[i] = lane[i] > lane[i + half] ? lane[i] : lane[i + half];
    return lane[0];
}

/* Square root, rounded correctly. */
CPU_INLINE vf v_sqrt(vf a)
{
#if CPU_LANES == 16
    return _mm512_sqrt_ps(a);
#elif CPU_LANES == 8
    return _mm256_sqrt_ps(a);
#else
    for (int i = 0; i < CPU_LANES; i++)
        a[i] = sqrtf(a[i]);
    return a;
#endif
}

/* 1 / a, 1 ulp, for magnitudes from 2^-126 to 2^126. */
CPU_INLINE vf v_rcp(vf a)
{
#if CPU_LANES == 16
    vf r = _mm512_rcp14_ps(a);

    return r + r * (1.0f - a * r);
#else
    return 1.0f / a;
#endif
}

/* 2^r for r in [0, 1]: minimax in the relative error (8.3e-8), exact at 0. */
CPU_INLINE vf v_exp2_fraction(vf r)
{
    vf p = 1.8671300700e-3f * r + 9.0170303220e-3f;

    p = p * r + 5.5799913104e-2f;
    p = p * r + 2.4016445015e-1f;
    p = p * r + 6.9315131180e-1f;
    return p * r + 1.0f;
}

#if CPU_LANES < 16
/* Nearest whole number to a, |a| < 2^22, as a float and, in *whole, as an integer. */
CPU_INLINE vf v_nearest(vf a, vi *whole)
{
    vf shifted = a + 0x1.8p23f;

    *whole = (vi)shifted - (vi)v_set(0x1.8p23f);
    return shifted - 0x1.8p23f;
}
#endif

/* 2^a, 2.5 ulp; 0 below -150, and in the AVX2 and portable builds below -126; a <= 127. */
CPU_INLINE vf v_exp2(vf a)
{
#if CPU_LANES == 16
    vf r = _mm512_reduce_ps(a, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);

    return _mm512_scalef_ps(v_exp2_fraction(r), a);
#else
    vi whole;
    vf in = v_max(v_set(-126), a), n = v_nearest(in - 0.5f, &whole);
    vf y = v_exp2_fraction(in - n) * (vf)((whole + 127) << 23);

    return (vf)((vi)y & ~(a < v_set(-126)));
#endif
}

/* e^a, 3.5 ulp; 0 below -87.3 (AVX-512: -103), infinity above 88.72. */
CPU_INLINE vf v_exp(vf a)
{
    vf in = v_min(v_set(89), a), n, r;

#if CPU_LANES == 16
    in = v_max(v_set(-104), in);
    n = _mm512_floor_ps(in * 1.44269504f);
#else
    vi whole;

    in = v_max(v_set(-87.33f), in);
    n = v_nearest(in * 1.44269504f - 0.5f, &whole);
#endif
    r = (in - n * 0.693359375f) + n * 2.12194440e-4f;
    r = v_exp2_fraction(r * 1.44269504f);
#if CPU_LANES == 16
    return _mm512_scalef_ps(r, n);
#else
    return (vf)((vi)(r * (vf)((whole + 127) << 23)) & ~(a < v_set(-87.33f)));
#endif
}

/* Natural logarithm, 1 ulp, of normal positive numbers. */
CPU_INLINE vf v_log(vf a)
{
    vi bits = (vi)a - 0x3f3504f3; /* of sqrt(1/2) */
    vf n = __builtin_convertvector(bits >> 23, vf);
    vf m = (vf)((bits & 0x7fffff) + 0x3f3504f3), f = m - 1.0f;
    vf s = f / (f + 2.0f), z = s * s;
    vf series = (((z * 0.22222222f + 0.28571429f) * z + 0.4f) * z + 0.66666667f) * z;

    /* log(1 + f) = 2 atanh(s) = f - s (f - series) */
    series = n * -2.12194440e-4f - s * (f - series);
    return v_select(a == a, n * 0.693359375f + (f + series), a);
}

/* Interleave the low halves of a and b, and the high halves. */
#if CPU_LANES == 16
#define V_LOW 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23
#define V_HIGH 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31
#elif CPU_LANES == 8
#define V_LOW 0, 8, 1, 9, 2, 10, 3, 11
#define V_HIGH 4, 12, 5, 13, 6, 14, 7, 15
#else
#define V_LOW 0, 4, 1, 5
#define V_HIGH 2, 6, 3, 7
#endif

/* Transpose the square of CPU_LANES rows: as many perfect shuffles as CPU_LANES has bits. */
CPU_INLINE void v_transpose(vf row[CPU_LANES])
{
    vf next[CPU_LANES];

    for (int size = 1; size < CPU_LANES; size *= 2) {
        for (int i = 0; i < CPU_LANES / 2; i++) {
            next[2 * i] = __builtin_shufflevector(row[i], row[i + CPU_LANES / 2], V_LOW);
            next[2 * i + 1] = __builtin_shufflevector(row[i], row[i + CPU_LANES / 2], V_HIGH);
        }
        memcpy(row, next, sizeof(next));
    }
}

#endif
