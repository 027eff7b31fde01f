/*
 * tokens: samples are the slices that the contract names, labels are shifted by one, ends are
 * normal ends, and files that cannot be right are refused.
 */
#include "plugin_under_test.h"

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

static void test_vocabulary(void **state)
{
    const struct ct_data_ops *ops = test_offer(test_plugin("tokens"), CT_DATA);
    struct ct_data_request request = {.seq_len = 100, .vocabulary = 50021};
    struct ct_data *data;

    (void)state;
    write_tokens(N);
    use("repeat=false");
    assert_int_equal(ops->open(&request, &data), 0);
    ops->close(data);
    request.vocabulary = 7919 * 6; /* the tokens 0, 7919, .. of the first sample */
    assert_int_equal(ops->open(&request, &data), CT_ECONFIG);
    assert_non_null(strstr(ct_error_message(),
                           "tokens.bin: token 6, of sample 0, is 47514, and the model's vocabulary "
                           "has 47514"));
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

/* A file that a pattern names may not be left out; a name may look like a pattern. */
static void test_patterns(void **state)
{
    const struct ct_data_ops *ops = test_offer(test_plugin("tokens"), CT_DATA);
    int32_t tokens[100], labels[100];
    struct ct_data *data;
    char other[4200], setting[8400];

    (void)state;
    write_tokens(N);
    snprintf(other, sizeof(other), "%s/[0].bin", folder);
    test_write(other, (uint32_t[201]){0}, 201 * sizeof(uint32_t));
    snprintf(setting, sizeof(setting), "path=%s/{tokens,[0]}.bin", folder);
    TEST_OPTIONS(test_plugin("tokens"), setting, "repeat=false");
    assert_int_equal(open_tokens(100, false, &data), 0);
    assert_int_equal(ops->read(data, 11, tokens, labels, NULL), 0);
    assert_int_equal(ops->read(data, 12, tokens, labels, NULL), 1);
    ops->close(data);
    snprintf(setting, sizeof(setting), "path=%s/{tokens,none}.bin", folder);
    TEST_OPTIONS(test_plugin("tokens"), setting, "repeat=false");
    assert_int_equal(open_tokens(100, false, &data), CT_ECONFIG);
    assert_message("/none.bin'");
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
    assert_int_equal(open_tokens(2, false, &data), CT_ECONFIG);
    assert_message("token 1 is 2147483648");
    remove(path);
    assert_int_equal(open_tokens(1, false, &data), CT_ECONFIG);
    assert_message("no file or folder");
    snprintf(path, sizeof(path), "%s", folder);
    use("repeat=false");
    assert_int_equal(open_tokens(1, false, &data), CT_ECONFIG);
    assert_message("not a regular file");
}

/* ---- other forms ---- */

static void write_bytes(const char *name, const void *data, size_t size)
{
    snprintf(path, sizeof(path), "%s/%s", folder, name);
    test_write(path, data, size);
}

/* A header, and the first 1001 numbers of the sequence modulo 50021. */
static void write_llmc(const char *name, uint32_t magic, uint32_t version, uint32_t count,
                       int width)
{
    unsigned char *file = calloc(1, 1024 + 4 * N);

    memcpy(file, (uint32_t[]){magic, version, count}, 12);
    for (int i = 0; i < N; i++)
        memcpy(file + 1024 + i * width, &(uint32_t){(uint32_t)i * 7919 % 50021}, (size_t)width);
    write_bytes(name, file, 1024 + (size_t)(N * width));
    free(file);
}

static void assert_refused(const char *words)
{
    struct ct_data *data;

    use("repeat=false");
    assert_int_equal(open_tokens(10, false, &data), CT_ECONFIG);
    assert_message(words);
}

static void test_llmc(void **state)
{
    const struct ct_data_ops *ops = test_offer(test_plugin("tokens"), CT_DATA);
    struct ct_data *data;
    int32_t tokens[100], labels[100];

    (void)state;
    for (int wide = 0; wide < 2; wide++) {
        write_llmc("llmc.bin", wide ? 20240801 : 20240520, wide ? 7 : 1, N, wide ? 4 : 2);
        use("repeat=false");
        assert_int_equal(open_tokens(100, false, &data), 0);
        check_sample(data, 9, 900, 100);
        assert_int_equal(ops->read(data, 10, tokens, labels, NULL), 1);
        ops->close(data);
    }
    write_llmc("llmc2.bin", 20240520, 1, N, 2);
    snprintf(path, sizeof(path), "%s/llmc*.bin", folder); /* two shards, one after the other */
    use("repeat=true");
    assert_int_equal(open_tokens(100, false, &data), 0);
    check_sample(data, 9, 900, 100);
    check_sample(data, 10, 0, 100);
    check_sample(data, 20 + 3, 300, 100);
    ops->close(data);
    write_llmc("llmc.bin", 20240520, 1, N + 1, 2);
    assert_refused("its header says 1002 tokens");
    write_llmc("llmc.bin", 20240520, 1, UINT32_MAX, 2);
    assert_refused("its header says 4294967295 tokens");
    write_llmc("llmc.bin", 20240520, 9, N, 2);
    assert_refused("version 9");
}

/* An index of three sequences of 300, 0 and 701 tokens of uint16. */
struct index {
    unsigned char type;
    uint64_t sequences, documents;
    uint32_t length[3];
    uint64_t pointer[3];
};

static void write_megatron(const struct index *index)
{
    unsigned char file[34 + 3 * 12 + 8] = "MMIDIDX\0\0\1";
    uint16_t tokens[N];

    file[17] = index->type;
    memcpy(file + 18, &index->sequences, 8);
    memcpy(file + 26, &index->documents, 8);
    memcpy(file + 34, index->length, 12);
    memcpy(file + 46, index->pointer, 24);
    for (int i = 0; i < N; i++)
        tokens[i] = (uint16_t)(i * 7919 % 50021);
    write_bytes("megatron.idx", file, sizeof(file));
    write_bytes("megatron.bin", tokens, sizeof(tokens));
}

static void test_megatron(void **state)
{
    const struct index good = {8, 3, 1, {300, 0, 701}, {0, 600, 600}};
    const struct ct_data_ops *ops = test_offer(test_plugin("tokens"), CT_DATA);
    struct index bad;
    struct ct_data *data;
    int32_t tokens[100], labels[100], documents[100];
    char setting[4200];

    (void)state;
    write_megatron(&good);
    use("repeat=false");
    assert_int_equal(open_tokens(100, false, &data), 0);
    check_sample(data, 9, 900, 100);
    ops->close(data);
    snprintf(setting, sizeof(setting), "path=%s", path);
    TEST_OPTIONS(test_plugin("tokens"), setting, "document_mask=true");
    assert_true(ops->has_documents());
    assert_int_equal(open_tokens(80, false, &data), 0);
    assert_int_equal(ops->read(data, 3, tokens, labels, documents), 0); /* 240 .. 319 */
    for (int i = 0; i < 80; i++) {
        assert_int_equal(documents[i], i < 60 ? 0 : 2);
        assert_int_equal(labels[i], i == 59 ? -100 : (241 + i) * 7919 % 50021);
    }
    ops->close(data);
    bad = good;
    bad.type = 5;
    write_megatron(&bad);
    assert_refused("type 5");
    bad = good;
    bad.sequences = UINT64_MAX / 2;
    write_megatron(&bad);
    assert_refused("do not fit");
    bad = good;
    bad.length[2] = 702;
    write_megatron(&bad);
    assert_refused("lists 1002 tokens");
    bad = good;
    bad.pointer[2] = 400; /* overlaps */
    write_megatron(&bad);
    assert_refused("byte 600 was expected");
    bad = good;
    bad.length[0] = UINT32_MAX;
    write_megatron(&bad);
    assert_refused("has length 4294967295");
    write_bytes("megatron.idx", "MMIDIDX\0\0\1", 10);
    write_bytes("megatron.bin", tokens, sizeof(tokens)); /* as uint32, it would be right */
    assert_refused("megatron.idx, of 10 bytes, is truncated, or no index of Megatron's");
    write_bytes("megatron.idx", "", 0);
    write_bytes("megatron.bin", tokens, sizeof(tokens));
    assert_refused("megatron.idx, of 0 bytes");
    write_bytes("plain", tokens, sizeof(tokens));
    snprintf(setting, sizeof(setting), "path=%s", path);
    TEST_OPTIONS(test_plugin("tokens"), setting, "document_mask=true");
    assert_int_equal(open_tokens(10, false, &data), CT_ECONFIG);
    assert_message("does not say where documents begin");
}

struct identity {
    uint64_t hash;
    int64_t documents, tokens;
};

static struct identity identify(void)
{
    const struct ct_data_ops *ops = test_offer(test_plugin("tokens"), CT_DATA);
    struct identity identity;
    struct ct_data *data;

    use("repeat=false");
    assert_int_equal(open_tokens(10, false, &data), 0);
    identity.hash = ops->identity(data, &identity.documents, &identity.tokens);
    ops->close(data);
    return identity;
}

/* Another number of tokens, and another token at either end or in the middle. */
static void test_identity(void **state)
{
    const int places[] = {0, 5000, 9999};
    uint16_t tokens[10000] = {0};
    struct identity one, other;

    (void)state;
    write_bytes("a.bin", tokens, sizeof(tokens));
    snprintf(path, sizeof(path), "%s/a.bin", folder);
    one = identify();
    assert_int_equal(one.tokens, 5000);
    assert_int_equal(one.documents, -1);
    write_bytes("b.bin", tokens, sizeof(tokens));
    snprintf(path, sizeof(path), "%s/b.bin", folder);
    other = identify();
    assert_memory_equal(&one, &other, sizeof(one));
    for (size_t i = 0; i < CT_COUNT(places); i++) {
        tokens[places[i]] = 1;
        write_bytes("b.bin", tokens, sizeof(tokens));
        assert_true(identify().hash != one.hash);
        tokens[places[i]] = 0;
    }
    write_bytes("b.bin", tokens, sizeof(tokens) - 4);
    assert_true(identify().hash != one.hash);
}

/* The data of a stage goes on behind what the stage before has read of the same files. */
static void test_stages(void **state)
{
    const struct ct_data_ops *ops = test_offer(test_plugin("tokens"), CT_DATA);
    struct ct_data_request request = {.seq_len = 64};
    struct ct_data *first, *second, *third;
    int32_t tokens[64], labels[64];

    (void)state;
    use("repeat=true");
    assert_int_equal(open_tokens(100, false, &first), 0);
    request.before = first;
    request.before_samples = 3;
    assert_int_equal(ops->open(&request, &second), 0);
    check_sample(second, 0, 320, 64); /* 300 tokens were read */
    check_sample(second, 1, 384, 64);
    request.seq_len = 10;
    request.before = second;
    request.before_samples = 2;
    assert_int_equal(ops->open(&request, &third), 0);
    check_sample(third, 0, 450, 10); /* of 448 */
    ops->close(third);
    ops->close(second);
    request.seq_len = 64;
    request.before = first;
    request.before_samples = 12; /* 2 of the second epoch */
    assert_int_equal(ops->open(&request, &second), 0);
    check_sample(second, 0, 256, 64);
    ops->close(second);
    use("repeat=false");
    assert_int_equal(ops->open(&request, &second), 0);
    assert_int_equal(ops->read(second, 0, tokens, labels, NULL), 1);
    ops->close(second);
    write_tokens(N - 1); /* other files begin anew */
    assert_int_equal(ops->open(&request, &second), 0);
    check_sample(second, 0, 0, 64);
    ops->close(second);
    ops->close(first);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {TEST(test_samples),
                                       TEST(test_last_label),
                                       TEST(test_patterns),
                                       TEST(test_repeat),
                                       TEST(test_documents_are_one),
                                       TEST(test_bad_files),
                                       TEST(test_llmc),
                                       TEST(test_megatron),
                                       TEST(test_identity),
                                       TEST(test_vocabulary),
                                       TEST(test_stages)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
