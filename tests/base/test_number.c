#include "assertions.h"

#include <math.h>
#include <string.h>

#include <ctitan/number.h>
#include <ctitan/rng.h>

/* A format, and its functions under one type. */
struct format {
    const char *name;
    int exponent_bits, mantissa_bits;
    bool finite;    /* the top exponent holds numbers; all ones is NaN */
    bool saturates; /* too large: the largest */
    float (*to_f32)(uint32_t);
    uint32_t (*from_f32)(float), (*from_f64)(double);
};

#define FORMAT(id, T)                                                                              \
    static float id##_load(uint32_t code)                                                          \
    {                                                                                              \
        return ct_##id##_to_f32((T)code);                                                          \
    }                                                                                              \
    static uint32_t id##_store(float f)                                                            \
    {                                                                                              \
        return ct_f32_to_##id(f);                                                                  \
    }                                                                                              \
    static uint32_t id##_round(double d)                                                           \
    {                                                                                              \
        return ct_f64_to_##id(d);                                                                  \
    }

FORMAT(bf16, uint16_t)
FORMAT(f16, uint16_t)
FORMAT(e4m3, uint8_t)
FORMAT(e5m2, uint8_t)

static const struct format formats[] = {
    {"bfloat16", 8, 7, false, false, bf16_load, bf16_store, bf16_round},
    {"float16", 5, 10, false, false, f16_load, f16_store, f16_round},
    {"float8_e4m3", 4, 3, true, true, e4m3_load, e4m3_store, e4m3_round},
    {"float8_e5m2", 5, 2, false, true, e5m2_load, e5m2_store, e5m2_round},
};

static uint32_t bits_of(float f)
{
    uint32_t u;

    memcpy(&u, &f, sizeof(u));
    return u;
}

/* The value of a code without its sign, by the definition of the format. */
static double meaning(const struct format *f, uint32_t code)
{
    uint32_t top = (1u << f->exponent_bits) - 1, mask = (1u << f->mantissa_bits) - 1;
    uint32_t exponent = code >> f->mantissa_bits & top, mantissa = code & mask;
    int bias = (1 << (f->exponent_bits - 1)) - 1;

    if (exponent == top && (f->finite ? mantissa == mask : mantissa != 0))
        return NAN;
    if (exponent == top && !f->finite)
        return INFINITY;
    if (exponent == 0)
        return ldexp(mantissa, 1 - bias - f->mantissa_bits);
    return ldexp(mantissa + mask + 1, (int)exponent - bias - f->mantissa_bits);
}

static uint32_t sign_of(const struct format *f)
{
    return 1u << (f->exponent_bits + f->mantissa_bits);
}

static void every_code_means_what_its_format_says(void **state)
{
    (void)state;
    for (size_t k = 0; k < CT_COUNT(formats); k++)
        for (uint32_t code = 0; code < 2 * sign_of(&formats[k]); code++) {
            const struct format *f = &formats[k];
            double want = meaning(f, code & (sign_of(f) - 1));
            float got = f->to_f32(code);

            assert_int_equal(signbit(got) != 0, (code & sign_of(f)) != 0);
            if (isnan(want)) {
                assert_true(isnan(got));
                assert_true(isnan(f->to_f32(f->from_f32(got))));
                assert_true(isnan(f->to_f32(f->from_f64((double)got))));
                continue;
            }
            assert_true(fabs((double)got) == want);
            if (isinf(want) && f->saturates)
                continue;
            assert_int_equal(f->from_f32(got), code);
            assert_int_equal(f->from_f64((double)got), code);
        }
}

static void check(const struct format *f, double value, uint32_t code)
{
    for (int negative = 0; negative < 2; negative++) {
        double v = negative ? -value : value;
        uint32_t want = code | (negative ? sign_of(f) : 0);

        if (f->from_f64(v) != want)
            fail_msg("%s: %a becomes %#x, not %#x", f->name, v, (unsigned)f->from_f64(v),
                     (unsigned)want);
        if ((double)(float)v == v && f->from_f32((float)v) != want)
            fail_msg("%s: float %a becomes %#x, not %#x", f->name, v,
                     (unsigned)f->from_f32((float)v), (unsigned)want);
    }
}

/* Halfway to each next code, and a little to both sides. */
static void ties_go_to_the_even_code(void **state)
{
    (void)state;
    for (size_t k = 0; k < CT_COUNT(formats); k++) {
        const struct format *f = &formats[k];

        for (uint32_t code = 0; isfinite(meaning(f, code + 1)); code++) {
            double middle = (meaning(f, code) + meaning(f, code + 1)) / 2;

            check(f, middle, code & 1 ? code + 1 : code);
            check(f, nextafter(middle, INFINITY), code + 1);
            check(f, nextafter(middle, 0), code);
            check(f, (double)nextafterf((float)middle, INFINITY), code + 1);
            check(f, (double)nextafterf((float)middle, 0), code);
        }
    }
}

static void what_is_too_large_saturates_or_is_infinite(void **state)
{
    static const double large[] = {1e9, 3.4e38, 1e300, INFINITY};

    (void)state;
    for (size_t k = 0; k < CT_COUNT(formats); k++) {
        const struct format *f = &formats[k];
        uint32_t last = 0, over;
        double step;

        while (isfinite(meaning(f, last + 1)))
            last++;
        over = f->saturates ? last : last + 1;
        step = meaning(f, last) - meaning(f, last - 1);
        check(f, meaning(f, last) + step / 2, f->saturates ? last : over);
        check(f, nextafter(meaning(f, last) + step / 2, 0), last);
        for (size_t i = 0; i < CT_COUNT(large); i++)
            check(f, large[i],
                  large[i] > meaning(f, last) + step / 2 ? over : f->from_f64(large[i]));
    }
    assert_int_equal(ct_f64_to_f16(65519.9), 0x7bff);
    assert_int_equal(ct_f64_to_f16(65520), 0x7c00);
    assert_int_equal(ct_f64_to_e4m3(1e9), 0x7e);
    assert_int_equal(ct_f64_to_e5m2(-INFINITY), 0xfb);
}

static void nothing_is_rounded_twice(void **state)
{
    (void)state;
    assert_int_equal(ct_f64_to_bf16(1 + 0x1p-8 - 0x1p-40), 0x3f80);
    assert_int_equal(ct_f64_to_bf16(1 + 0x1p-8 + 0x1p-40), 0x3f81);
    assert_int_equal(ct_f64_to_f16(0x1p-25 + 0x1p-60), 1);
    assert_int_equal(ct_f64_to_f16(0x1p-1074), 0);
    assert_int_equal(ct_f64_to_bf16(0x1p-133), 1);
    assert_int_equal(bits_of(ct_bf16_to_f32(ct_f32_to_bf16(ct_float_of(0xffa12345u)))),
                     0xffe10000u);
}

/* Around the codes of a format and the middles between them, where a first rounding can decide. */
static void rounding_to_odd_first_changes_no_result(void **state)
{
    (void)state;
    for (size_t i = 0; i < CT_COUNT(formats); i++)
        for (uint32_t code = 0; code < 1u << (formats[i].exponent_bits + formats[i].mantissa_bits);
             code += 1 + (code > 512) * 7) {
            const struct format *f = &formats[i];
            double low = meaning(f, code), high = meaning(f, code + 1);
            double near[] = {low, (low + high) / 2, low + (high - low) / 3};

            for (int k = 0; k < 3 * 8 && isfinite(near[k / 8]); k++) {
                double d = near[k / 8] * (1 + (k % 4 - 1) * 0x1p-40) * (k % 8 < 4 ? 1 : -1);

                assert_int_equal(f->from_f32(ct_f64_to_odd_f32(d)), f->from_f64(d));
            }
        }
    assert_true(isnan(ct_f64_to_odd_f32(NAN)));
    assert_true(isinf(ct_f64_to_odd_f32(-INFINITY)));
}

static void uniform_numbers_are_inside_of_the_interval(void **state)
{
    (void)state;
    assert_true(ct_uniform(0) > 0);
    for (uint32_t bits = UINT32_MAX - 600; bits++ < UINT32_MAX;)
        assert_true(ct_uniform(bits) < 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_code_means_what_its_format_says),
        cmocka_unit_test(ties_go_to_the_even_code),
        cmocka_unit_test(what_is_too_large_saturates_or_is_infinite),
        cmocka_unit_test(nothing_is_rounded_twice),
        cmocka_unit_test(rounding_to_odd_first_changes_no_result),
        cmocka_unit_test(uniform_numbers_are_inside_of_the_interval),
    };

    return cmocka_run_group_tests_name("number", tests, NULL, NULL);
}
