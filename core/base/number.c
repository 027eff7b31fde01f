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

#define FORMAT(id, T, ...)                                                                         \
    T ct_f64_to_##id(double value)                                                                 \
    {                                                                                              \
        return (T)encode(value, &(const struct format){__VA_ARGS__});                              \
    }

FORMAT(bf16, uint16_t, 8, 7, 0x7f7f, 0x7f80, 0x7fc0)
FORMAT(f16, uint16_t, 5, 10, 0x7bff, 0x7c00, 0x7e00)
FORMAT(e4m3, uint8_t, 4, 3, 0x7e, 0x7e, 0x7f)
FORMAT(e5m2, uint8_t, 5, 2, 0x7b, 0x7b, 0x7f)
