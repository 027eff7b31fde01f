/*
 * index.json with the right checksum and the wrong content: each case changes one place of a good
 * index, and names the words of the error.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include <ctitan/error.h>

#include "../../plugins/ckpt/ckpt.h"

#define HEADER 512
#define DATA 56 /* bytes: "w" has 12 elements in two boxes, "m" has 2 in one */

static const char good[] =
    "{\"format\":\"ctitan checkpoint\",\"version\":1,"
    "\"progress\":{\"step\":4,\"updates\":3,\"tokens\":96,\"samples\":6},"
    "\"time\":7,\"model_only\":false,\"world\":2,\"mesh\":\"\",\"recipe\":\"\",\"chunk\":16,"
    "\"tensors\":{\"w\":{\"role\":\"parameter\",\"dtype\":\"float32\",\"shape\":[4,3]},"
    "\"m\":{\"role\":\"state\",\"dtype\":\"float32\",\"shape\":[2]}},"
    "\"kept\":{\"data\":\"0aff\"},"
    "\"data\":{\"hash\":\"ffffffffffffffff\",\"documents\":-1,\"tokens\":9},"
    "\"files\":[{\"name\":\"a\",\"header\":512,\"header_xxh3\":\"1\",\"bytes\":56,\"boxes\":["
    "{\"tensor\":\"w\",\"offset\":[0,0],\"shape\":[1,3]},"
    "{\"tensor\":\"w\",\"offset\":[1,0],\"shape\":[3,3]},"
    "{\"tensor\":\"m\",\"offset\":[0],\"shape\":[2]}],"
    "\"xxh3\":[\"10\",\"11\",\"12\",\"13\"]}]";

static char folder[] = "/tmp/ctitan-index-XXXXXX";

static void write_file(const char *name, const void *data, size_t bytes, size_t length)
{
    char path[64];
    FILE *out;

    snprintf(path, sizeof(path), "%s/%s", folder, name);
    out = fopen(path, "w");
    assert_non_null(out);
    assert_int_equal(fwrite(data, 1, bytes, out), bytes);
    assert_int_equal(fclose(out), 0);
    assert_int_equal(truncate(path, (off_t)length), 0);
}

/* Open the good index with `from` replaced by `to`, under a checksum of the result. */
static int open_changed(struct ct_arena *arena, const char *from, const char *to, struct ckpt *c)
{
    const char *at = strstr(good, from);
    char *text, *whole;
    size_t used;

    assert_non_null(at);
    text = ct_arena_printf(arena, "%.*s%s%s,", (int)(at - good), good, to, at + strlen(from));
    used = strlen(text);
    whole = ct_arena_printf(arena, "%s\n\"xxh3\":\"%016llx\"}\n", text,
                            (unsigned long long)ckpt_hash(text, used));
    write_file(INDEX, whole, strlen(whole), strlen(whole));
    return ckpt_open(arena, folder, c);
}

static void a_good_index_reads_back(void **state)
{
    struct ct_arena arena = {0};
    struct ckpt c;

    (void)state;
    assert_int_equal(open_changed(&arena, "", "", &c), 0);
    assert_int_equal(c.progress.step, 4);
    assert_int_equal(c.progress.updates, 3);
    assert_int_equal(c.progress.tokens, 96);
    assert_int_equal(c.progress.samples, 6);
    assert_int_equal(c.world, 2);
    assert_int_equal(c.tensor_count, 2);
    assert_int_equal(ckpt_find(&c, "m")->role, CT_ROLE_STATE);
    assert_int_equal(ckpt_find(&c, "w")->role, CT_ROLE_PARAM);
    assert_null(ckpt_find(&c, "v"));
    assert_int_equal(c.files[0].header_hash, 1);
    assert_int_equal(c.files[0].hash[3], 0x13);
    assert_int_equal(c.files[0].boxes[1].at, 12);
    assert_int_equal(c.files[0].boxes[2].at, 48);
    assert_memory_equal(c.kept[0].data, "\x0a\xff", 2);
    assert_true(c.data[CKPT_TRAINING]->hash == UINT64_MAX);
    assert_int_equal(c.data[CKPT_TRAINING]->documents, -1);
    assert_int_equal(c.data[CKPT_TRAINING]->tokens, 9);
    assert_null(c.data[CKPT_VALIDATION]);
    ct_arena_finish(&arena);
}

static void every_fault_of_an_index_is_named(void **state)
{
    static const struct {
        const char *from, *to, *expected;
    } cases[] = {
        {"ctitan checkpoint", "ctitan graph", "it is not the index of a checkpoint"},
        {"\"step\":4,", "", "entries are missing"},
        {"\"chunk\":16", "\"chunk\":0", "entries are missing"},
        {"\"chunk\":16", "\"chunk\":-16", "entries are missing"},
        {"float32\",\"shape\":[4", "float31\",\"shape\":[4", "float31"},
        {"\"shape\":[4,3]", "\"shape\":[4,-3]", "a number below 0"},
        {"\"shape\":[4,3]", "\"shape\":[1,1,1,1,1,1,1,1,1]", "expected up to"},
        {"\"shape\":[4,3]", "\"shape\":[5,3]", "a part of w is missing"},
        {"\"offset\":[1,0],\"shape\":[3", "\"offset\":[2,0],\"shape\":[3", "is not inside it"},
        {"\"shape\":[3,3]", "\"shape\":[9,1]", "is not inside it"},
        {"\"shape\":[1,3]", "\"shape\":[0,3]", "is not inside it"},
        {"\"offset\":[0,0]", "\"offset\":[-1,0]", "a box of w has other dimensions"},
        {"\"offset\":[0,0]", "\"offset\":[0,0,0]", "a box of w has other dimensions"},
        {"\"offset\":[0],\"shape\":[2]", "\"offset\":[0],\"shape\":[2,1]",
         "a box of m has other dimensions"},
        {"\"tensor\":\"m\"", "\"tensor\":\"v\"", "v is not in the list of tensors"},
        {"\"name\":\"a\"", "\"name\":\"../a\"", "a file without a name"},
        {"\"name\":\"a\"", "\"name\":\"\"", "a file without a name"},
        {"\"name\":\"a\"", "\"name\":\"b\"", "b: No such file or directory"},
        {"\"name\":\"a\"", "\"name\":\"a\",\"host\":\"\"", "\"\" is not the name of a host"},
        {"\"name\":\"a\"", "\"name\":\"a\",\"host\":\"-oProxyCommand=x\"",
         "is not the name of a host"},
        {"\"name\":\"a\"", "\"name\":\"a\",\"host\":\"a b\"", "\"a b\" is not the name of a host"},
        {"\"header\":512", "\"header\":511", "has 568 bytes instead of 567"},
        {"\"header\":512", "\"header\":-1", "header: -1 is not between 0 and"},
        {"\"header\":512", "\"header\":1073741825", "header: 1073741825 is not between 0 and"},
        {"\"bytes\":56", "\"bytes\":-1", "bytes: -1 is not between 0 and"},
        {"\"chunk\":16", "\"chunk\":1073741825", "a chunk has more than"},
        {"\"shape\":[4,3]", "\"shape\":[4294967296,4294967296]", "w has more than"},
        {"\"files\":", "\"hf\":{\"t\":{\"bytes\":-1}},\"files\":", "t: bytes: -1 is not between"},
        {"\"bytes\":56", "\"bytes\":57", "its boxes do not add up to 57 bytes"},
        {",\"13\"", "", "its boxes do not add up to 56 bytes"},
        {",\"13\"", ",\"13\",\"14\"", "its boxes do not add up to 56 bytes"},
        {"\"m\":{", "\"w\":{", "duplicate"},
    };

    (void)state;
    for (size_t i = 0; i < CT_COUNT(cases); i++) {
        struct ct_arena arena = {0};
        struct ckpt c;

        if (open_changed(&arena, cases[i].from, cases[i].to, &c) != CT_EDAMAGED ||
            !strstr(ct_error_message(), cases[i].expected))
            fail_msg("%s for %s: \"%s\" instead of \"%s\"", cases[i].to, cases[i].from,
                     ct_error_message(), cases[i].expected);
        ct_arena_finish(&arena);
    }
}

static void another_version_is_not_damage(void **state)
{
    struct ct_arena arena = {0};
    struct ckpt c;

    (void)state;
    assert_int_equal(open_changed(&arena, "\"version\":1", "\"version\":2", &c), CT_ECONFIG);
    assert_non_null(strstr(ct_error_message(), "version 2 of the format"));
    assert_false(ckpt_is_bad(CT_ECONFIG));
    ct_arena_finish(&arena);
}

static int make_folder(void **state)
{
    (void)state;
    if (!mkdtemp(folder))
        return -1;
    write_file("a", "", 0, HEADER + DATA);
    return 0;
}

static int remove_folder(void **state)
{
    char path[64];

    (void)state;
    snprintf(path, sizeof(path), "%s/a", folder);
    unlink(path);
    snprintf(path, sizeof(path), "%s/" INDEX, folder);
    unlink(path);
    return rmdir(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_good_index_reads_back),
        cmocka_unit_test(every_fault_of_an_index_is_named),
        cmocka_unit_test(another_version_is_not_damage),
    };

    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
