/*
 * tokens: samples are the slices that the contract names, labels are shifted by one, ends are
 * normal ends, and files that cannot be right are refused.
 */
#include "../plugin_under_test.h"

#define N 1001

static char path[4096];
static const char *folder;

static void use(const char *repeat)
{
    char setting[4200];

    snprintf(setting, sizeof(setting), "path=%s", path);
    TEST_OPTIONS(test_plugin("tokens"), setting, repeat);
}

static int open_tokens(int64_t seq_len, bool validation, struct ct_data **data)
{
    const struct ct_data_ops *ops = test_offer(test_plugin("tokens"), CT_DATA);

    return ops->open(&(struct ct_data_request){.seq_len = seq_len, .validation = validation}, data);
}

static void write_tokens(size_t count)
{
    uint32_t *tokens = malloc((count + 1) * sizeof(*tokens));

    for (size_t i = 0; i < count; i++)
        tokens[i] = (uint32_t)(i * 7919 % 50021);
    test_write(path, tokens, count * sizeof(*tokens));
    free(tokens);
}

static int set_up(void **state)
{
    (void)state;
    folder = test_folder();
    snprintf(path, sizeof(path), "%s/tokens.bin", folder);
    write_tokens(N);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    test_remove(folder);
    return 0;
}

static void check_sample(struct ct_data *data, int64_t index, int64_t first, int64_t seq_len)
{
    const struct ct_data_ops *ops = test_offer(test_plugin("tokens"), CT_DATA);
    int32_t tokens[128], labels[128];

    assert_int_equal(ops->read(data, index, tokens, labels, NULL), 0);
    for (int64_t i = 0; i < seq_len; i++) {
        assert_int_equal(tokens[i], (first + i) * 7919 % 50021);
        assert_int_equal(labels[i], (first + i + 1) * 7919 % 50021);
    }
}

static void test_samples(void **state)
{
    const struct ct_data_ops *ops = test_offer(test_plugin("tokens"), CT_DATA);
    struct ct_data *data;
    int32_t tokens[100], labels[100];
    int64_t largest = 0;

    (void)state;
    use("repeat=false");
    assert_int_equal(open_tokens(100, false, &data), 0);
    for (int64_t i = 9; i >= 0; i--)
        check_sample(data, i, i * 100, 100);
    assert_int_equal(ops->read(data, 10, tokens, labels, NULL), 1);
    assert_int_equal(ops->read(data, 1000000, tokens, labels, NULL), 1);
    assert_false(ops->has_documents());
    for (int64_t i = 0; i < N; i++)
        largest = i * 7919 % 50021 > largest ? i * 7919 % 50021 : largest;
    assert_int_equal(ops->vocabulary(data), largest + 1);
    ops->close(data);
}

/* The last sample needs one token more than its own, for the last label. */
static void test_last_label(void **state)
{
    const struct ct_data_ops *ops = test_offer(test_plugin("tokens"), CT_DATA);
    int32_t tokens[100], labels[100];
    struct ct_data *data;

    (void)state;
    write_tokens(1000);
    use("repeat=false");
    assert_int_equal(open_tokens(100, false, &data), 0);
    check_sample(data, 8, 800, 100);
    assert_int_equal(ops->read(data, 9, tokens, labels, NULL), 1);
    ops->close(data);
    assert_int_equal(open_tokens(999, false, &data), 0);
    ops->close(data);
    assert_int_equal(open_tokens(1000, false, &data), CT_ECONFIG);
    assert_message("too few");
    assert_message(path);
}

static void test_repeat(void **state)
{
    const struct ct_data_ops *ops = test_offer(test_plugin("tokens"), CT_DATA);
    struct ct_data *data;

    (void)state;
    use("repeat=true");
    assert_int_equal(open_tokens(64, false, &data), 0);
    check_sample(data, 15, 0, 64);
    check_sample(data, 15 * 1000 + 7, 7 * 64, 64);
    ops->close(data);
}

static void test_documents_are_one(void **state)
{
    const struct ct_data_ops *ops = test_offer(test_plugin("tokens"), CT_DATA);
    int32_t tokens[8], labels[8], documents[8];
    struct ct_data *data;

    (void)state;
    use("repeat=false");
    memset(documents, 0xff, sizeof(documents));
    assert_int_equal(open_tokens(8, false, &data), 0);
    assert_int_equal(ops->read(data, 0, tokens, labels, documents), 0);
    for (int i = 0; i < 8; i++)
        assert_int_equal(documents[i], documents[0]);
    ops->close(data);
}

static void test_bad_files(void **state)
{
    const struct ct_data_ops *ops = test_offer(test_plugin("tokens"), CT_DATA);
    int32_t tokens[2], labels[2];
    struct ct_data *data;

    (void)state;
    use("repeat=false");
    test_write(path, "12345", 5);
    assert_int_equal(open_tokens(1, false, &data), CT_ECONFIG);
    assert_message("multiple of 4");
    assert_message(path);
    test_write(path, "", 0);
    assert_int_equal(open_tokens(1, false, &data), CT_ECONFIG);
    assert_message("too few");
    assert_int_equal(open_tokens(1, true, &data), CT_ECONFIG);
    assert_message("validation_path");
    test_write(path, "\1\0\0\0\0\0\0\200\1\0\0\0", 12);
    assert_int_equal(open_tokens(2, false, &data), 0);
    assert_int_equal(ops->read(data, 0, tokens, labels, NULL), CT_EINVAL);
    assert_message("token 1 is 2147483648");
    ops->close(data);
    remove(path);
    assert_int_equal(open_tokens(1, false, &data), CT_ECONFIG);
    assert_message("No such file");
    snprintf(path, sizeof(path), "%s", folder);
    use("repeat=false");
    assert_int_equal(open_tokens(1, false, &data), CT_ECONFIG);
    assert_message("not a regular file");
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {TEST(test_samples), TEST(test_last_label), TEST(test_repeat),
                                       TEST(test_documents_are_one), TEST(test_bad_files)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
