/*
 * text with the bytes tokenizer: windows tile the stream of an epoch, an epoch holds every document
 * once, samples are pure functions of their index, and wrong paths are refused.
 */
#include <glob.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <ctitan/config.h>
#include <ctitan/log.h>

#include "plugin_under_test.h"

enum { BOS = 256, EOS = 257 };

static const char *folder;
static char cache[4096]; /* the option */

static const struct ct_data_ops *text(void)
{
    return test_offer(test_plugin("text"), CT_DATA);
}

static const struct ct_tokenizer_ops *bytes(void)
{
    return test_offer(test_plugin("bytes"), CT_TOKENIZER);
}

static void write_text(const char *name, const char *content)
{
    char path[4096];

    snprintf(path, sizeof(path), "%s/%s", folder, name);
    test_write(path, content, strlen(content));
}

static int read_text(struct ct_data *data, int64_t index, int32_t *tokens, int32_t *labels,
                     int32_t *documents)
{
    return text()->read_streams(data, index, (void *const[]){tokens, labels, documents});
}

static bool has_documents(void)
{
    struct ct_arena arena = {0};
    const struct ct_data_stream *streams;
    bool found;

    assert_int_equal(text()->streams(&(struct ct_data_request){.seq_len = 1}, &arena, &streams), 0);
    found = streams[2].name && !strcmp(streams[2].name, "documents");
    ct_arena_finish(&arena);
    return found;
}

static int open_text(int64_t seq_len, uint64_t seed, bool validation, struct ct_data **data)
{
    return text()->open(
        &(struct ct_data_request){
            .seq_len = seq_len, .seed = seed, .validation = validation, .tokenizer = bytes()},
        data);
}

/* Set [text] options; path is relative to the test's folder. */
#define USE(path, ...)                                                                             \
    do {                                                                                           \
        char setting_[8192];                                                                       \
                                                                                                   \
        snprintf(setting_, sizeof(setting_), "path=%s/%s", folder, path);                          \
        TEST_OPTIONS(test_plugin("text"), setting_, cache, __VA_ARGS__);                           \
    } while (0)

static int set_up(void **state)
{
    (void)state;
    folder = test_folder();
    strcpy(cache, "cache=none");
    TEST_OPTIONS(test_plugin("bytes"), "add_bos=true");
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    test_remove(folder);
    return 0;
}

static void write_numbered(int files)
{
    char name[32], content[256];

    for (int i = 0; i < files; i++) {
        snprintf(name, sizeof(name), "%03d.txt", i);
        snprintf(content, sizeof(content), "document %d says %*d\n", i, i % 40 + 1, i);
        write_text(name, content);
    }
}

/* The stream of one epoch, put together from its samples; returns its length. */
static int64_t read_epoch(struct ct_data *data, int64_t epoch, int64_t samples, int64_t seq_len,
                          int32_t *stream)
{
    int32_t labels[512];

    for (int64_t i = 0; i < samples; i++) {
        int32_t *tokens = stream + i * seq_len;

        assert_int_equal(read_text(data, epoch * samples + i, tokens, labels, NULL), 0);
        if (i)
            assert_int_equal(tokens[0], stream[samples * seq_len]);
        for (int64_t j = 1; j < seq_len; j++)
            assert_int_equal(labels[j - 1], tokens[j]);
        stream[samples * seq_len] = labels[seq_len - 1];
    }
    return samples * seq_len + 1;
}

static int64_t count_samples(struct ct_data *data)
{
    int32_t tokens[512], labels[512];
    int64_t n = 0;

    while (read_text(data, n, tokens, labels, NULL) == 0)
        n++;
    assert_int_equal(text()->samples(data), n);
    return n;
}

static void test_bytes_round_trip(void **state)
{
    const char every[] = "a\xff\xfe\x80 \xe2\x82\xac\n";
    int32_t tokens[16];
    char c;

    (void)state;
    assert_int_equal(bytes()->vocabulary(), 258);
    assert_int_equal(bytes()->encode(every, sizeof(every), NULL, 0), sizeof(every));
    assert_int_equal(bytes()->encode(every, sizeof(every), tokens, 16), sizeof(every));
    for (size_t i = 0; i < sizeof(every); i++) {
        assert_int_equal(bytes()->decode(tokens[i], &c, 1), 1);
        assert_int_equal(c, every[i]);
    }
    tokens[3] = -1;
    assert_int_equal(bytes()->encode(every, sizeof(every), tokens, 3), sizeof(every));
    assert_int_equal(tokens[3], -1);
    assert_int_equal(bytes()->decode(BOS, &c, 1), 0);
    assert_int_equal(bytes()->decode(258, &c, 1), CT_EINVAL);
    assert_int_equal(bytes()->decode(-1, &c, 1), CT_EINVAL);
}

static void test_packing(void **state)
{
    const int32_t expected[] = {BOS, 'a', 'b', 'c', EOS, BOS, 'd', 'e', EOS, BOS, 'f', EOS};
    int32_t stream[64];
    struct ct_data *data;

    (void)state;
    write_text("2.txt", "de");
    write_text("1.txt", "abc");
    write_text("3.txt", "f");
    USE("*.txt", "shuffle=false", "repeat=false");
    assert_int_equal(open_text(3, 1, false, &data), 0);
    assert_int_equal(count_samples(data), 3);
    assert_int_equal(read_epoch(data, 0, 3, 3, stream), 10);
    for (int i = 0; i < 10; i++)
        assert_int_equal(stream[i], expected[i]);
    text()->close(data);
    TEST_OPTIONS(test_plugin("bytes"), "add_bos=false", "add_eos=false");
    assert_int_equal(open_text(5, 1, false, &data), 0);
    assert_int_equal(read_epoch(data, 0, 1, 5, stream), 6);
    for (int i = 0; i < 6; i++)
        assert_int_equal(stream[i], "abcdef"[i]);
    assert_int_equal(text()->vocabulary(data), 258);
    text()->close(data);
}

/* Whatever is asked before, and by whichever opening, a sample is the same. */
static void test_pure(void **state)
{
    int32_t a[3][32], b[3][32];
    struct ct_data *one, *two;

    (void)state;
    write_numbered(50);
    USE("", "document_mask=true");
    assert_int_equal(open_text(32, 7, false, &one), 0);
    assert_int_equal(open_text(32, 7, false, &two), 0);
    for (int64_t i = 0; i < 400; i++) {
        int64_t at = i * 7919 % 400;

        assert_int_equal(read_text(one, at, a[0], a[1], a[2]), 0);
        for (int64_t j = i % 3; j >= 0; j--)
            assert_int_equal(read_text(two, at + j * 31, b[0], b[1], b[2]), 0);
        assert_memory_equal(a, b, sizeof(a));
    }
    text()->close(one);
    text()->close(two);
}

/* How often each numbered document occurs in a stream. */
static void count_documents(const int32_t *stream, int64_t length, int *count)
{
    for (int64_t i = 0; i < length; i++)
        if (stream[i] == BOS && i + 12 < length) {
            char digits[4] = "";

            for (int j = 0; j < 3 && stream[i + 10 + j] < 256; j++)
                digits[j] = (char)stream[i + 10 + j];
            count[atoi(digits)]++;
        }
}

/* How often each byte occurs among the tokens of an epoch. */
static void count_bytes(struct ct_data *data, int64_t epoch, int64_t samples, int *count)
{
    int32_t tokens[16], labels[16];

    memset(count, 0, 258 * sizeof(*count));
    for (int64_t i = 0; i < samples; i++) {
        assert_int_equal(read_text(data, epoch * samples + i, tokens, labels, NULL), 0);
        for (int j = 0; j < 16; j++)
            count[tokens[j]]++;
    }
}

/* Document i is the byte i, i times: an epoch holds each, but for a tail shorter than a sample. */
static void test_epochs(void **state)
{
    int count[258], total = 0;
    char name[8], content[256];
    int64_t samples;
    struct ct_data *data;

    (void)state;
    for (int i = 1; i < 250; i++) {
        memset(content, i, (size_t)i);
        content[i] = '\0';
        snprintf(name, sizeof(name), "%d", i);
        write_text(name, content);
        total += i + 2;
    }
    USE("", "repeat=false");
    assert_int_equal(open_text(16, 3, false, &data), 0);
    samples = count_samples(data);
    assert_int_equal(samples, (total - 1) / 16);
    text()->close(data);
    USE("", "repeat=true");
    assert_int_equal(open_text(16, 3, false, &data), 0);
    for (int64_t epoch = 0; epoch < 3; epoch++) {
        int missing = total;

        count_bytes(data, epoch, samples, count);
        for (int i = 1; i < 250; i++) {
            assert_in_range(count[i], i > 17 ? i - 17 : 0, i);
            missing -= count[i];
        }
        assert_int_equal(missing - count[BOS] - count[EOS], total - samples * 16);
    }
    text()->close(data);
}

static void read_some(uint64_t seed, int64_t first, int32_t tokens[16][16])
{
    struct ct_data *data;
    int32_t labels[16];

    assert_int_equal(open_text(16, seed, false, &data), 0);
    for (int i = 0; i < 16; i++)
        assert_int_equal(read_text(data, first + i, tokens[i], labels, NULL), 0);
    text()->close(data);
}

/* Another seed and another epoch are another order. */
static void test_shuffle(void **state)
{
    int32_t first[16][16], seed[16][16], epoch[16][16];
    struct ct_data *data;
    int64_t samples;

    (void)state;
    write_numbered(100);
    USE("", "repeat=false");
    assert_int_equal(open_text(16, 1, false, &data), 0);
    samples = count_samples(data);
    text()->close(data);
    USE("", "repeat=true");
    read_some(1, 0, first);
    read_some(2, 0, seed);
    read_some(1, samples, epoch);
    for (int i = 0, same = 0; i < 16; i++) {
        same += !memcmp(first[i], seed[i], sizeof(first[i]));
        same += !memcmp(first[i], epoch[i], sizeof(first[i]));
        assert_in_range(same, 0, 3);
    }
}

static void test_held_out(void **state)
{
    static int32_t stream[65536];
    int train[200] = {0}, held[200] = {0}, total = 0;
    struct ct_data *data;

    (void)state;
    write_numbered(200);
    USE("", "validation_fraction=0.1", "repeat=false", "shuffle=false");
    for (uint64_t seed = 1; seed < 3; seed++) {
        memset(train, 0, sizeof(train));
        assert_int_equal(open_text(1, seed, false, &data), 0);
        count_documents(stream, read_epoch(data, 0, count_samples(data), 1, stream), train);
        text()->close(data);
        memset(held, 0, sizeof(held));
        assert_int_equal(open_text(1, seed, true, &data), 0);
        count_documents(stream, read_epoch(data, 0, count_samples(data), 1, stream), held);
        text()->close(data);
        for (int i = 0; i < 200; i++) {
            assert_int_equal(train[i] + held[i], 1);
            total += held[i];
        }
    }
    assert_int_equal(total, 2 * 20);
}

/* All documents of path are trained on; those of validation_path, which are one corpus, are not. */
static void test_validation_path(void **state)
{
    char held[4200];
    int32_t stream[64];
    struct ct_data *data;

    (void)state;
    write_text("a", "aaaa");
    write_text("b", "bb");
    write_text("v1", "vvvvv");
    write_text("v2", "vv");
    TEST_OPTIONS(test_plugin("bytes"), "add_bos=false", "add_eos=false");
    snprintf(held, sizeof(held), "validation_path=%s/v1, %s/v2", folder, folder);
    USE("[ab]", held, "repeat=false", "weights=1");
    assert_int_equal(open_text(1, 1, false, &data), 0);
    assert_int_equal(count_samples(data), 4 + 2 - 1);
    text()->close(data);
    assert_int_equal(open_text(1, 1, true, &data), 0);
    assert_int_equal(count_samples(data), 5 + 2 - 1);
    read_epoch(data, 0, 6, 1, stream);
    for (int i = 0; i < 7; i++)
        assert_int_equal(stream[i], 'v');
    text()->close(data);
    assert_int_equal(open_text(9, 1, true, &data), CT_ECONFIG);
    assert_message("[text] validation_path: the 7 tokens of 2 documents for validation");
    USE("[ab]", held, "validation_fraction=0.5");
    assert_int_equal(open_text(1, 1, false, &data), CT_ECONFIG);
    assert_message("set one of them");
    snprintf(held, sizeof(held), "validation_path=%s/absent", folder);
    USE("[ab]", held, "repeat=false");
    assert_int_equal(open_text(1, 1, true, &data), CT_ECONFIG);
    assert_message("[text] validation_path:");
}

static void test_document_mask(void **state)
{
    int32_t tokens[11], labels[11], documents[11];
    struct ct_data *data;

    (void)state;
    write_text("a", "abc");
    write_text("b", "de");
    write_text("c", "f");
    USE("", "document_mask=true", "shuffle=false");
    assert_int_equal(open_text(11, 1, false, &data), 0);
    assert_true(has_documents());
    assert_int_equal(read_text(data, 0, tokens, labels, documents), 0);
    for (int i = 0; i + 1 < 11; i++) {
        assert_int_equal(documents[i] != documents[i + 1], tokens[i + 1] == BOS);
        assert_int_equal(labels[i], tokens[i + 1] == BOS ? -100 : tokens[i + 1]);
    }
    text()->close(data);
}

/* ---- rows ---- */

struct row {
    int count, documents[16];
};

/* 40 lengths, and the rows of 256 that an independent implementation makes of them. */
static const int lengths[] = {14,  126, 229, 256, 33, 55,  88, 75,  118, 110, 202, 1,  52, 158,
                              51,  256, 251, 255, 4,  244, 24, 55,  55,  18,  92,  39, 41, 33,
                              109, 56,  112, 65,  28, 102, 52, 116, 22,  43,  121, 56};
static const struct row first_fit[] = {{7, {0, 1, 4, 5, 11, 18, 23}},
                                       {2, {2, 20}},
                                       {1, {3}},
                                       {4, {6, 7, 12, 25}},
                                       {3, {8, 9, 32}},
                                       {2, {10, 14}},
                                       {3, {13, 21, 26}},
                                       {1, {15}},
                                       {1, {16}},
                                       {1, {17}},
                                       {1, {19}},
                                       {4, {22, 24, 27, 29}},
                                       {3, {28, 30, 36}},
                                       {3, {31, 33, 34}},
                                       {3, {35, 37, 39}},
                                       {1, {38}}};
static const struct row first_fit_decreasing[] = {{1, {3}},
                                                  {1, {15}},
                                                  {2, {17, 11}},
                                                  {2, {16, 18}},
                                                  {1, {19}},
                                                  {2, {2, 20}},
                                                  {2, {10, 12}},
                                                  {2, {13, 24}},
                                                  {2, {1, 38}},
                                                  {3, {8, 35, 36}},
                                                  {3, {30, 9, 4}},
                                                  {3, {28, 33, 37}},
                                                  {4, {6, 7, 31, 32}},
                                                  {5, {29, 39, 5, 21, 27}},
                                                  {6, {22, 34, 14, 26, 25, 23}},
                                                  {1, {0}}};

/* Document d is of bytes of its own, '0' + d. */
static void write_lengths(void)
{
    char all[CT_COUNT(lengths) * 280], *at = all;

    for (int d = 0; d < (int)CT_COUNT(lengths); d++) {
        at += sprintf(at, "{\"text\": \"");
        memset(at, '0' + d, (size_t)lengths[d]);
        at += lengths[d];
        at += sprintf(at, "\"}\n");
    }
    write_text("lengths.jsonl", all);
}

/* Each row holds its documents, masked from each other, and padding. */
static void check_rows(const struct row *rows, size_t count, const char *how)
{
    int32_t tokens[256], labels[256], documents[256];
    struct ct_data *data;

    USE("lengths.jsonl", how, "shuffle=false", "repeat=false");
    assert_int_equal(open_text(256, 1, false, &data), 0);
    assert_true(has_documents());
    for (size_t r = 0; r < count; r++) {
        int at = 0;

        assert_int_equal(read_text(data, (int64_t)r, tokens, labels, documents), 0);
        for (int i = 0; i < rows[r].count; i++)
            for (int k = 0, d = rows[r].documents[i], n = lengths[d]; k < n; k++, at++) {
                assert_int_equal(tokens[at], '0' + d);
                assert_int_equal(documents[at], i);
                assert_int_equal(labels[at], k + 1 < n ? '0' + d : -100);
            }
        for (; at < 256; at++) {
            assert_int_equal(labels[at], -100);
            assert_int_equal(documents[at], rows[r].count);
        }
    }
    assert_int_equal(read_text(data, (int64_t)count, tokens, labels, documents), 1);
    text()->close(data);
}

static void test_rows(void **state)
{
    (void)state;
    TEST_OPTIONS(test_plugin("bytes"), "add_bos=false", "add_eos=false");
    write_lengths();
    check_rows(first_fit, CT_COUNT(first_fit), "packing=first_fit");
    check_rows(first_fit_decreasing, CT_COUNT(first_fit_decreasing),
               "packing=first_fit_decreasing");
}

/* Rows of 4, shorter where padding follows. The last label of the first part of a document that is
   split is the rest's first token. */
static void check_long(const char *how, const char *window, const char *const *rows)
{
    int32_t tokens[4], labels[4];
    struct ct_data *data;
    int64_t r = 0;

    USE("long.jsonl", how, window, "packing=first_fit", "shuffle=false", "repeat=false");
    assert_int_equal(open_text(4, 1, false, &data), 0);
    for (; rows[r]; r++) {
        assert_int_equal(read_text(data, r, tokens, labels, NULL), 0);
        for (size_t i = 0; i < 4; i++)
            assert_int_equal(tokens[i], i < strlen(rows[r]) ? rows[r][i] : 0);
        if (!strcmp(rows[r], "bcde"))
            assert_int_equal(labels[3], strstr(how, "split") ? 'f' : -100);
    }
    assert_int_equal(read_text(data, r, tokens, labels, NULL), 1);
    text()->close(data);
}

#define ROWS(...) ((const char *const[]){__VA_ARGS__, NULL})

static void test_long_documents(void **state)
{
    const char *all = "packing_window=100", *two = "packing_window=2";
    struct ct_data *data;

    (void)state;
    TEST_OPTIONS(test_plugin("bytes"), "add_bos=false", "add_eos=false");
    write_text("long.jsonl", "{\"text\": \"aa\"}\n{\"text\": \"bcdefghi\"}\n{\"text\": \"j\"}");
    check_long("too_long=cut", all, ROWS("aaj", "bcde"));
    check_long("too_long=drop", all, ROWS("aaj"));
    check_long("too_long=split", all, ROWS("aaj", "bcde", "fghi"));
    check_long("too_long=cut", two, ROWS("aa", "bcde", "j"));
    write_text("long.jsonl", "{\"text\": \"abcde\"}");
    USE("long.jsonl", "too_long=drop", "packing=first_fit");
    assert_int_equal(open_text(4, 1, false, &data), CT_ECONFIG);
    assert_message("each of the 1 documents is longer than [training] seq_len = 4");
}

/* Every epoch has the same rows in another order, and any sample can be read at any time. */
static void test_rows_of_epochs(void **state)
{
    int32_t tokens[256], again[256], labels[256];
    int seen[2][16] = {{0}}, differs = 0;
    struct ct_data *data;

    (void)state;
    TEST_OPTIONS(test_plugin("bytes"), "add_bos=false", "add_eos=false");
    write_lengths();
    USE("lengths.jsonl", "packing=first_fit");
    assert_int_equal(open_text(256, 1, false, &data), 0);
    for (int64_t i = 0; i < 32; i++) {
        assert_int_equal(read_text(data, i, tokens, labels, NULL), 0);
        for (int r = 0; r < 16; r++)
            seen[i / 16][r] += tokens[0] == '0' + first_fit[r].documents[0];
        assert_int_equal(read_text(data, (i * 7) % 32, again, labels, NULL), 0);
        assert_int_equal(read_text(data, i % 16, again, labels, NULL), 0);
        differs += i >= 16 && memcmp(tokens, again, sizeof(tokens)) != 0;
        assert_int_equal(read_text(data, i, again, labels, NULL), 0);
        assert_memory_equal(tokens, again, sizeof(tokens));
    }
    for (int r = 0; r < 16; r++)
        assert_true(seen[0][r] == 1 && seen[1][r] == 1);
    assert_true(differs > 8);
    text()->close(data);
}

/* ---- work ---- */

static void check_costs(struct ct_data *data, int64_t samples)
{
    int32_t tokens[256], labels[256], documents[256];
    double cost, first = 0;
    int differs = 0;

    for (int64_t n = 0; n < samples; n++) {
        int64_t index = n * 7 % samples, pairs = 0, length = 0; /* in any order */

        assert_int_equal(read_text(data, index, tokens, labels, documents), 0);
        for (int t = 0; t < 256; t++) {
            length = t && documents[t] == documents[t - 1] ? length + 1 : 1;
            pairs += length;
        }
        assert_int_equal(text()->cost(data, index, &cost), 0);
        assert_true(cost == (double)pairs);
        first = n ? first : cost;
        differs += cost != first;
    }
    assert_true(differs > samples / 2);
    text()->close(data);
}

/* The work of a sample is the pairs of tokens of its documents, and of its padding. */
static void test_costs(void **state)
{
    char paths[16384];
    struct ct_data *data;
    double cost;

    (void)state;
    TEST_OPTIONS(test_plugin("bytes"), "add_bos=false", "add_eos=false");
    write_lengths();
    USE("lengths.jsonl", "packing=first_fit");
    assert_int_equal(open_text(256, 1, false, &data), 0);
    check_costs(data, 48);
    USE("lengths.jsonl", "document_mask=true");
    assert_int_equal(open_text(256, 1, false, &data), 0);
    check_costs(data, 45);
    write_text("b.jsonl", "{\"text\": \"bbb\"}");
    snprintf(paths, sizeof(paths), "path=%s/lengths.jsonl, %s/b.jsonl", folder, folder);
    TEST_OPTIONS(test_plugin("text"), cache, paths, "weights=0.7, 0.3", "packing=first_fit");
    assert_int_equal(open_text(256, 1, false, &data), 0);
    check_costs(data, 48);
    for (int i = 0; i < 3; i++) {
        USE("lengths.jsonl", i ? "document_mask=false" : "document_mask=true",
            i == 1 ? "packing=first_fit" : "packing=concat", i ? "balance=true" : "balance=false");
        assert_int_equal(open_text(256, 1, false, &data), 0);
        assert_int_equal(text()->cost(data, 0, &cost), 1);
        text()->close(data);
    }
}

static void test_splits(void **state)
{
    const char content[] = "one\ntwo\n\n \t\nthree\n\n\nfour";
    int32_t stream[128];
    struct ct_data *data;

    (void)state;
    write_text("x", content);
    USE("x", "split=line", "shuffle=false", "repeat=false");
    assert_int_equal(open_text(1, 1, false, &data), 0);
    assert_int_equal(count_samples(data), 4 + 4 + 6 + 4 + 4 * 2 - 1);
    read_epoch(data, 0, 10, 1, stream);
    assert_int_equal(stream[4], '\n');
    assert_int_equal(stream[5], EOS);
    assert_int_equal(stream[6], BOS);
    assert_int_equal(stream[7], 't');
    text()->close(data);
    USE("x", "split=paragraph", "shuffle=false", "repeat=false");
    assert_int_equal(open_text(1, 1, false, &data), 0);
    assert_int_equal(count_samples(data), 8 + 6 + 4 + 3 * 2 - 1);
    text()->close(data);
}

static void test_paths(void **state)
{
    char deep[4096];
    struct ct_data *data;

    (void)state;
    snprintf(deep, sizeof(deep), "%s/deep", folder);
    assert_int_equal(mkdir(deep, 0777), 0);
    write_text("deep/a", "aaaa");
    write_text("deep/.hidden", "hidden");
    write_text("b,c", "bb");
    USE("", "repeat=false");
    assert_int_equal(open_text(1, 1, false, &data), 0);
    assert_int_equal(count_samples(data), 4 + 2 + 2 * 2 - 1);
    text()->close(data);
    USE("{deep/[ab],b*}", "repeat=false");
    assert_int_equal(open_text(1, 1, false, &data), 0);
    assert_int_equal(count_samples(data), 4 + 2 + 2 * 2 - 1);
    text()->close(data);
    snprintf(deep, sizeof(deep), "deep , %s/deep/a", folder);
    USE(deep, "repeat=false");
    assert_int_equal(open_text(1, 1, false, &data), 0);
    assert_int_equal(count_samples(data), 4 + 2 - 1);
    text()->close(data);
}

static void test_bad_paths(void **state)
{
    struct ct_data *data;

    (void)state;
    write_text("empty", "");
    write_text("blank", "\n\n");
    write_text("short", "x");
    USE("absent", "repeat=true");
    assert_int_equal(open_text(1, 1, false, &data), CT_ECONFIG);
    assert_message("/absent'");
    USE("{short,absent}", "repeat=true");
    assert_int_equal(open_text(1, 1, false, &data), CT_ECONFIG);
    assert_message("/absent'");
    USE("{s{hort,absent},blank}", "repeat=true");
    assert_int_equal(open_text(1, 1, false, &data), CT_ECONFIG);
    assert_message("/sabsent'");
    USE("short,,blank", "repeat=true");
    assert_int_equal(open_text(1, 1, false, &data), CT_ECONFIG);
    assert_message("an item is empty");
    USE("short", "weights=1,");
    assert_int_equal(open_text(1, 1, false, &data), CT_ECONFIG);
    assert_message("an item is empty");
    USE("empty", "repeat=true");
    assert_int_equal(open_text(1, 1, false, &data), CT_ECONFIG);
    assert_message("/empty is empty");
    /* The beginnings of all files are looked at before one is read. */
    write_text("first.jsonl", "[]");
    write_text("last.bin", "PAR1..PAR1");
    USE("{first.jsonl,last.bin}", "malformed=stop");
    assert_int_equal(open_text(1, 1, false, &data), CT_ECONFIG);
    assert_message("last.bin is a Parquet file");
    USE("blank", "split=line");
    assert_int_equal(open_text(1, 1, false, &data), CT_ECONFIG);
    assert_message("white space");
    USE("short", "repeat=true");
    assert_int_equal(open_text(3, 1, false, &data), CT_ECONFIG);
    assert_message("too few");
    assert_int_equal(open_text(1, 1, true, &data), CT_ECONFIG);
    assert_message("validation_fraction");
    USE("short", "validation_fraction=0.5");
    assert_int_equal(open_text(1, 1, true, &data), CT_ECONFIG);
    assert_message("only one");
    TEST_OPTIONS(test_plugin("text"), cache, "path= ,");
    assert_int_equal(open_text(1, 1, false, &data), CT_ECONFIG);
    assert_message("empty");
}

/* ---- JSON lines ---- */

static const char lines[] = "{\"text\": \"one \\u00e9\"}\n\n{\"other\": 1, \"text\": \"two\"}\n";

/* The stream in order, which must be what the documents' bytes and ends are. */
static void check_stream(const char *const *documents)
{
    struct ct_data *data;
    int32_t token, label;
    int64_t n = 0;

    assert_int_equal(open_text(1, 1, false, &data), 0);
    for (; *documents; documents++)
        for (size_t i = 0; i < strlen(*documents) + 2; i++) {
            int32_t want = i == 0                    ? BOS
                           : i <= strlen(*documents) ? (unsigned char)(*documents)[i - 1]
                                                     : EOS;

            if (n)
                assert_int_equal(label, want);
            if (read_text(data, n++, &token, &label, NULL) == 0)
                assert_int_equal(token, want);
        }
    assert_int_equal(read_text(data, n, &token, &label, NULL), 1);
    text()->close(data);
}

#define DOCUMENTS(...) check_stream((const char *const[]){__VA_ARGS__, NULL})

static void test_json_lines(void **state)
{
    struct ct_data *data;

    (void)state;
    write_text("a.jsonl", lines);
    USE("a.jsonl", "shuffle=false", "repeat=false");
    DOCUMENTS("one \xc3\xa9", "two");
    USE("a.jsonl", "shuffle=false", "repeat=false", "format=text");
    DOCUMENTS(lines);
    write_text("mark.jsonl", "\xef\xbb\xbf{\"text\": \"x\"}");
    write_text("mark.txt", "\xef\xbb\xbf\xef\xbb\xbfx"); /* only the first is a mark */
    USE("mark.*", "shuffle=false", "repeat=false");
    DOCUMENTS("x", "\xef\xbb\xbfx");
    USE("a.jsonl", "cache=none", "spool_folder=/nonexistent");
    assert_int_equal(open_text(1, 1, false, &data), CT_ECONFIG);
    assert_message("/nonexistent: No such file or directory; [text] spool_folder names another");
    USE("a.jsonl", "field=other");
    assert_int_equal(open_text(1, 1, false, &data), CT_ECONFIG);
    assert_message("a.jsonl:1: the object has no field \"other\"");
    write_text("a.jsonl",
               "{\"text\": \"x\"}\n{\"text\": 5}\n[]\n{\"text\": \"\\ud800\"}\n{\"text\": \"y\"}");
    USE("a.jsonl", "malformed=stop");
    assert_int_equal(open_text(1, 1, false, &data), CT_ECONFIG);
    assert_message("a.jsonl:2: the field \"text\" is not a string");
    assert_null(strstr(ct_error_message(), "spool_folder")); /* which is not at fault */
    USE("a.jsonl", "shuffle=false", "repeat=false", "malformed=skip");
    DOCUMENTS("x", "\xef\xbf\xbd", "y");
    write_text("a.jsonl", "{\"id\": 123456789012345678901234567890, \"text\": \"a\"}\n"
                          "{\"id\": 12345678901234567890, \"text\": \"b\"}\n"
                          "{\"score\": [NaN, Infinity, -Infinity], \"text\": \"c\"}\n"
                          "{\"score\": 1e400, \"text\": \"d \\ud83d\"}\n"
                          "{\"text\": 1, \"text\": \"e\"}");
    DOCUMENTS("a", "b", "c", "d \xef\xbf\xbd", "e");
    USE("a.jsonl", "malformed=stop");
    write_text("a.jsonl", "[{\"text\": \"x\"}]");
    assert_int_equal(open_text(1, 1, false, &data), CT_ECONFIG);
    assert_message("a.jsonl:1: expected a whole object on each line; `jq -c '.[]' FILE` writes");
    write_text("a.jsonl", "[{\"text\": \"x\"},\n{\"text\": \"y\"}]");
    assert_int_equal(open_text(1, 1, false, &data), CT_ECONFIG);
    assert_message("near end of file: expected a whole object on each line; `jq -c '.[]' FILE`");
    write_text("a.jsonl", "{\n  \"text\": \"x\"\n}");
    assert_int_equal(open_text(1, 1, false, &data), CT_ECONFIG);
    assert_message("expected a whole object on each line; `jq -c . FILE` writes");
    write_text("a.jsonl", "{\"text\": \"x\",\n  \"other\": 1\n}");
    assert_int_equal(open_text(1, 1, false, &data), CT_ECONFIG);
    assert_message("expected a whole object on each line; `jq -c . FILE` writes");
    write_text("a.jsonl", "{ \n\"text\": \"x\"}");
    assert_int_equal(open_text(1, 1, false, &data), CT_ECONFIG);
    assert_message("expected a whole object on each line; `jq -c . FILE` writes");
    write_text("a.jsonl", "{\"text\": x}");
    assert_int_equal(open_text(1, 1, false, &data), CT_ECONFIG);
    assert_null(strstr(ct_error_message(), "jq"));
    write_text("a.jsonl", "[1, 2]");
    assert_int_equal(open_text(1, 1, false, &data), CT_ECONFIG);
    assert_message("a.jsonl:1: expected a whole object on each line");
    assert_null(strstr(ct_error_message(), "jq"));
    write_text("a.jsonl", "{\"text\": NaN}");
    assert_int_equal(open_text(1, 1, false, &data), CT_ECONFIG);
    assert_message("a.jsonl:1: the field \"text\" is not a string");
}

/* A line nested a million deep is refused, not followed. */
static void test_deep_json(void **state)
{
    enum { DEEP = 1 << 20 };
    char *deep = malloc(DEEP + 1);
    struct ct_data *data;

    (void)state;
    assert_non_null(deep);
    memset(deep, '[', DEEP);
    deep[DEEP] = '\0';
    write_text("deep.jsonl", deep);
    free(deep);
    USE("deep.jsonl", "malformed=stop");
    assert_int_equal(open_text(1, 1, false, &data), CT_ECONFIG);
    assert_message("deep.jsonl:1: column");
}

/* A line that is too long is not parsed. */
static void test_long_line(void **state)
{
    enum { LONG = (64 << 20) + 1 };
    static const char next[] = "\n{\"text\": \"next\"}\n";
    char *line = malloc(LONG + sizeof(next));
    struct ct_data *data;

    (void)state;
    assert_non_null(line);
    memset(line, 'a', LONG);
    memcpy(line, "{\"text\": \"", 10);
    memcpy(line + LONG - 2, "\"}", 2);
    memcpy(line + LONG, next, sizeof(next));
    write_text("long.jsonl", line);
    free(line);
    USE("long.jsonl", "malformed=stop");
    assert_int_equal(open_text(1, 1, false, &data), CT_ECONFIG);
    assert_message("long.jsonl:1: a line of 67108865 bytes; at most 67108864 are allowed");
    USE("long.jsonl", "shuffle=false", "repeat=false", "malformed=skip");
    DOCUMENTS("next");
}

/* ---- compression ---- */

static void pack(const char *command, const char *name)
{
    char line[16384];

    snprintf(line, sizeof(line), "cd '%s' && (%s) > %s", folder, command, name);
    assert_int_equal(system(line), 0);
}

static void write_packed(const char *name, const void *data, size_t size)
{
    char path[4096];

    snprintf(path, sizeof(path), "%s/%s", folder, name);
    test_write(path, data, size);
}

static void test_gzip(void **state)
{
    struct ct_data *data;

    (void)state;
    write_text("a", lines);
    pack("gzip -c a", "a.jsonl.gz");
    USE("a.jsonl.gz", "shuffle=false", "repeat=false");
    DOCUMENTS("one \xc3\xa9", "two");
    pack("gzip -c a; gzip -c a", "two.jsonl.gz"); /* two members */
    USE("two.jsonl.gz", "shuffle=false", "repeat=false");
    pack("cat a.jsonl.gz two.jsonl.gz | head -c 70", "cut.jsonl.gz");
    DOCUMENTS("one \xc3\xa9", "two", "one \xc3\xa9", "two");
    USE("cut.jsonl.gz", "malformed=skip");
    assert_int_equal(open_text(1, 1, false, &data), CT_ECONFIG);
    assert_message("cut.jsonl.gz: gzip: the file is truncated");
    pack("(head -c 20 a.jsonl.gz; echo damaged)", "damaged.gz");
    USE("damaged.gz", "repeat=true");
    assert_int_equal(open_text(1, 1, false, &data), CT_ECONFIG);
    assert_message("damaged.gz: gzip:");
    pack("head -c 100000000 /dev/zero | gzip -9", "bomb.gz");
    USE("bomb.gz", "repeat=true");
    assert_int_equal(open_text(1, 1, false, &data), CT_ECONFIG);
    assert_message("bomb.gz: it expands to more than");
}

/* A frame of zstd with one block, which is not compressed: "zstd works". */
static void test_zstd(void **state)
{
    static const char frame[] = "\x28\xb5\x2f\xfd\x20\x0a\x51\x00\x00zstd works";
    struct ct_data *data;

    (void)state;
    write_packed("a.zst", frame, sizeof(frame) - 1);
    USE("a.zst", "shuffle=false", "repeat=false");
    DOCUMENTS("zstd works");
    write_packed("a.zst", frame, sizeof(frame) - 3);
    assert_int_equal(open_text(1, 1, false, &data), CT_ECONFIG);
    assert_message("a.zst: zstd: the file is truncated");
    write_packed("a.zst", "\x28\xb5\x2f\xfd\xff\xff\xff\xff\xff", 9);
    assert_int_equal(open_text(1, 1, false, &data), CT_ECONFIG);
    assert_message("a.zst: zstd:");
}

/* ---- what is no text ---- */

static void test_binary(void **state)
{
    static const struct {
        const char *bytes;
        size_t size, at;
        const char *words;
    } files[] = {
        {"PAR1", 4, 0, "x is a Parquet file, and not text in UTF-8: this run needs the reader"},
        {"PAR1", 4, 0, "; or convert it: python3 -c"},
        {"ARROW1\0\0", 8, 0, "an Arrow file"},
        {"\xff\xff\xff\xff\x10\0\0\0", 8, 0, "a stream of Arrow"},
        {"\xfd"
         "7zXZ\0",
         6, 0, "a file of xz"},
        {"BZh91AY&SY", 10, 0, "a file of bzip2"},
        {"PK\3\4", 4, 0, "a zip archive"},
        {"7z\xbc\xaf\x27\x1c", 6, 0, "a 7z archive"},
        {"ustar\0", 6, 257, "a tar archive"},
        {"ustar  \0", 8, 257, "a tar archive"},
        {"\xff\xfeh\0i\0", 6, 0, "iconv -f UTF-16 "},
        {"h\0i\0 \0y\0o\0", 10, 0, "iconv -f UTF-16LE"},
        {"\0h\0i\0 \0y\0o", 10, 0, "iconv -f UTF-16BE"},
        {"abc\0", 4, 100, "byte 103 is NUL"},
    };
    char content[512];
    struct ct_data *data;

    (void)state;
    USE("x", "repeat=true");
    for (size_t i = 0; i < CT_COUNT(files); i++) {
        memset(content, 'a', sizeof(content));
        memcpy(content + files[i].at, files[i].bytes, files[i].size);
        write_packed("x", content, sizeof(content));
        assert_int_equal(open_text(1, 1, false, &data), CT_ECONFIG);
        assert_message(files[i].words);
    }
    pack("gzip -c x", "x.gz"); /* what it holds is refused as well */
    USE("x.gz", "repeat=true");
    assert_int_equal(open_text(1, 1, false, &data), CT_ECONFIG);
    assert_message("x.gz is no text");
    memset(content, 'a', sizeof(content));
    memcpy(content, "PAR", 3);
    write_packed("x", content, sizeof(content));
    USE("x", "repeat=true");
    assert_int_equal(open_text(1, 1, false, &data), 0);
    text()->close(data);
}

/* ---- identity ---- */

static void use_cache(void)
{
    snprintf(cache, sizeof(cache), "cache=%s/.cache", folder);
    USE("a.txt", "shuffle=false");
}

struct identity {
    uint64_t hash;
    int64_t documents, tokens;
};

static struct identity identify(bool validation)
{
    struct identity identity;
    struct ct_data *data;

    assert_int_equal(open_text(2, 1, validation, &data), 0);
    identity.hash = text()->identity(data, &identity.documents, &identity.tokens);
    text()->close(data);
    return identity;
}

/* It is that of the tokens and of their documents: times, names and the cache are of no account. */
static void test_identity(void **state)
{
    struct identity one, other;

    (void)state;
    write_text("a.txt", "abc\nde\n");
    write_text("b.txt", "fgh");
    USE("[ab].txt", "validation_fraction=0.5");
    one = identify(false);
    assert_int_equal(one.documents, 2);
    assert_int_equal(one.tokens, 14);
    other = identify(true);
    assert_memory_equal(&one, &other, sizeof(one));
    use_cache();
    write_text("c.txt", "abc\nde\n");
    write_text("d.txt", "fgh");
    USE("[cd].txt", "validation_fraction=0.5");
    for (int i = 0; i < 2; i++) { /* made, and found again */
        other = identify(false);
        assert_memory_equal(&one, &other, sizeof(one));
    }
    write_text("d.txt", "fgi");
    assert_true(identify(false).hash != one.hash);
    write_text("c.txt", "abc\n");
    write_text("d.txt", "de\nfgh");
    assert_int_equal(identify(false).tokens, 14);
    assert_true(identify(false).hash != one.hash);
}

/* ---- mixtures ---- */

static void test_mixture(void **state)
{
    char paths[16384];
    struct ct_data *data, *again;
    int32_t token, label, token_again;
    int counts[2] = {0}, worst = 0;

    (void)state;
    write_text("a.jsonl", "{\"text\": \"aaaaaaa\"}");
    write_text("b.jsonl", "{\"text\": \"bbb\"}");
    snprintf(paths, sizeof(paths), "path=%s/a.jsonl, %s/b.jsonl", folder, folder);
    TEST_OPTIONS(test_plugin("bytes"), "add_bos=false", "add_eos=false");
    TEST_OPTIONS(test_plugin("text"), cache, paths, "weights=0.3, 0.7");
    assert_int_equal(open_text(1, 1, false, &data), 0);
    assert_int_equal(open_text(1, 1, false, &again), 0);
    for (int i = 0; i < 40000; i++) {
        int behind;

        assert_int_equal(read_text(data, i, &token, &label, NULL), 0);
        counts[token == 'b']++;
        behind = abs(10 * counts[0] - 3 * (i + 1));
        worst = behind > worst ? behind : worst;
        if (i % 1000 == 7) {
            assert_int_equal(read_text(again, i, &token_again, &label, NULL), 0);
            assert_int_equal(token_again, token);
        }
    }
    assert_in_range(worst, 1, 15); /* never more than 1.5 samples off its share */
    text()->close(data);
    text()->close(again);
    TEST_OPTIONS(test_plugin("text"), cache, paths, "weights=1");
    assert_int_equal(open_text(1, 1, false, &data), CT_ECONFIG);
    assert_message("more items than the");
    TEST_OPTIONS(test_plugin("text"), cache, paths, "weights=1, 2, 3");
    assert_int_equal(open_text(1, 1, false, &data), CT_ECONFIG);
    assert_message("3 numbers");
    TEST_OPTIONS(test_plugin("text"), cache, paths, "weights=1, x");
    assert_int_equal(open_text(1, 1, false, &data), CT_ECONFIG);
    assert_message("'x'");
    TEST_OPTIONS(test_plugin("text"), cache, paths, "weights=1, 1e-6");
    assert_int_equal(open_text(1, 1, false, &data), CT_ECONFIG);
    assert_message("smallest");
    /* Files of all items are looked at before a line of the first is read. */
    write_text("a.jsonl", "{\"text\": ");
    write_text("b.jsonl", "PAR1");
    TEST_OPTIONS(test_plugin("text"), cache, paths, "weights=1, 1");
    assert_int_equal(open_text(1, 1, false, &data), CT_ECONFIG);
    assert_message("b.jsonl is a Parquet file");
}

/* The samples of a mixture, which has none after the first one that is missing. */
static int64_t count_mixed(bool validation)
{
    int32_t tokens[2], labels[2];
    struct ct_data *data;
    int64_t count;

    assert_int_equal(open_text(2, 1, validation, &data), 0);
    count = count_samples(data);
    for (int64_t i = count; i < count + 100; i++)
        assert_int_equal(read_text(data, i, tokens, labels, NULL), 1);
    text()->close(data);
    return count;
}

/* It ends with the first of its sources, of 10 and 20 samples, wherever that is. */
static void test_mixture_ends(void **state)
{
    char paths[16384];

    (void)state;
    write_text("a.txt", "aaaaaaaaaaaaaaaaaaa\n");
    write_text("b.txt", "bbbbbbbbbbbbbbbbbbb\nbbbbbbbbbbbbbbbbbbbb");
    TEST_OPTIONS(test_plugin("bytes"), "add_bos=true", "add_eos=false");
    snprintf(paths, sizeof(paths), "path=%s/a.txt, %s/b.txt", folder, folder);
    TEST_OPTIONS(test_plugin("text"), cache, paths, "weights=1, 1", "repeat=false");
    assert_int_equal(count_mixed(false), 20);
    TEST_OPTIONS(test_plugin("text"), cache, paths, "weights=1, 4", "repeat=false");
    assert_in_range(count_mixed(false), 25, 26);
    snprintf(paths, sizeof(paths), "path=%s/b.txt, %s/a.txt", folder, folder);
    TEST_OPTIONS(test_plugin("text"), cache, paths, "weights=1, 1", "repeat=false");
    assert_in_range(count_mixed(false), 20, 21);
    TEST_OPTIONS(test_plugin("text"), cache, paths, "weights=2, 1", "repeat=true", "split=line",
                 "validation_fraction=0.5");
    write_text("a.txt", "aaaaaaaaaaaaaaaaaaa\naaa\n");
    assert_in_range(count_mixed(true), 1, 30);
}

/* Read `count` samples of one token of a's text and of b's: all of each go on where the numbers of
   tokens say. */
static void check_mixed(struct ct_data *data, int64_t count, int seq_len, const char *a,
                        const char *b)
{
    int32_t tokens[2], labels[2];

    for (int64_t i = 0; i < count; i++) {
        assert_int_equal(read_text(data, i, tokens, labels, NULL), 0);
        for (int t = 0; t < seq_len; t++)
            assert_int_equal(tokens[t], tokens[0] >= 'a' ? *a++ : *b++);
    }
}

/* The data of a stage goes on behind what the stage before has read, in each item of the path. */
static void test_stages(void **state)
{
    const char *a = "abcdefghijklmnopqrstuvwxyz", *b = "0123456789ABCDEFGHIJKLMNOP";
    struct ct_data_request request = {.seq_len = 1, .tokenizer = bytes()};
    struct ct_data *first, *second, *third;
    char paths[16384];

    (void)state;
    write_text("a.txt", a);
    write_text("b.txt", b);
    snprintf(paths, sizeof(paths), "path=%s/a.txt, %s/b.txt", folder, folder);
    TEST_OPTIONS(test_plugin("bytes"), "add_bos=false", "add_eos=false");
    TEST_OPTIONS(test_plugin("text"), cache, paths, "weights=3, 1", "shuffle=false");
    assert_int_equal(text()->open(&request, &first), 0);
    check_mixed(first, 8, 1, a, b);
    request.before = first;
    request.before_samples = 8;
    TEST_OPTIONS(test_plugin("text"), cache, paths, "weights=1, 1", "shuffle=false");
    assert_int_equal(text()->open(&request, &second), 0);
    check_mixed(second, 6, 1, a + 6, b + 2);
    request.before = second;
    request.before_samples = 6;
    request.seq_len = 2;
    snprintf(paths, sizeof(paths), "path=%s/b.txt, %s/a.txt", folder, folder);
    TEST_OPTIONS(test_plugin("text"), cache, paths, "weights=1, 3", "shuffle=false");
    assert_int_equal(text()->open(&request, &third), 0);
    check_mixed(third, 4, 2, a + 10, b + 6); /* 9 and 5 of 25 are 5 and 3 of 12 */
    text()->close(third);
    text()->close(second);
    text()->close(first);
}

/* ---- the cache ---- */

/* Names in the cache: their number, and the last one's path. */
static int list_cache(char *path)
{
    char pattern[4096];
    glob_t found;
    int count = 0;

    snprintf(pattern, sizeof(pattern), "%s/.cache/*", folder);
    if (glob(pattern, 0, NULL, &found))
        return 0;
    count = (int)found.gl_pathc;
    if (path)
        strcpy(path, found.gl_pathv[count - 1]);
    globfree(&found);
    return count;
}

static void check_first(int32_t want)
{
    int32_t tokens[2], labels[2];
    struct ct_data *data;

    assert_int_equal(open_text(2, 1, false, &data), 0);
    assert_int_equal(read_text(data, 0, tokens, labels, NULL), 0);
    assert_int_equal(tokens[0], BOS);
    assert_int_equal(tokens[1], want);
    text()->close(data);
}

/* A second opening reads the file of the first; whatever else would be tokenised has its own. */
static void test_cache(void **state)
{
    char path[4096], damaged[4096];
    struct stat before, after;

    (void)state;
    write_text("a.txt", "abc");
    use_cache();
    check_first('a');
    assert_int_equal(list_cache(path), 1);
    assert_int_equal(stat(path, &before), 0);
    check_first('a');
    assert_int_equal(stat(path, &after), 0);
    assert_int_equal(before.st_ino, after.st_ino);
    TEST_OPTIONS(test_plugin("bytes"), "add_eos=false");
    check_first('a');
    assert_int_equal(list_cache(NULL), 2);
    TEST_OPTIONS(test_plugin("bytes"), "add_eos=true");
    write_text("a.txt", "xyz"); /* the same size */
    check_first('x');
    assert_int_equal(list_cache(NULL), 3);
    USE("a.txt", "split=line");
    check_first('x');
    assert_int_equal(list_cache(path), 4);
    for (long size = 0; size < 100; size += 33) { /* every file is damaged in turn */
        snprintf(damaged, sizeof(damaged), "for f in %s/.cache/*; do truncate -s %ld $f; done",
                 folder, size);
        assert_int_equal(system(damaged), 0);
        check_first('x');
        assert_int_equal(list_cache(NULL), 4);
    }
}

/* Invert the byte of the file at `at`, from its end if that is negative. */
static void damage(const char *path, long at)
{
    FILE *file = fopen(path, "r+");
    int byte;

    assert_non_null(file);
    assert_int_equal(fseek(file, at, at < 0 ? SEEK_END : SEEK_SET), 0);
    byte = fgetc(file);
    assert_int_equal(fseek(file, -1, SEEK_CUR), 0);
    assert_int_not_equal(fputc(~byte & 255, file), EOF);
    assert_int_equal(fclose(file), 0);
}

/* Wherever a byte changes: outside the tokens the file is made again, within them reading fails. */
static void test_cache_damaged(void **state)
{
    static const long others[] = {33, 41, 49, 57, -1, -9, -17}; /* header, checksum, documents */
    int32_t tokens[2], labels[2];
    struct ct_data *data;
    char path[4096];

    (void)state;
    write_text("a.txt", "abc");
    use_cache();
    check_first('a');
    assert_int_equal(list_cache(path), 1);
    for (size_t i = 0; i < CT_COUNT(others); i++) {
        damage(path, others[i]);
        check_first('a');
    }
    for (long at = 72; at < 72 + 2 * 5; at++) {
        damage(path, at);
        assert_int_equal(open_text(2, 1, false, &data), 0);
        assert_int_equal(read_text(data, 0, tokens, labels, NULL), CT_EIO);
        assert_message("damaged after byte 72: delete it, and the next run makes it again");
        text()->close(data);
        damage(path, at);
    }
    check_first('a');
}

/* A killed writer's file is no file of tokens, and is written again. */
static void test_cache_left(void **state)
{
    char path[4096], left[4200];

    (void)state;
    write_text("a.txt", "abc");
    use_cache();
    check_first('a');
    assert_int_equal(list_cache(path), 1);
    snprintf(left, sizeof(left), "%s.tmp", path);
    assert_int_equal(rename(path, left), 0);
    test_write(left, "partial", 7);
    check_first('a');
    assert_int_equal(list_cache(left), 1);
    assert_string_equal(left, path);
}

/* Processes that start at once make one file: all read its inode. */
static void test_cache_shared(void **state)
{
    enum { PROCESSES = 6 };
    pid_t children[PROCESSES];
    int status;

    (void)state;
    write_numbered(300);
    write_text("a.txt", "abc");
    use_cache();
    USE("", "split=line", "shuffle=false");
    for (int i = 0; i < PROCESSES; i++) {
        children[i] = fork();
        if (children[i] == 0) {
            struct ct_data *data;
            int32_t tokens[8], labels[8];

            _exit(open_text(8, 1, false, &data) < 0 ||
                  read_text(data, 100, tokens, labels, NULL) != 0);
        }
        assert_true(children[i] > 0);
    }
    for (int i = 0; i < PROCESSES; i++) {
        assert_int_equal(waitpid(children[i], &status, 0), children[i]);
        assert_int_equal(status, 0);
    }
    assert_int_equal(list_cache(NULL), 1);
}

/* ---- what is read once ---- */

/* Set [text] command; IN is the test's folder. */
#define COMMAND(text, ...)                                                                         \
    do {                                                                                           \
        char setting_[8192];                                                                       \
                                                                                                   \
        assert_int_equal(setenv("IN", folder, 1), 0);                                              \
        snprintf(setting_, sizeof(setting_), "command=cd $IN; %s", text);                          \
        TEST_OPTIONS(test_plugin("text"), setting_, cache, "shuffle=false", "repeat=false",        \
                     __VA_ARGS__);                                                                 \
    } while (0)

static void open_says(const char *what)
{
    struct ct_data *data;

    assert_int_equal(open_text(1, 1, false, &data), CT_ECONFIG);
    assert_message(what);
}

/* Lines of the test's file: the times that a command was run. */
static int runs(void)
{
    char path[4096];
    FILE *file;
    int count = 0;

    snprintf(path, sizeof(path), "%s/runs", folder);
    file = fopen(path, "r");
    assert_non_null(file);
    for (int c; (c = fgetc(file)) != EOF;)
        count += c == '\n';
    fclose(file);
    return count;
}

/* Its output is read in each format, packed or not, and no more than once under a key. */
static void test_command(void **state)
{
    static const char *const give = "echo >> runs; printf '{\"text\": \"one\"}\n\n{\"text\": 2}'";
    char path[4096];

    (void)state;
    write_text("a.txt", "abc");
    use_cache();
    COMMAND(give, "format=jsonl", "malformed=skip");
    DOCUMENTS("one");
    DOCUMENTS("one");
    assert_int_equal(runs(), 1);
    COMMAND(give, "format=jsonl", "malformed=skip", "command_key=new");
    DOCUMENTS("one");
    assert_int_equal(runs(), 2);
    assert_int_equal(list_cache(path), 2);
    COMMAND("echo a; echo b >&2; echo c", "format=text", "split=line");
    DOCUMENTS("a\n", "c\n");
    COMMAND("echo a | gzip", "format=text");
    DOCUMENTS("a\n");
    COMMAND("(yes 0123456789 | head -n 40000) 2>&1; head -c 70000 /dev/zero | tr '\\0' e >&2",
            "format=text", "split=line"); /* more than pipes hold */
    assert_int_equal(identify(false).documents, 40000);
}

/* The output of a command that failed is deleted. */
static void test_command_fails(void **state)
{
    char path[4096];

    (void)state;
    write_text("a.txt", "abc");
    use_cache();
    COMMAND("echo a; echo 'first' >&2; printf 'no file x\n \n' >&2; exit 3", "format=text");
    open_says("[text] command: it failed with status 3; its last line: no file x");
    assert_int_equal(list_cache(path), 0);
    COMMAND("echo a; kill -TERM $$", "format=text");
    open_says("[text] command: it was ended by signal 15 (Terminated)");
    COMMAND("exit 1", "format=text");
    open_says("it failed with status 1");
    assert_null(strstr(ct_error_message(), "its last line"));
    COMMAND("no-such-program", "format=text");
    open_says("status 127; its last line: ");
    COMMAND("true", "format=text");
    open_says("[text] command: its output is empty");
    COMMAND("echo '{'", "format=jsonl");
    open_says("[text] command: its output:1: ");
    COMMAND("yes", "format=text", "spool_folder=/nonexistent");
    open_says("[text] spool_folder names another folder");
    assert_int_equal(list_cache(path), 0);
}

static void test_command_options(void **state)
{
    (void)state;
    write_text("a.txt", "abc");
    use_cache();
    COMMAND("echo a", "format=auto");
    open_says("a command's output has no name that tells its format: set [text] format");
    COMMAND("echo a", "format=text", "path=x");
    open_says("[text] path and command: set one of them");
    COMMAND("echo a", "format=text", "weights=1");
    open_says("[text] weights: a command is one corpus");
    COMMAND("echo a", "format=text", "cache=none");
    open_says("[text] command is read once, and its tokens must be kept: set [text] cache");
    TEST_OPTIONS(test_plugin("text"), cache);
    open_says("[text] path must be set, or command");
    USE("a.txt", "command_key=x");
    open_says("[text] command_key: path names regular files");
}

static void test_options_without_effect(void **state)
{
    static const struct {
        const char *option, *format, *words;
    } cases[] = {
        {"train_on=last", "format=ids", "set format = chat, sharegpt, prompt or alpaca"},
        {"template=llama3", "format=text", "set format = chat, sharegpt, prompt or alpaca"},
        {"any_template=true", "format=jsonl", "set format = chat, sharegpt, prompt or alpaca"},
        {"date=2026-01-01", "format=text", "set format = chat, sharegpt, prompt or alpaca"},
        {"date=2026-01-01", "format=chat", "only the chat template of a folder writes it"},
        {"fields=content=x", "format=jsonl", "set the format of the objects, as format = chat"},
        {"field=x", "format=text", "set format = jsonl, chat or sharegpt"},
        {"field=x", "format=alpaca", "fields names those of this format"},
        {"malformed=skip", "format=text", "text has no lines that could be malformed"},
        {"split=line", "format=chat", "an object of this format is a document"},
        {"split=line", "format=jsonl", "an object of this format is a document"},
        {"packing_window=2", "format=text", "set packing = first_fit"},
        {"too_long=drop", "format=text", "set packing = first_fit"},
    };
    char words[256];

    (void)state;
    write_text("a.txt", "abc");
    for (size_t i = 0; i < CT_COUNT(cases); i++) {
        USE("a.txt", cases[i].option, cases[i].format);
        snprintf(words, sizeof(words), "[text] %.*s has no effect: %s",
                 (int)strcspn(cases[i].option, "="), cases[i].option, cases[i].words);
        open_says(words);
    }
}

static void test_prompts_as_texts(void **state)
{
    (void)state;
    write_text("a.jsonl", "{\"prompt\": \"a\", \"completion\": \"b\"}");
    USE("a.jsonl", "format=prompt", "train_on=last");
    open_says("a.jsonl:1: [text] train_on = last has no effect on a prompt and a completion");
    USE("a.jsonl", "format=prompt", "train_on=field");
    open_says("a.jsonl:1: [text] train_on = field has no effect");
}

static void test_tools(void **state)
{
    struct ct_data *data;
    char line[512];

    (void)state;
    write_text("chat_template.jinja",
               "{{ tools[0]['name'] if tools }}{% for m in messages %}{% generation %}"
               "{{ m['content'] }}{% endgeneration %}{% endfor %}");
    ct_config.model.init_from = folder;
    for (size_t i = 0; i < 3; i++) {
        static const char *const lists[] = {"[{\"name\": \"t\"}]",
                                            "\"[{\\\"name\\\": \\\"t\\\"}]\"", "[\"t\"]"};

        snprintf(line, sizeof(line),
                 "{\"tools\": %s, \"messages\": [{\"role\": \"assistant\", \"content\": "
                 "\"a\"}]}",
                 lists[i]);
        write_text("a.jsonl", line);
        USE("a.jsonl", "format=chat");
        assert_int_equal(open_text(2, 1, false, &data), i < 2 ? 0 : CT_ECONFIG);
        if (i < 2) {
            int32_t tokens[2], labels[2];

            assert_int_equal(read_text(data, 0, tokens, labels, tokens), 0);
            assert_int_equal(labels[0], 'a');
            text()->close(data);
        }
    }
    assert_message("a.jsonl:1: \"tools\": expected a list of objects");
    ct_config.model.init_from = "";
}

/* The messages of a process that waits, for the command to count. */
static void note(enum ct_log_level level, const char *line, void *context)
{
    char path[4096];
    FILE *log;

    (void)level;
    (void)context;
    snprintf(path, sizeof(path), "%s/log", folder);
    log = fopen(path, "a");
    assert_non_null(log);
    fprintf(log, "%s\n", line);
    fclose(log);
}

/* One of the processes that start at once runs the command; where it fails, those that waited do
   not try it again. */
static void test_command_shared(void **state)
{
    enum { PROCESSES = 4 };
    static const char *const ends[] = {"", "; exit 1"};
    char command[128];
    int status;

    (void)state;
    write_text("a.txt", "abc");
    use_cache();
    for (int fails = 0; fails < 2; fails++) {
        write_text("log", "");
        snprintf(command, sizeof(command),
                 "echo >> runs; until [ $(grep -c wai[t]ing log) = %d ]; do sleep 0.01; done; echo "
                 "abc%s",
                 PROCESSES - 1, ends[fails]);
        COMMAND(command, "format=text");
        for (int i = 0; i < PROCESSES; i++)
            if (fork() == 0) {
                struct ct_data *data;
                int rc;

                ct_log_to(note, NULL, CT_LOG_INFO);
                rc = open_text(1, 1, false, &data);
                _exit(rc == (fails ? CT_ECONFIG : 0) ? 0 : rc == CT_EPEER ? 2 : 1);
            }
        for (int i = 0, peers = 0; i < PROCESSES; i++) {
            assert_true(wait(&status) > 0);
            peers += WEXITSTATUS(status) == 2;
            assert_true(WIFEXITED(status) && WEXITSTATUS(status) != 1);
            if (i == PROCESSES - 1)
                assert_int_equal(peers, fails ? PROCESSES - 1 : 0);
        }
        assert_int_equal(runs(), fails + 1);
    }
}

/* A pipe is named by the recipe and by a key; one in a folder is not waited for. */
static void test_pipes(void **state)
{
    struct ct_data *data;
    char path[4096], line[8192];
    int former = dup(STDIN_FILENO), in[2];

    (void)state;
    write_text("a.txt", "abc");
    use_cache();
    snprintf(path, sizeof(path), "%s/in", folder);
    assert_int_equal(mkdir(path, 0777), 0);
    write_text("in/a.txt", "abc");
    snprintf(path, sizeof(path), "%s/in/pipe", folder);
    assert_int_equal(mkfifo(path, 0666), 0);
    USE("in/pipe", "format=auto");
    open_says("in/pipe has no name that tells its format");
    USE("in/pipe", "format=text");
    open_says("in/pipe is a pipe, which is read only once: set [text] command_key");
    USE("in", "format=text", "command_key=x");
    open_says("in/pipe is not a regular file, but a pipe in a folder");
    USE("in/pipe", "format=text", "command_key=x", "shuffle=false", "repeat=false");
    snprintf(line, sizeof(line), "(printf one; sleep 0.1; printf two) > '%s' &", path);
    assert_int_equal(system(line), 0);
    DOCUMENTS("onetwo");
    DOCUMENTS("onetwo"); /* without a writer */
    TEST_OPTIONS(test_plugin("text"), "path=/dev/null", cache, "format=text", "command_key=x");
    assert_int_equal(open_text(1, 1, false, &data), CT_ECONFIG);
    assert_message("/dev/null is not a regular file, but a device");
    assert_int_equal(pipe(in), 0);
    assert_int_equal(write(in[1], "piped", 5), 5);
    assert_int_equal(close(in[1]), 0);
    assert_int_equal(dup2(in[0], STDIN_FILENO), STDIN_FILENO);
    TEST_OPTIONS(test_plugin("text"), "path=-", cache, "format=text", "command_key=x",
                 "shuffle=false", "repeat=false");
    DOCUMENTS("piped");
    assert_int_equal(dup2(former, STDIN_FILENO), STDIN_FILENO);
    close(former);
    close(in[0]);
}

static void open_fails(int rc, const char *what)
{
    struct ct_data *data;

    assert_int_equal(open_text(2, 1, false, &data), rc);
    assert_message(what);
    assert_message("set [text] cache to a folder");
}

/* A file where the folder should be, and a limit of file size in place of a full disk. */
static void test_cache_failures(void **state)
{
    struct rlimit limit, small;

    (void)state;
    write_numbered(200);
    write_text("a.txt", "abc");
    write_text(".cache", "a file");
    use_cache();
    open_fails(CT_ECONFIG, ".cache");
    assert_int_equal(remove(cache + strlen("cache=")), 0);
    USE("", "shuffle=false");
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &limit), 0);
    small = (struct rlimit){1000, limit.rlim_max};
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    open_fails(CT_EIO, "File too large");
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
    assert_int_equal(list_cache(NULL), 0);
}

/* The held-out part and the trained one share a file; a mixture has one for each item. */
static void test_cache_parts(void **state)
{
    struct ct_data *data;

    (void)state;
    write_numbered(20);
    use_cache();
    USE("0*.txt", "validation_fraction=0.2");
    assert_int_equal(open_text(2, 1, false, &data), 0);
    text()->close(data);
    assert_int_equal(open_text(2, 1, true, &data), 0);
    text()->close(data);
    assert_int_equal(list_cache(NULL), 1);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {TEST(test_bytes_round_trip),
                                       TEST(test_packing),
                                       TEST(test_pure),
                                       TEST(test_epochs),
                                       TEST(test_shuffle),
                                       TEST(test_held_out),
                                       TEST(test_validation_path),
                                       TEST(test_document_mask),
                                       TEST(test_rows),
                                       TEST(test_long_documents),
                                       TEST(test_rows_of_epochs),
                                       TEST(test_costs),
                                       TEST(test_splits),
                                       TEST(test_paths),
                                       TEST(test_bad_paths),
                                       TEST(test_json_lines),
                                       TEST(test_deep_json),
                                       TEST(test_long_line),
                                       TEST(test_pipes),
                                       TEST(test_command),
                                       TEST(test_command_fails),
                                       TEST(test_command_options),
                                       TEST(test_options_without_effect),
                                       TEST(test_prompts_as_texts),
                                       TEST(test_tools),
                                       TEST(test_command_shared),
                                       TEST(test_gzip),
                                       TEST(test_zstd),
                                       TEST(test_binary),
                                       TEST(test_identity),
                                       TEST(test_mixture),
                                       TEST(test_mixture_ends),
                                       TEST(test_stages),
                                       TEST(test_cache),
                                       TEST(test_cache_damaged),
                                       TEST(test_cache_left),
                                       TEST(test_cache_shared),
                                       TEST(test_cache_failures),
                                       TEST(test_cache_parts)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
