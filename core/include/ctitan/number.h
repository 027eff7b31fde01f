/*
 * Number formats of 16 and 8 bits: bfloat16, float16, float8_e4m3 and float8_e5m2.
 *
 * Conversions to float32 are exact. Conversions to a format round to nearest even, once. Values
 * that are too large become infinity in 16 bits and the largest number in 8 bits. NaN stays NaN. No
 * computation uses a subnormal float32, so threads that flush subnormals get the same results. (A
 * subnormal bfloat16 is itself a subnormal float32.)
 *
 * The functions from and to float32 have no branches: loops over them become vector instructions.
 */
#ifndef CT_NUMBER_H
#define CT_NUMBER_H

#include <ctitan/base.h>

CT_BEGIN_DECLS

#define CT_NUMBER_INLINE static inline __attribute__((always_inline))

CT_NUMBER_INLINE uint32_t ct_float_bits(float f)
{
    union {
        float f;
        uint32_t u;
    } v = {f};
    return v.u;
}

CT_NUMBER_INLINE float ct_float_of(uint32_t u)
{
    union {
        uint32_t u;
        float f;
    } v = {u};
    return v.f;
}

/* A format of 1 + e + m bits whose top exponent means infinity and NaN. */
CT_NUMBER_INLINE float ct_number_widen(uint32_t code, int e, int m)
{
    uint32_t magnitude = (code & ((1u << (e + m)) - 1)) << (23 - m);
    uint32_t sign = (code >> (e + m) & 1) << 31, top = ((1u << e) - 1) << 23;
    uint32_t rebias = (uint32_t)(127 - ((1 << (e - 1)) - 1)) << 23;
    float subnormal =
        ct_float_of(magnitude + rebias + (1u << 23)) - ct_float_of(rebias + (1u << 23));
    uint32_t normal = magnitude + rebias;

    normal = (magnitude & top) == top ? magnitude | 0x7f800000u : normal;
    normal = (magnitude & top) == 0 ? ct_float_bits(subnormal) : normal;
    return ct_float_of(normal | sign);
}

/* Values above the largest code become `over`. */
CT_NUMBER_INLINE uint32_t ct_number_narrow(float f, int e, int m, uint32_t largest, uint32_t over,
                                           uint32_t nan)
{
    uint32_t u = ct_float_bits(f), magnitude = u & 0x7fffffffu, sign = u >> 31 << (e + m);
    uint32_t bias = (1u << (e - 1)) - 1;
    uint32_t magic = (127 - bias + (uint32_t)(23 - m) + 1) << 23;
    uint32_t subnormal = ct_float_bits(ct_float_of(magnitude) + ct_float_of(magic)) - magic;
    uint32_t rounded = magnitude + (1u << (22 - m)) - 1 + (magnitude >> (23 - m) & 1);
    uint32_t code = (rounded >> (23 - m)) - ((127 - bias) << m);

    code = magnitude < (128 - bias) << 23 ? subnormal : code;
    code = magnitude >= 0x7f800000u || (code > largest && code < 0x80000000u) ? over : code;
    code = magnitude > 0x7f800000u ? nan : code;
    return code | sign;
}

CT_NUMBER_INLINE float ct_bf16_to_f32(uint16_t code)
{
    return ct_float_of((uint32_t)code << 16);
}

/* The upper bits of a NaN are kept. */
CT_NUMBER_INLINE uint16_t ct_f32_to_bf16(float f)
{
    uint32_t u = ct_float_bits(f), rounded = (u + 0x7fffu + (u >> 16 & 1)) >> 16;

    return (uint16_t)((u & 0x7fffffffu) > 0x7f800000u ? u >> 16 | 0x40 : rounded);
}

CT_NUMBER_INLINE float ct_f16_to_f32(uint16_t code)
{
    return ct_number_widen(code, 5, 10);
}

CT_NUMBER_INLINE uint16_t ct_f32_to_f16(float f)
{
    return (uint16_t)ct_number_narrow(f, 5, 10, 0x7bff, 0x7c00, 0x7e00);
}

CT_NUMBER_INLINE float ct_e5m2_to_f32(uint8_t code)
{
    return ct_number_widen(code, 5, 2);
}

CT_NUMBER_INLINE uint8_t ct_f32_to_e5m2(float f)
{
    return (uint8_t)ct_number_narrow(f, 5, 2, 0x7b, 0x7b, 0x7f);
}

/* All codes of the top exponent but one are numbers: only 0x7f and 0xff are NaN. */
CT_NUMBER_INLINE float ct_e4m3_to_f32(uint8_t code)
{
    uint32_t magnitude = code & 0x7fu, sign = (uint32_t)(code & 0x80u) << 24;
    float subnormal = (float)(int32_t)magnitude * 0x1p-9f;
    uint32_t u = (magnitude << 20) + (120u << 23);

    u = magnitude < 8 ? ct_float_bits(subnormal) : u;
    u = magnitude == 0x7f ? 0x7fc00000u : u;
    return ct_float_of(u | sign);
}

CT_NUMBER_INLINE uint8_t ct_f32_to_e4m3(float f)
{
    return (uint8_t)ct_number_narrow(f, 4, 3, 0x7e, 0x7e, 0x7f);
}

/* Round to odd: an inexact value becomes the float32 neighbour whose last bit is 1. A second
   rounding, to a format of at most 21 bits of mantissa, then gives the same as a single one (Boldo
   and Melquiond 2008). Loops over it become vector instructions. Subnormal results need threads
   that do not flush them. */
CT_NUMBER_INLINE float ct_f64_to_odd_f32(double value)
{
    float f = (float)value;
    uint32_t u = ct_float_bits(f), magnitude = u & 0x7fffffffu;
    double wide = f < 0 ? -(double)f : (double)f, wanted = value < 0 ? -value : value;

    return magnitude < 0x7f800000u && wide != wanted ? ct_float_of((u - (wide > wanted)) | 1) : f;
}

/* From float64, also in one rounding: not by way of float32. */
CT_API uint16_t ct_f64_to_bf16(double value);
CT_API uint16_t ct_f64_to_f16(double value);
CT_API uint8_t ct_f64_to_e4m3(double value);
CT_API uint8_t ct_f64_to_e5m2(double value);

CT_END_DECLS

#endif
