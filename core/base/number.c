#include <string.h>

#include <ctitan/number.h>

struct format {
    int exponent_bits, mantissa_bits;
    uint32_t largest, over, nan; /* codes; over: for any larger value */
};

static uint32_t encode(double value, const struct format *f)
{
    int bias = (1 << (f->exponent_bits - 1)) - 1, exponent, shift;
    uint64_t u, magnitude, kept, rest, half, code;
    uint32_t sign;

    memcpy(&u, &value, sizeof(u));
    sign = (uint32_t)(u >> 63) << (f->exponent_bits + f->mantissa_bits);
    magnitude = u & (UINT64_MAX >> 1);
    if (magnitude > (uint64_t)2047 << 52)
        return sign | f->nan;
    exponent = (int)(magnitude >> 52) - 1023 + bias;
    shift = 52 - f->mantissa_bits + (exponent < 1 ? 1 - exponent : 0);
    shift = shift > 60 ? 60 : shift;
    kept = (magnitude & (UINT64_MAX >> 12)) | (uint64_t)(magnitude >> 52 != 0) << 52;
    rest = kept & (((uint64_t)1 << shift) - 1);
    half = (uint64_t)1 << (shift - 1);
    kept >>= shift;
    kept += rest > half || (rest == half && kept & 1);
    code = exponent < 1 ? kept : ((uint64_t)(exponent - 1) << f->mantissa_bits) + kept;
    return sign | (code > f->largest ? f->over : (uint32_t)code);
}

uint16_t ct_f64_to_bf16(double value)
{
    return (uint16_t)encode(value, &(const struct format){8, 7, 0x7f7f, 0x7f80, 0x7fc0});
}

uint16_t ct_f64_to_f16(double value)
{
    return (uint16_t)encode(value, &(const struct format){5, 10, 0x7bff, 0x7c00, 0x7e00});
}

uint8_t ct_f64_to_e4m3(double value)
{
    return (uint8_t)encode(value, &(const struct format){4, 3, 0x7e, 0x7e, 0x7f});
}

uint8_t ct_f64_to_e5m2(double value)
{
    return (uint8_t)encode(value, &(const struct format){5, 2, 0x7b, 0x7b, 0x7f});
}
