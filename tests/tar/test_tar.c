/*
 * Tar files of every format that the system's tar writes, whole and damaged: the reader alone, and
 * the data source text with it.
 */
#include <stdlib.h>

#include <ctitan/file.h>
#include <ctitan/log.h>
#include <ctitan/model.h>
#include <ctitan/reader.h>

#include "assertions.h"
#include "plugin_under_test.h"

static const char *folder;

static void shell(const char *command)
{
    char line[16384];

    snprintf(line, sizeof(line), "cd '%s' && %s", folder, command);
    assert_int_equal(system(line), 0);
}

static int set_up(void **state)
{
    (void)state;
    folder = test_folder();
    shell(
        "mkdir d && printf '{\"text\": \"one\"}\\n{\"text\": \"two\"}\\n' >a.jsonl && "
        "printf 'three' >d/b.txt && printf 'not read' >README.md && gzip -c a.jsonl >d/c.json.gz");
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    test_remove(folder);
    return 0;
}

/* ---- the reader ---- */

/* The texts that a reader hands over, as one text. */
struct texts {
    char all[8192];
    size_t size, count;
};

static void put(struct texts *t, const char *text, size_t size)
{
    assert_true(t->size + size < sizeof(t->all));
    memcpy(t->all + t->size, text, size);
    t->size += size;
}

static int take(void *context, const struct ct_reader_text *text)
{
    struct texts *t = context;

    put(t, text->name, strlen(text->name));
    put(t, "=", 1);
    put(t, text->data, text->bytes);
    put(t, ";", 1);
    t->count++;
    return 0;
}

static int read_bytes(const char *data, size_t size, struct texts *texts)
{
    const struct ct_reader_ops *ops = test_offer(test_plugin("tar"), CT_READER);
    const struct ct_reading reading = {.size = sizeof(reading),
                                       .path = "x.tar",
                                       .data = data,
                                       .bytes = size,
                                       .take = take,
                                       .context = texts};

    *texts = (struct texts){0};
    return ops->read(&reading);
}

/* A file of the folder, in memory of its own, which is to be freed. */
static char *read_whole(const char *name, size_t *size)
{
    char path[4096], *copy;
    const void *data;

    snprintf(path, sizeof(path), "%s/%s", folder, name);
    assert_int_equal(ct_file_map(path, &data, size), 0);
    copy = malloc(*size);
    assert_non_null(copy);
    memcpy(copy, data, *size);
    ct_file_unmap(data, *size);
    return copy;
}

static int read_name(const char *name, struct texts *texts)
{
    size_t size;
    char *data = read_whole(name, &size);
    int rc = read_bytes(data, size, texts);

    free(data);
    return rc;
}

static void test_formats(void **state)
{
    static const char *const formats[] = {"v7", "ustar", "gnu", "oldgnu", "pax"};
    char command[1024];
    struct texts texts;

    (void)state;
    for (size_t i = 0; i < CT_COUNT(formats); i++) {
        snprintf(command, sizeof(command),
                 "tar --format=%s -cf x.tar a.jsonl --no-recursion d d/b.txt README.md",
                 formats[i]);
        shell(command);
        assert_int_equal(read_name("x.tar", &texts), 0);
        assert_string_equal(texts.all, "a.jsonl={\"text\": \"one\"}\n{\"text\": \"two\"}\n;"
                                       "d/b.txt=three;README.md=not read;");
    }
}

/* Names that a header has no room for, and that are not ASCII. */
static void test_names(void **state)
{
    static const char *const formats[] = {"gnu", "pax"};
    char command[4096], name[300], want[400];
    struct texts texts;

    (void)state;
    memset(name, 'n', sizeof(name));
    strcpy(name + 200, "\xc3\xa9.txt");
    for (size_t i = 0; i < CT_COUNT(formats); i++) {
        snprintf(command, sizeof(command), "printf x >'%s' && tar --format=%s -cf x.tar '%s'", name,
                 formats[i], name);
        shell(command);
        assert_int_equal(read_name("x.tar", &texts), 0);
        snprintf(want, sizeof(want), "%s=x;", name);
        assert_string_equal(texts.all, want);
    }
}

static void test_joined(void **state)
{
    struct texts texts;

    (void)state;
    shell("tar -cf x.tar d/b.txt && tar -cf y.tar README.md && cat x.tar y.tar >xy.tar");
    assert_int_equal(read_name("xy.tar", &texts), 0);
    assert_string_equal(texts.all, "d/b.txt=three;README.md=not read;");
    shell("(cat x.tar; echo more) >z.tar");
    assert_fails(read_name("z.tar", &texts), CT_ECONFIG, "the tar file is damaged at byte");
}

static int warnings;
static char warning[1024];

static void note(enum ct_log_level level, const char *line, void *context)
{
    (void)context;
    if (level != CT_LOG_WARNING || !strstr(line, "not read"))
        return;
    warnings++;
    snprintf(warning, sizeof(warning), "%s", line);
}

static void test_others(void **state)
{
    struct texts texts;

    (void)state;
    shell("ln -s a.jsonl l.jsonl && ln d/b.txt h.txt && tar -cf x.tar l.jsonl d/b.txt h.txt");
    warnings = 0;
    ct_log_to(note, NULL, CT_LOG_INFO);
    assert_int_equal(read_name("x.tar", &texts), 0);
    ct_log_to(NULL, NULL, CT_LOG_INFO);
    assert_string_equal(texts.all, "d/b.txt=three;");
    assert_int_equal(warnings, 1);
    assert_non_null(strstr(warning, "x.tar: links and devices in it are not read: 2, the first is "
                                    "l.jsonl"));
    shell("truncate -s 1M s.txt && echo end >>s.txt && tar -S -cf x.tar s.txt");
    assert_fails(read_name("x.tar", &texts), CT_ECONFIG, "member s.txt is sparse");
    assert_fails(read_bytes("this is no tar file", 19, &texts), CT_ECONFIG, "Unrecognized");
}

/* ---- damage ---- */

#define HEADER 512

/* Whether a byte is of a member's text, of which a tar file has no checksum. */
static bool is_text(size_t at, const size_t ends[2])
{
    return (at >= HEADER && at < ends[0]) || (at >= 3 * HEADER && at < ends[1]);
}

/* Each byte of a tar file of two members is changed in three ways, and it is cut at each length: it
   is refused, or has the same texts. */
static void test_damage(void **state)
{
    static const unsigned char ways[] = {0x01, 0x20, 0x80};
    struct texts whole, found;
    size_t size, same = 0, ends[2];
    char *data;

    (void)state;
    shell("tar -b 1 --format=ustar -cf x.tar a.jsonl d/b.txt");
    data = read_whole("x.tar", &size);
    assert_int_equal(read_bytes(data, size, &whole), 0);
    assert_int_equal(whole.count, 2);
    ends[0] = HEADER + 32;
    ends[1] = 3 * HEADER + 5;
    assert_memory_equal(data + ends[0] - 1, "\n", 2); /* and a NUL */
    assert_memory_equal(data + ends[1] - 1, "e", 2);
    for (size_t at = 0; at < size; at++)
        for (size_t i = 0; i < CT_COUNT(ways); i++) {
            int rc;

            data[at] = (char)(data[at] ^ ways[i]);
            rc = read_bytes(data, size, &found);
            data[at] = (char)(data[at] ^ ways[i]);
            assert_true(rc == 0 || rc == CT_ECONFIG);
            if (rc == 0 && !is_text(at, ends))
                assert_string_equal(found.all, whole.all);
            if (is_text(at, ends))
                assert_true(rc == 0 && found.size == whole.size);
        }
    for (size_t cut = 0; cut < size; cut++) {
        int rc = read_bytes(data, cut, &found);

        assert_true(rc == 0 || rc == CT_ECONFIG);
        same += rc == 0;
        if (rc == 0)
            assert_string_equal(found.all, whole.all);
        if (cut < 4 * HEADER + HEADER)
            assert_int_equal(rc, CT_ECONFIG);
    }
    assert_true(same > 0); /* without a part of the zeros at the end */
    free(data);
}

/* ---- text ---- */

static const struct ct_data_ops *text(void)
{
    return test_offer(test_plugin("text"), CT_DATA);
}

static int open_path(const char *path, const char *set, struct ct_data **data)
{
    char setting[8192];

    snprintf(setting, sizeof(setting), "path=%s/%s", folder, path);
    TEST_OPTIONS(test_plugin("text"), setting, "cache=none", "shuffle=false", "repeat=false", set);
    TEST_OPTIONS(test_plugin("bytes"), "add_bos=false", "add_eos=false");
    return text()->open(
        &(struct ct_data_request){
            .seq_len = 1, .seed = 1, .tokenizer = test_offer(test_plugin("bytes"), CT_TOKENIZER)},
        data);
}

/* All bytes of the documents but the last, which has no label. */
static void read_path(const char *path, const char *set, char *all)
{
    int32_t token, label;
    struct ct_data *data;

    if (open_path(path, set, &data) < 0)
        fail_msg("%s", ct_error_message());
    for (int64_t i = 0; text()->read_streams(data, i, (void *const[]){&token, &label}) == 0; i++)
        *all++ = (char)token;
    *all = '\0';
    text()->close(data);
}

static void test_text(void **state)
{
    static const char *const packers[] = {"cat", "gzip", "zstd -q"};
    static const char *const names[] = {"x.tar", "x.tar.gz", "x.tar.zst"};
    char command[1024], all[256];
    struct ct_data *data;

    (void)state;
    for (size_t i = 0; i < CT_COUNT(packers); i++) {
        snprintf(command, sizeof(command), "tar -cf - a.jsonl d README.md .a.txt | %s >%s",
                 packers[i], names[i]);
        shell("printf hidden >.a.txt");
        shell(command);
        warnings = 0;
        ct_log_to(note, NULL, CT_LOG_INFO);
        read_path(names[i], "repeat=false", all);
        ct_log_to(NULL, NULL, CT_LOG_INFO);
        assert_true(!strcmp(all, "onetwothreeonetw") || !strcmp(all, "onetwoonetwothre"));
        assert_int_equal(warnings, 1);
        assert_non_null(strstr(warning, "none of .txt, .jsonl, .ndjson and .json: 2, the first is "
                                        "README.md"));
    }
    shell("printf '{\"text\": 1}\\n{\"text\": \"kept\"}\\n' >bad.jsonl && "
          "tar -cf bad.tar d/b.txt bad.jsonl");
    assert_fails(open_path("bad.tar", "repeat=false", &data), CT_ECONFIG,
                 "bad.tar: bad.jsonl:1: the field \"text\" is not a string");
    read_path("bad.tar", "malformed=skip", all);
    assert_string_equal(all, "threekep");
    shell("tar -cf bad.tar README.md");
    assert_fails(open_path("bad.tar", "repeat=false", &data), CT_ECONFIG,
                 "bad.tar has no member whose name ends in .txt");
    shell(": >empty.txt && tar -cf bad.tar empty.txt");
    assert_fails(open_path("bad.tar", "repeat=false", &data), CT_ECONFIG,
                 "bad.tar: empty.txt is empty");
    shell("head -c 700 x.tar >bad.tar");
    assert_fails(open_path("bad.tar", "repeat=false", &data), CT_ECONFIG,
                 "bad.tar: the tar file is damaged");
    shell("cp x.tar unnamed");
    assert_fails(open_path("unnamed", "repeat=false", &data), CT_ECONFIG,
                 "unnamed is a tar archive, and not text in UTF-8: end its name in .tar; or");
}

/* A file that packs a tar file has a checksum of all of it. */
static void test_packed_damage(void **state)
{
    static const char *const names[] = {"x.tar.gz", "x.tar.zst"};
    char all[256], found[256], path[4096];

    (void)state;
    shell("tar -b 1 -cf - d/b.txt | tee x.tar | gzip -n >x.tar.gz && zstd -q x.tar -o x.tar.zst");
    for (size_t i = 0; i < CT_COUNT(names); i++) {
        size_t size, refused = 0;
        char *bytes = read_whole(names[i], &size);

        read_path(names[i], "repeat=false", all);
        assert_string_equal(all, "thre");
        snprintf(path, sizeof(path), "%s/bad%s", folder, names[i] + 1);
        for (size_t at = 0; at < 2 * size; at++) {
            struct ct_data *data;
            size_t cut = at < size ? at : size;

            if (at >= size)
                bytes[at - size] ^= 0x10;
            test_write(path, bytes, cut);
            if (open_path(strrchr(path, '/') + 1, "repeat=false", &data) < 0) {
                refused++;
            } else {
                text()->close(data);
                read_path(strrchr(path, '/') + 1, "repeat=false", found);
                assert_string_equal(found, all);
            }
            if (at >= size)
                bytes[at - size] ^= 0x10;
        }
        assert_true(refused > size + size / 2);
        free(bytes);
    }
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        TEST(test_formats), TEST(test_names), TEST(test_joined),        TEST(test_others),
        TEST(test_damage),  TEST(test_text),  TEST(test_packed_damage),
    };

    if (ct_plugin_register(test_plugin("tar")) < 0)
        return 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
