/* Numbers of 8 bits. */
#ifndef GPU_FLOAT8_CUH
#define GPU_FLOAT8_CUH

#include <ctitan/lib/cuda/device.cuh>

#include "arguments.h"

/* Mantissa bits, exponent bias, largest number and NaN of a dtype. */
template <bool E5M2> struct format {
    enum { mantissa = E5M2 ? 2 : 3, bias = E5M2 ? 15 : 7 };
};

/* To the nearest, ties to even; what is too large becomes the largest. */
template <bool E5M2> DEVICE uint8_t by_hand(float x)
{
    const int mantissa = format<E5M2>::mantissa, bias = format<E5M2>::bias;
    const float most = E5M2 ? 57344.0f : 448.0f, unit = E5M2 ? 0x1p-16f : 0x1p-9f;
    uint8_t sign = signbit(x) ? 0x80 : 0;
    float size = fminf(fabsf(x), most);
    uint32_t bits;

    if (x != x)
        return sign | 0x7f;
    if (size < unit * (float)(1 << mantissa))
        return sign | (uint8_t)rintf(size / unit);
    bits = __float_as_uint(size);
    bits += (1u << (22 - mantissa)) - 1 + (bits >> (23 - mantissa) & 1);
    return sign | (uint8_t)((bits >> (23 - mantissa)) - (uint32_t)((127 - bias) << mantissa));
}

/* As by_hand, by the hardware where it can. */
template <bool E5M2> DEVICE uint8_t narrowed(float x)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
    uint16_t pair;

    if (E5M2)
        asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(0.0f), "f"(x));
    else
        asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(0.0f), "f"(x));
    return (uint8_t)pair;
#else
    return by_hand<E5M2>(x);
#endif
}

/* The exponent of an E8M0 scale (OCP MX); 255 is NaN. */
DEVICE uint32_t mx_exponent(float amax, float most, bool rceil)
{
    uint32_t u = __float_as_uint(rceil ? amax * (1 / most) : amax), exponent = u >> 23 & 255;
    uint32_t mantissa = u & 0x7fffff, steps = (__float_as_uint(most) >> 23) - 127;

    if ((__float_as_uint(amax) & 0x7fffffff) >= 0x7f800000)
        return 255;
    if (rceil)
        return exponent + (exponent ? mantissa > 0 : mantissa > 0x400000);
    return exponent > steps ? exponent - steps : 0;
}

DEVICE float mx_scale(float amax, float most, bool rceil)
{
    uint32_t exponent = mx_exponent(amax, most, rceil);

    if (exponent >= 254)
        return __uint_as_float(exponent == 255 ? 0x7fc00000 : 0x400000);
    return __uint_as_float((254 - exponent) << 23);
}

/* The value of an e4m3 code. */
DEVICE float from_e4m3(uint8_t code)
{
    uint32_t magnitude = code & 0x7fu;
    float x = magnitude < 8 ? (float)magnitude * 0x1p-9f
                            : __uint_as_float((magnitude << 20) + ((127u - 7u) << 23));

    if (magnitude == 0x7f)
        x = NAN;
    return code & 0x80 ? -x : x;
}

#endif
