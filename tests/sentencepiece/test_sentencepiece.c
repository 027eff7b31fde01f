/*
 * Ids and texts of a model equal those that SentencePiece's Python package (0.2.3) gives it:
 * cases.json, which tests/bpe/variants.py writes.
 */
#include <jansson.h>

#include "plugin_under_test.h"

#define ROOM 4096

static const char *sources;
static struct ct_arena arena;

static const struct ct_tokenizer_ops *ops(void)
{
    return test_offer(test_plugin("sentencepiece"), CT_TOKENIZER);
}

static void open_model(void)
{
    TEST_OPTIONS(test_plugin("sentencepiece"), ct_arena_printf(&arena, "path=%s", sources));
    assert_int_equal(ops()->open(), 0);
}

/* Tokens arrive one by one. Returns the text, in a buffer of its own. */
static const char *decode(const int32_t *ids, int64_t count, size_t *size)
{
    static char all[ROOM];
    struct ct_decoding *decoding;
    const char *text;

    *size = 0;
    assert_int_equal(ops()->decoding_open(&decoding), 0);
    for (int64_t i = 0; i <= count; i++) {
        int64_t n = ops()->decoding_add(decoding, ids + i, i < count, i == count, &text);

        assert_in_range(n, 0, sizeof(all) - *size);
        memcpy(all + *size, text, (size_t)n);
        *size += (size_t)n;
    }
    ops()->decoding_close(decoding);
    return all;
}

static void check_row(const json_t *row)
{
    const json_t *text = json_array_get(row, 0), *want = json_array_get(row, 1);
    const json_t *decoded = json_array_get(row, 2);
    const char *bytes = json_string_value(text);
    struct ct_text_span spans[ROOM];
    int32_t ids[ROOM], again[ROOM];
    int64_t count = ops()->encode(bytes, json_string_length(text), ids, ROOM);
    size_t size;

    assert_int_equal(count, json_array_size(want));
    for (int64_t i = 0; i < count; i++)
        if (ids[i] != json_integer_value(json_array_get(want, (size_t)i)))
            fail_msg("\"%s\": token %lld is %d", bytes, (long long)i, ids[i]);
    assert_int_equal(ops()->encode(bytes, json_string_length(text), NULL, 0), count);
    assert_int_equal(ops()->encode_spans(bytes, json_string_length(text), again, spans, ROOM),
                     count);
    for (int64_t i = 0; i < count; i++)
        assert_true(again[i] == ids[i] && spans[i].begin <= spans[i].end &&
                    spans[i].end <= json_string_length(text));
    bytes = decode(ids, count, &size);
    assert_int_equal(size, json_string_length(decoded));
    assert_memory_equal(bytes, json_string_value(decoded), size);
}

static void ids_are_those_of_the_library(void **state)
{
    json_t *cases =
        json_load_file(ct_arena_printf(&arena, "%s/cases.json", sources), JSON_ALLOW_NUL, NULL);

    (void)state;
    open_model();
    assert_int_equal(json_array_size(cases), 50);
    for (size_t i = 0; i < json_array_size(cases); i++)
        check_row(json_array_get(cases, i));
    json_decref(cases);
}

static int32_t byte_token(int byte)
{
    char text[16];

    for (int32_t id = 0; id < ops()->vocabulary(); id++)
        if (ops()->decode(id, text, sizeof(text)) == 1 && (unsigned char)*text == byte &&
            id < 3 + 1 + 256)
            return id;
    fail_msg("no token for byte %d", byte);
    return -1;
}

/* A character of several tokens is given with its last one; a byte that begins none is U+FFFD. */
static void bytes_wait_for_their_character(void **state)
{
    struct ct_decoding *decoding;
    const char *text;
    int32_t ids[] = {0, 0, 0};
    size_t size;

    (void)state;
    open_model();
    ids[0] = byte_token(0xF0);
    ids[1] = byte_token(0xC3);
    ids[2] = byte_token(0xA9);
    assert_int_equal(ops()->decoding_open(&decoding), 0);
    assert_int_equal(ops()->decoding_add(decoding, ids + 1, 1, false, &text), 0);
    assert_int_equal(ops()->decoding_add(decoding, ids + 2, 1, false, &text), 2);
    assert_memory_equal(text, "\xC3\xA9", 2);
    assert_int_equal(ops()->decoding_add(decoding, ids, 1, false, &text), 0);
    assert_int_equal(ops()->decoding_add(decoding, NULL, 0, true, &text), 3);
    assert_memory_equal(text, "\xEF\xBF\xBD", 3);
    ops()->decoding_close(decoding);
    text = decode(ids, 3, &size);
    assert_int_equal(size, 5);
    assert_memory_equal(text, "\xEF\xBF\xBD\xC3\xA9", 5);
    assert_int_equal(ops()->decoding_open(&decoding), 0);
    ids[0] = (int32_t)ops()->vocabulary();
    assert_int_equal(ops()->decoding_add(decoding, ids, 1, false, &text), CT_EINVAL);
    ops()->decoding_close(decoding);
}

static void files_that_are_no_models_are_refused(void **state)
{
    const char *path = ct_arena_printf(&arena, "%s/tokenizer.model", test_folder());

    (void)state;
    TEST_OPTIONS(test_plugin("sentencepiece"), ct_arena_printf(&arena, "path=%s", path));
    assert_int_equal(ops()->open(), CT_ENOENT);
    test_write(path, "\n\x7f", 2);
    assert_int_equal(ops()->open(), CT_ECONFIG);
    assert_non_null(strstr(ct_error_message(), path));
}

static void prompts_have_their_tokens_around_them(void **state)
{
    int32_t ids[8];

    (void)state;
    open_model();
    assert_int_equal(ops()->bos(), 1);
    assert_int_equal(ops()->eos(), 2);
    assert_true(ops()->prompt("a", 1, ids, 8) > 1);
    assert_int_equal(ids[0], 1);
    assert_int_equal(ops()->prompt("a", 1, NULL, 0), ops()->encode("a", 1, NULL, 0) + 1);
    TEST_OPTIONS(test_plugin("sentencepiece"), ct_arena_printf(&arena, "path=%s", sources),
                 "add_bos=false");
    assert_int_equal(ops()->bos(), -1);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ids_are_those_of_the_library),
        cmocka_unit_test(bytes_wait_for_their_character),
        cmocka_unit_test(files_that_are_no_models_are_refused),
        cmocka_unit_test(prompts_have_their_tokens_around_them),
    };

    if (argc < 2)
        return 2;
    sources = argv[1];
    return cmocka_run_group_tests(tests, NULL, NULL);
}
