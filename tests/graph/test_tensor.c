#include "assertions.h"

#include <math.h>

#include <ctitan/tensor.h>

static double round_trip(enum ct_dtype dtype, double value)
{
    uint64_t cell = 0;
    struct ct_tensor t = ct_tensor_dense(&cell, dtype, 0, NULL);

    ct_tensor_store(&t, 0, value);
    return ct_tensor_load(&t, 0);
}

static void dtypes_have_names_and_sizes(void **state)
{
    enum ct_dtype dtype;

    (void)state;
    for (int i = 0; i < CT_DTYPE_COUNT; i++) {
        assert_int_equal(ct_dtype_parse(ct_dtype_name((enum ct_dtype)i), &dtype), 0);
        assert_int_equal(dtype, i);
        assert_in_range(ct_dtype_bits(dtype), 4, 64);
        if (ct_dtype_bits(dtype) >= 8)
            assert_int_equal(ct_dtype_size(dtype) * 8, ct_dtype_bits(dtype));
    }
    assert_true(ct_dtype_is_float(CT_E4M3));
    assert_false(ct_dtype_is_float(CT_I32));
    assert_fails(ct_dtype_parse("bfloat61", &dtype), CT_EINVAL, "did you mean bfloat16?");
    assert_fails(ct_dtype_parse("complex", &dtype), CT_EINVAL, "no dtype named complex");
}

/* Every finite code of a small format: decoding and encoding gives the code again. */
static void codes_survive(enum ct_dtype dtype, uint32_t codes)
{
    uint32_t cell = 0, same = 0;
    struct ct_tensor t = ct_tensor_dense(&cell, dtype, 0, NULL);

    for (uint32_t code = 0; code < codes; code++) {
        double value;

        cell = code;
        value = ct_tensor_load(&t, 0);
        if (!isfinite(value))
            continue;
        ct_tensor_store(&t, 0, value);
        assert_int_equal(cell, code);
        same++;
    }
    assert_true(same > codes / 2);
}

static void small_formats_survive(void **state)
{
    (void)state;
    codes_survive(CT_E4M3, 256);
    codes_survive(CT_E5M2, 256);
    codes_survive(CT_F16, 65536);
    codes_survive(CT_BF16, 65536);
}

static void bf16_rounds_as_the_fast_path(void **state)
{
    uint64_t random = 88172645463325252u;

    (void)state;
    for (int i = 0; i < 200000; i++) {
        union {
            uint32_t u;
            float f;
        } v = {(uint32_t)unit_random(&random)};
        double got = round_trip(CT_BF16, (double)v.f);
        float want = ct_bf16_to_f32(ct_f32_to_bf16(v.f));

        if (isnan(v.f))
            assert_true(isnan(got) && isnan(want));
        else
            assert_true(got == (double)want);
    }
}

static void values_round_once_to_nearest_even(void **state)
{
    (void)state;
    assert_true(round_trip(CT_F16, 65504) == 65504);
    assert_true(isinf(round_trip(CT_F16, 65520)));
    assert_true(round_trip(CT_F16, 65519.9) == 65504);
    assert_true(round_trip(CT_F16, 0x1p-24) == 0x1p-24);
    assert_true(round_trip(CT_F16, 0x1p-25) == 0);
    assert_true(round_trip(CT_F16, 0x1.8p-25) == 0x1p-24);
    assert_true(round_trip(CT_E4M3, 449) == 448);
    assert_true(round_trip(CT_E4M3, 1e9) == 448);
    assert_true(round_trip(CT_E4M3, -INFINITY) == -448);
    assert_true(isnan(round_trip(CT_E4M3, NAN)));
    assert_true(round_trip(CT_E4M3, 0x1p-9) == 0x1p-9);
    assert_true(round_trip(CT_E4M3, 17) == 16);
    assert_true(round_trip(CT_E4M3, 19) == 20);
    assert_true(round_trip(CT_E5M2, 1e9) == 57344);
    assert_true(signbit(round_trip(CT_F16, -0.0)));
    /* through float32 this would round twice, up */
    assert_true(round_trip(CT_BF16, 1 + 0x1p-8 - 0x1p-40) == 1);
    assert_true(round_trip(CT_BF16, 1 + 0x1p-8 + 0x1p-40) == 1 + 0x1p-7);
    assert_true(round_trip(CT_BF16, 1 + 0x1p-8) == 1);
    assert_true(isinf(round_trip(CT_BF16, 3.4e38 * 1.01)));
}

static void integers_round(void **state)
{
    (void)state;
    assert_true(round_trip(CT_I32, -7) == -7);
    assert_true(round_trip(CT_I64, 1e15) == 1e15);
    assert_true(round_trip(CT_U8, 255) == 255);
}

static void strides_are_honoured(void **state)
{
    float data[24];
    int64_t shape[3] = {2, 3, 4};
    struct ct_tensor dense = ct_tensor_dense(data, CT_F32, 3, shape), t = dense;

    (void)state;
    for (int i = 0; i < 24; i++)
        data[i] = (float)i;
    assert_int_equal(ct_tensor_count(&dense), 24);
    assert_true(ct_tensor_is_dense(&dense));
    for (int i = 0; i < 24; i++)
        assert_true(ct_tensor_load(&dense, i) == i);
    /* the same data as [4, 3, 2]: transposed */
    t.shape[0] = 4;
    t.shape[2] = 2;
    t.stride[0] = 1;
    t.stride[2] = 12;
    assert_false(ct_tensor_is_dense(&t));
    for (int a = 0; a < 4; a++)
        for (int b = 0; b < 3; b++)
            for (int c = 0; c < 2; c++)
                assert_true(ct_tensor_load(&t, (a * 3 + b) * 2 + c) == c * 12 + b * 4 + a);
    ct_tensor_store(&t, 23, -1);
    assert_true(data[23] == -1);
    assert_int_equal(ct_shape_count(0, NULL), 1);
}

/* Two codes in a byte, the first in the high half, and rows of whole bytes. */
static void codes_share_bytes(void **state)
{
    unsigned char data[6] = {0};
    const int64_t shape[] = {2, 5}, row[] = {4};
    struct ct_tensor t = ct_tensor_dense(data, CT_U4, 2, shape), bytes;

    (void)state;
    assert_int_equal(t.stride[0], 6);
    assert_true(ct_tensor_is_dense(&t));
    assert_int_equal(ct_tensor_bytes(&t), 6);
    assert_int_equal(ct_tensor_extent(&t), 6);
    assert_int_equal(ct_dtype_bytes(CT_U4, 1, row), 2);
    assert_int_equal(ct_dtype_bytes(CT_F32, 2, shape), 40);
    for (int i = 0; i < 10; i++)
        ct_tensor_store(&t, i, i + 3);
    assert_memory_equal(data, ((unsigned char[]){0x34, 0x56, 0x70, 0x89, 0xab, 0xc0}), 6);
    ct_tensor_store(&t, 5, 1);
    assert_memory_equal(data, ((unsigned char[]){0x34, 0x56, 0x70, 0x19, 0xab, 0xc0}), 6);
    for (int i = 6; i < 10; i++)
        assert_true(ct_tensor_load(&t, i) == i + 3);
    bytes = ct_tensor_packed(&t);
    assert_int_equal(bytes.dtype, CT_U8);
    assert_int_equal(bytes.shape[1], 3);
    assert_true(ct_tensor_load(&bytes, 3) == 0x19);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(dtypes_have_names_and_sizes),
        cmocka_unit_test(small_formats_survive),
        cmocka_unit_test(bf16_rounds_as_the_fast_path),
        cmocka_unit_test(values_round_once_to_nearest_even),
        cmocka_unit_test(integers_round),
        cmocka_unit_test(strides_are_honoured),
        cmocka_unit_test(codes_share_bytes),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
