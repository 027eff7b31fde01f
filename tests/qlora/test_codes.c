/*
 * Codes, scales and numbers of bitsandbytes (bitsandbytes.json), to the last bit: weights whose
 * rows do not end with blocks, odd counts, blocks of zeros, middles of two codes.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "qlora.h"

static json_t *vectors;

static int load(void **state)
{
    (void)state;
    vectors = json_load_file(getenv("VECTORS"), 0, NULL);
    assert_non_null(vectors);
    return 0;
}

static int unload(void **state)
{
    (void)state;
    json_decref(vectors);
    return 0;
}

static int64_t integer(const json_t *list, size_t i)
{
    return json_integer_value(json_array_get(list, i));
}

static float number(const json_t *list, size_t i)
{
    int32_t bits = (int32_t)integer(list, i);
    float x;

    memcpy(&x, &bits, sizeof(x));
    return x;
}

static float *numbers(const json_t *list)
{
    float *x = malloc(sizeof(*x) * (json_array_size(list) + 1));

    for (size_t i = 0; i < json_array_size(list); i++)
        x[i] = number(list, i);
    return x;
}

struct vector {
    const json_t *all, *twice; /* twice: double quantisation */
    struct qlora_blocks blocks;
    float *absmax;
};

static struct vector vector_of(const json_t *all)
{
    const json_t *shape = json_object_get(all, "shape");

    return (struct vector){.all = all,
                           .twice = json_object_get(all, "double"),
                           .blocks = qlora_blocks_of(integer(shape, 0), integer(shape, 1)),
                           .absmax = numbers(json_object_get(all, "absmax_bits"))};
}

static void each_vector(void (*check)(const struct vector *v))
{
    const json_t *cases = json_object_get(vectors, "cases");

    assert_true(json_array_size(cases) >= 10);
    for (size_t i = 0; i < json_array_size(cases); i++) {
        struct vector v = vector_of(json_array_get(cases, i));

        print_message("  %s\n", json_string_value(json_object_get(v.all, "name")));
        check(&v);
        free(v.absmax);
    }
}

/* ---- codes ---- */

/* Two codes in a byte, wherever rows end: as bitsandbytes stores a weight. */
static void check_codes(const struct vector *v)
{
    const json_t *weights = json_object_get(v->all, "weights_bits");
    const json_t *packed = json_object_get(v->all, "packed");
    size_t count = json_array_size(weights);

    for (size_t i = 0; i < count; i++) {
        int both = (int)integer(packed, i / 2);
        int code = qlora_code(QLORA_NF4, number(weights, i), v->absmax[i / QLORA_BLOCK]);

        assert_int_equal(code, i % 2 ? both & 15 : both >> 4);
    }
}

static void test_codes(void **state)
{
    (void)state;
    each_vector(check_codes);
}

/* The nearest entry for 8 bits, as bitsandbytes finds it: at times another than the nearest. */
static void test_codes8(void **state)
{
    const json_t *eight = json_object_get(vectors, "eight");
    const json_t *x = json_object_get(eight, "weights_bits");
    const json_t *codes = json_object_get(eight, "codes");
    const json_t *absmax = json_object_get(eight, "absmax_bits");
    int count, others = 0;
    const float *map = qlora_table(QLORA_INT8, &count);

    (void)state;
    assert_true(json_array_size(x) >= 1000);
    for (size_t i = 0; i < json_array_size(x); i++) {
        float most = number(absmax, i / QLORA_BLOCK);
        int code = qlora_code(QLORA_INT8, number(x, i), most);

        assert_int_equal(code, integer(codes, i));
        others += code != qlora_nearest(map, count, number(x, i) * (1 / most), 0);
    }
    assert_true(others > 0);
}

/* ---- scales ---- */

static void check_nested(const struct vector *v)
{
    const json_t *codes = json_object_get(v->twice, "absmax_codes");
    const json_t *scales = json_object_get(v->twice, "absmax2_bits");
    uint8_t *own = malloc((size_t)v->blocks.blocks + 1);
    float *nested = malloc(sizeof(*nested) * (size_t)(v->blocks.groups + 1));

    assert_int_equal(v->blocks.blocks, json_array_size(codes));
    assert_int_equal(v->blocks.groups, json_array_size(scales));
    qlora_nest(&v->blocks, v->absmax, own, nested);
    for (int64_t i = 0; i < v->blocks.blocks; i++)
        assert_int_equal(own[i], integer(codes, (size_t)i));
    for (int64_t g = 0; g < v->blocks.groups; g++)
        assert_true(nested[g] == number(scales, (size_t)g));
    assert_int_equal((int32_t)json_integer_value(json_object_get(v->twice, "offset_bits")),
                     *(int32_t *)&nested[v->blocks.groups]);
    free(own);
    free(nested);
}

static void test_nested(void **state)
{
    (void)state;
    each_vector(check_nested);
}

static void test_map(void **state)
{
    const json_t *want = json_object_get(vectors, "code8_bits");
    int count;
    const float *map = qlora_table(QLORA_INT8, &count);

    (void)state;
    assert_int_equal(count, json_array_size(want));
    for (int i = 0; i < count; i++) {
        assert_true(map[i] == number(want, (size_t)i));
        assert_int_equal(qlora_nearest(map, count, map[i], 0), i);
    }
}

/* ---- numbers ---- */

/* One row of a weight, as a rank has it that begins with column `column`. */
static void check_row(const struct vector *v, const json_t *want, int64_t i, int64_t column,
                      const uint8_t *nested_codes, const float *nested)
{
    const struct qlora_blocks *b = &v->blocks;
    const json_t *packed = json_object_get(v->all, "packed");
    int64_t first = i * b->columns + column, count = b->columns - column;
    uint8_t *codes = calloc((size_t)count + 1, 1);
    float *to = malloc(sizeof(*to) * (size_t)(count + 1)), pairs[256][2];
    struct qlora_row r = {b, QLORA_NF4, pairs, i, column, 0, NULL, NULL, nested};

    qlora_pairs(pairs);
    if (nested)
        r.codes = nested_codes + qlora_first(b, i);
    else
        r.absmax = v->absmax + qlora_first(b, i);
    for (int64_t k = 0; k < count; k++) {
        int both = (int)integer(packed, (size_t)(first + k) / 2);
        int code = (first + k) % 2 ? both & 15 : both >> 4;

        codes[k / 2] |= (uint8_t)(k % 2 ? code : code << 4);
    }
    qlora_decode(&r, codes, count, to);
    for (int64_t k = 0; k < count; k++)
        assert_true(to[k] == number(want, (size_t)(first + k)));
    free(codes);
    free(to);
}

static void check_numbers(const struct vector *v)
{
    const json_t *once = json_object_get(v->all, "dequantised_bits");
    const json_t *twice = json_object_get(v->twice, "dequantised_bits");
    const json_t *list = json_object_get(v->twice, "absmax_codes");
    uint8_t *codes = malloc((size_t)v->blocks.blocks + 1);
    float *nested = malloc(sizeof(*nested) * (size_t)(v->blocks.groups + 1));

    qlora_nest(&v->blocks, v->absmax, codes, nested);
    for (size_t i = 0; i < json_array_size(list); i++)
        codes[i] = (uint8_t)integer(list, i);
    for (int64_t i = 0; json_array_size(once) && i < v->blocks.rows; i++)
        for (int64_t column = 0; column < v->blocks.columns; column += 1 + column) {
            check_row(v, once, i, column, NULL, NULL);
            check_row(v, twice, i, column, codes, nested);
        }
    free(codes);
    free(nested);
}

static void test_numbers(void **state)
{
    (void)state;
    each_vector(check_numbers);
}

/* A row has at most as many blocks as slots, wherever it begins, and some row has as many. */
static void test_slots(void **state)
{
    (void)state;
    for (int64_t columns = 1; columns < 300; columns++) {
        struct qlora_blocks b = qlora_blocks_of(130, columns);
        int64_t most = 0;

        for (int64_t i = 0; i < b.rows; i++) {
            int64_t last = ((i + 1) * columns - 1) / QLORA_BLOCK;
            int64_t n = last - qlora_first(&b, i) + 1;

            most = n > most ? n : most;
        }
        assert_int_equal(b.slots, most);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_codes), cmocka_unit_test(test_codes8),  cmocka_unit_test(test_nested),
        cmocka_unit_test(test_map),   cmocka_unit_test(test_numbers), cmocka_unit_test(test_slots)};

    return cmocka_run_group_tests(tests, load, unload);
}
