/*
 * Parquet files as pyarrow writes them (small.parquet, of the rows of small.jsonl in groups of
 * three, with checksums of pages): the rows as JSON, in the data source text, and damaged.
 */
#include <stdlib.h>

#include <jansson.h>

#include <ctitan/file.h>
#include <ctitan/model.h>
#include <ctitan/reader.h>

#include "assertions.h"
#include "plugin_under_test.h"

#define ROWS 5

static const char *folder;

static const void *map(const char *name, size_t *size)
{
    char path[4096];
    const void *data;

    snprintf(path, sizeof(path), "%s/%s", folder, name);
    assert_int_equal(ct_file_map(path, &data, size), 0);
    return data;
}

/* ---- the reader ---- */

struct rows {
    char text[16384];
    size_t size;
    int64_t count;
};

static int take(void *context, const struct ct_reader_text *text)
{
    struct rows *r = context;

    assert_true(text->lines && !text->name && text->first == r->count + 1);
    assert_true(r->size + text->bytes < sizeof(r->text));
    memcpy(r->text + r->size, text->data, text->bytes);
    r->size += text->bytes;
    r->text[r->size] = '\0';
    for (size_t i = 0; i < text->bytes; i++)
        r->count += text->data[i] == '\n';
    return 0;
}

static int read_bytes(const void *data, size_t size, const char *const *fields, struct rows *rows)
{
    const struct ct_reader_ops *ops = test_offer(test_plugin("parquet"), CT_READER);
    const struct ct_reading reading = {.size = sizeof(reading),
                                       .path = "x.parquet",
                                       .data = data,
                                       .bytes = size,
                                       .fields = fields,
                                       .take = take,
                                       .context = rows};

    rows->size = 0;
    rows->count = 0;
    return ops->read(&reading);
}

static const char *const all[] = {"text",   "number", "messages", "ids",
                                  "labels", "pair",   "good",     NULL};

/* Every row has the values of the line of small.jsonl. */
static void test_values(void **state)
{
    size_t size, of_lines;
    const char *data = map("small.parquet", &size), *lines = map("small.jsonl", &of_lines);
    const char *line = lines;
    struct rows rows;
    char *row;

    (void)state;
    assert_int_equal(read_bytes(data, size, all, &rows), 0);
    assert_int_equal(rows.count, ROWS);
    row = rows.text;
    for (int i = 0; i < ROWS; i++) {
        size_t length = strcspn(line, "\n"), of_row = strcspn(row, "\n");
        json_t *want = json_loadb(line, length, JSON_DECODE_INT_AS_REAL, NULL);
        json_t *got = json_loadb(row, of_row, JSON_DECODE_INT_AS_REAL, NULL);

        assert_true(want && got && json_equal(want, got));
        json_decref(want);
        json_decref(got);
        line += length + 1;
        row += of_row + 1;
    }
    assert_non_null(strstr(rows.text, "\"number\":18446744073709551615,"));
    ct_file_unmap(data, size);
    ct_file_unmap(lines, of_lines);
}

static void test_columns(void **state)
{
    size_t size;
    const char *data = map("small.parquet", &size);
    struct rows rows;

    (void)state;
    assert_int_equal(read_bytes(data, size, (const char *const[]){"good", "absent", NULL}, &rows),
                     0);
    assert_string_equal(rows.text, "{\"good\":true}\n{\"good\":false}\n{\"good\":null}\n"
                                   "{\"good\":false}\n{\"good\":true}\n");
    assert_fails(read_bytes(data, size, (const char *const[]){"absent", NULL}, &rows), CT_ECONFIG,
                 "it has none of the columns that are read; it has text, number, messages, ids,");
    assert_fails(read_bytes(data, size, (const char *const[]){"date", NULL}, &rows), CT_ECONFIG,
                 "the column date has the type timestamp[ms]");
    ct_file_unmap(data, size);
}

/* Where the footer begins, whose size stands before the last four bytes. */
static size_t find_footer(const char *data, size_t size)
{
    const unsigned char *at = (const unsigned char *)data + size - 8;

    return size - 8 - (at[0] + 256u * at[1]);
}

/* Each byte changed in two ways, and the file cut at each length: it is refused, or has the same
   rows. The footer has no checksum, and columns that have another name there are not read. */
static void test_damage(void **state)
{
    static const unsigned char ways[] = {0x01, 0x80};
    size_t size, refused = 0;
    const char *data = map("small.parquet", &size);
    static struct rows whole, found;
    char *copy = malloc(size);

    (void)state;
    assert_non_null(copy);
    memcpy(copy, data, size);
    assert_int_equal(read_bytes(copy, size, all, &whole), 0);
    for (size_t at = 0; at < size; at++)
        for (size_t i = 0; i < CT_COUNT(ways); i++) {
            int rc;

            copy[at] = (char)(copy[at] ^ ways[i]);
            rc = read_bytes(copy, size, all, &found);
            copy[at] = (char)(copy[at] ^ ways[i]);
            assert_true(rc == 0 || rc == CT_ECONFIG || rc == CT_ENOMEM);
            refused += rc < 0;
            if (rc == 0 && at < find_footer(data, size))
                assert_string_equal(found.text, whole.text);
            if (rc == 0)
                assert_int_equal(found.count, ROWS);
        }
    for (size_t cut = 0; cut < size; cut++)
        assert_int_equal(read_bytes(copy, cut, all, &found), CT_ECONFIG);
    assert_true(refused > size);
    free(copy);
    ct_file_unmap(data, size);
}

/* ---- text ---- */

static int open_text(const char *path, const char *format, struct ct_data **data)
{
    const struct ct_data_ops *text = test_offer(test_plugin("text"), CT_DATA);
    char setting[8192];

    snprintf(setting, sizeof(setting), "path=%s/%s", folder, path);
    TEST_OPTIONS(test_plugin("text"), setting, "cache=none", "repeat=false", format);
    return text->open(
        &(struct ct_data_request){
            .seq_len = 8, .seed = 1, .tokenizer = test_offer(test_plugin("bytes"), CT_TOKENIZER)},
        data);
}

/* The same documents as those of the JSON lines. */
static void test_text(void **state)
{
    static const char *const formats[] = {"format=auto", "format=ids", "format=jsonl"};
    const struct ct_data_ops *text = test_offer(test_plugin("text"), CT_DATA);
    int64_t documents[2], tokens[2];
    struct ct_data *data;
    uint64_t hash[2];

    (void)state;
    for (size_t i = 0; i < CT_COUNT(formats); i++) {
        for (int k = 0; k < 2; k++) {
            if (open_text(k ? "small.jsonl" : "small.parquet", formats[i], &data) < 0)
                fail_msg("%s: %s", formats[i], ct_error_message());
            hash[k] = text->identity(data, &documents[k], &tokens[k]);
            text->close(data);
        }
        assert_int_equal(documents[0], ROWS);
        assert_true(hash[0] == hash[1] && tokens[0] == tokens[1]);
    }
    assert_fails(open_text("small.parquet", "format=text", &data), CT_ECONFIG,
                 "small.parquet has rows, and [text] format is text");
    assert_fails(open_text("small.parquet", "field=number", &data), CT_ECONFIG,
                 "small.parquet:1: the field \"number\" is not a string");
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_values),
        cmocka_unit_test(test_columns),
        cmocka_unit_test(test_damage),
        cmocka_unit_test(test_text),
    };

    if (argc < 2 || ct_plugin_register(test_plugin("parquet")) < 0)
        return 1;
    folder = argv[1];
    return cmocka_run_group_tests(tests, NULL, NULL);
}
