#include <math.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <jansson.h>

#include <ctitan/lib/json.h>

#include "assertions.h"

static json_t *read_text(const char *text, unsigned flags)
{
    json_t *value;

    if (ct_json_read(text, strlen(text), "x", flags, &value) < 0)
        fail_msg("%s: %s", text, ct_error_message());
    return value;
}

/* Python's json reads the same value of each. */
static void test_numbers(void **state)
{
    static const struct {
        const char *text;
        double value;
    } reals[] = {
        {"9223372036854775808", 9223372036854775808.0},
        {"-9223372036854775809", -9223372036854775808.0},
        {"12345678901234567890", 12345678901234567890.0},
        {"18446744073709551615", 18446744073709551616.0},
        {"123456789012345678901234567890", 123456789012345678901234567890.0},
        {"1000000000000000019884624838656", 1e30},
        {"99999999999999999999", 1e20},
        {"1e308", 1e308},
        {"1e-400", 0},
        {"1000000000000000000000000000000000000000000000000000000000000000000000000000000000000000"
         "0000000000000000000000000000000000",
         1e121},
    };

    (void)state;
    for (size_t i = 0; i < CT_COUNT(reals); i++) {
        json_t *value = read_text(reals[i].text, 0);

        assert_true(json_is_real(value));
        if (json_real_value(value) != reals[i].value)
            fail_msg("%s: %.17g", reals[i].text, json_real_value(value));
        json_decref(value);
    }
}

static void test_integers(void **state)
{
    static const char *const texts[] = {"9223372036854775807", "-9223372036854775808", "0", "-7"};

    (void)state;
    for (size_t i = 0; i < CT_COUNT(texts); i++) {
        json_t *value = read_text(texts[i], 0);

        assert_true(json_is_integer(value));
        assert_int_equal(json_integer_value(value), strtoll(texts[i], NULL, 10));
        json_decref(value);
    }
}

/* They are there, and are no numbers; the others are read. */
static void test_not_finite(void **state)
{
    json_t *root =
        read_text("{\"a\":NaN,\"b\":[Infinity,-Infinity],\"c\": 1e400,\"d\":-1e999, \"e\":3}", 0);

    (void)state;
    assert_true(json_is_object(json_object_get(root, "a")));
    assert_true(json_is_object(json_array_get(json_object_get(root, "b"), 0)));
    assert_true(json_is_object(json_array_get(json_object_get(root, "b"), 1)));
    assert_true(json_is_object(json_object_get(root, "c")));
    assert_true(json_is_object(json_object_get(root, "d")));
    assert_int_equal(json_integer_value(json_object_get(root, "e")), 3);
    json_decref(root);
}

static void test_strings(void **state)
{
    static const struct {
        const char *text, *value;
    } cases[] = {
        {"\"a\\ud83d b\"", "a\xEF\xBF\xBD b"},
        {"\"\\ude00\"", "\xEF\xBF\xBD"},
        {"\"\\ud83d\\ud83d\\ude00\"", "\xEF\xBF\xBD\xF0\x9F\x98\x80"},
        {"\"\\uD83D\\uDE00\"", "\xF0\x9F\x98\x80"},
        {"\"\\\\ud83d NaN 1e400\"", "\\ud83d NaN 1e400"},
        {"\"\\\"\\ud83d\"", "\"\xEF\xBF\xBD"},
    };

    (void)state;
    for (size_t i = 0; i < CT_COUNT(cases); i++) {
        json_t *value = read_text(cases[i].text, 0);

        assert_string_equal(json_string_value(value), cases[i].value);
        json_decref(value);
    }
}

static void test_equal_keys(void **state)
{
    const char text[] = "{\"a\": 1, \"a\": 2}";
    json_t *root = read_text(text, 0);

    (void)state;
    assert_int_equal(json_integer_value(json_object_get(root, "a")), 2);
    json_decref(root);
    assert_fails(ct_json_read(text, strlen(text), "x", CT_JSON_UNIQUE, &root), CT_ECONFIG,
                 "duplicate");
}

/* Columns are those of the text as it was. */
static void test_failures(void **state)
{
    static const struct {
        const char *text, *message;
    } cases[] = {
        {"{\"a\": NaN,\n \"b\": 123456789012345678901234567890, 7}", "x:2:39: "},
        {"{\"a\": nan}", "x:1:"},
        {"{\"a\": +Infinity}", "x:1:"},
        {"[01]", "x:1:"},
        {"[123456789012345678901234567890.]", "x:1:"},
        {"[1e400e]", "x:1:"},
        {"\"\\ud83", "x:1:"},
        {"\"\\", "x:1:"},
        {"", "x:1:"},
        {"[\"\\u0000\"]", "x:1:"},
        {"{} {}", "x:1:"},
    };
    json_t *root;

    (void)state;
    for (size_t i = 0; i < CT_COUNT(cases); i++)
        assert_fails(ct_json_read(cases[i].text, strlen(cases[i].text), "x", 0, &root), CT_ECONFIG,
                     cases[i].message);
    assert_fails(ct_json_read("[1,", 3, NULL, 0, &root), CT_ECONFIG, "column 3: ");
    assert_fails(ct_json_read("[1,\n\n]", 6, NULL, 0, &root), CT_ECONFIG, "line 3, column 1: ");
    assert_int_equal(ct_json_read("\"\\u0000\"", 8, "x", CT_JSON_NUL, &root), 0);
    assert_int_equal(json_string_length(root), 1);
    json_decref(root);
}

/* A pipe that nobody writes to is refused, and not waited for. */
static void test_files(void **state)
{
    char path[] = "/tmp/test_json_XXXXXX";
    json_t *root;

    (void)state;
    assert_non_null(mkdtemp(path));
    rmdir(path);
    assert_int_equal(ct_json_read_file(path, 0, &root), CT_ENOENT);
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_fails(ct_json_read_file(path, 0, &root), CT_ECONFIG, "not a regular file");
    unlink(path);
}

/* JSON that was read is written as it was. */
static void test_written_again(void **state)
{
    static const char text[] = "{\n"
                               "  \"a\": 1000000000000000019884624838656,\n"
                               "  \"b\": [\n    0.0,\n    Infinity\n  ],\n"
                               "  \"c\": 1e-05,\n"
                               "  \"d\": -12345678901234567890,\n"
                               "  \"e\": NaN,\n"
                               "  \"f\": \"1e400 \\\"1\\\"\",\n"
                               "  \"g\": 0.1234567890123456789,\n"
                               "  \"h\": 7\n"
                               "}\n";
    json_t *root = read_text(text, CT_JSON_LITERALS);
    size_t size;
    char *out;
    FILE *stream = open_memstream(&out, &size);

    (void)state;
    assert_int_equal(ct_json_write(root, stream), 0);
    fclose(stream);
    assert_string_equal(out, text);
    free(out);
    json_decref(root);
}

/* Compared as text: what a program gets that reads it. */
static void assert_printed(json_t *object, const char *should)
{
    size_t size;
    char *out;
    FILE *stream = open_memstream(&out, &size);

    assert_int_equal(ct_json_print(object, stream), 0);
    fclose(stream);
    assert_string_equal(out, should);
    free(out);
}

static void test_printed(void **state)
{
    (void)state;
    assert_printed(json_object(), "{}\n");
    assert_printed(json_pack("{s:o, s:[i,i], s:[{s:i},{}], s:[]}", "a \"b\"", ct_json_text("c\n\\"),
                             "n", 1, 2, "o", "i", 3, "none"),
                   "{\n"
                   "  \"a \\\"b\\\"\": \"c\\n\\\\\",\n"
                   "  \"n\": [1, 2],\n"
                   "  \"o\": [\n"
                   "    {\"i\": 3},\n"
                   "    {}\n"
                   "  ],\n"
                   "  \"none\": []\n"
                   "}\n");
    assert_printed(json_pack("{s:o, s:o, s:o, s:o, s:o, s:o}", "a", ct_json_number(NAN), "b",
                             ct_json_number(-INFINITY), "c", ct_json_number(9007199254740991.0),
                             "d", ct_json_number(0.1), "e", ct_json_number(1e300), "f",
                             ct_json_text(NULL)),
                   "{\n  \"a\": null,\n  \"b\": null,\n  \"c\": 9007199254740991,\n"
                   "  \"d\": 0.1,\n  \"e\": 1e300,\n  \"f\": null\n}\n");
    assert_int_equal(ct_json_print(NULL, stdout), CT_ENOMEM);
}

/* Python's "replace" gives the same. */
static void test_not_utf8(void **state)
{
    static const char *const texts[][2] = {
        {"caf\xC3\xA9 \xF0\x9F\x8C\x99", "caf\xC3\xA9 \xF0\x9F\x8C\x99"},
        {"caf\xE9", "caf\xEF\xBF\xBD"},
        {"\xFF\xFE.so", "\xEF\xBF\xBD\xEF\xBF\xBD.so"},
        {"\xC3\xA9\x80z", "\xC3\xA9\xEF\xBF\xBDz"},
    };

    (void)state;
    for (size_t i = 0; i < CT_COUNT(texts); i++) {
        json_t *text = ct_json_text(texts[i][0]);

        assert_string_equal(json_string_value(text), texts[i][1]);
        json_decref(text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_numbers),    cmocka_unit_test(test_integers),
        cmocka_unit_test(test_not_finite), cmocka_unit_test(test_strings),
        cmocka_unit_test(test_equal_keys), cmocka_unit_test(test_failures),
        cmocka_unit_test(test_files),      cmocka_unit_test(test_written_again),
        cmocka_unit_test(test_printed),    cmocka_unit_test(test_not_utf8),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
